"""Doctor: what it finds, what it says to do, and what a repair saves."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.node.library.node import open_node
from holdfast.node.recovery import repair as mending
from holdfast.node.recovery.backup import backup
from holdfast.node.recovery.checks import Check
from holdfast.node.recovery.doctor import diagnose
from holdfast.node.recovery.repair import repair_home
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules import limits
from holdfast.rules.bodies import Fact
from holdfast.rules.errors import NoHome, StoreBusy, StoreCorrupt
from holdfast.rules.filters import Filter
from holdfast.rules.frontier import Frontier
from holdfast.rules.quorum.log_rows import CONFIG_KIND
from holdfast.rules.quorum.raft.config import encode_config, first_config
from holdfast.rules.rows import BlobRow, ConsumerRow
from holdfast.storage.files.home import HomePaths
from holdfast.storage.ports import Transaction
from holdfast.storage.sqlite import versions
from holdfast.storage.sqlite.connection import connect
from holdfast.storage.sqlite.integrity import integrity
from holdfast.storage.sqlite.snapshot_copy import open_immutable
from support.envelopes import file_share, make_id, raw, state_set
from support.keeping import (
    LARGE,
    MESH,
    MODEL,
    PAGE,
    crash_at_each_step,
    fill,
    garbage,
    make_home,
    overwrite,
    team,
)
from support.quorum_logs import TAG, entry, filled, opened, write
from support.snapshot import differences, snapshot
from support.source import HandClock
from support.stores import link_row, quarantine_row, token_row, zone_key, zone_row

ROWS = 40
TABLES = (
    *("meta", "mesh", "log", "forgotten", "consumer", "job", "state", "memory", "file", "blob"),
    *("peer", "vector", "vector_model", "vector_mesh", "task", "task_event", "conflict"),
    *("warning", "state_dead", "memory_key", "log_entity"),
    *("zone", "zone_key", "token", "link", "quarantine", "fact_object"),
    *("spool", "inbox", "heard", "mate"),
)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of several hundred pages. Tests work on copies of it."""
    home = tmp_path_factory.mktemp("grown") / "home"
    with make_home(home) as node:
        fill(team(node), ROWS)
        node.log.add_consumer("reader")
    return home


@pytest.fixture
def home(grown: Path, tmp_path: Path) -> Path:
    shutil.copytree(grown, tmp_path / "home")
    return tmp_path / "home"


def contents(home: Path) -> dict[str, Any]:
    with open_node(home) as node:
        return snapshot(node._engine.store, dead=False)


def root_page(home: Path, name: str) -> int:
    with open_immutable(home / "data.db") as reader:
        found = reader.connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)
        ).get
    assert isinstance(found, int)
    return found


def change(home: Path, *statements: str) -> None:
    """What no node would do to its database."""
    with closing(connect(home / "data.db")) as raw:
        raw.pragma("foreign_keys", 0)
        for statement in statements:
            raw.execute(statement)


def found(home: Path, name: str, *, full: bool = False) -> list[Check]:
    return [check for check in diagnose(home, full=full).checks if check.name == name]


def worst_of(home: Path, name: str, *, full: bool = False) -> Check:
    checks = found(home, name, full=full)
    assert checks, name
    return max(checks, key=lambda check: ("ok", "warn", "fail").index(check.status))


# --- a home in order -----------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
def test_S12_a_home_in_order_has_only_its_missing_backup_told(home: Path, full: bool) -> None:
    report = diagnose(home, full=full)
    assert [check.name for check in report.checks if check.status != "ok"] == ["backup"]
    assert report.worst == "warn"
    assert all(check.message for check in report.checks)
    assert all(check.fix for check in report.checks if check.status != "ok")
    assert report.metrics["launches"] == 1
    assert report.metrics["verbs"]["state.set"]["count"] == ROWS + 1


def test_S12_a_look_changes_nothing(home: Path) -> None:
    def files() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in home.rglob("*") if path.is_file()}

    before = files()
    diagnose(home, full=True)
    assert files() == before


def test_S12_a_look_works_beside_an_open_node(home: Path) -> None:
    with open_node(home) as node:
        team(node).state.set("now", 1)
        assert diagnose(home, full=True).worst == "warn"
        team(node).state.set("now", 2)


