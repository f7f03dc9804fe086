"""A link whose source has truncated its log goes on by a snapshot, or says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.forgetting.log_gone import _KNOWN, gone_job
from holdfast.node.library.node import Node
from holdfast.node.links import snapshot as taking
from holdfast.node.links.receive import receive_batch
from holdfast.node.links.snapshot import snapshot_job, take_snapshot
from holdfast.node.links.source import registration_of
from holdfast.node.snapshots import link_export, mesh_export
from holdfast.node.upkeep.sweep import Ttl
from holdfast.protocol.link_snapshot import LinkSnapshotPart
from holdfast.protocol.log_wire import Fetch
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    EpochChanged,
    ForgedOrigin,
    NotGranted,
    Truncated,
)
from holdfast.rules.filters import Filter
from holdfast.rules.links import consumer_name
from holdfast.rules.rows import LinkRow, ZoneRow
from support import envelopes as e
from support.envelopes import MESH, MODEL
from support.node_source import NodeSource
from support.nodes import Nodes, store_of, team
from support.snapshot import snapshot

BIG = bytes(70_000)


class Died(BaseException):
    """The process of the reader ended here."""


class Pair:
    """Bob pulls from ana, step by step and in one thread."""

    def __init__(self, nodes: Nodes, **filter: Any) -> None:
        self.nodes = nodes
        self.ana, self.bob = nodes.open("ana"), nodes.open("bob")
        self.source = NodeSource(self.ana, "bob")
        self.row = LinkRow(
            name="up",
            url="https://ana:1",
            zone="ana",
            filter=Filter(**{"meshes": (MESH,), **filter}),
            added_at=1,
        )
        engine = self.bob._engine
        engine.write("test", lambda tx: tx.zone_put(ZoneRow(name="ana", keys=(), added_at=1)))
        engine.write("test", lambda tx: tx.link_put(self.row))

    def stored(self) -> LinkRow:
        row = self.bob._engine.read("link.get", lambda tx: tx.link_get("up"))
        assert row is not None
        return row

    def pull(self) -> None:
        """Everything that is in the log."""
        self.source.register(registration_of(self.row, "bob"))
        consumer = consumer_name("bob", "up")
        while True:
            row = self.stored()
            ask = Fetch(consumer=consumer, start=row.cursor + 1, epoch=row.epoch or None)
            batch = self.source.fetch(ask)
            receive_batch(self.bob._engine, "up", batch)
            if batch.upto >= batch.head:
                return

    def away(self, *, tombstones: bool = False) -> None:
        """Bob is given up, and ana forgets all but the last entry of its log."""
        self.ana.log.retire(consumer_name("bob", "up"))
        self.nodes.clock.advance(10)
        ttl = Ttl(log_ms=0, tombstone_ms=0) if tombstones else Ttl(log_ms=0)
        assert self.ana.sweep(ttl).log_entries
        self.source.register(registration_of(self.row, "bob"))
        with pytest.raises(Truncated):
            self.pull()

    def take(self, **settings: Any) -> LinkRow:
        taken = take_snapshot(self.bob._engine, self.source, self.stored(), **settings)
        assert taken is not None
        return taken.link

    def job(self) -> object:
        return self.bob._engine.read("test", lambda tx: tx.job_get(snapshot_job("up")))


def fill(node: Node, *, again: str = "") -> None:
    """Every family that has a table, with what was replaced and what was deleted."""
    mesh = team(node)
    for value in (1, 2, 3):
        mesh.state.set("often", f"{value}{again}")
    mesh.state.set(f"meta{again}", "x", meta={"why": "because"})
    mesh.state.set("gone", 1)
    mesh.state.delete("gone")
    mesh.memory.set("k", {"a": [1, again]}, tags=["t"])
    mesh.memory.set("gone", 1)
    mesh.memory.forget("gone")
    mesh.files.share("a/b.txt", b"small" + again.encode())
    mesh.files.share("big.bin", BIG + again.encode())
    mesh.vectors.store("v", [1.0, 0.0], model=MODEL, content="c", metadata={"m": 1})
    mesh.vectors.store("v", [0.0, 1.0], model=MODEL)
    task = mesh.tasks.create("t", description="described").task
    mesh.tasks.claim(task)
    mesh.tasks.complete(task)
    mesh.audit.append("activityLog", {"n": again})


def tables(node: Node) -> dict[str, object]:
    whole = snapshot(store_of(node), dead=True)[MESH]
    return {family: rows for family, rows in whole.items() if family not in ("log", "peers")}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few rows need several pieces and parts."""
    monkeypatch.setattr(mesh_export, "CHUNK_ROWS", 2)
    monkeypatch.setattr(link_export, "LINK_SNAPSHOT_PIECES", 1)


