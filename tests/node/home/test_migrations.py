"""Schema versions: one transaction each, forwards, back, and not from the future."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.node.library.node import open_node
from holdfast.node.recovery.doctor import diagnose
from holdfast.node.recovery.repair import rollback_migration
from holdfast.node.upkeep.sweep import Ttl, sweep
from holdfast.rules import limits
from holdfast.rules.errors import BadInput, MigrationFailed, NewerSchema, NoHome, StoreBusy
from holdfast.rules.filters import Filter
from holdfast.rules.rows import NOT_BY_ENTITY, ConsumerRow
from holdfast.storage.files.blobs import BlobFile
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.connection import connect
from holdfast.storage.sqlite.integrity import integrity
from holdfast.storage.sqlite.log import LogReads
from holdfast.storage.sqlite.migrations import LATEST, Migration
from holdfast.storage.sqlite.store import SqliteReader, SqliteStore
from support.keeping import MODEL, fill, make_home, team

NEXT = LATEST + 1
NUMBERS = [step.number for step in migrations.load()]
"""They grow, and may have gaps."""
OLD_OPS = ("state.set", "fact.append", "state.delete")
GOOD = Migration(NEXT, "good", "CREATE TABLE extra (a INTEGER);", "DROP TABLE extra;")
BAD = Migration(
    NEXT,
    "bad",
    "CREATE TABLE extra (a INTEGER); INSERT INTO nowhere VALUES (1);",
    "",
)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[apsw.Connection]:
    with closing(connect(tmp_path / "data.db")) as made:
        yield made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with make_home(tmp_path / "home") as node:
        fill(team(node))
    return tmp_path / "home"


def up_to(version: int) -> list[Migration]:
    return [step for step in migrations.load() if step.number <= version]


def schema(connection: apsw.Connection) -> set[Any]:
    return set(connection.execute("SELECT type, name, sql FROM sqlite_schema").fetchall())


def test_S11_the_newest_script_is_the_version_that_this_code_writes() -> None:
    steps = migrations.load()
    assert sorted(set(NUMBERS)) == NUMBERS
    assert (NUMBERS[0], NUMBERS[-1]) == (1, LATEST)
    assert all(step.down.strip() for step in steps)


def test_S11_a_new_database_has_every_step_once(connection: apsw.Connection) -> None:
    assert migrations.migrate(connection) == NUMBERS
    assert migrations.migrate(connection) == []
    assert migrations.version(connection) == LATEST


@pytest.mark.parametrize("version", [0, *NUMBERS[:-1]])
def test_S11_every_older_version_is_brought_to_the_newest(
    connection: apsw.Connection, tmp_path: Path, version: int
) -> None:
    migrations.migrate(connection, up_to(version))
    assert migrations.version(connection) == version
    assert migrations.migrate(connection) == [one for one in NUMBERS if one > version]
    with closing(connect(tmp_path / "new.db")) as new:
        migrations.migrate(new)
        assert schema(connection) == schema(new)


@pytest.mark.parametrize("version", [0, *NUMBERS[:-1]])
def test_S11_every_step_can_be_undone_and_done_again(
    connection: apsw.Connection, version: int
) -> None:
    migrations.migrate(connection, up_to(version))
    before = schema(connection)
    migrations.migrate(connection)
    newest = schema(connection)
    assert migrations.rollback(connection, version) == [
        one for one in reversed(NUMBERS) if one > version
    ]
    assert schema(connection) == before
    migrations.migrate(connection)
    assert schema(connection) == newest


def test_S11_a_failed_step_leaves_the_last_good_version_and_nothing_of_itself(
    connection: apsw.Connection,
) -> None:
    migrations.migrate(connection)
    before = schema(connection)
    with pytest.raises(MigrationFailed, match=f"migration {NEXT}") as caught:
        migrations.migrate(connection, [*migrations.load(), BAD])
    assert caught.value.hint
    assert migrations.version(connection) == LATEST
    assert schema(connection) == before
    assert migrations.migrate(connection, [*migrations.load(), GOOD]) == [NEXT]


def test_S11_the_step_that_failed_is_tried_again_at_the_next_start(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = migrations.load()
    monkeypatch.setattr(migrations, "LATEST", NEXT)
    monkeypatch.setattr(migrations, "load", lambda: [*steps, BAD])
    for _ in range(2):
        with pytest.raises(MigrationFailed):
            open_node(home)
    report = {check.name: check for check in diagnose(home).checks}
    assert report["schema"].status == "warn"
    assert f"version {LATEST} of {NEXT}" in report["schema"].message
    monkeypatch.setattr(migrations, "load", lambda: [*steps, GOOD])
    with open_node(home) as node:
        assert node._opened.store.migrated == [NEXT]
        assert team(node).state.get("key-1")["n"] == 1


def test_S11_steps_before_the_one_that_fails_stay(connection: apsw.Connection) -> None:
    migrations.migrate(connection, migrations.load()[:2])
    second = Migration(NEXT + 1, "bad", "INSERT INTO nowhere VALUES (1);", "")
    with pytest.raises(MigrationFailed):
        migrations.migrate(connection, [*migrations.load(), GOOD, second])
    assert migrations.version(connection) == NEXT


def test_S11_a_new_database_is_there_as_a_whole_or_not_at_all(
    connection: apsw.Connection,
) -> None:
    commits: list[str] = []

    def committing() -> bool:
        commits.append("one")
        return False

    connection.set_commit_hook(committing)
    with pytest.raises(MigrationFailed, match="creating the tables"):
        migrations.migrate(connection, [*migrations.load(), BAD])
    assert (commits, migrations.version(connection), schema(connection)) == ([], 0, set())
    assert migrations.migrate(connection)[-1] == LATEST
    assert len(commits) == 1


def test_S11_two_who_start_at_once_apply_a_step_once(
    connection: apsw.Connection, tmp_path: Path
) -> None:
    migrations.migrate(connection)
    # The other process is through with it between our look and our lock.
    with closing(connect(tmp_path / "data.db")) as other:

        class Meanwhile(Migration):
            @property
            def up(self) -> str:
                if migrations.version(other) == LATEST:
                    migrations.migrate(other, [GOOD])
                return GOOD.up

            @up.setter
            def up(self, script: str) -> None: ...

        assert migrations.migrate(connection, [Meanwhile(NEXT, "good", "", "")]) == []
    assert migrations.version(connection) == NEXT


def test_S11_a_newer_database_is_refused_and_not_touched(home: Path) -> None:
    with closing(connect(home / "data.db")) as raw:
        raw.pragma("user_version", LATEST + 1)
    before = {path.name: path.read_bytes() for path in home.glob("data.db*")}
    with pytest.raises(NewerSchema, match=str(LATEST + 1)) as caught:
        open_node(home)
    assert caught.value.hint
    assert {path.name: path.read_bytes() for path in home.glob("data.db*")} == before
    checks = {check.name: check for check in diagnose(home).checks}
    assert checks["schema"].status == "fail"
    assert {path.name: path.read_bytes() for path in home.glob("data.db*")} == before


def test_S11_a_home_from_before_zones_keeps_its_log_and_its_readers(tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    with closing(connect(path)) as old:
        migrations.migrate(old, migrations.load()[:5])
        old.executemany(
            "INSERT INTO log (id, mesh, op, entity, origin, lamport, recorded_at, raw) "
            "VALUES (?, 'team', ?, 'k', 'ana', ?, 5, ?)",
            ((n.to_bytes(16, "big"), op, n, b"raw") for n, op in enumerate(OLD_OPS, start=1)),
        )
        old.execute("INSERT INTO consumer VALUES ('reader', '1', 2, 3, 4)")
    store = SqliteStore(path)
    assert store.migrated == [one for one in NUMBERS if one > 5]
    with store.read() as reader:
        page = reader.log_page(1, 9, 9, 99, Filter(beyond="zoe"))
        assert (page.offsets, page.upto) == ([1, 2, 3], 3), "all of it was written here"
        assert [entry.offset for entry in reader.log_of("team", "k", 9)] == [1, 3]
        assert reader.consumer_list() == [
            ConsumerRow(name="reader", frontier="1", created_at=2, seen_at=3, retire_ms=4)
        ]
    store.stop()
    assert integrity(path) == []


@pytest.mark.parametrize("op", NOT_BY_ENTITY)
def test_Z1_the_index_by_entity_leaves_facts_out_and_is_used(
    connection: apsw.Connection, op: str
) -> None:
    """Else every fact that arrives costs a page in random order, or every look the whole log; and
    so does every change of an entity that a quorum commits.
    """
    asked: list[str] = []
    migrations.migrate(connection)

    def note(_: object, statement: str, __: object) -> bool:
        asked.append(statement)
        return True

    connection.exec_trace = note
    LogReads.log_of(SqliteReader(connection), "team", "k", 9)
    connection.exec_trace = None
    plan: list[Any] = connection.execute(
        f"EXPLAIN QUERY PLAN {asked[-1]}", ("a", "b", 0, 1, 5)
    ).fetchall()
    assert any("USING INDEX log_entity" in row[3] for row in plan)
    connection.executemany(
        "INSERT INTO log (id, mesh, op, entity, origin, lamport, recorded_at, raw) "
        "VALUES (?, 'team', ?, 'k', 'ana', 1, 5, x'')",
        ((n.to_bytes(16, "big"), op) for n in range(2000)),
    )
    pages = connection.execute("SELECT count(*) FROM dbstat WHERE name = 'log_entity'").get
    assert pages == 1


# --- going back ----------------------------------------------------------------------------------


def test_S11_going_back_keeps_a_copy_that_is_the_database_as_it_was(home: Path) -> None:
    report = rollback_migration(home, LATEST)
    assert report.undone == (LATEST,)
    assert report.schema == LATEST - 1
    assert ".before-rollback-" in report.kept.name
    with closing(connect(home / "data.db", read_only=True)) as raw:
        assert migrations.version(raw) == LATEST - 1
    store = SqliteStore(report.kept)
    with store.read() as reader:
        assert reader.state_get("team", "key-1") is not None
    store.stop()
    # The next start goes forwards again.
    with open_node(home) as node:
        assert node._opened.store.migrated == [LATEST]
        assert team(node).state.get("key-1")["n"] == 1


def test_S11_going_back_behind_the_vectors_takes_their_index_along(home: Path) -> None:
    report = rollback_migration(home, 3)
    assert report.undone == tuple(one for one in reversed(NUMBERS) if one > 2)
    with closing(connect(home / "data.db", read_only=True)) as raw:
        names = {row[0] for row in raw.execute("SELECT name FROM sqlite_schema")}
    assert not any(name.startswith("vector") for name in names)
    with open_node(home) as node:
        mesh = team(node)
        assert mesh.vectors.search([0, 1, 2], model=MODEL) == []
        mesh.vectors.store("new", [0, 1, 2], model=MODEL)
        assert [hit.key for hit in mesh.vectors.search([0, 1, 2], model=MODEL)] == ["new"]


@pytest.mark.parametrize("version", [0, -1, LATEST + 1])
def test_S11_there_is_no_way_back_to_where_nothing_is(home: Path, version: int) -> None:
    with pytest.raises(BadInput):
        rollback_migration(home, version)
    with open_node(home) as node:
        assert team(node).state.get("key-1")["n"] == 1


def test_S11_nobody_goes_back_under_a_process_that_has_the_home_open(home: Path) -> None:
    with open_node(home), pytest.raises(StoreBusy):
        rollback_migration(home, LATEST)
    assert not list(home.glob("*.before-rollback-*"))


def test_S11_without_a_home_there_is_nothing_to_go_back_in(tmp_path: Path) -> None:
    with pytest.raises(NoHome):
        rollback_migration(tmp_path, LATEST)


def test_S11_a_sweep_after_a_rollback_keeps_the_blobs_that_the_kept_copy_names(home: Path) -> None:
    with open_node(home) as node:
        node.mesh("team").files.share("large", b"x" * 100_000)
        sha = node._engine.blobs.put(b"nobody names this" * 5000).sha256
    report = rollback_migration(home, 2)
    at_once = Ttl(orphan_ms=-limits.DAY_MS)
    with open_node(home, peer="ana") as node:
        assert [found for found in node._engine.blobs.scan() if isinstance(found, BlobFile)]
        assert sweep(node._engine, at_once).orphans == 1
        left = [found.sha for found in node._engine.blobs.scan() if isinstance(found, BlobFile)]
        assert left
        assert sha not in left
        report.kept.unlink()
        assert sweep(node._engine, at_once).orphans == len(left)
