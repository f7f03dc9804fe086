"""What one envelope does to its family: the same rows, whatever order they come in."""

from __future__ import annotations

from itertools import permutations

import pytest

from holdfast.node.library.node import Node
from holdfast.rules.errors import BlobElsewhere, UnknownFile, UnknownKey
from holdfast.rules.reconcile import Outcome
from holdfast.rules.vectors import Model
from support import envelopes as e
from support.envelopes import MODEL
from support.nodes import Nodes, deliver, store_of, team
from support.snapshot import differences, snapshot


def outcomes(node: Node, *raws: bytes) -> list[Outcome | None]:
    applied = node.apply(raws)
    assert [result.error for result in applied] == [None] * len(raws)
    return [result.outcome for result in applied]


# --- the last writer wins -------------------------------------------------------------------------


def test_S6_the_higher_stamp_wins_whichever_comes_first(nodes: Nodes) -> None:
    older = e.state_set("k", "old", origin="bob", lamport=4)
    newer = e.state_set("k", "new", origin="cyd", lamport=7)
    one, two = nodes.open("ana"), nodes.open("eve")
    assert outcomes(one, older, newer) == [Outcome.APPLIED, Outcome.APPLIED]
    assert outcomes(two, newer, older) == [Outcome.APPLIED, Outcome.SUPERSEDED]
    assert team(one).state.get("k") == team(two).state.get("k") == "new"


@pytest.mark.parametrize("peers", list(permutations(["z", "é", "\uffff", "\U00010000"])))
def test_S5_at_one_lamport_the_higher_peer_by_bytes_wins(
    nodes: Nodes, peers: tuple[str, ...]
) -> None:
    node = nodes.open("ana")
    node.apply([e.state_set("k", peer, origin=peer, lamport=3) for peer in peers])
    assert team(node).state.get("k") == "\U00010000"


def test_S5_a_row_keeps_the_stamp_of_its_origin(node: Node) -> None:
    mesh = team(node)
    for n in range(20):
        mesh.state.set("own", n)
    node.apply([e.state_set("k", 1, origin="bob", lamport=3)])
    entry = mesh.state.entry("k")
    assert entry is not None
    assert (entry.lamport, entry.peer) == (3, "bob")
    assert mesh.clock().lamport == 21, "the tick moved the clock and nothing else"


def test_S6_a_tombstone_is_a_version_like_any_other(nodes: Nodes) -> None:
    older = e.state_set("k", 1, origin="bob", lamport=3)
    dead = e.raw("state.delete", "k", origin="cyd", lamport=5)
    newer = e.state_set("k", 2, origin="bob", lamport=7)
    for order in permutations([older, dead]):
        node = nodes.open("ana")
        node.apply(order)
        assert team(node).state.get("k", "gone") == "gone"
        assert list(team(node).state.list()) == []
        with pytest.raises(UnknownKey):
            team(node).state.delete("k")
        node.apply([newer])
        assert team(node).state.get("k") == 2


# --- memory and its scopes ------------------------------------------------------------------------


def test_S7_recall_has_three_scopes(nodes: Nodes) -> None:
    ana = nodes.open("ana")
    mesh = team(ana)
    ana.apply(
        [
            e.memory_set("k", "b", origin="bob", lamport=5),
            e.memory_set("k", "c", origin="cyd", lamport=9),
            e.memory_set("k", "é", origin="é", lamport=5),
            e.memory_set("other", "b", origin="bob", lamport=6),
        ]
    )
    assert mesh.memory.get("k") is None
    mesh.memory.set("k", "a", tags=["t"])
    own = mesh.memory.get("k")
    assert own is not None
    assert (own.peer, own.value, own.tags) == ("ana", "a", ("t",))
    assert [m.value for m in mesh.memory.recall("k")] == ["a"]
    assert [m.value for m in mesh.memory.recall("k", scope="self")] == ["a"]
    assert [m.value for m in mesh.memory.recall("k", scope="peer:bob")] == ["b"]
    assert mesh.memory.recall("k", scope="peer:nobody") == []
    assert [m.peer for m in mesh.memory.recall("k", scope="all")] == ["ana", "cyd", "bob", "é"]
    mesh.memory.forget("k")
    assert mesh.memory.get("k") is None
    assert [m.peer for m in mesh.memory.recall("k", scope="all")] == ["cyd", "bob", "é"]
    assert [m.key for m in mesh.memory.list(scope="peer:bob")] == ["k", "other"]
    assert [(m.peer, m.key) for m in mesh.memory.list(scope="all")] == [
        *(("bob", "k"), ("bob", "other"), ("cyd", "k"), ("é", "k"))
    ]
    assert list(mesh.memory.list()) == []


def test_S6_peers_do_not_disturb_each_others_memories(nodes: Nodes) -> None:
    ana, bob = nodes.open("ana"), nodes.open("bob")
    team(ana).memory.set("k", "of ana")
    team(bob).memory.set("k", "of bob")
    deliver(ana, bob)
    deliver(bob, ana)
    for node in (ana, bob):
        values = {m.peer: m.value for m in team(node).memory.recall("k", scope="all")}
        assert values == {"ana": "of ana", "bob": "of bob"}
    assert list(ana.conflicts()) == []


