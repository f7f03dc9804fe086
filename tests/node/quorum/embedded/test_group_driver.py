"""What a driver tells its callers when members answer, honestly or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.node.core.commit import CommittedEntry
from holdfast.node.quorum.embedded.group_driver import GroupDriver, GroupHooks
from holdfast.node.quorum.embedded.open_proposals import ProposalAnswer, ProposalEnd
from holdfast.node.quorum.embedded.ports import Folded, Wrote
from holdfast.rules.errors import OutcomeUnknown
from holdfast.rules.quorum.raft.config import GroupMember, first_config
from holdfast.rules.quorum.raft.effects import RaftWrite
from holdfast.rules.quorum.raft.log import RaftLog
from holdfast.rules.quorum.raft.messages import (
    AskVote,
    ForwardAnswer,
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

    def __init__(self) -> None:
        self.wrote: list[Wrote] = []
        self.sent: list[Message] = []
        self.calls: list[Callable[[], None]] = []

    def write(self, write: RaftWrite, commit: int, done: Wrote) -> None:
        self.wrote.append(done)

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[RaftEntry]:
        return ()

    def send(self, to: GroupMember, message: Message) -> None:
        self.sent.append(message)

    def fold(self, entries: Sequence[CommittedEntry], upto: int, done: Folded) -> None:
        raise AssertionError("nothing is committed here")

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


def _answer(driver: GroupDriver, place: Place) -> None:
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
        _answer(driver, place)
    driver.propose(proposal(1), 100, heard.append)
    place.run()
    last = driver.state.log.last
    for _ in range(3 * driver.state.timing.election):
        driver.tick(0)
        _answer(driver, place)
    assert driver.state.role == "leader"
    assert (driver.state.log.last, heard) == (last, [])
