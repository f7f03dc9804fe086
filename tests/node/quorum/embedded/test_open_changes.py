"""What callers hear of changes of members and of transfers of leadership."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.node.core.commit import CommittedEntry
from holdfast.node.quorum.embedded.group_driver import GroupDriver
from holdfast.node.quorum.embedded.open_changes import OpenChanges, OpenTransfers
from holdfast.node.quorum.embedded.ports import Folded, GroupHooks, Wrote
from holdfast.rules.quorum.raft.config import GroupConfig, GroupMember, first_config
from holdfast.rules.quorum.raft.effects import ChangeOutcome, RaftWrite, RoleChange
from holdfast.rules.quorum.raft.events import ChangeMembers
from holdfast.rules.quorum.raft.log import RaftLog
from holdfast.rules.quorum.raft.messages import Message, RaftEntry
from holdfast.rules.quorum.raft.state import DurablePast, GroupTiming, restarted

GROUP = b"g" * 16
ALONE = first_config((("ana", b"a" * 32),))
THREE = first_config((("ana", b"a" * 32), ("bob", b"b" * 32), ("cai", b"c" * 32)))
ADD = ChangeMembers("add", peer="dee", key=b"d" * 32)


class Place:
    """Disk, network and fold of one driver; they do what they are told when `run` is called."""

    def __init__(self) -> None:
        self.applied = 0
        self.calls: list[Callable[[], None]] = []
        self.sent: list[Message] = []

    def write(self, write: RaftWrite, commit: int, done: Wrote) -> None:
        self.calls.append(lambda: done(None))

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[RaftEntry]:
        raise AssertionError("all entries are new")

    def send(self, to: GroupMember, message: Message) -> None:
        self.sent.append(message)

    def has_room(self, to: GroupMember) -> bool:
        return True

    def fold(self, entries: Sequence[CommittedEntry], upto: int, done: Folded) -> None:
        def folded() -> None:
            self.applied = upto
            done([])

        self.calls.append(folded)

    def run(self) -> None:
        while self.calls:
            self.calls.pop(0)()


def driver_of(place: Place, config: GroupConfig) -> GroupDriver:
    past = DurablePast(1, 0, RaftLog(configs=((0, config),)), 0)
    state = restarted(past, me=1, group=GROUP, incarnation=1, timing=GroupTiming())
    hooks = GroupHooks(now_ms=lambda: 1, post=place.calls.append)
    return GroupDriver("ana", state, place, place, place, hooks)


def leading_alone(place: Place) -> GroupDriver:
    driver = driver_of(place, ALONE)
    for draw in range(25):
        driver.tick(draw)
        place.run()
    assert driver.state.role == "leader"
    return driver


def test_Q10_a_change_is_answered_when_this_node_has_applied_it() -> None:
    place, heard = Place(), list[ChangeOutcome | None]()
    driver = leading_alone(place)
    driver.change(ADD, 10, heard.append)
    assert heard == [], "its entry is neither on the disk nor applied"
    place.run()
    assert heard == [ChangeOutcome(place.applied, id=2)]
    assert driver.state.log.config.ids == (1, 2)


def test_Q10_a_refused_change_is_answered_at_once_with_the_reason() -> None:
    place, heard = Place(), list[ChangeOutcome | None]()
    driver = leading_alone(place)
    driver.change(ChangeMembers("remove", id=1), 10, heard.append)
    driver.change(ChangeMembers("promote", id=9), 10, heard.append)
    assert [one and one.reason for one in heard] == ["last_voter", "unknown_member"]


def test_Q10_who_does_not_lead_refuses_changes_and_transfers() -> None:
    place, heard, handed = Place(), list[ChangeOutcome | None](), list[bool]()
    driver = driver_of(place, THREE)
    driver.change(ADD, 10, heard.append)
    driver.transfer(2, 10, handed.append)
    driver.step_down()
    assert heard == [ChangeOutcome(0, "not_leader")]
    assert handed == [False]


def test_Q13_a_leader_alone_cannot_hand_over_and_may_step_down() -> None:
    place, handed = Place(), list[bool]()
    driver = leading_alone(place)
    driver.transfer(0, 10, handed.append)
    assert handed == [False]
    driver.step_down()
    assert driver.state.role == "follower"


def test_Q10_a_change_whose_entry_was_cut_off_is_told_so() -> None:
    heard: list[ChangeOutcome | None] = []
    changes = OpenChanges()
    for index in (7, 8, 9):
        changes.add(5, heard.append)
        changes.judged(ChangeOutcome(index, id=4), term=2)
    changes.applied(6, lambda index: 3)
    assert heard == []
    changes.applied(7, lambda index: 3)
    changes.applied(8, lambda index: -1)  # A snapshot has taken the place of the log.
    changes.applied(9, lambda index: 2)
    assert heard == [ChangeOutcome(0, "leader_changed", 4), None, ChangeOutcome(9, id=4)]
    assert len(changes) == 0


def test_Q10_nobody_waits_longer_for_a_change_than_it_wants_to() -> None:
    heard, handed = list[ChangeOutcome | None](), list[bool]()
    changes, transfers = OpenChanges(), OpenTransfers()
    for ticks in (1, 2, 9):
        changes.add(ticks, heard.append)
        changes.judged(ChangeOutcome(ticks), term=1)
        transfers.add(ticks, handed.append)
    for _ in range(2):
        changes.tick()
        transfers.tick()
    assert (heard, handed) == ([None, None], [False, False])
    changes.end_all()
    transfers.end_all(handed_over=False)
    assert (heard, handed) == ([None] * 3, [False] * 3)


def test_Q13_a_transfer_is_done_when_another_leads() -> None:
    handed: list[bool] = []
    transfers = OpenTransfers()
    transfers.add(9, handed.append)
    transfers.role(RoleChange("follower", 3, 0), me=1)
    assert handed == [], "nobody leads yet"
    transfers.role(RoleChange("follower", 4, 2), me=1)
    transfers.add(9, handed.append)
    transfers.role(RoleChange("leader", 5, 1), me=1)
    assert handed == [True, False]
    assert len(transfers) == 0
