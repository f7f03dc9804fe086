"""The one door in: each envelope once, in any order, and what is refused leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.node.node import Node
from holdfast.rules.errors import (
    BadEnvelope,
    BadStamp,
    IdReused,
    Refused,
    UnknownMesh,
    UnsupportedProtocol,
)
from holdfast.rules.ids import id_text
from holdfast.rules.limits import CHUNK_ROWS, LAMPORT_LEAP_MAX
from holdfast.rules.reconcile import Outcome
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
        e.task_create("t", lamport=18),
        e.task_claim("t", lamport=19),
        e.task_release("t", lamport=20),
        e.raw("task.cancel", "t", lamport=21),
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
    far = LAMPORT_LEAP_MAX
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
    raws = [state_set(f"k{n}", "x" * 400_000, lamport=n + 1) for n in range(7)]
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