# --- vectors --------------------------------------------------------------------------------------


def test_S8_only_the_newest_vector_of_a_key_is_found_in_any_order(nodes: Nodes) -> None:
    raws = [
        e.vector_store("k", [n, 0], origin="bob", lamport=n, content=f"v{n}") for n in (1, 2, 3)
    ]
    ends = []
    for order in permutations(raws):
        node = nodes.open("ana")
        node.apply(order)
        hits = team(node).vectors.search([0, 0], model=MODEL)
        assert [(hit.key, hit.content) for hit in hits] == [("k", "v3")]
        ends.append(snapshot(store_of(node)))
        assert len(ends[-1]["team"]["vector"]) == 3, "every store is kept"
    assert all(differences(ends[0], end) == [] for end in ends)


def test_S8_a_deletion_hides_what_is_older_and_not_what_is_newer(nodes: Nodes) -> None:
    older = e.vector_store("k", [1, 0], origin="bob", lamport=1)
    dead = e.vector_delete("k", origin="bob", lamport=2)
    newer = e.vector_store("k", [3, 0], origin="bob", lamport=3)
    for order in permutations([older, dead]):
        node = nodes.open("ana")
        node.apply(order)
        assert team(node).vectors.search([0, 0], model=MODEL) == []
        node.apply([newer])
        assert len(team(node).vectors.search([0, 0], model=MODEL)) == 1
    node = nodes.open("ana")
    assert outcomes(node, newer, dead, older) == [
        Outcome.APPLIED,
        Outcome.SUPERSEDED,
        Outcome.SUPERSEDED,
    ]
    assert len(team(node).vectors.search([0, 0], model=MODEL)) == 1


def test_S8_models_and_owners_keep_their_vectors_apart(node: Node) -> None:
    mesh = team(node)
    other = Model(provider="test", name="tiny", version="2", dim=2)
    mesh.vectors.store("k", [1, 0], model=MODEL, content="one", metadata={"a": 1})
    mesh.vectors.store("k", [2, 0], model=other, content="two")
    node.apply([e.vector_store("k", [3, 0], origin="bob", lamport=1, content="three")])
    found = mesh.vectors.search([0, 0], model=MODEL)
    assert [(hit.peer, hit.content, hit.metadata) for hit in found] == [
        ("ana", "one", {"a": 1}),
        ("bob", "three", None),
    ]
    assert [hit.content for hit in mesh.vectors.search([0, 0], model=other)] == ["two"]
    assert {row.id for row in mesh.vectors.models()} == {MODEL.fingerprint, other.fingerprint}
    mesh.vectors.delete("k", model=MODEL)
    assert [hit.peer for hit in mesh.vectors.search([0, 0], model=MODEL)] == ["bob"]
    assert [hit.content for hit in mesh.vectors.search([0, 0], model=other)] == ["two"]


# --- files ----------------------------------------------------------------------------------------


def test_S9_a_peers_file_is_read_when_its_content_has_come(nodes: Nodes) -> None:
    ana, bob = nodes.open("ana"), nodes.open("bob")
    content = bytes(range(256)) * 300
    team(bob).files.share("big.bin", content)
    team(bob).files.share("small.txt", b"hello")
    ana.apply([entry.raw for entry in bob.log.range()])
    assert team(ana).files.read("small.txt", peer="bob") == b"hello"
    with pytest.raises(BlobElsewhere):
        team(ana).files.read("big.bin", peer="bob")
    assert not team(ana).files.info("big.bin", peer="bob").here
    ana.receive_blob(content)
    assert team(ana).files.read("big.bin", peer="bob") == content
    with team(ana).files.open("big.bin", peer="bob") as stream:
        assert stream.read() == content
    assert team(ana).files.info("big.bin", peer="bob").here
    with pytest.raises(UnknownFile):
        team(ana).files.read("big.bin")


def test_Q2_an_op_of_a_newer_version_is_kept_and_passed_on(nodes: Nodes) -> None:
    ana, bob = nodes.open("ana"), nodes.open("bob")
    strange = e.raw("state.increment", "k", origin="cyd", lamport=5, version="1.9")
    assert outcomes(ana, strange) == [Outcome.APPLIED]
    assert team(ana).clock().lamport == 6, "it happened, so it ticks"
    deliver(ana, bob)
    assert [entry.raw for entry in bob.log.range()] == [strange]


def test_S6_facts_are_in_the_log_and_nowhere_else(nodes: Nodes) -> None:
    ana, bob = nodes.open("ana"), nodes.open("bob")
    receipt = team(ana).facts.append("sky", "is", "blue", meta={"seen": 1})
    deliver(ana, bob)
    entry = bob._engine.read("x", lambda tx: tx.log_find(receipt.raw_id))
    assert entry is not None
    assert (entry.op, entry.entity, entry.origin) == ("fact.append", "sky", "ana")
    assert team(bob).counts() == {"state": 0, "memory": 0, "file": 0, "vector": 0, "task": 0}
