"""When a leader tells members that something is committed: with the next entries, if they come."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.node.quorum.embedded.group_driver import GroupDriver
from holdfast.node.quorum.embedded.ports import GroupHooks
from holdfast.rules.limits import QUORUM_WORD_WAIT_MS
from holdfast.rules.quorum.raft.log import RaftLog
from holdfast.rules.quorum.raft.messages import (
    AppendAnswer,
    AppendEntries,
    ForwardProposals,
    Heartbeat,
    Message,
    Proposal,
)
from holdfast.rules.quorum.raft.state import DurablePast, GroupTiming, restarted
from node.quorum.embedded.test_group_driver import CONFIG, GROUP, Place, answer, proposal


class Leader:
    """She leads bob and cai; time stands still until it is told."""

    def __init__(self) -> None:
        self.place = Place()
        self.timers: list[tuple[int, Callable[[], None]]] = []
        past = DurablePast(1, 0, RaftLog(configs=((0, CONFIG),)), 0)
        state = restarted(past, me=1, group=GROUP, incarnation=1, timing=GroupTiming())
        hooks = GroupHooks(
            now_ms=lambda: 1,
            post=self.place.calls.append,
            later=lambda ms, call: self.timers.append((ms, call)),
        )
        self.driver = GroupDriver("ana", state, self.place, self.place, self.place, hooks)
        while self.driver.state.role != "leader":
            self.driver.tick(0)
            answer(self.driver, self.place)
        self.has(2, 1)
        self.has(3, 1)
        self.later()

    def write(self, number: int) -> None:
        self.driver.propose(proposal(number), 100, lambda end: None)
        self.place.run()
        while self.place.wrote:
            self.place.wrote.pop(0)(None)

    def has(self, member: int, upto: int) -> None:
        state = self.driver.state
        self.driver.receive(
            AppendAnswer(GROUP, member, 1, state.term, True, upto, upto, state.round)
        )

    def sent(self) -> list[Message]:
        sent, self.place.sent = self.place.sent, []
        return sent

    def told(self) -> list[tuple[int, int]]:
        """To whom which commit was told by a word of its own."""
        return [(one.to, one.commit) for one in self.sent() if isinstance(one, Heartbeat)]

    def later(self) -> None:
        timers, self.timers = self.timers, []
        for _, call in timers:
            call()
        self.sent()


def test_Q3_the_next_entries_tell_what_was_committed_and_nothing_else_does() -> None:
    node = Leader()
    node.write(1)
    node.sent()
    node.has(2, 2)
    node.has(3, 2)
    assert node.driver.state.commit == 2
    assert node.told() == []
    ((after, said),) = node.timers
    assert after == QUORUM_WORD_WAIT_MS
    node.write(2)
    carried = [(one.to, one.commit) for one in node.sent() if isinstance(one, AppendEntries)]
    assert carried == [(2, 2), (3, 2)]
    said()
    assert node.told() == []


def test_Q3_a_word_that_no_entries_carry_is_said_soon_and_says_the_newest() -> None:
    node = Leader()
    for number in (1, 2):
        node.write(number)
    node.sent()
    node.has(2, 2)
    node.has(2, 3)
    ((_, said),) = node.timers
    said()
    assert node.told() == [(2, 3)], "cai has not got it, and hears of it when she has"
    node.has(3, 3)
    assert node.told() == []
    node.timers[-1][1]()
    assert node.told() == [(3, 3)]


def test_Q3_a_member_whose_callers_wait_is_told_at_once() -> None:
    node = Leader()
    state = node.driver.state
    asked = Proposal((7).to_bytes(16, "big"), b"payload")
    node.driver.receive(ForwardProposals(GROUP, 3, 1, state.term, (asked,)))
    while node.place.wrote:
        node.place.wrote.pop(0)(None)
    node.sent()
    node.has(2, 2)
    assert node.told() == []
    node.has(3, 2)
    assert node.driver.state.commit == 2
    node.sent()
    node.driver.receive(ForwardProposals(GROUP, 3, 1, state.term, (proposal(8),)))
    while node.place.wrote:
        node.place.wrote.pop(0)(None)
    node.sent()
    node.has(3, 3)
    assert node.told() == [(3, 3)], "and bob is not: he waits for nothing"


def test_Q3_a_beat_of_a_round_says_what_a_word_would_have_said() -> None:
    node = Leader()
    node.write(1)
    node.sent()
    node.has(2, 2)
    node.driver.tick(0)
    assert (2, 2) in node.told()
    ((_, said),) = node.timers
    said()
    assert node.told() == []
