"""What a driver tells its callers when members answer, honestly or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from holdfast.node.core.commit import CommittedEntry
from holdfast.node.quorum.embedded.group_driver import GroupDriver
from holdfast.node.quorum.embedded.open_proposals import ProposalAnswer, ProposalEnd
from holdfast.node.quorum.embedded.ports import Folded, GroupHooks, SnapshotPorts, Wrote
from holdfast.rules.errors import OutcomeUnknown
from holdfast.rules.limits import QUORUM_ENTRY_BYTES_MAX, QUORUM_MEMBER_PROPOSED_BYTES
from holdfast.rules.quorum.raft.config import GroupMember, first_config
from holdfast.rules.quorum.raft.effects import RaftWrite
from holdfast.rules.quorum.raft.log import RaftLog
from holdfast.rules.quorum.raft.messages import (
    AppendAnswer,
    AppendEntries,
    AskVote,
    ForwardAnswer,
    ForwardProposals,
    GroupSnapshotPart,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    Proposal,
    RaftEntry,
    VoteAnswer,
)
from holdfast.rules.quorum.raft.state import DurablePast, GroupTiming, restarted

GROUP = b"g" * 16
CONFIG = first_config((("ana", b"a" * 32), ("bob", b"b" * 32), ("cai", b"c" * 32)))


class Place:
    """Disk, network and fold of one driver: they keep what they are told."""

    applied = 0
    is_full = False

    def __init__(self) -> None:
        self.wrote: list[Wrote] = []
        self.sent: list[Message] = []
        self.folds: list[int] = []
        """What was handed over to be applied, and never is."""
        self.calls: list[Callable[[], None]] = []

    def write(self, write: RaftWrite, commit: int, done: Wrote) -> None:
        self.wrote.append(done)

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[RaftEntry]:
        return ()

    def send(self, to: GroupMember, message: Message) -> None:
        self.sent.append(message)

    def has_room(self, to: GroupMember) -> bool:
        return not self.is_full

    def fold(self, entries: Sequence[CommittedEntry], upto: int, done: Folded) -> None:
        self.folds.append(upto)

    def run(self) -> None:
        while self.calls:
            self.calls.pop(0)()


def driver_of(place: Place) -> GroupDriver:
    past = DurablePast(1, 0, RaftLog(configs=((0, CONFIG),)), 0)
    state = restarted(past, me=1, group=GROUP, incarnation=1, timing=GroupTiming())
    hooks = GroupHooks(now_ms=lambda: 1, post=place.calls.append)
    return GroupDriver("ana", state, place, place, place, hooks)


def proposal(number: int) -> Proposal:
    return Proposal(number.to_bytes(16, "big"), b"payload")


def test_Q3_the_word_of_another_member_ends_no_proposal() -> None:
    place, heard = Place(), list[ProposalAnswer]()
    driver = driver_of(place)
    driver.receive(Heartbeat(GROUP, 2, 1, 1, 0, 0, 1))
    for number in (1, 2):
        driver.propose(proposal(number), 100, heard.append)
    place.run()
    driver.receive(ForwardAnswer(GROUP, 2, 1, 1, (proposal(1).id,), "disk_failed"))
    driver.receive(ForwardAnswer(GROUP, 2, 1, 1, (proposal(2).id,), "removed"))
    assert heard == []
    assert len(driver.proposals) == 2


def test_Q3_a_node_whose_disk_failed_refuses_what_comes_then() -> None:
    place, heard = Place(), list[ProposalAnswer]()
    driver = driver_of(place)
    for draw in range(30):  # until it stands for election, which it has to write down
        driver.tick(draw)
    driver.receive(Heartbeat(GROUP, 2, 1, 2, 0, 0, 1))
    assert place.wrote
    place.wrote[0](OutcomeUnknown("the disk failed under it"))
    driver.propose(proposal(1), 100, heard.append)
    place.run()
    assert heard == [ProposalEnd.REFUSED]


def answer(driver: GroupDriver, place: Place) -> None:
    """Bob votes for her, and hears her; his disk takes its time. Hers has everything at once."""
    while place.sent or place.wrote:
        while place.wrote:
            place.wrote.pop(0)(None)
        sent, place.sent = place.sent, []
        for one in [message for message in sent if message.to == 2]:
            if isinstance(one, AskVote):
                driver.receive(VoteAnswer(GROUP, 2, 1, one.term, one.pre, True))
            elif isinstance(one, Heartbeat):
                driver.receive(HeartbeatAnswer(GROUP, 2, 1, one.term, one.round, 0))


def test_Q3_a_leader_adds_nothing_again_that_stands_in_its_own_log() -> None:
    """However slow the others are: else a slow group gets longer logs, and slower with them."""
    place, heard = Place(), list[ProposalAnswer]()
    driver = driver_of(place)
    while driver.state.role != "leader":
        driver.tick(0)
        answer(driver, place)
    driver.propose(proposal(1), 100, heard.append)
    place.run()
    last = driver.state.log.last
    for _ in range(3 * driver.state.timing.election):
        driver.tick(0)
        answer(driver, place)
    assert driver.state.role == "leader"
    assert (driver.state.log.last, heard) == (last, [])


def _leading(place: Place) -> GroupDriver:
    driver = driver_of(place)
    while driver.state.role != "leader":
        driver.tick(0)
        answer(driver, place)
    return driver


def _large(number: int) -> Proposal:
    return Proposal(number.to_bytes(16, "big"), bytes(QUORUM_ENTRY_BYTES_MAX // 2))


def test_Q3_a_member_that_proposes_without_end_takes_nobody_elses_room() -> None:
    place, heard = Place(), list[ProposalAnswer]()
    driver = _leading(place)
    term, fit = driver.state.term, 2 * QUORUM_MEMBER_PROPOSED_BYTES // QUORUM_ENTRY_BYTES_MAX
    for number in range(fit + 1):
        last = driver.state.log.last
        driver.receive(ForwardProposals(GROUP, 2, 1, term, (_large(number),)))
    assert driver.state.log.last == last, "the last one is not taken"
    held = [one for one in place.sent if isinstance(one, ForwardAnswer)]
    assert [(one.ids, one.reason) for one in held] == [((_large(fit).id,), "too_many")]
    driver.propose(_large(99), 100, heard.append)
    place.run()
    assert driver.state.log.last == last + 1, "her own is"
    while place.wrote:
        place.wrote.pop(0)(None)
    last += 1
    driver.receive(AppendAnswer(GROUP, 2, 1, term, True, last, last, driver.state.round))
    assert driver.state.commit == last
    driver.receive(ForwardProposals(GROUP, 2, 1, term, (_large(fit),)))
    assert driver.state.log.last == last + 1, "what is committed takes no room"


def test_Q3_callers_of_a_leader_without_room_wait_until_there_is_some() -> None:
    place, heard = Place(), list[ProposalAnswer]()
    driver = _leading(place)
    fit = 2 * QUORUM_MEMBER_PROPOSED_BYTES // QUORUM_ENTRY_BYTES_MAX
    for number in range(fit + 1):
        driver.propose(_large(number), 100, heard.append)
        place.run()
    last = driver.state.log.last
    driver.tick(0)
    assert driver.state.log.last == last
    while place.wrote:
        place.wrote.pop(0)(None)
    round = driver.state.round
    driver.receive(AppendAnswer(GROUP, 2, 1, driver.state.term, True, last, last, round))
    place.run()
    assert driver.state.log.last == last + 1


def test_Q3_entries_are_read_only_for_a_member_to_whom_they_can_be_sent() -> None:
    """Else a few bytes of a voter that lies make a leader read megabytes, again and again."""
    place, heard = Place(), list[ProposalAnswer]()
    driver = _leading(place)
    driver.propose(proposal(1), 100, heard.append)
    place.run()
    place.sent.clear()
    place.is_full = True
    for _ in range(3):
        beat = HeartbeatAnswer(GROUP, 2, 1, driver.state.term, driver.state.round, 0)
        driver.receive(beat)
    assert not [one for one in place.sent if isinstance(one, AppendEntries)]
    place.is_full = False
    driver.receive(beat)
    assert [one for one in place.sent if isinstance(one, AppendEntries)]


def test_Q4_a_snapshot_comes_from_the_leader_or_not_at_all() -> None:
    place = Place()
    driver = driver_of(place)
    driver.receive(Heartbeat(GROUP, 2, 1, 2, 0, 0, 1))
    taken = list[Message]()
    driver._snapshots = cast(SnapshotPorts, object())
    driver.incoming = cast(Any, SimpleNamespace(begin=taken.append, part=taken.append))
    for sender, term in ((3, 2), (2, 3), (3, 3), (2, 1)):
        driver.receive(GroupSnapshotPart(GROUP, sender, 1, term, 1, 0, b"x"))
    assert taken == []
    driver.receive(GroupSnapshotPart(GROUP, 2, 1, 2, 1, 0, b"x"))
    assert len(taken) == 1


def test_Q4_a_leader_whose_disk_hangs_steps_down_although_all_hear_it() -> None:
    place, heard = Place(), list[ProposalAnswer]()
    driver = _leading(place)
    driver.propose(proposal(1), 100, heard.append)
    place.run()
    ticks = 0
    while driver.state.role == "leader":
        driver.tick(0)
        ticks += 1
        assert ticks <= 2 * driver.state.timing.election, "it leads on with a disk that hangs"
        for one in [one for one in place.sent if isinstance(one, Heartbeat)]:
            driver.receive(HeartbeatAnswer(GROUP, one.to, 1, one.term, one.round, 0))
        place.sent.clear()
    for _ in range(5 * driver.state.timing.election):
        driver.tick(0)
    assert driver.state.role == "follower", "nor does it stand for election"
    assert len(place.wrote) == 1, "nor ask its disk for anything more"
