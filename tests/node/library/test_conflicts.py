"""The conflict ledger: what merges discarded, and how to get it back."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from holdfast.node.library.node import Node
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.bodies import FileShare, encode_body
from holdfast.rules.errors import AlreadyResolved, BlobMissing, NotOurs, TaskTaken, UnknownConflict
from holdfast.rules.order import Version
from holdfast.rules.rows import ConflictRow
from support import envelopes as e
from support.envelopes import make_id
from support.nodes import Nodes, blob_names, deliver, store_of, team
from support.snapshot import differences, snapshot
from support.source import HandClock

ID = "018bcfe5-6800-7000-8000-0000000000aa"


def the_conflict(node: Node) -> ConflictRow:
    (row,) = node.conflicts()
    return row


# --- what is a conflict ---------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["winner", "loser"])
def test_S18_two_writes_that_knew_nothing_of_each_other_leave_an_entry(
    node: Node, clock: HandClock, first: str
) -> None:
    winner = e.state_set("k", "won", lamport=7, origin="cyd", id=make_id(7))
    loser = e.state_set("k", "lost", lamport=4, origin="bob", id=make_id(4))
    node.apply([winner, loser] if first == "winner" else [loser, winner])
    row = the_conflict(node)
    assert (row.mesh, row.family, row.owner, row.entity) == ("team", "state", "", "k")
    assert row.winner == Version(7, "cyd", make_id(7))
    assert row.loser == Version(4, "bob", make_id(4))
    assert row.loser_op == "state.set"
    assert "higher stamp" in row.reason
    assert (row.found_at, row.resolved_at) == (clock.at_ms, None)
    assert node.conflict(row.number) == row


def test_S18_a_succession_is_no_conflict(nodes: Nodes) -> None:
    ana, bob = nodes.open("ana"), nodes.open("bob")
    team(ana).state.set("k", 1)
    deliver(ana, bob)
    team(bob).state.set("k", 2)
    deliver(bob, ana)
    team(ana).state.set("k", 3)
    deliver(ana, bob)
    assert list(ana.conflicts()) == list(bob.conflicts()) == []


def test_S18_an_ancestor_that_comes_late_is_no_conflict(nodes: Nodes) -> None:
    ana, bob, cyd = (nodes.open(peer) for peer in ("ana", "bob", "cyd"))
    team(ana).state.set("k", 1)
    deliver(ana, bob)
    team(bob).state.set("k", 2)
    cyd.apply(entry.raw for entry in reversed(list(bob.log.range())))
    assert team(cyd).state.get("k") == 2
    assert list(cyd.conflicts()) == []


def test_S18_one_peer_has_no_conflict_with_itself(node: Node) -> None:
    node.apply([e.state_set("k", n, lamport=n) for n in (1, 4, 2, 3)])
    assert team(node).state.get("k") == 4
    assert list(node.conflicts()) == []


def test_S18_a_repetition_is_no_conflict(node: Node) -> None:
    raws = [e.state_set("k", "a", lamport=4, origin="bob"), e.state_set("k", "b", origin="cyd")]
    node.apply([*raws, *raws])
    assert len(list(node.conflicts())) == 1


def test_S18_a_deletion_can_win_and_lose(node: Node) -> None:
    node.apply([e.state_set("k", "kept", lamport=4, origin="bob")])
    node.apply([e.raw("state.delete", "k", lamport=6, origin="cyd")])
    assert the_conflict(node).loser_op == "state.set"
    node.restore_conflict(1)
    assert team(node).state.get("k") == "kept"
    node.apply([e.raw("state.delete", "k", lamport=5, origin="dan")])
    row = the_conflict(node)
    assert row.loser_op == "state.delete"
    node.restore_conflict(row.number)
    assert team(node).state.get("k") is None


def test_S18_a_local_write_is_never_a_conflict_with_what_is_here(node: Node) -> None:
    node.apply([e.state_set("k", 1, lamport=50)])
    team(node).state.set("k", 2)
    team(node).state.delete("k")
    assert list(node.conflicts()) == []


def test_S6_what_one_peer_alone_may_write_has_no_conflicts(node: Node) -> None:
    own = {"origin": "bob", "owner": "bob"}
    node.apply([e.memory_set("k", n, lamport=n, **own) for n in (3, 1, 2)])
    node.apply([e.file_share("k", b"%d" % n, lamport=n, **own) for n in (3, 1, 2)])
    refused = node.apply(
        [
            e.memory_set("k", "not bob's", lamport=9, origin="cyd", owner="bob"),
            e.file_share("k", b"not bob's", lamport=9, origin="cyd", owner="bob"),
            e.vector_store("k", [1, 2], lamport=9, origin="cyd", owner="bob"),
        ]
    )
    assert [result.error and result.error.code for result in refused] == ["forged_origin"] * 3
    memory = team(node).memory.get("k", peer="bob")
    assert memory is not None
    assert memory.value == 3
    assert team(node).files.read("k", peer="bob") == b"3"
    assert list(node.conflicts()) == []


def test_S18_a_lost_claim_is_in_the_ledger(node: Node) -> None:
    node.apply([e.task_create(e.TASK, lamport=1), e.task_claim(e.TASK, lamport=2, id=make_id(2))])
    node.apply([e.task_claim(e.TASK, lamport=3, origin="cyd", id=make_id(3))])
    row = the_conflict(node)
    assert (row.family, row.entity, row.loser_op) == ("task", e.TASK, "task.claim")
    assert (row.winner, row.loser) == (
        Version(2, "bob", make_id(2)),
        Version(3, "cyd", make_id(3)),
    )
    assert "first claim" in row.reason
    with pytest.raises(TaskTaken):
        node.restore_conflict(row.number)
    assert the_conflict(node) == row, "an attempt that was refused resolves nothing"
    node.apply([e.raw("task.cancel", e.TASK, lamport=1, origin="dan")])
    assert [(row.loser.peer, row.reason) for row in node.conflicts()] == [
        ("cyd", "the task had ended"),
        ("bob", "the task had ended"),
    ], "both lost against the end, whatever was known first"


# --- restoring ------------------------------------------------------------------------------------


def make_one(node: Node) -> ConflictRow:
    node.apply([e.state_set("k", {"lost": [1]}, lamport=4, origin="bob")])
    node.apply([e.state_set("k", "won", lamport=7, origin="cyd")])
    return the_conflict(node)


def test_S18_a_loser_is_restored_as_a_new_write_that_wins_everywhere(nodes: Nodes) -> None:
    ana, bob = nodes.open("ana"), nodes.open("bob")
    row = make_one(ana)
    receipt = ana.restore_conflict(row.number)
    assert receipt.lamport > 7
    assert team(ana).state.get("k") == {"lost": [1]}
    assert list(ana.conflicts()) == []
    (resolved,) = ana.conflicts(open_only=False)
    assert resolved.resolution == f"restored as {receipt.id}"
    assert resolved.resolved_at is not None
    bob.apply(entry.raw for entry in reversed(list(ana.log.range())))
    assert team(bob).state.get("k") == {"lost": [1]}
    assert differences(snapshot(store_of(ana)), snapshot(store_of(bob))) == []


def test_S18_a_conflict_is_resolved_once(node: Node) -> None:
    row = make_one(node)
    first = node.restore_conflict(row.number, id=ID)
    again = node.restore_conflict(row.number, id=ID)
    assert (again.duplicate, again.offset) == (True, first.offset), "the same request again"
    with pytest.raises(AlreadyResolved):
        node.restore_conflict(row.number)
    assert node.log.head().offset == 3


def test_S18_a_conflict_can_be_dismissed(node: Node) -> None:
    row = make_one(node)
    node.dismiss_conflict(row.number)
    node.dismiss_conflict(row.number)
    assert list(node.conflicts()) == []
    assert node.conflict(row.number).resolution == "dismissed"
    assert team(node).state.get("k") == "won"
    with pytest.raises(AlreadyResolved):
        node.restore_conflict(row.number)


def test_S18_an_unknown_conflict_is_a_typed_error(node: Node) -> None:
    for act in (node.conflict, node.restore_conflict, node.dismiss_conflict):
        with pytest.raises(UnknownConflict):
            act(1)


def test_S18_conflicts_are_listed_per_mesh_and_survive_a_restart(nodes: Nodes) -> None:
    node = nodes.open("ana", "team", "other")
    make_one(node)
    assert list(node.conflicts("other")) == []
    assert len(list(node.conflicts("team"))) == 1
    assert len(list(nodes.reopen(node).conflicts())) == 1


def ledger_of_old(node: Node, owner: str, lost: bytes) -> ConflictRow:
    """An entry about a file. Earlier versions let others write in its owner's name."""
    team(node).files.share("k", b"won")
    row = ConflictRow(
        mesh="team",
        family="file",
        owner=owner,
        entity="k",
        reason="both were written without knowing of the other; the higher stamp wins",
        winner=Version(1, "ana", make_id(1)),
        loser=Version(1, "Bob", make_id(2)),
        loser_op="file.share",
        loser_body=encode_body(FileShare(sha256(lost).digest(), len(lost))),
        found_at=1,
    )
    store_of(node).write(lambda tx: tx.conflict_add(row))
    return the_conflict(node)


