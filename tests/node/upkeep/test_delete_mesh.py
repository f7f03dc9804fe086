"""Deleting a mesh: all of it goes, what it owes is said first, and it stays away."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from holdfast.node.core.receive import receive_arrivals
from holdfast.node.library.node import Node, open_node
from holdfast.node.recovery.doctor import diagnose
from holdfast.node.recovery.repair import repair_home
from holdfast.node.upkeep.delete_mesh import delete_mesh
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules import limits
from holdfast.rules.arrivals import read_arrivals
from holdfast.rules.errors import AlreadyExists, Conflict, MeshDeleted, MeshOwes, UnknownMesh
from holdfast.rules.filters import Filter
from holdfast.rules.mesh_end import ENDS
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.rules.reconcile import Outcome
from holdfast.rules.vectors import Model
from holdfast.storage.ports import Transaction
from holdfast.storage.sqlite.ends.mesh_end import STEPS
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.sqlite.vector_index import load_extension
from support import envelopes as e
from support.keeping import fill, garbage, overwrite
from support.nodes import Nodes, blob_names, share, store_of
from support.stores import (
    append,
    bus_mesh_row,
    consumer_row,
    inbox_row,
    known_member,
    link_row,
    outbox_row,
    quarantine_row,
    token_row,
    zone_key,
    zone_row,
)

SLUG = "zq7-scratch"
NO_MESH = {
    "meta": "the node itself",
    "forgotten": "ids only; those of a mesh that comes back count no more",
    "consumer": "names the mesh in its filter",
    "job": "names the mesh at the end of its name",
    "blob": "content, by its hash; goes with its last name",
    "vector_model": "a model; goes with its last vector",
    "zone": "names the mesh in what it may read",
    "zone_key": "a key of a zone",
    "token": "names the mesh in what it may read",
    "link": "names the mesh in its filter",
    "blocked_peer": "a peer whose messages are dropped, in whatever mesh",
    "bus_mark": "a peer's numbers on the bus",
    "bus_nonces": "nonces of the bus",
    "bus_sender": "a peer's name",
    "bus_known": "ids of messages of the bus",
    "bus_inbox": "messages between peers, which are of no mesh",
    "bus_interest": "topics of the bus",
    "bus_seal": "keys",
    "bus_address": "where a peer was reached",
    "bus_capability": "names the mesh in its scopes",
    "mesh": "the mesh itself",
    "ended_mesh": "the name of the mesh, so that it does not come back",
    "log_hole": "offsets",
}
"""Tables without a column that names a mesh, and what they hold. A table that is added later must
be named here or have a step in storage/sqlite/ends/mesh_end.py."""
WITH_OTHERS = {"bus_message": "spool"}
"""Tables whose rows go with those of another one."""


@pytest.fixture
def home(nodes: Nodes) -> Node:
    return nodes.open("ana", SLUG, "other")


def connected(home: Path) -> apsw.Connection:
    con = apsw.Connection(str(home / "data.db"), flags=apsw.SQLITE_OPEN_READWRITE)
    load_extension(con)
    return con


def tables_of(con: apsw.Connection) -> set[str]:
    return {
        str(name)
        for name, sql in con.execute(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%STRICT%'"
        )
    }


def deep_fill(con: apsw.Connection, slug: str) -> None:
    """A row of the mesh in every table that names one, whatever it means."""
    con.pragma("foreign_keys", 0)
    for number, table in enumerate(sorted(tables_of(con)), 1):
        info: list[Any] = con.execute(f"PRAGMA table_info({table})").fetchall()
        names = [row[1] for row in info]
        if "mesh" not in names or table in ("ended_mesh", "log", "spool", "inbox", "vector"):
            continue
        if con.execute(f"SELECT EXISTS (SELECT 1 FROM {table} WHERE mesh = ?)", (slug,)).get:
            continue
        values = [slug if row[1] == "mesh" else _some(row, number) for row in info]
        marks = ", ".join("?" * len(values))
        con.execute(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", values)


def _some(column: Any, number: int) -> Any:
    named = {"status": "open", "engine": "embedded", "whole": 1, "deleted": 0, "lost": 0}
    if column[1] in named:
        return named[column[1]]
    if not column[3]:
        return None
    return {"INTEGER": 900 + number, "TEXT": "{}", "BLOB": bytes([number]) * 32}[column[2]]


def traces(con: apsw.Connection, slug: str) -> set[str]:
    """Where a name still stands, in any column of any table."""
    found = set()
    for (table,) in con.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
        info: list[Any] = con.execute(f"PRAGMA table_info('{table}')").fetchall()
        for row in info:
            column = f'instr("{row[1]}", ?) > 0'
            query = f"SELECT EXISTS (SELECT 1 FROM '{table}' WHERE {column})"
            if any(con.execute(query, (form,)).get for form in (slug, slug.encode())):
                found.add(f"{table}.{row[1]}")
    return found


def test_S20_every_table_of_the_schema_has_a_place_in_the_deletion(tmp_path: Path) -> None:
    with open_node(tmp_path / "h", peer="ana", create=True) as node:
        con = connected(node.home)
        with closing(con):
            tables = tables_of(con)
            named = {
                table
                for table in tables
                if "mesh" in [row[1] for row in con.execute(f"PRAGMA table_info({table})")]
            }
    removed = {table for step in STEPS for table in step.tables}
    assert tables == removed | NO_MESH.keys() | WITH_OTHERS.keys()
    assert named - {"ended_mesh"} <= removed | WITH_OTHERS.keys(), "and each that names a mesh"


def test_S20_nothing_of_a_deleted_mesh_is_left_in_any_table_blob_index_or_log(
    tmp_path: Path,
) -> None:
    with open_node(tmp_path / "h", peer="ana", create=True) as node:
        mesh, other = node.create_mesh(SLUG), node.create_mesh("other")
        fill(mesh)
        fill(other, 3)
        mesh.files.share("own.bin", b"zq7" * 40_000)
        mesh.vectors.store("v", [1.0, 2.0], model=Model(provider="zq7", name="only-here", dim=2))
        other.files.share("both.bin", b"both" * 40_000)
        mesh.files.share("both.bin", b"both" * 40_000)
        node._engine.store.write(_everywhere)
        with closing(connected(node.home)) as con:
            deep_fill(con, SLUG)
            missing = {
                table
                for step in STEPS
                for table in step.tables
                if not con.execute(f"SELECT EXISTS (SELECT 1 FROM {table})").get
            }
            before = traces(con, SLUG)
        assert missing <= {"fact_object", "quorum_queue", "stream_place"}
        assert len(before) > 35, "the test would see it in these tables"
        kept = list(other.state.list())
        mesh.state.set("last", "the end of the log")
        done = node.delete_mesh(SLUG, owed_too=True)
        assert done.rows > 50
        assert done.blobs == 1, "of the other one there is a name left"
        assert list(other.state.list()) == kept
        assert other.files.read("both.bin") == b"both" * 40_000
        with closing(connected(node.home)) as con:
            assert traces(con, SLUG) == {"ended_mesh.mesh"}
            models = con.execute("SELECT provider FROM vector_model").fetchall()
            assert ("zq7",) not in models, "the only vectors of that model went"
        assert [row.slug for row in node.meshes()] == ["other"]
        problems = [
            check for check in diagnose(node.home, full=True).checks if check.status == "fail"
        ]
        assert problems == []


def _everywhere(tx: Transaction) -> None:
    """What names the mesh without being a row of it."""
    only, both = Filter(meshes=(SLUG,)), Filter(meshes=("other", SLUG))
    tx.zone_put(zone_row("zoe", zone_key("a"), reads=("other", SLUG)))
    tx.token_put(token_row("t", reads=(SLUG,)))
    tx.link_put(link_row("narrow", filter=only))
    tx.link_put(link_row("wide", filter=both))
    tx.consumer_put(msgspec.structs.replace(consumer_row("narrow"), filter=only))
    tx.consumer_put(msgspec.structs.replace(consumer_row("wide"), filter=both))
    tx.quarantine_add(quarantine_row("wide", raw=e.state_set("k", 1, mesh=SLUG)))
    tx.quarantine_add(quarantine_row("wide", offset=2, raw=b"no envelope"))
    first, last = append(tx, 9_001, mesh=SLUG), append(tx, 9_002, mesh=SLUG)
    tx.outbox_add([outbox_row(9_001, mesh=SLUG, lane=f"broker:{SLUG}", offset=first)])
    tx.outbox_add([outbox_row(9_002, mesh=SLUG, lane=f"broker:{SLUG}", offset=last)])
    tx.inbox_add(inbox_row(9_001, mesh=SLUG, offset=first))
    tx.known_members_put(SLUG, [known_member("a")])


def test_S20_a_filter_that_named_only_the_mesh_goes_and_a_wider_one_stays(home: Node) -> None:
    store_of(home).write(_everywhere)
    home.delete_mesh(SLUG, owed_too=True)
    with store_of(home).read() as tx:
        assert [row.name for row in tx.link_list()] == ["wide"], "it would mean all meshes now"
        assert tx.link_list()[0].filter == Filter(meshes=("other",))
        assert [row.name for row in tx.consumer_list()] == ["wide"]
        assert tx.zone_list()[0].reads == ("other",)
        assert tx.token_list()[0].reads == ()
        assert [row.raw for row in tx.quarantine_list(None, 0, 9)] == [b"no envelope"]


def test_S20_numbers_of_the_outbox_and_the_inbox_are_not_given_again(home: Node) -> None:
    store_of(home).write(_everywhere)
    home.delete_mesh(SLUG, owed_too=True)

    def add(tx: Transaction) -> tuple[int, int]:
        at = append(tx, 9_003, mesh="other")
        tx.outbox_add([outbox_row(9_003, mesh="other", lane="broker:other", offset=at)])
        tx.inbox_add(inbox_row(9_003, mesh="other", offset=at))
        assert tx.outbox_counts() == {("broker:other", "pending"): 1}
        assert tx.inbox_counts() == (1, 1)
        (sent,) = tx.outbox_list(None, (), 0, 9)
        (came,) = tx.inbox_list(None, False, 0, 9)
        return sent.number, came.number

    assert store_of(home).write(add) == (3, 2)


@pytest.mark.parametrize(
    ("owe", "said"),
    [
        (lambda node: share(node, SLUG), "this node owns it at http://127.0.0.1:1"),
        (lambda node: node.log.add_consumer("lake"), "not confirmed by lake"),
        (
            lambda node: store_of(node).write(lambda tx: tx.bus_mesh_put(bus_mesh_row(SLUG))),
            "on the bus",
        ),
    ],
)
def test_S20_what_a_mesh_owes_is_said_first_and_keeps_it_from_being_deleted(
    home: Node, owe: Callable[[Node], Any], said: str
) -> None:
    home.mesh(SLUG).state.set("k", 1)
    owe(home)
    if said.startswith("this node owns"):
        home.mesh(SLUG).state.set("unsent", 1)
    with pytest.raises(MeshOwes, match=said) as refused:
        home.delete_mesh(SLUG)
    assert f"holdfast mesh delete {SLUG} --owed-too" in refused.value.hint
    assert home.mesh(SLUG).state.get("k") == 1
    assert said in "; ".join(home.deletion_plan(SLUG).debts.lines())
    home.delete_mesh(SLUG, owed_too=True)
    with pytest.raises(UnknownMesh):
        home.mesh(SLUG)


def test_S20_a_vote_is_not_given_up_by_deleting_its_mesh(home: Node) -> None:
    row = QuorumRow(mesh=SLUG, engine="embedded", incarnation=1, tag=b"t" * 16, voter=1)
    store_of(home).write(lambda tx: tx.quorum_put(row))
    with pytest.raises(Conflict, match="voter"):
        home.delete_mesh(SLUG, owed_too=True)


def test_S20_the_log_keeps_its_count_when_its_end_was_of_the_mesh(home: Node) -> None:
    home.mesh("other").state.set("k", 1)
    home.mesh(SLUG).state.set("k", 1)
    home.delete_mesh(SLUG)
    assert [(one.offset, one.mesh) for one in home.log.range()] == [(1, "other"), (3, ENDS)]
    assert home.mesh("other").state.set("k", 2).offset == 4
    with store_of(home).read() as tx:
        assert tx.log_holes(1, 9) == [(2, 2)]


def test_S20_a_reader_passes_over_the_hole_that_a_mesh_left(home: Node) -> None:
    home.log.add_consumer("reader")
    for number in range(6):
        home.mesh((SLUG, "other")[number % 2]).state.set(f"k{number}", 1)
    home.delete_mesh(SLUG, owed_too=True)
    assert home.log.head().first == 1, "nothing was truncated"
    page = home.log.fetch("reader", limit=100)
    assert [one.offset for one in page] == [2, 4, 6]
    home.log.confirm("reader", 6)
    assert [one.lag for one in home.log.consumers()] == [0]


def test_S20_a_deletion_that_is_cut_off_anywhere_is_finished_by_the_next_call_or_the_sweep(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut after each transaction in turn: nobody finds the mesh meanwhile, and all of it goes."""
    monkeypatch.setattr("holdfast.node.upkeep.delete_mesh.CHUNK_ROWS", 7)
    for cuts in range(1, 200):
        node = nodes.open(f"ana-{cuts}", SLUG, "other")
        fill(node.mesh(SLUG), 3)
        assert blob_names(node)
        finished = _cut_after(node, cuts)
        assert [row.slug for row in node.meshes()] == ["other"]
        node = nodes.reopen(node)
        if not finished:
            with pytest.raises(AlreadyExists, match="being deleted"):
                node.create_mesh(SLUG)
            if cuts % 2:
                node.sweep()
            else:
                assert delete_mesh(node._engine, SLUG).resumed
        _check_gone(node)
        if finished:
            break
    assert cuts > (3 if nodes.kind == "memory" else 25)


