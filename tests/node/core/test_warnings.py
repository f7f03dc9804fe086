"""A peer whose claim was superseded is told: once, and also after a restart."""

from __future__ import annotations

from holdfast.node.library.node import Node
from support import envelopes as e
from support.nodes import Nodes, team


def lose_a_claim(node: Node, task: str = e.TASK) -> None:
    """We claim a task and learn then that somebody was first."""
    node.apply([e.task_create(task, lamport=1, origin="cyd")])
    team(node).tasks.claim(task)
    node.apply([e.task_claim(task, lamport=2, origin="bob")])
    assert team(node).tasks.get(task).claimed_by == "bob"


def test_S10_a_lost_claim_is_told_once(node: Node) -> None:
    lose_a_claim(node)
    (warning,) = node.take_warnings()
    assert (warning.type, warning.mesh, warning.entity) == ("task_claim_superseded", "team", e.TASK)
    assert (warning.by_peer, warning.at_lamport) == ("bob", 2)
    assert node.take_warnings() == []


def test_S10_a_lost_claim_is_told_after_a_restart_and_then_never_again(nodes: Nodes) -> None:
    node = nodes.open()
    lose_a_claim(node)
    node = nodes.reopen(node)
    assert [warning.entity for warning in node.take_warnings()] == [e.TASK]
    node = nodes.reopen(node)
    assert node.take_warnings() == []


def test_S10_a_claim_that_was_renewed_is_told_as_one(node: Node) -> None:
    node.apply([e.task_create(e.TASK, lamport=1, origin="cyd")])
    team(node).tasks.claim(e.TASK)
    team(node).tasks.claim(e.TASK)
    node.apply([e.task_claim(e.TASK, lamport=2, origin="bob")])
    assert len(node.take_warnings()) == 1


def test_S10_a_claim_that_an_earlier_end_overtook_is_told(node: Node) -> None:
    node.apply([e.task_create(e.TASK, lamport=1, origin="cyd")])
    team(node).tasks.claim(e.TASK)
    node.apply([e.raw("task.cancel", e.TASK, lamport=2, origin="bob")])
    (warning,) = node.take_warnings()
    assert (warning.entity, warning.by_peer) == (e.TASK, "bob")


def test_S10_nobody_is_warned_of_what_others_lost(node: Node) -> None:
    node.apply([e.task_create(e.TASK, lamport=1), e.task_claim(e.TASK, lamport=5, origin="bob")])
    node.apply([e.task_claim(e.TASK, lamport=3, origin="cyd")])
    assert node.take_warnings() == []


def test_S10_a_claim_that_moves_from_loser_to_loser_is_not_told_twice(node: Node) -> None:
    lose_a_claim(node)
    assert len(node.take_warnings()) == 1
    node.apply([e.task_claim(e.TASK, lamport=1, origin="zed")])
    assert team(node).tasks.get(e.TASK).claimed_by == "zed"
    assert node.take_warnings() == []


def test_S10_warnings_are_told_per_mesh_where_one_is_asked_for(nodes: Nodes) -> None:
    node = nodes.open("ana", "team", "other")
    lose_a_claim(node)
    assert node.take_warnings("other") == []
    assert len(node.take_warnings("team")) == 1


def test_S10_a_repeated_delivery_warns_nobody_again(node: Node) -> None:
    node.apply([e.task_create(e.TASK, lamport=1, origin="cyd")])
    team(node).tasks.claim(e.TASK)
    first = e.task_claim(e.TASK, lamport=2, origin="bob")
    node.apply([first])
    node.apply([first])
    assert len(node.take_warnings()) == 1