# --- going on -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("origins", [(), ("ana",)], ids=["any", "own"])
def test_Z5_a_snapshot_makes_up_for_what_was_truncated(
    nodes: Nodes, origins: tuple[str, ...]
) -> None:
    pair = Pair(nodes, origins=origins)
    fill(pair.ana)
    pair.pull()
    fill(pair.ana, again="2")
    team(pair.ana).state.set("last", 1)
    pair.away()
    row = pair.take()
    first = pair.ana.log.head().first
    assert (row.cursor, row.epoch) == (first - 1, 1)
    pair.pull()
    assert tables(pair.bob) == tables(pair.ana)
    assert team(pair.bob).files.read("big.bin", peer="ana") == BIG + b"2"
    assert pair.job() is None
    # It is an ordinary reader again: nothing is taken twice, and nothing is sent back.
    fill(pair.ana, again="3")
    pair.pull()
    assert tables(pair.bob) == tables(pair.ana)


def test_Z5_a_part_has_no_more_than_fits_and_one_row_always_does(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_export, "LINK_SNAPSHOT_PART_BYTES", 1000)
    pair = Pair(nodes)
    for number in range(9):
        team(pair.ana).state.set(f"k{number}", "x" * 800)
    pair.pull()
    for number in range(9):
        team(pair.ana).state.set(f"k{number}", "y" * 800)
    team(pair.ana).state.set("last", 1)
    pair.away()
    parts: list[int] = []
    pair.take(on_part=lambda rows, new: parts.append(rows))
    pair.pull()
    assert tables(pair.bob) == tables(pair.ana)
    assert len(parts) > 4