def test_S13_the_age_of_the_last_backup_is_told(home: Path, tmp_path: Path) -> None:
    assert worst_of(home, "backup").status == "warn"
    with open_node(home) as node:
        backup(node, tmp_path / "backup")
    check = worst_of(home, "backup")
    assert (check.status, str(tmp_path / "backup") in check.message) == ("ok", True)
    change(home, f"UPDATE job SET updated_at = updated_at - {limits.BACKUP_AGE_WARN_MS + 1}")
    assert worst_of(home, "backup").status == "warn"


# --- the folder ----------------------------------------------------------------------------------


def test_S12_where_there_is_no_home_that_is_said(tmp_path: Path) -> None:
    assert worst_of(tmp_path / "nowhere", "home").status == "fail"
    assert worst_of(tmp_path, "database").status == "fail"


def test_S1_drifted_modes_are_mended_and_told(home: Path) -> None:
    (home / "data.db").chmod(0o644)
    check = worst_of(home, "home")
    assert check.status == "warn"
    assert "0644" in check.message
    assert stat.S_IMODE((home / "data.db").stat().st_mode) == 0o600
    assert worst_of(home, "home").status == "ok"
    blob = next(path for path in (home / "blobs").rglob("*") if path.is_file())
    blob.chmod(0o644)
    assert worst_of(home, "home").status == "ok", "not each blob is looked at every time"
    assert worst_of(home, "home", full=True).status == "warn"


def test_Q4_a_node_that_learnt_to_vote_is_counted_as_the_voter_that_it_is(home: Path) -> None:
    """Its place stands in the config of its log; what it was when it came is noted beside it."""
    log = opened(home)
    first = first_config((("ana", b"a" * 32),))
    learning = first.with_learner("bo", b"b" * 32)
    me = learning.members[-1].id

    def said() -> list[str]:
        return [c.message for c in diagnose(home).checks if c.name == "quorum"]

    log.join("team", incarnation=1, tag=TAG, voter=me)
    assert said() == ["this node has a part in 1 groups, and votes in 0"]
    for number, place in enumerate(("learner", "voter"), 1):
        config = learning.with_place(me, "voter") if place == "voter" else learning
        row = entry(number, 1, encode_config(config), CONFIG_KIND)
        log.save(write(number, row, voter=me, term=1))
        votes = int(place == "voter")
        assert said() == [f"this node has a part in 1 groups, and votes in {votes}"]
    log.close()


def test_Q4_a_voter_that_must_rejoin_is_told_and_looking_changes_nothing(home: Path) -> None:
    assert not [check for check in diagnose(home).checks if check.name == "quorum"]
    log = opened(home)
    filled(log, 1)
    filled(log, 1, scope="other")
    log.set_standing("team", 1, "must_rejoin", "for a test")
    wal = HomePaths(home).quorum_wal.read_bytes()
    found = [(c.status, c.message) for c in diagnose(home).checks if c.name == "quorum"]
    assert HomePaths(home).quorum_wal.read_bytes() == wal
    assert found == [
        ("warn", "voter 1 of team takes no part: for a test"),
        ("ok", "this node has a part in 2 groups, and votes in 1"),
    ]
    log.close()
    HomePaths(home).quorum.write_bytes(b"rubbish")
    assert [c.status for c in diagnose(home).checks if c.name == "quorum"] == ["fail"]


def test_S1_the_files_of_the_raft_logs_are_for_our_eyes_only(home: Path) -> None:
    log = opened(home)
    filled(log, 1)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.glob("quorum*")}
    assert set(modes.values()) == {0o600}
    assert set(modes) >= {"quorum.db", "quorum.db-wal", "quorum.mark", "quorum.lock"}
    os.chmod(HomePaths(home).quorum, 0o644)
    assert any("quorum.db" in check.message for check in diagnose(home).checks)
    assert stat.S_IMODE(HomePaths(home).quorum.stat().st_mode) == 0o600
    log.close()


def test_S1_a_link_where_a_file_belongs_is_told(home: Path) -> None:
    (home / "identity.key").rename(home.parent / "key")
    (home / "identity.key").symlink_to(home.parent / "key")
    assert worst_of(home, "home").status == "fail"


def test_S1_a_key_that_is_missing_or_none_is_told(home: Path) -> None:
    (home / "identity.key").write_bytes(b"short")
    assert worst_of(home, "identity").status == "fail"
    (home / "identity.key").unlink()
    assert worst_of(home, "identity").status == "fail"


def test_S12_a_disk_that_is_nearly_full_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DISK_FREE_WARN_BYTES", 1 << 62)
    assert worst_of(home, "disk").status == "warn"
    monkeypatch.setattr(limits, "DISK_FREE_MIN_BYTES", 1 << 62)
    assert worst_of(home, "disk").status == "fail"