def test_S18_a_lost_blob_is_restored_while_it_is_there(nodes: Nodes, clock: HandClock) -> None:
    node = nodes.open("ana")
    lost = bytes(range(256)) * 300
    node.receive_blob(lost)
    row = ledger_of_old(node, "ana", lost)
    node.restore_conflict(row.number)
    assert team(node).files.read("k") == lost
    clock.advance(1)
    node.sweep(Ttl(blob_ms=0, orphan_ms=0))
    assert team(node).files.read("k") == lost, "the sweep leaves it alone"


def test_S6_nobody_restores_what_is_anothers(nodes: Nodes) -> None:
    node = nodes.open("ana")
    row = ledger_of_old(node, "bob", b"x" * 70_000)
    with pytest.raises(NotOurs, match="bob"):
        node.restore_conflict(row.number)
    assert the_conflict(node) == row


def test_S18_a_lost_blob_that_is_gone_is_not_restored_as_a_hole(
    nodes: Nodes, clock: HandClock
) -> None:
    node = nodes.open("ana")
    lost = bytes(range(256)) * 300
    sha = node.receive_blob(lost)
    row = ledger_of_old(node, "ana", lost)
    write = node._engine.write

    def swept_first(name: str, work: Any) -> Any:
        """A sweep of another process comes before the transaction."""
        node._engine.blobs.unlink(sha)
        return write(name, work)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node._engine, "write", swept_first)
        with pytest.raises(BlobMissing):
            node.restore_conflict(row.number)
    assert blob_names(node) == set()
    with pytest.raises(BlobMissing):
        node.restore_conflict(row.number)
    assert team(node).files.read("k") == b"won"
    assert the_conflict(node) == row
