"""What callers of a leader propose while a round is under way shares the next one."""

from __future__ import annotations

from holdfast.rules.limits import QUORUM_ROUND_ENTRIES, QUORUM_ROUND_WAIT_MS
from holdfast.rules.quorum.raft.messages import AppendEntries, Proposal
from node.quorum.embedded.test_commit_words import Leader
from node.quorum.embedded.test_group_driver import proposal


def propose(node: Leader, *numbers: int) -> None:
    for number in numbers:
        node.driver.propose(proposal(number), 100, lambda end: None)
    node.place.run()


def entries(node: Leader) -> list[int]:
    """How many entries were sent to bob, message by message."""
    sent = node.sent()
    return [len(one.entries) for one in sent if isinstance(one, AppendEntries) and one.to == 2]


def round_ends(node: Leader) -> None:
    while node.place.wrote:
        node.place.wrote.pop(0)(None)
    node.has(2, node.driver.state.log.last)
    node.place.run()


def test_Q4_proposals_that_come_during_a_round_share_the_next_one() -> None:
    node = Leader()
    propose(node, 1)
    assert entries(node) == [1], "a lone write waits for nobody"
    propose(node, 2)
    propose(node, 3, 4)
    assert entries(node) == []
    round_ends(node)
    assert entries(node) == [3]
    propose(node, 5)
    round_ends(node)
    assert entries(node) == [1]


def test_Q4_a_round_that_lasts_holds_nobody_up_for_long() -> None:
    node = Leader()
    propose(node, 1)
    propose(node, 2)
    assert entries(node) == [1]
    ((after, end),) = [timer for timer in node.timers if timer[0] == QUORUM_ROUND_WAIT_MS]
    assert after == QUORUM_ROUND_WAIT_MS
    end()
    assert entries(node) == [1], "both are under way"
    propose(node, 3)
    assert entries(node) == [], "the next ones wait again, and have a time of their own"
    assert [timer[0] for timer in node.timers].count(QUORUM_ROUND_WAIT_MS) == 2


def test_Q4_many_proposals_wait_for_no_round() -> None:
    node = Leader()
    propose(node, 1)
    assert entries(node) == [1]
    propose(node, *range(2, 2 + QUORUM_ROUND_ENTRIES))
    assert entries(node) == [QUORUM_ROUND_ENTRIES]


def test_Q4_who_waits_for_a_round_of_a_leader_that_falls_is_proposed_to_the_next_one() -> None:
    node = Leader()
    propose(node, 1)
    propose(node, 2)
    node.sent()
    node.driver.step_down()
    for _, call in node.timers:
        call()
    node.place.run()
    assert node.driver.state.role == "follower"
    node.driver.tick(0)
    node.place.run()
    waits: list[Proposal] = []
    waits += node.driver.proposals.due()
    assert len(node.driver.proposals) == 2