def test_S8_an_extension_that_does_not_load_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "holdfast.storage.sqlite.vector_index._extension_path", lambda: "/nowhere/vec0"
    )
    assert worst_of(home, "vectors").status == "fail"


def test_S2_a_sqlite_that_is_not_safe_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "SQLITE_VERSION_MIN", 4_000_000)
    assert worst_of(home, "sqlite").status == "fail"


def test_S1_who_has_the_home_open_and_who_ended_badly_is_told(home: Path) -> None:
    script = (
        "import sys; from holdfast.node.library.node import open_node; "
        "node = open_node(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert str(process.pid) in worst_of(home, "processes").message
    process.kill()
    process.communicate()
    check = worst_of(home, "unclean")
    assert (check.status, str(process.pid) in check.message) == ("warn", True)


def test_S12_what_work_that_was_cut_short_has_left_is_told(home: Path) -> None:
    (home / ".tmp-0123").touch()
    assert worst_of(home, "kept").status == "warn"


def test_S2_a_wal_that_grew_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAL_BYTES_MAX", 10)
    with open_node(home) as node:
        team(node).state.set("a", 1)
        assert worst_of(home, "wal").status == "warn"


# --- the log and its tables ----------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE state SET value = '0' WHERE key = 'key-1'",
        "UPDATE state SET tombstone = 1 WHERE key = 'key-1'",
        "UPDATE state SET lamport = lamport + 1, id = zeroblob(16) WHERE key = 'key-1'",
        "UPDATE memory SET tags = '[]' WHERE key = 'thing-1'",
        "UPDATE file SET size = 0 WHERE path = 'small-1.txt'",
        "UPDATE vector SET content = 'other' WHERE key = 'vector-1'",
        "UPDATE task SET status = 'open', ended_id = NULL, ended_lamport = NULL "
        "WHERE title = 'task 1'",
    ],
)
def test_S12_a_row_that_is_not_what_the_log_says_is_found(
    home: Path, statement: str, full: bool
) -> None:
    change(home, statement)
    assert worst_of(home, "log", full=full).status == "fail"


@pytest.mark.parametrize("table", ["state", "memory", "file", "task"])
def test_S12_a_row_that_is_missing_is_found_by_a_full_look(home: Path, table: str) -> None:
    change(home, f"DELETE FROM {table} WHERE rowid = 3")
    assert worst_of(home, "log", full=True).status == "fail"


def test_S12_the_newest_entries_are_always_looked_at(home: Path) -> None:
    with open_node(home) as node:
        team(node).state.set("zzz", 1)
    change(home, "DELETE FROM state WHERE key = 'zzz'")
    assert worst_of(home, "log").status == "fail"


