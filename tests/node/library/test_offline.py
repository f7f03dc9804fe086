"""Alone and cut off: every verb works on what is here, and says so where it matters."""

from __future__ import annotations

import pytest

from holdfast.node.library.node import Node
from holdfast.rules.errors import BlobElsewhere, UnknownFile
from support import envelopes as e
from support.envelopes import MODEL
from support.nodes import Nodes, deliver, share, team
from support.source import HandClock

BIG = bytes(70_000)


def queued(node: Node) -> list[str]:
    """What waits in the log for whoever comes to read it."""
    return [entry.op for entry in node.log.fetch("to-others")]


@pytest.fixture
def alone(nodes: Nodes) -> Node:
    """A node that has heard of another, and is cut off now."""
    node = nodes.open("ana")
    node.apply(
        [
            e.memory_set("k", "of bob", lamport=1),
            e.state_set("shared", "of bob", lamport=2),
            e.file_share("small", b"here", lamport=3),
            e.file_share("big", BIG, lamport=4),
            e.vector_store("v", [1, 1], lamport=5, content="of bob"),
            e.task_create(e.TASK, lamport=6),
        ]
    )
    node.log.add_consumer("to-others", start="now")
    return node


def test_S15_remember_and_recall_work_offline(alone: Node) -> None:
    memory = team(alone).memory
    memory.set("k", "mine")
    assert [m.value for m in memory.recall("k", scope="all")] == ["mine", "of bob"]
    assert queued(alone) == ["memory.set"]


def test_S15_set_and_get_state_work_offline(alone: Node) -> None:
    state = team(alone).state
    assert state.get("shared") == "of bob"
    state.set("shared", "mine")
    assert state.get("shared") == "mine"
    assert queued(alone) == ["state.set"]


def test_S15_vectors_are_stored_and_searched_offline(alone: Node) -> None:
    vectors = team(alone).vectors
    vectors.store("w", [2, 2], model=MODEL, content="mine")
    found = vectors.search([1, 1], model=MODEL)
    assert [hit.content for hit in found] == ["of bob", "mine"]
    assert queued(alone) == ["vector.store"]


def test_S15_files_are_shared_offline_and_peers_files_read_as_far_as_they_came(
    alone: Node,
) -> None:
    files = team(alone).files
    files.share("mine", b"m" * 70_000)
    assert files.read("mine") == b"m" * 70_000
    assert files.read("small", peer="bob") == b"here"
    with pytest.raises(BlobElsewhere):
        files.read("big", peer="bob")
    with pytest.raises(UnknownFile):
        files.read("never heard of", peer="bob")
    assert queued(alone) == ["file.share"]


def test_S15_an_older_version_of_a_peers_file_is_offered_as_stale(alone: Node) -> None:
    files = team(alone).files
    assert files.last_known("small", peer="bob").status == "fresh"
    alone.apply([e.file_share("small", BIG, lamport=9)])
    stale = files.last_known("small", peer="bob")
    assert (stale.status, stale.content, stale.lamport) == ("stale", b"here", 3)
    with pytest.raises(BlobElsewhere):
        files.last_known("big", peer="bob")


def test_S15_peers_are_listed_from_the_cache_and_grow_stale(alone: Node, clock: HandClock) -> None:
    assert [(peer.peer, peer.stale) for peer in team(alone).peers()] == [("bob", False)]
    clock.advance(5 * 60 * 1000)
    assert [peer.stale for peer in team(alone).peers()] == [False]
    clock.advance(1)
    assert [peer.stale for peer in team(alone).peers()] == [True]


def test_S15_a_claim_is_tentative_offline_and_reverts_when_another_was_first(
    nodes: Nodes, alone: Node
) -> None:
    bob = nodes.open("bob")
    bob.apply([e.task_create(e.TASK, lamport=6)])
    team(bob).tasks.claim(e.TASK)
    team(alone).state.set("busy", True)
    assert team(alone).tasks.claim(e.TASK).claimed_by == "ana"
    assert queued(alone) == ["state.set", "task.claim"]
    deliver(bob, alone)
    assert team(alone).tasks.get(e.TASK).claimed_by == "bob", "its stamp is the lower one"
    assert [warning.entity for warning in alone.take_warnings()] == [e.TASK]


def test_S15_the_clock_and_the_mesh_are_told_from_here(alone: Node) -> None:
    clock = team(alone).clock()
    assert clock.lamport == team(alone).info().lamport > 6
    assert clock.sync_state in ("local", "offline")
    assert clock.last_sync_at is None
    assert team(alone).info().name == "team"
    assert team(alone).counts() == {"state": 1, "memory": 1, "file": 2, "vector": 1, "task": 1}


# --- a shared mesh whose broker is out of reach --------------------------------------------------


@pytest.fixture
def cut_off(alone: Node) -> Node:
    share(alone)
    return alone


def in_outbox(node: Node) -> list[tuple[str, str]]:
    """What waits for the broker, and how."""
    return [(item.op, item.state) for item in node.outbox.list()]


def test_S15_a_message_is_queued_offline(cut_off: Node) -> None:
    sent = team(cut_off).send("later", topic="news")
    assert sent.state == "pending"
    assert in_outbox(cut_off) == [("message.send", "pending")]
    assert cut_off.outbox.get(sent.id).entity == "topic/news"


def test_S15_every_verb_that_changes_something_waits_in_the_outbox(cut_off: Node) -> None:
    mesh = team(cut_off)
    mesh.memory.set("k", "mine")
    mesh.memory.forget("k")
    mesh.state.set("shared", 1)
    mesh.state.delete("shared")
    mesh.vectors.store("w", [2, 2], model=MODEL, content="mine")
    mesh.vectors.delete("w", model=MODEL)
    mesh.files.share("mine", BIG)
    mesh.files.delete("mine")
    mesh.facts.append("s", "p", 1)
    mesh.tasks.claim(e.TASK)
    mesh.tasks.complete(e.TASK)
    written = [entry.op for entry in cut_off.log.range(7)]
    assert in_outbox(cut_off) == [(op, "pending") for op in written]
    assert len(written) == 11


def test_S15_reading_leaves_nothing_in_the_outbox(cut_off: Node) -> None:
    mesh = team(cut_off)
    assert mesh.memory.recall("k", scope="all")[0].value == "of bob"
    assert mesh.state.get("shared") == "of bob"
    assert mesh.files.read("small", peer="bob") == b"here"
    assert [peer.peer for peer in mesh.peers()] == ["bob"]
    assert [hit.content for hit in mesh.vectors.search([1, 1], model=MODEL)] == ["of bob"]
    clock = mesh.clock()
    assert (clock.sync_state, clock.last_sync_at) == ("offline", None)
    assert list(cut_off.inbox.list()) == []
    assert in_outbox(cut_off) == []


def test_S15_a_tentative_claim_waits_and_reverts_when_another_was_first(
    nodes: Nodes, cut_off: Node
) -> None:
    bob = nodes.open("bob")
    bob.apply([e.task_create(e.TASK, lamport=6)])
    team(bob).tasks.claim(e.TASK)
    team(cut_off).state.set("busy", True)
    assert team(cut_off).tasks.claim(e.TASK).claimed_by == "ana"
    assert in_outbox(cut_off)[-1] == ("task.claim", "pending")
    deliver(bob, cut_off)
    assert team(cut_off).tasks.get(e.TASK).claimed_by == "bob"
    assert in_outbox(cut_off)[-1] == ("task.claim", "pending"), "the others still hear of it"