def _check_gone(node: Node) -> None:
    with store_of(node).read() as tx:
        assert tx.log_count_of(SLUG) == 0
        assert not any(tx.family_counts(SLUG).values())
        ended = tx.ended_mesh(SLUG)
        assert ended is not None
        assert ended.ended_at is not None
    assert blob_names(node) == set()


class _Cut(Exception):
    pass


def _cut_after(node: Node, writes: int) -> bool:
    """Deletes, and stops before the write with this number; True if it came to its end before."""
    engine, left = node._engine, [writes]
    write = engine.write

    def counted(name: str, work: Any) -> Any:
        if not left[0]:
            raise _Cut
        left[0] -= 1
        return write(name, work)

    engine.write = counted  # type: ignore[method-assign]
    try:
        delete_mesh(engine, SLUG)
    except _Cut:
        return False
    finally:
        engine.write = write  # type: ignore[method-assign]
    return True


def test_S20_what_comes_late_for_a_deleted_mesh_is_dropped_at_the_door_and_counted(
    home: Node,
) -> None:
    home.mesh(SLUG).state.set("k", 1)
    home.delete_mesh(SLUG)
    late = [
        e.state_set("k", 2, mesh=SLUG, lamport=9),
        e.fact_append("s", "p", 1, mesh=SLUG, lamport=10),
    ]

    def take(tx: Transaction) -> None:
        piece = receive_arrivals(
            home._engine, tx, read_arrivals(late), lane="link", epoch=1, offsets=(1, 2)
        )
        assert (piece.dropped, piece.new, piece.refused) == (2, 0, 0)
        assert tx.quarantine_count("link") == 0, "nothing of it stays, also not aside"

    store_of(home).write(take)
    assert isinstance(home.apply(late[:1])[0].error, MeshDeleted)
    with store_of(home).read() as tx:
        ended = tx.ended_mesh(SLUG)
        assert ended is not None
        assert ended.dropped == 3
    with pytest.raises(UnknownMesh):
        home.mesh(SLUG)


