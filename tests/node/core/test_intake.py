"""The one door in: each envelope once, in any order, and what is refused leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.node.core.context import NodeContext
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.intake import Applied, Intake
from holdfast.node.core.metrics import Metrics
from holdfast.node.library.node import Node
from holdfast.rules import arrivals, compiled
from holdfast.rules.bodies import Fact
from holdfast.rules.errors import (
    BadEnvelope,
    BadStamp,
    IdReused,
    Refused,
    UnknownMesh,
    UnsupportedProtocol,
)
from holdfast.rules.filters import Filter
from holdfast.rules.ids import id_text
from holdfast.rules.lamport import ceiling
from holdfast.rules.limits import CHUNK_ROWS, LAMPORT_LEAP_MAX
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import MeshRow, ZoneRow
from holdfast.storage.files.blobs import MemoryBlobs
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.ports import Transaction
from support import envelopes as e
from support.dump import dump
from support.envelopes import changed, make_id, state_set
from support.nodes import Nodes, deliver, store_of, team
from support.snapshot import snapshot
from support.source import HandClock


def everything(node: Node) -> object:
    with store_of(node).read() as tx:
        return dump(tx)


def test_S4_every_merged_event_ticks_once(node: Node) -> None:
    raws = [
        e.state_set("k", 1, lamport=10),
        e.raw("state.delete", "k", lamport=11),
        e.memory_set("k", 1, lamport=12),
        e.raw("memory.forget", "k", lamport=13),
        e.vector_store("k", [1, 2], lamport=14),
        e.vector_delete("k", lamport=15),
        e.file_share("k", b"x", lamport=16),
        e.raw("file.delete", "k", lamport=17),
        e.task_create(e.TASK, lamport=18),
        e.task_claim(e.TASK, lamport=19),
        e.task_release(e.TASK, lamport=20),
        e.raw("task.cancel", e.TASK, lamport=21),
        e.fact_append("s", "is", 1, lamport=22),
        e.raw("later.thing", "x", lamport=23),
    ]
    expected = 0
    for n, raw in enumerate(raws):
        (applied,) = node.apply([raw])
        assert applied.error is None
        assert applied.offset == n + 1
        expected = max(expected, 10 + n) + 1
        assert team(node).clock().lamport == expected
    node.apply(raws)
    assert team(node).clock().lamport == expected, "a repetition is no event"
    older = e.state_set("late", 1, lamport=2)
    node.apply([older])
    assert team(node).clock().lamport == expected + 1, "also one from the past"


def test_D3_an_envelope_is_taken_once(node: Node) -> None:
    raw = state_set("k", 1, lamport=3, id=make_id(7))
    first, second = node.apply([raw, raw])
    assert (first.outcome, first.offset) == (Outcome.APPLIED, 1)
    assert (second.outcome, second.offset) == (Outcome.NOOP_ALREADY_APPLIED, 1)
    assert first.id == second.id == id_text(make_id(7))
    before = everything(node)
    node.apply([raw])
    assert everything(node) == before


def test_Z1_other_content_under_a_known_id_is_refused(node: Node) -> None:
    node.apply([state_set("k", 1, lamport=3, id=make_id(7))])
    before = everything(node)
    (applied,) = node.apply([state_set("k", 2, lamport=3, id=make_id(7))])
    assert isinstance(applied.error, IdReused)
    assert applied.outcome is None
    assert everything(node) == before


def test_D3_an_envelope_for_another_mesh_is_not_taken_for_a_repetition(nodes: Nodes) -> None:
    node = nodes.open("ana", "one", "two")
    raw = state_set("k", 1, lamport=3, id=make_id(7), mesh="one")
    node.apply([raw])
    (applied,) = node.apply([changed(raw, mesh="two")])
    assert isinstance(applied.error, IdReused)


def test_S15_what_is_refused_disturbs_nobody_else(node: Node) -> None:
    good = [state_set(f"k{n}", n, lamport=n + 1) for n in range(4)]
    bad = [
        b"nonsense",
        state_set("k", 1, mesh="elsewhere"),
        changed(state_set("k", 1), version="2.0"),
        changed(state_set("k", 1), body=b"\x91\xc4\x01{"),
        state_set("k", 1, lamport=LAMPORT_LEAP_MAX + 1000),
    ]
    results = node.apply(
        [good[0], bad[0], bad[1], good[1], bad[2], bad[3], good[2], bad[4], good[3]]
    )
    kinds = [type(result.error) for result in results if result.error]
    assert [result.outcome for result in results if not result.error] == [Outcome.APPLIED] * 4
    assert kinds[:3] == [BadEnvelope, UnknownMesh, UnsupportedProtocol]
    assert kinds[4] is BadStamp
    assert [entry.key for entry in team(node).state.list()] == ["k0", "k1", "k2", "k3"]
    assert node.log.head().offset == 4
    assert results[1].id is None
    assert results[2].id is not None, "as much as could be read"


def test_S4_a_refused_stamp_moves_no_clock(node: Node) -> None:
    far = ceiling(0)
    (refused,) = node.apply([state_set("k", 1, lamport=far + 1)])
    assert isinstance(refused.error, BadStamp)
    assert team(node).clock().lamport == 0
    (taken,) = node.apply([state_set("k", 1, lamport=far)])
    assert taken.error is None
    assert team(node).clock().lamport == far + 1
    assert team(node).state.set("k", 2).lamport == far + 2
    assert team(node).state.get("k") == 2


@pytest.mark.parametrize("count", [0, 1, CHUNK_ROWS - 1, CHUNK_ROWS, 2 * CHUNK_ROWS + 1])
def test_S3_many_envelopes_go_in_by_chunks(node: Node, count: int) -> None:
    raws = (state_set(f"k{n:04}", n, lamport=n + 1) for n in range(count))
    results = node.apply(raws)
    assert [result.offset for result in results] == list(range(1, count + 1))
    assert len(list(team(node).state.list())) == count


def test_S3_large_envelopes_are_written_in_smaller_transactions(node: Node) -> None:
    store = store_of(node)
    raws = [state_set(f"k{n}", "x" * 900_000, lamport=n + 1) for n in range(7)]
    sizes: list[int] = []
    write = store.write

    def counted(work: Any) -> Any:
        sizes.append(len(work._arrivals))
        return write(work)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "write", counted)
        results = node.apply(iter(raws))
    assert sizes == [3, 3, 1]
    assert [result.offset for result in results] == list(range(1, 8))


def test_S6_peers_that_were_heard_of_are_known(node: Node, clock: HandClock) -> None:
    node.apply([state_set("k", 1, lamport=9, origin="bob"), state_set("k", 1, origin="é")])
    node.apply([state_set("l", 1, lamport=4, origin="bob"), state_set("l", 1, origin="ana")])
    team(node).state.set("own", 1)
    found = team(node).peers()
    assert [(peer.peer, peer.last_lamport, peer.stale) for peer in found] == [
        ("bob", 9, False),
        ("é", 1, False),
    ]
    clock.advance(300_001)
    assert [peer.stale for peer in team(node).peers()] == [True, True]


def test_S6_an_own_envelope_that_comes_back_is_known(nodes: Nodes) -> None:
    ana, bob = nodes.open("ana"), nodes.open("bob")
    team(ana).state.set("k", 1)
    deliver(ana, bob)
    team(bob).state.set("k", 2)
    deliver(bob, ana)
    assert team(ana).state.get("k") == 2
    assert ana.log.head().offset == 2
    deliver(bob, ana)
    assert ana.log.head().offset == 2


def test_S13_a_restored_node_takes_its_own_lost_writes_back(nodes: Nodes) -> None:
    """As after a backup: others still have what this peer wrote later."""
    ana, bob = nodes.open("ana"), nodes.open("bob")
    for n in range(3):
        team(ana).state.set("k", n)
    deliver(ana, bob)
    restored = nodes.open("ana")
    deliver(bob, restored)
    assert snapshot(store_of(restored)) == snapshot(store_of(ana))
    assert team(restored).state.set("k", "on").lamport > 3


def test_R4_nothing_but_bytes_is_an_envelope(node: Node) -> None:
    before = everything(node)
    for junk in (b"", b"\0", b"\xff" * 100, b"\xc1", b"\x90", b"\x80"):
        (applied,) = node.apply([junk])
        assert isinstance(applied.error, Refused)
    assert everything(node) == before


# --- many at once, and one by one -----------------------------------------------------------------


def memory_core(peer: str = "ana") -> NodeEngine:
    engine = NodeEngine(MemoryStore(), NodeContext(peer, 1, HandClock(), MemoryBlobs()), Metrics())
    rows = [MeshRow(slug=slug, name="", created_at=0, updated_at=0) for slug in ("team", "other")]

    def work(tx: Transaction) -> None:
        for row in rows:
            tx.mesh_add(row)

    engine.store.write(work)
    return engine


def told(results: Sequence[Applied]) -> list[object]:
    """Results in a form that can be compared: an error is its kind and what it says."""
    return [
        (one.id, one.outcome, one.offset, type(one.error), one.error and one.error.message)
        for one in results
    ]


FAR = ceiling(0) // 3 + 50
MADE: list[Callable[[bytes, int, str, str], bytes]] = [
    # Most of them plain facts, so that long runs come about.
    *4 * [lambda id, n, o, m: e.fact_append("s", "is", n, id=id, lamport=n + 1, origin=o, mesh=m)],
    lambda id, n, o, m: e.fact_append("s", "is", 0, id=id, lamport=9, origin=o, mesh=m),
    lambda id, n, o, m: e.fact_append("s", "is", 0, id=id, lamport=9, origin=o, mesh="absent"),
    lambda id, n, o, m: e.fact_append("s", "is", 0, id=id, lamport=FAR * n + 1, origin=o, mesh=m),
    lambda id, n, o, m: e.raw("fact.append", "s", Fact("is", b"1", (bytes(32),)), id=id, origin=o),
    lambda id, n, o, m: e.raw("fact.append", "s", Fact("is", b"nope"), id=id, origin=o, mesh=m),
    lambda id, n, o, m: state_set("k", n, id=id, lamport=n + 1, origin=o, mesh=m),
    lambda id, n, o, m: e.raw("state.delete", "k", id=id, lamport=n + 1, origin=o, mesh=m),
    lambda id, n, o, m: e.task_claim(e.TASK, id=id, lamport=n + 1, origin=o, mesh=m),
    lambda id, n, o, m: e.raw("later.thing", "k", id=id, lamport=n + 1, origin=o, mesh=m),
    lambda id, n, o, m: changed(e.fact_append("s", "is", n, id=id), version="2.0"),
    lambda id, n, o, m: b"nonsense" * n,
]
batches = st.lists(
    st.lists(
        st.builds(
            lambda make, id, n, o, m: make(make_id(id), n, o, m),
            st.sampled_from(MADE),
            st.integers(0, 40),
            st.integers(0, 6),
            st.sampled_from(["bob", "zoe", "ana"]),
            st.sampled_from(["team", "team", "other"]),
        ),
        max_size=30,
    ),
    max_size=5,
)


@given(batches)
@settings(max_examples=200)
def test_Z7_many_at_once_and_one_by_one_come_to_the_same(batches: list[list[bytes]]) -> None:
    quick, slow = memory_core(), memory_core()
    for batch in batches:
        at_once = quick.store.write(Intake(quick.ctx, batch, 3))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arrivals, "read_fact", lambda raw: None)
            patch.setattr(compiled, "part", None)
            one_by_one = slow.store.write(Intake(slow.ctx, batch, 3))
        assert told(at_once) == told(one_by_one)
        with quick.store.read() as one, slow.store.read() as other:
            assert dump(one) == dump(other)


class Watched:
    """A transaction that notes what is asked of it."""

    def __init__(self, tx: Transaction, asked: list[str]) -> None:
        self._tx, self._asked = tx, asked

    def __getattr__(self, name: str) -> Any:
        self._asked.append(name)
        return getattr(self._tx, name)


def test_Z7_a_run_of_facts_is_appended_at_once(node: Node) -> None:
    """What makes it quick: seen, so that a change that goes round it is not only slower."""
    asked: list[str] = []
    raws = [e.fact_append("s", "n", n, lamport=n + 1, id=make_id(n)) for n in range(150)]
    known = raws[70]
    node.apply([known])

    def work(tx: Transaction) -> Sequence[Applied]:
        return Intake(node._engine.ctx, raws[:64])(cast(Transaction, Watched(tx, asked)))

    results = store_of(node).write(work)
    assert sorted(asked) == ["log_append_new", "mesh_get", "peer_seen", "tick_merged_run"]
    assert [one.offset for one in results] == list(range(2, 66))
    again = node.apply(raws)
    outcomes = [one.outcome for one in again]
    assert (
        outcomes
        == [Outcome.NOOP_ALREADY_APPLIED] * 64
        + [Outcome.APPLIED] * 6
        + [Outcome.NOOP_ALREADY_APPLIED]
        + [Outcome.APPLIED] * 79
    )
    assert again[70].offset == 1
    assert node.log.head().offset == 150


def test_Z6_what_a_zone_brought_bears_its_number(nodes: Nodes) -> None:
    node = nodes.open("ana")
    zone = store_of(node).write(lambda tx: tx.zone_put(ZoneRow(name="zoe", added_at=0)))
    raws = [e.fact_append("s", "n", 1, lamport=1), state_set("k", 1, lamport=2)]
    store_of(node).write(Intake(node._engine.ctx, raws, zone.number))
    node.apply([e.fact_append("s", "n", 2, lamport=3), state_set("k", 2, lamport=4)])
    team(node).facts.append("s", "n", 3)
    with store_of(node).read() as tx:
        beyond = tx.log_page(1, 99, 99, 1 << 20, Filter(beyond="zoe"))
        everything = tx.log_page(1, 99, 99, 1 << 20, Filter(beyond="nobody"))
    assert beyond.offsets == [3, 4, 5]
    assert everything.offsets == [1, 2, 3, 4, 5]