def test_S12_the_fold_is_done_in_parts_with_the_same_result(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = worst_of(home, "log", full=True)
    monkeypatch.setattr(limits, "DOCTOR_REPLAY_ROWS", 20)
    assert worst_of(home, "log", full=True) == whole
    change(home, "UPDATE state SET value = '0' WHERE key = 'key-1'")
    assert "(1 differences" in worst_of(home, "log", full=True).message


def aged_home(folder: Path) -> Path:
    """A home that has forgotten a deletion and the beginning of its log."""
    clock = HandClock()
    with open_node(folder, peer="ana", create=True, source=clock) as node:
        mesh = node.create_mesh("team")
        fill(mesh)
        clock.advance(limits.LOG_TTL_MS + 1)
        for number in range(20):
            mesh.state.set(f"late-{number}", number)
        assert node.sweep(Ttl(log_ms=limits.LOG_TTL_MS * 9)).tombstones > 0
        assert node.sweep().log_entries > 10
    return folder


def test_S17_a_truncated_log_is_compared_as_far_as_it_goes_back(tmp_path: Path) -> None:
    home = aged_home(tmp_path / "home")
    check = worst_of(home, "log", full=True)
    assert check.status == "ok"
    assert "whole from" in check.message
    change(home, "UPDATE state SET value = '0' WHERE key = 'late-1'")
    assert worst_of(home, "log", full=True).status == "fail"


def test_S17_a_reader_that_lags_or_is_ahead_of_the_log_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert worst_of(home, "consumers").status == "ok"
    monkeypatch.setattr(limits, "CONSUMER_LAG_WARN", 5)
    check = worst_of(home, "consumers")
    assert (check.status, "reader" in check.message) == ("warn", True)
    with open_node(home) as node:
        ahead = ConsumerRow(
            name="reader", frontier=Frontier(10_000).encode(), created_at=0, seen_at=0
        )
        node._engine.write("test", lambda tx: tx.consumer_put(ahead))
    assert worst_of(home, "consumers").status == "fail"


def test_S18_open_conflicts_are_told(home: Path) -> None:
    with open_node(home) as node:
        node.apply([state_set("key-1", "bob's", lamport=10_000)])
    check = worst_of(home, "conflicts")
    assert (check.status, "1 conflicts" in check.message) == ("warn", True)


# --- blobs ---------------------------------------------------------------------------------------


def blob_of(home: Path) -> Path:
    return next(path for path in (home / "blobs").rglob("*") if path.is_file())


def test_S9_content_of_ours_that_is_missing_is_told(home: Path) -> None:
    blob_of(home).unlink()
    check = worst_of(home, "blobs")
    assert (check.status, "large.bin" in check.message) == ("fail", True)


def test_S9_content_of_a_peer_that_has_not_arrived_is_no_failure(home: Path) -> None:
    with open_node(home) as node:
        node.apply([file_share("theirs.bin", LARGE + b"theirs", origin="bob", lamport=5)])
    check = worst_of(home, "blobs")
    assert (check.status, "theirs.bin" in check.message) == ("warn", True)


def test_S9_damaged_content_is_found_when_all_of_it_is_read(home: Path) -> None:
    blob = blob_of(home)
    blob.write_bytes(b"\xff" + blob.read_bytes()[1:])
    assert worst_of(home, "blobs").status == "ok"
    assert worst_of(home, "blobs", full=True).status == "fail"
    blob.write_bytes(b"short")
    assert worst_of(home, "blobs").status == "fail"


def test_S9_files_that_no_row_names_are_told_once_they_are_old(home: Path) -> None:
    folder = home / "blobs" / "00"
    folder.mkdir(mode=0o700)
    orphan, draft = folder / f"00{'0' * 62}", home / "blobs" / ".tmp-0"
    for file in (orphan, draft, home / "blobs" / "notes.txt"):
        file.touch(mode=0o600)
    assert found(home, "orphans") == []
    assert worst_of(home, "strange").status == "warn"
    for file in (orphan, draft):
        os.utime(file, (0, 0))
    assert "1 blobs" in worst_of(home, "orphans").message
    assert "1 that a crash" in worst_of(home, "orphans").message


# --- damage and repair ---------------------------------------------------------------------------


def test_S12_damage_is_found_and_repair_is_what_to_do(home: Path) -> None:
    overwrite(home / "data.db", root_page(home, "memory"), garbage(1))
    check = worst_of(home, "database")
    assert (check.status, "--repair" in check.fix) == ("fail", True)
    # What does not need the damaged page is looked at all the same.
    assert worst_of(home, "consumers").status == "ok"
    assert worst_of(home, "blobs").status == "ok"


def test_S12_a_file_that_is_no_database_any_more_is_told(home: Path) -> None:
    (home / "data.db").write_bytes(b"not a database, for sure" * 1000)
    assert worst_of(home, "database").status == "fail"


@pytest.mark.parametrize("table", TABLES)
def test_S12_a_home_outlives_the_loss_of_any_tables_first_page(home: Path, table: str) -> None:
    before = contents(home)
    overwrite(home / "data.db", root_page(home, table), garbage(7))
    report = repair_home(home)
    assert integrity(home / "data.db", ours=True) == []
    assert report.peer == "ana"
    assert differences(before, contents(home)) == []
    # The first page of a large table only leads to its rows: the log is found without it.
    assert report.tables["log"].damaged == (table == "log")
    assert report.whole_log
    assert [check for check in diagnose(home, full=True).checks if check.status == "fail"] == []


@pytest.mark.parametrize("seed", range(12))
def test_S12_a_repair_saves_all_that_is_not_in_damaged_pages(home: Path, seed: int) -> None:
    rng = random.Random(seed)
    database = home / "data.db"
    before = contents(home)
    pages = database.stat().st_size // PAGE
    for page in rng.sample(range(1, pages + 1), rng.choice([1, 2, 5])):
        overwrite(database, page, garbage(seed) if seed % 3 else bytes(PAGE))
    harmed = database.read_bytes()
    report = repair_home(home)
    assert integrity(database, ours=True) == []
    assert report.kept[0].read_bytes() == harmed
    assert report.kept[0].name.startswith("data.db.corrupt-")
    assert report.epoch == 2
    after = contents(home)
    if report.whole_log:
        assert differences(before, after) == []
    assert [check for check in diagnose(home, full=True).checks if check.status == "fail"] == []
    # Nothing is invented, and little is lost: a page holds few rows.
    for family in ("state", "memory", "file"):
        saved, had = after["team"][family], before["team"][family]
        assert all(row in had for row in saved)
        assert len(saved) > len(had) - 25
    with open_node(home) as node:
        receipt = team(node).state.set("after", 1)
        assert receipt.lamport > limits.RESTORE_LAMPORT_SKIP
        assert node.log.head().epoch == 2


def test_S12_a_database_that_was_cut_gives_what_is_left_of_it(home: Path) -> None:
    database = home / "data.db"
    os.truncate(database, database.stat().st_size * 5 // 6 // PAGE * PAGE)
    report = repair_home(home)
    assert integrity(database, ours=True) == []
    assert report.tables["log"].rows > 20
    assert report.tables["log"].lost > 20
    with open_node(home) as node:
        assert team(node).state.get("key-1")["n"] == 1


def leave_wal(home: Path, tmp_path: Path) -> HomePaths:
    """What a killed process leaves: late changes are in the WAL only."""
    paths = HomePaths(home)
    with open_node(home) as node:
        for number in range(30):
            team(node).state.set(f"late-{number}", number)
        shutil.copy(paths.wal, tmp_path / "wal")
        shutil.copy(paths.database, tmp_path / "data.db")
    shutil.copy(tmp_path / "wal", paths.wal)
    shutil.copy(tmp_path / "data.db", paths.database)
    return paths


def test_S12_a_database_that_was_cut_under_its_wal_gives_what_is_left_of_it(
    home: Path, tmp_path: Path
) -> None:
    paths = leave_wal(home, tmp_path)
    os.truncate(paths.database, paths.database.stat().st_size * 3 // 4 // PAGE * PAGE)
    repair_home(home)
    assert integrity(paths.database, ours=True) == []
    with open_node(home) as node:
        assert team(node).state.get("late-29") == 29


def test_S12_what_is_only_in_the_wal_is_saved_too(home: Path, tmp_path: Path) -> None:
    paths = leave_wal(home, tmp_path)
    overwrite(paths.database, root_page(paths.root, "memory"), garbage(3))
    report = repair_home(paths.root)
    assert sorted(path.suffix.partition("Z")[2] for path in report.kept) == ["", "-shm", "-wal"]
    with open_node(paths.root) as node:
        assert team(node).state.get("late-29") == 29
        assert len(list(team(node).memory.list())) == ROWS


def test_S12_where_nothing_can_be_read_nothing_is_done(home: Path) -> None:
    (home / "data.db").write_bytes(bytes(PAGE * 50))
    names = sorted(os.listdir(home))
    with pytest.raises(StoreCorrupt) as caught:
        repair_home(home)
    assert "restore" in caught.value.hint
    assert (home / "data.db").read_bytes() == bytes(PAGE * 50)
    assert sorted(os.listdir(home)) == names


def test_S12_nobody_repairs_under_a_process_that_has_the_home_open(home: Path) -> None:
    with open_node(home), pytest.raises(StoreBusy):
        repair_home(home)
    with pytest.raises(NoHome):
        repair_home(home / "nowhere")


def test_S12_a_healthy_home_comes_out_of_a_repair_as_it_went_in(home: Path) -> None:
    with open_node(home) as node:
        node.apply([state_set("key-1", "bob's", lamport=10_000)])
        node.dismiss_conflict(next(iter(node.conflicts())).number)
        node.apply([state_set("key-2", "bob's", lamport=10_001)])
        kept = list(node.conflicts(open_only=False))
    before = contents(home)
    report = repair_home(home)
    assert report.whole_log
    assert differences(before, contents(home)) == []
    with open_node(home) as node:
        assert list(node.conflicts(open_only=False)) == kept, "not found a second time"
        assert len(team(node).vectors.search([0, 1, 2], model=MODEL, limit=100)) == ROWS
        assert [reader.name for reader in node.log.consumers()] == ["reader"]


@pytest.mark.faults
def test_S12_a_crash_while_repairing_leaves_the_damaged_home_or_the_repaired_one(
    tmp_path: Path,
) -> None:
    home, kept = tmp_path / "home", tmp_path / "kept"
    with make_home(home) as node:
        fill(team(node))
    overwrite(home / "data.db", root_page(home, "memory_key"), garbage(1))
    home.rename(kept)
    seen = set()

    def judge() -> None:
        if home.exists():
            sound = integrity(home / "data.db") == []
            seen.add(sound)
            if not sound:
                repair_home(home)
            with open_node(home) as node:
                assert len(list(team(node).memory.list())) == 5
            shutil.rmtree(home)
        shutil.copytree(kept, home)

    assert crash_at_each_step(judge, lambda: repair_home(home)) > 10
    judge()
    assert seen == {True, False}


# --- other nodes ---------------------------------------------------------------------------------


def befriend(home: Path) -> dict[str, Any]:
    """Trust, links, a fact that names an object, entries that came through a zone."""
    with open_node(home) as node:
        sha = node._engine.blobs.put(LARGE[1:]).sha256

        def work(tx: Transaction) -> None:
            tx.zone_put(zone_row("yan"))
            zoe = tx.zone_put(zone_row("zoe", zone_key("a"), zone_key("b", expires_at=9))).number
            tx.token_put(token_row())
            tx.link_put(link_row(epoch=3, cursor=77, moved_at=5))
            tx.quarantine_drop(tx.quarantine_add(quarantine_row()))
            tx.quarantine_add(quarantine_row(offset=5))
            id, lamport = make_id(9000), tx.tick(MESH)[0]
            body = Fact("shows", b"1", (bytes.fromhex(sha),))
            raw_fact = raw("fact.append", "photo", body, id=id, lamport=lamport, origin="zoe")
            offset = tx.log_append(
                id, MESH, "fact.append", "photo", "zoe", lamport, 0, raw_fact, zoe
            )
            tx.fact_objects_put(offset, [sha])
            tx.blob_put(BlobRow(sha256=sha, size=len(LARGE) - 1, created_at=1))
            tx.consumer_put(
                ConsumerRow(
                    name="zone:zoe/x",
                    frontier="3",
                    created_at=1,
                    seen_at=1,
                    retire_lag=9,
                    zone="zoe",
                    filter=Filter(meshes=(MESH,), beyond="zoe"),
                )
            )

        node._engine.store.write(work)
    return neighbours_of(home)


def neighbours_of(home: Path) -> dict[str, Any]:
    with open_node(home) as node, node._engine.store.read() as tx:
        objects = tx.fact_objects(1 << 40, 99)
        return {
            "zones": tx.zone_list(),
            "tokens": tx.token_list(),
            "links": tx.link_list(),
            "quarantine": tx.quarantine_list(None, 0, 99),
            "consumers": tx.consumer_list(),
            "objects": objects,
            "blobs": [tx.blob_get(sha) for _, sha in objects],
            "for zoe": tx.log_page(1, 1 << 40, 1 << 40, 1 << 40, Filter(beyond="zoe")).offsets,
        }


def test_S12_a_repair_keeps_whom_we_trust_and_how_far_we_have_read(home: Path) -> None:
    before = befriend(home)
    overwrite(home / "data.db", root_page(home, "memory"), garbage(3))
    report = repair_home(home)
    assert report.whole_log
    assert neighbours_of(home) == before
    assert (report.tables["zone"].rows, report.tables["zone"].damaged) == (2, False)
    with open_node(home) as node:
        write = node._engine.store.write
        assert write(lambda tx: tx.zone_put(zone_row("new"))).number == 3
        assert write(lambda tx: tx.quarantine_add(quarantine_row())) == 3
    assert integrity(home / "data.db", ours=True) == []


@pytest.mark.parametrize("table", ["log", "fact_object", "blob", "log_entity"])
def test_S12_what_came_through_a_zone_and_what_facts_name_outlives_damage(
    home: Path, table: str
) -> None:
    before = befriend(home)
    overwrite(home / "data.db", root_page(home, table), garbage(4))
    report = repair_home(home)
    assert report.whole_log
    after = neighbours_of(home)
    # The log was searched for in its pages: whatever may be missing of it is pulled again.
    links = [link_row(moved_at=5)] if table == "log" else before["links"]
    assert after["blobs"][0].size == before["blobs"][0].size
    assert after["blobs"][0].released_at is None
    assert {**after, "blobs": 0} == {**before, "blobs": 0, "links": links}
    assert report.tables["fact_object"].from_log == 1
    with open_node(home) as node:
        assert node._engine.blobs.exists(before["blobs"][0].sha256)


def test_Z6_the_number_of_a_zone_that_is_lost_is_not_given_to_another(home: Path) -> None:
    before = befriend(home)
    overwrite(home / "data.db", root_page(home, "zone"), garbage(5))
    overwrite(home / "data.db", root_page(home, "meta"), garbage(5))
    report = repair_home(home, peer="ana")
    assert report.tables["zone"].damaged
    after = neighbours_of(home)
    assert (after["zones"], after["tokens"]) == ([], before["tokens"])
    with open_node(home) as node:
        assert node._engine.store.write(lambda tx: tx.zone_put(zone_row("new"))).number == 3
        found = node._engine.store.write(lambda tx: tx.zone_put(zone_row("zoe", zone_key("a"))))
        assert (found.number, found.keys) == (4, (zone_key("a"),)), "its keys went with it"
    assert integrity(home / "data.db", ours=True) == []


def test_Z6_what_a_damaged_log_lost_of_a_link_is_pulled_again(home: Path) -> None:
    befriend(home)
    change(home, "DELETE FROM log WHERE offset IN (10, 20)")
    assert repair_home(home).tables["log"].lost == 2
    with open_node(home) as node, node._engine.store.read() as tx:
        assert tx.link_list() == [link_row(moved_at=5)], "epoch and cursor are at the beginning"
        # Facts moved with their log, and what they name with them.
        ((offset, _),) = tx.fact_objects(1 << 40, 9)
        entry = tx.log_get(offset)
        assert entry is not None
        assert entry.entity == "photo"


@pytest.mark.parametrize(
    "spoiled",
    [
        "UPDATE zone SET reads = '{'",
        "UPDATE link SET filter = '[]'",
        "UPDATE zone_key SET key = x'00'",
        "UPDATE token SET digest = x'00'",
    ],
)
def test_S12_trust_that_makes_no_sense_is_not_kept(home: Path, spoiled: str) -> None:
    befriend(home)
    table = spoiled.split()[1]
    limit = " WHERE rowid = 1" if table == "zone" else ""
    keys = " WHERE expires_at IS NULL" if table == "zone_key" else ""
    change(home, spoiled + limit + keys)
    report = repair_home(home)
    assert report.tables[table].lost == 1
    assert integrity(home / "data.db", ours=True) == []


def test_S12_a_filter_that_is_lost_lets_everything_pass(home: Path) -> None:
    befriend(home)
    change(home, "UPDATE consumer SET filter = 'x' WHERE name LIKE 'zone:%'")
    repair_home(home)
    rows = {row.name: row for row in neighbours_of(home)["consumers"]}
    assert (rows["zone:zoe/x"].filter, rows["zone:zoe/x"].zone) == (Filter(), "zoe")


@pytest.mark.parametrize("page", [0, 1])
def test_S11_a_home_from_before_zones_is_repaired_into_one_with_them(home: Path, page: int) -> None:
    before = contents(home)
    mending.rollback_migration(home, 6)
    overwrite(home / "data.db", page or root_page(home, "memory"), garbage(6))
    report = repair_home(home)
    assert report.whole_log
    assert differences(before, contents(home)) == []
    if not page:
        assert not report.tables["zone"].damaged, "it never had any"
    assert neighbours_of(home)["zones"] == []
    assert integrity(home / "data.db", ours=True) == []


def test_S11_a_home_that_grew_zones_later_is_repaired_without_its_list_of_tables(
    home: Path,
) -> None:
    """The list of a new database then says another place for them: nobody is trusted by mistake."""
    before = contents(home)
    mending.rollback_migration(home, 6)
    befriend(home)
    overwrite(home / "data.db", 1, garbage(6))
    report = repair_home(home)
    assert report.tables["log"].lost == 0
    assert differences(before, contents(home)) == []
    after = neighbours_of(home)
    assert {row.name for row in after["zones"]} <= {"yan", "zoe"}
    assert {row.name for row in after["tokens"]} <= {"spark"}
    assert len(after["objects"]) == 1
    assert integrity(home / "data.db", ours=True) == []


# --- what was lost -------------------------------------------------------------------------------


def test_S12_a_log_with_holes_is_counted_anew_and_its_readers_miss_nothing(home: Path) -> None:
    with open_node(home) as node:
        node.log.confirm("reader", offset=30)
        node.log.confirm("reader", ranges=[(51, 61)])
        head = node.log.head().offset
        ids = {entry.offset: entry.id for entry in node.log.range()}
    change(home, "DELETE FROM log WHERE offset IN (10, 20, 40, 55, 70)")
    report = repair_home(home)
    assert report.tables["log"].lost == 5
    assert not report.whole_log
    gone = {10, 20, 40, 55, 70}
    unread = [ids[o] for o in range(31, head + 1) if o not in gone and not 51 <= o < 61]
    with open_node(home) as node:
        entries = list(node.log.range())
        assert [entry.offset for entry in entries] == list(range(1, head - 4))
        handed: list[bytes] = []
        while batch := node.log.fetch("reader", limit=10):
            handed += [entry.id for entry in batch]
            node.log.confirm("reader", ranges=[(entry.offset, entry.offset + 1) for entry in batch])
        assert [id for id in handed if id in set(unread)] == unread
        assert node.log.consumers()[0].lag == 0
    assert [check for check in diagnose(home, full=True).checks if check.status == "fail"] == []


def test_S12_rows_whose_entries_are_lost_are_kept(home: Path) -> None:
    before = contents(home)
    change(home, "DELETE FROM log WHERE offset % 3 = 0")
    report = repair_home(home)
    assert not report.whole_log
    assert differences(before, contents(home)) == []
    with open_node(home) as node:
        assert len(team(node).vectors.search([0, 1, 2], model=MODEL, limit=100)) == ROWS


def test_S17_a_repair_does_not_bring_back_what_was_deleted(tmp_path: Path) -> None:
    clock = HandClock()
    home = tmp_path / "home"
    with open_node(home, peer="ana", create=True, source=clock) as node:
        mesh = node.create_mesh("team")
        mesh.state.set("secret", 1)
        mesh.state.delete("secret")
        clock.advance(limits.TOMBSTONE_TTL_MS + 1)
        mesh.state.set("other", 1)
        assert node.sweep(Ttl(log_ms=limits.LOG_TTL_MS * 9)).tombstones == 1
    change(home, "DELETE FROM log WHERE op = 'state.delete'")
    repair_home(home)
    with open_node(home) as node:
        assert team(node).state.get("secret") is None


def test_S17_entries_that_were_truncated_stay_so(tmp_path: Path) -> None:
    home = aged_home(tmp_path / "home")
    with open_node(home) as node:
        first = node.log.head().first
    before = contents(home)
    overwrite(home / "data.db", root_page(home, "log"), garbage(5))
    report = repair_home(home)
    with open_node(home) as node:
        head = node.log.head()
        assert all(entry.op == "state.set" for entry in node.log.range(head.first))
        assert head.offset - head.first + 1 == report.tables["log"].rows
        assert head.first >= first
    assert differences(before, contents(home)) == []


def test_S10_tasks_are_made_again_from_their_turns(home: Path) -> None:
    before = contents(home)
    change(home, "DELETE FROM task", "DELETE FROM log WHERE offset = 3")
    report = repair_home(home)
    assert report.tables["task"].from_log == ROWS
    assert differences(before, contents(home)) == []


def test_S10_a_task_that_was_saved_is_not_worsened_by_turns_that_are_lost(home: Path) -> None:
    before = contents(home)["team"]["task"]
    change(home, "DELETE FROM task_event", "DELETE FROM log WHERE op = 'task.create'")
    repair_home(home)
    assert contents(home)["team"]["task"] == before


def test_S12_whose_home_it_is_is_known_from_the_log_or_must_be_said(
    home: Path, tmp_path: Path
) -> None:
    change(home, "DELETE FROM meta")
    shutil.copytree(home, tmp_path / "second")
    assert repair_home(home).peer == "ana"
    second = tmp_path / "second"
    change(second, "UPDATE log SET origin = 'bob' WHERE offset = 1", "DELETE FROM log")
    with pytest.raises(StoreCorrupt, match="name of the peer"):
        repair_home(second)
    assert repair_home(second, peer="ana").peer == "ana"
    with open_node(second) as node:
        assert node.peer == "ana"


def test_S12_a_repair_that_does_not_pass_its_own_check_is_not_put_in_place(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (home / "data.db").read_bytes()

    def spoil(path: Path) -> None:
        raise StoreCorrupt("found by the check")

    monkeypatch.setattr(mending, "_refuse_damage", spoil)
    with pytest.raises(StoreCorrupt):
        repair_home(home)
    assert (home / "data.db").read_bytes() == before
    assert not [name for name in os.listdir(home) if name.startswith(".tmp-")]