def test_S20_a_mesh_that_is_made_again_goes_on_with_its_clock_and_takes_what_was_its_own(
    home: Node,
) -> None:
    """Others still have what it was: what is written now must win over that, and what had been
    truncated before it was deleted is no repetition when it comes back.
    """
    mesh = home.mesh(SLUG)
    mesh.state.set("k", "old")
    mesh.facts.append("s", "p", 1)
    former = [entry.raw for entry in home.log.range()]
    home.mesh("other").state.set("k", 1)
    home.sweep(Ttl(log_ms=0))
    home.delete_mesh(SLUG)
    again = home.create_mesh(SLUG)
    assert again.state.get("k", None) is None
    assert again.info().seq == 2
    assert again.state.set("k", "new").lamport > 2
    outcomes = [one.outcome for one in home.apply(former)]
    assert outcomes == [Outcome.SUPERSEDED, Outcome.APPLIED]
    assert again.state.get("k") == "new"


def test_S20_no_transaction_of_a_deletion_takes_more_than_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By rows, not by time: each removes a chunk and looks at a window at most."""
    monkeypatch.setattr("holdfast.storage.sqlite.ends.mesh_end.MESH_ERASE_WINDOW", 300)
    with open_node(tmp_path / "h", peer="ana", create=True, sync="normal") as node:
        mesh = node.create_mesh(SLUG)
        node.create_mesh("other").state.set("k", 1)
        batch = [e.fact_append(f"s{n}", "p", n, mesh=SLUG, lamport=n + 1) for n in range(1_000)]
        node.apply(batch)
        for number in range(300):
            node.apply([e.state_set(f"k{number}", number, mesh=SLUG, lamport=2_000 + number)])
        store = store_of(node)
        assert isinstance(store, SqliteStore)
        changes: list[int] = []
        step = store.write

        def counted(work: Any) -> Any:
            before = store.writer._engine.changes()
            result = step(work)
            changes.append(store.writer._engine.changes() - before)
            return result

        monkeypatch.setattr(store, "write", counted)
        node.delete_mesh(SLUG)
        assert mesh is not None
        assert len(changes) > 8
        assert max(changes) <= 3 * limits.CHUNK_ROWS


def test_S20_a_repair_brings_back_nothing_of_a_deleted_mesh(tmp_path: Path) -> None:
    """What was deleted still stands in free pages, where a repair looks for lost entries."""
    with open_node(tmp_path / "h", peer="ana", create=True) as node:
        fill(node.create_mesh(SLUG), 20)
        fill(node.create_mesh("other"), 3)
        kept = [entry.raw for entry in node.log.range() if entry.mesh == "other"]
        node.delete_mesh(SLUG)
        home = node.home
    with closing(connected(home)) as con:
        root = con.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'log'").get
    assert isinstance(root, int)
    overwrite(home / "data.db", root, garbage(1))
    with open(home / "data.db", "r+b") as file:  # and which pages are free is lost too
        file.seek(32)
        file.write(bytes(8))
    repair_home(home)
    with open_node(home) as node:
        assert [row.slug for row in node.meshes()] == ["other"]
        found = node.log.tail(10_000)
        assert {entry.raw for entry in found} >= set(kept)
        assert {entry.mesh for entry in found} <= {"other", ENDS}
        with store_of(node).read() as tx:
            assert tx.ended_mesh(SLUG) is not None, "so that it stays away"