def test_Z5_what_is_still_in_the_log_is_not_in_the_snapshot(nodes: Nodes) -> None:
    pair = Pair(nodes)
    team(pair.ana).state.set("a", 1)
    pair.pull()
    team(pair.ana).state.set("b", 1)
    team(pair.ana).state.set("c", 1)
    pair.away()
    brought: list[int] = []
    pair.take(on_part=lambda rows, new: brought.append(new))
    assert sum(brought) == 1
    assert team(pair.bob).state.get("b") == 1
    assert team(pair.bob).state.get("c") is None
    pair.pull()
    assert team(pair.bob).state.get("c") == 1


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
def test_Z5_dying_at_any_step_and_going_on_takes_all_of_it_once(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Every transaction of the reader and every question to the source is a step."""
    pair = Pair(nodes)
    fill(pair.ana)
    pair.pull()
    before = pair.stored()
    fill(pair.ana, again="2")
    team(pair.ana).state.set("last", 1)
    pair.away()
    steps = Steps(monkeypatch, pair)
    deaths = 0
    while True:
        # Each life gets one step further than the one before it.
        steps.lives(deaths % 7 + 1, after=after)
        try:
            pair.take()
            break
        except Died:
            deaths += 1
            pair.bob = nodes.reopen(pair.bob)
            row = pair.stored()
            if pair.job() is not None:
                assert row == before, "nothing is claimed before the end"
            elif row != before:
                break  # it was the last step, and has happened
    steps.end()
    assert deaths > 6
    pair.pull()
    assert tables(pair.bob) == tables(pair.ana)
    ids = [entry.id for entry in pair.bob.log.range()]
    assert len(ids) == len(set(ids))


class Steps:
    """Ends the reader at one of its steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
        self.left: int | None = None
        self.after = False
        self._pair = pair
        kept = NodeEngine.write

        def write(engine: NodeEngine, *given: Any, **more: Any) -> Any:
            if engine is not pair.bob._engine or not self._dies():
                return kept(engine, *given, **more)
            if self.after:
                kept(engine, *given, **more)
            raise Died

        monkeypatch.setattr(NodeEngine, "write", write)
        pair.source.on_call = self._called

    def lives(self, steps: int, *, after: bool) -> None:
        self.left, self.after = steps, after

    def end(self) -> None:
        self.left = None
        self._pair.source.on_call = lambda call, what: None

    def _called(self, call: str, what: Any) -> None:
        if self._dies():
            raise Died

    def _dies(self) -> bool:
        if self.left is None:
            return False
        self.left -= 1
        return self.left == 0


# --- where none can be had ------------------------------------------------------------------------


def test_Z5_facts_that_are_gone_wait_for_a_person_who_takes_what_there_is(nodes: Nodes) -> None:
    pair = Pair(nodes)
    team(pair.ana).facts.append("a", "is", 1)
    pair.pull()
    team(pair.ana).facts.append("b", "is", 1)
    team(pair.ana).state.set("k", 1)
    team(pair.ana).state.set("last", 1)
    pair.away()
    before = pair.stored()
    with pytest.raises(Truncated, match="it lacks facts up to offset 2"):
        pair.take()
    assert pair.stored() == before
    assert pair.take(partial_too=True).cursor == 3
    pair.pull()
    assert tables(pair.bob) == tables(pair.ana)
    assert [entry.entity for entry in pair.bob.log.range()] == ["a", "k", "last"]


def test_Z5_facts_that_were_read_or_are_not_asked_for_are_not_missed(nodes: Nodes) -> None:
    pair = Pair(nodes, classes=("state",))
    team(pair.ana).state.set("k", 0)
    pair.pull()
    team(pair.ana).facts.append("b", "is", 1)
    team(pair.ana).state.set("k", 1)
    team(pair.ana).state.set("last", 1)
    pair.away()
    pair.take()
    pair.pull()
    assert team(pair.bob).state.get("k") == 1
    whole = Pair(Nodes("memory", nodes.folder, nodes.clock))
    team(whole.ana).facts.append("read", "is", 1)
    whole.pull()
    team(whole.ana).state.set("k", 1)
    team(whole.ana).state.set("last", 1)
    whole.away()
    assert whole.take().cursor == 2


def test_Z5_deletions_that_are_forgotten_too_wait_for_a_person(nodes: Nodes) -> None:
    pair = Pair(nodes)
    team(pair.ana).state.set("k", 1)
    pair.pull()
    team(pair.ana).state.delete("k")
    team(pair.ana).state.set("other", 1)
    team(pair.ana).state.set("last", 1)
    pair.away(tombstones=True)
    with pytest.raises(Truncated, match="it lacks deletions"):
        pair.take()
    assert team(pair.bob).state.get("k") == 1
    assert pair.take(partial_too=True).cursor == 3


def test_Z5_a_tombstone_that_is_still_there_deletes(nodes: Nodes) -> None:
    pair = Pair(nodes)
    team(pair.ana).state.set("k", 1)
    pair.pull()
    team(pair.ana).state.delete("k")
    team(pair.ana).state.set("last", 1)
    pair.away()
    pair.take()
    assert team(pair.bob).state.get("k") is None


def test_Z5_a_value_that_another_origin_replaced_waits_for_a_person(nodes: Nodes) -> None:
    """Bob takes only what ana wrote; what ana wrote last under the key is nowhere any more."""
    pair = Pair(nodes, origins=("ana",))
    team(pair.ana).state.set("k", 1)
    pair.pull()
    team(pair.ana).state.set("k", 2)
    pair.ana.apply([e.state_set("k", 3, lamport=50, origin="cai")])
    team(pair.ana).state.set("last", 1)
    pair.away()
    with pytest.raises(Truncated, match="a value of another origin replaced: 'k'"):
        pair.take()
    pair.take(partial_too=True)
    pair.pull()
    assert team(pair.bob).state.get("k") == 1
    assert team(pair.bob).state.get("last") == 1


def test_Z5_a_value_that_the_reader_replaced_itself_is_no_obstacle(nodes: Nodes) -> None:
    pair = Pair(nodes, origins=("ana",))
    team(pair.ana).state.set("k", 1)
    pair.pull()
    team(pair.bob).state.set("k", "bob's")
    pair.ana.apply([entry.raw for entry in pair.bob.log.range() if entry.origin == "bob"])
    team(pair.ana).state.set("last", 1)
    pair.away()
    pair.take()
    pair.pull()
    assert team(pair.bob).state.get("k") == "bob's"


def test_Z5_what_an_earlier_version_truncated_is_not_known_and_counts_as_gone(
    nodes: Nodes,
) -> None:
    pair = Pair(nodes)
    team(pair.ana).state.set("k", 1)
    pair.pull()
    team(pair.ana).state.set("k", 2)
    team(pair.ana).state.set("last", 1)
    pair.away()

    def before_it(tx: Any) -> None:
        tx.job_drop(_KNOWN)
        tx.job_drop(gone_job(MESH))

    pair.ana._engine.write("test", before_it)
    with pytest.raises(Truncated, match="facts up to offset 2"):
        pair.take()
    # From the next sweep on it is known, and what was gone before stays so.
    pair.ana.sweep()
    with pytest.raises(Truncated, match="facts up to offset 2"):
        pair.take()


def test_Z5_nobody_takes_a_snapshot_of_what_it_may_not_read(nodes: Nodes) -> None:
    pair = Pair(nodes)
    team(pair.ana).state.set("k", 1)
    pair.pull()
    team(pair.ana).state.set("k", 2)
    team(pair.ana).state.set("last", 1)
    pair.away()
    pair.source.caller = msgspec.structs.replace(pair.source.caller, reads=frozenset({"other"}))
    with pytest.raises(NotGranted):
        pair.take()


# --- a log that begins anew, a source that lies ---------------------------------------------------


@pytest.mark.usefixtures("small")
def test_Z5_a_snapshot_of_a_log_that_begins_anew_is_given_up(nodes: Nodes) -> None:
    pair = Pair(nodes)
    fill(pair.ana)
    pair.pull()
    fill(pair.ana, again="2")
    team(pair.ana).state.set("last", 1)
    pair.away()
    calls: list[str] = []

    def restored(call: str, what: Any) -> None:
        calls.append(call)
        if calls.count("snapshot") == 3:
            pair.ana._engine.write("test", lambda tx: tx.set_epoch(2))

    pair.source.on_call = restored
    with pytest.raises(EpochChanged):
        pair.take()
    assert pair.job() is None
    assert pair.stored().epoch == 1


MESSAGE = e.changed(e.state_set("x", 1), op="message.send")
LIES: list[tuple[str, Callable[[LinkSnapshotPart], LinkSnapshotPart], type[Exception]]] = [
    ("another mesh", lambda part: _with(part, e.state_set("x", 1, mesh="lab")), BadAnswer),
    (
        "a message",
        lambda part: _with(part, e.changed(e.state_set("x", 1), op="message.send")),
        BadAnswer,
    ),
    ("another origin", lambda part: _with(part, e.state_set("x", 1, origin="eve")), ForgedOrigin),
    ("our own name", lambda part: _with(part, e.state_set("x", 1, origin="bob")), ForgedOrigin),
    ("another epoch", lambda part: msgspec.structs.replace(part, epoch=7), EpochChanged),
]


def _with(part: LinkSnapshotPart, raw: bytes) -> LinkSnapshotPart:
    return msgspec.structs.replace(part, raws=[*part.raws, raw])


@pytest.mark.parametrize(("lie", "error"), [case[1:] for case in LIES], ids=[c[0] for c in LIES])
def test_Z8_a_part_that_no_honest_source_sends_is_refused_whole(
    nodes: Nodes,
    monkeypatch: pytest.MonkeyPatch,
    lie: Callable[[LinkSnapshotPart], LinkSnapshotPart],
    error: type[Exception],
) -> None:
    pair = Pair(nodes, origins=("ana", "bob"))
    team(pair.ana).state.set("k", 1)
    pair.pull()
    team(pair.ana).state.set("k", 2)
    team(pair.ana).state.set("last", 1)
    pair.away()
    before, rows = pair.stored(), tables(pair.bob)
    honest = pair.source.snapshot_part
    monkeypatch.setattr(pair.source, "snapshot_part", lambda asked: lie(honest(asked)))
    with pytest.raises(error):
        pair.take()
    assert (pair.stored(), tables(pair.bob)) == (before, rows)


@pytest.mark.usefixtures("small")
def test_Z8_a_snapshot_that_does_not_go_on_is_refused(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(nodes)
    fill(pair.ana)
    pair.pull()
    fill(pair.ana, again="2")
    pair.away()
    honest = pair.source.snapshot_part

    def same(asked: Any) -> LinkSnapshotPart:
        part = honest(asked)
        return msgspec.structs.replace(part, place=asked.place) if asked.place else part

    monkeypatch.setattr(pair.source, "snapshot_part", same)
    with pytest.raises(BadAnswer, match="does not go on"):
        pair.take()


@pytest.mark.parametrize("place", [b"x", b"\x92\x01\x92\x00\x00", b"\x92\x00\x92\x01\xa0"])
def test_Z8_a_place_that_is_none_is_refused_by_the_source(nodes: Nodes, place: bytes) -> None:
    pair = Pair(nodes)
    team(pair.ana).state.set("k", 1)
    pair.pull()
    asked = taking._question(
        pair.bob._engine, pair.stored(), taking._begin(pair.bob._engine, pair.stored(), False)
    )
    with pytest.raises(BadInput):
        pair.source.snapshot_part(msgspec.structs.replace(asked, place=place))
