"""Three real members: their logs are shortened, and one that lacks the rest gets a snapshot.

Disk, fold and snapshots are the real ones, in this process and this thread: `run` does what waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from holdfast.node.core.commit import CommitRun, CommittedEntry
from holdfast.node.quorum.embedded.group_driver import GroupDriver
from holdfast.node.quorum.embedded.log_disk import LogDisk, past_of
from holdfast.node.quorum.embedded.open_proposals import AppliedProposal, ProposalAnswer
from holdfast.node.quorum.embedded.ports import Folded, FoldedEntry, GroupHooks, SnapshotPorts
from holdfast.node.quorum.embedded.state_snapshots import StateSnapshots
from holdfast.rules.envelope import encode
from holdfast.rules.errors import BadQuorumSnapshot
from holdfast.rules.quorum.compaction import LogLimits
from holdfast.rules.quorum.raft.config import GroupMember, encode_config, first_config
from holdfast.rules.quorum.raft.effects import ChangeOutcome
from holdfast.rules.quorum.raft.events import ChangeMembers
from holdfast.rules.quorum.raft.messages import (
    GroupSnapshotBegin,
    GroupSnapshotPart,
    Message,
    Proposal,
    SnapshotOffer,
    decode_message,
    encode_message,
)
from holdfast.rules.quorum.raft.state import GroupTiming, restarted
from holdfast.storage.memory.quorum_log import MemoryQuorumLog
from holdfast.storage.ports import Store
from support.commits import context, with_quorum
from support.envelopes import MESH
from support.quorum_state import change, operation
from support.stores import make_store

TAG = b"t" * 16
NAMES = ("ana", "bob", "cai")
LIMITS = LogLimits(tail_entries=4, held_entries=20, step_entries=2)


class Group:
    """Members by name, and the calls that wait, of all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: deque[Callable[[], None]] = deque()
        self.members: dict[str, Member] = {}
        self.away: set[str] = set()
        self.spoil: Callable[[Message], Message] = lambda message: message
        self.seen: list[Message] = []

    def run(self, ticks: int = 0) -> None:
        for tick in range(ticks + 1):
            while self.calls:
                self.calls.popleft()()
            if tick < ticks:
                for number, member in enumerate(self.members.values()):
                    member.driver.tick(7 * number)

    def leader(self) -> Member:
        for _ in range(40):
            self.run(1)
            for member in self.members.values():
                if member.driver.state.leads_settled and member.name not in self.away:
                    return member
        raise AssertionError("nobody leads")

    def write(self, through: Member, *titles: str) -> None:
        heard: list[ProposalAnswer] = []
        for title in titles:
            envelope = change(operation("put", "mission", title, {"title": title}), origin="dan")
            through.driver.propose(Proposal(envelope.id, encode(envelope)), 500, heard.append)
        self.run(30)
        assert [type(one) for one in heard] == [AppliedProposal] * len(titles)


class Member:
    """One member: a store, a Raft log in memory, and the real driver between them."""

    def __init__(self, group: Group, name: str, log: MemoryQuorumLog, store: Store) -> None:
        self.group, self.name, self.log, self.store = group, name, log, store
        row, head = log.group("team"), log.head("team")
        standing = self.standing()
        self.applied = standing
        state = restarted(
            past_of(log, "team", standing),
            me=row.voter,
            group=TAG,
            incarnation=1,
            timing=GroupTiming(sleep=0),
            next_write=head.written + 1,
        )
        disk = LogDisk(
            log,
            "team",
            row.voter,
            post=group.calls.append,
            on_health=lambda health: None,
            aside=group.calls.append,
        )
        states = StateSnapshots(
            store,
            context(name),
            MESH,
            group.folder,
            post=group.calls.append,
            aside=group.calls.append,
            on_taken=self._taken,
        )
        self.driver = GroupDriver(
            name,
            state,
            disk,
            self,
            self,
            GroupHooks(now_ms=lambda: 1, post=group.calls.append),
            snapshots=SnapshotPorts(disk, states),
            limits=LIMITS,
        )
        group.members[name] = self

    def standing(self) -> int:
        with self.store.read() as reader:
            row = reader.quorum_get(MESH)
        assert row is not None
        return row.applied

    def _taken(self, index: int) -> None:
        self.applied = index

    def has_room(self, to: GroupMember) -> bool:
        return True

    def send(self, to: GroupMember, message: Message) -> None:
        group = self.group
        message = group.spoil(message)
        raw = encode_message(message)
        group.seen.append(message)

        def arrive() -> None:
            if not {self.name, to.peer} & group.away and to.peer in group.members:
                contact = GroupMember(message.sender, self.name, b"", "learner")
                group.members[to.peer].driver.receive(decode_message(raw), contact)

        group.calls.append(arrive)

    def fold(self, entries: Sequence[CommittedEntry], upto: int, done: Folded) -> None:
        def fold() -> None:
            results = self.store.write(CommitRun(context(self.name), MESH, entries, upto))
            self.applied = upto
            done(
                [
                    FoldedEntry(entry.index, one.raw_id or b"", one)
                    for entry, one in zip(entries, results, strict=True)
                ]
            )

        self.group.calls.append(fold)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path)
    config = first_config(tuple((name, name.encode()) for name in NAMES))
    for number, name in enumerate(NAMES, 1):
        log = MemoryQuorumLog()
        log.init("team", tag=TAG, voter=number, config=encode_config(config))
        store = with_quorum(make_store("memory", tmp_path), tag=TAG, voter=number)
        Member(made, name, log, store)
    yield made
    for member in made.members.values():
        member.store.stop()


def titles(member: Member) -> list[str]:
    with member.store.read() as reader:
        return [row.id for row in reader.entity_list(MESH, "mission", "", 999)]


def away_and_behind(group: Group) -> tuple[Member, Member]:
    """A leader whose log is shortened, and a member that lacks what is gone."""
    leader = group.leader()
    other = next(member for member in group.members.values() if member is not leader)
    group.away.add(other.name)
    for number in range(8):
        group.write(leader, *[f"m{number}{at}" for at in range(5)])
    assert leader.driver.state.log.boundary > 10, "its log was shortened"
    assert leader.log.head("team").base == leader.driver.state.log.boundary
    return leader, other


def test_Q4_a_member_that_lacks_what_is_gone_gets_a_snapshot(group: Group) -> None:
    leader, other = away_and_behind(group)
    assert titles(other) == []
    group.away.clear()
    group.run(40)
    assert titles(other) == titles(leader)
    assert len(titles(other)) == 40
    assert other.driver.state.log.boundary > 0
    assert other.log.intake("team") is None, "the parts are dropped"
    assert not leader.driver.sent.under_way
    group.write(other, "after")
    assert titles(other) == titles(leader)


def test_Q8_a_snapshot_goes_on_after_the_receiver_died_anywhere(group: Group) -> None:
    """After every call that follows the first part, a process that begins anew ends up whole."""
    leader, other = away_and_behind(group)
    group.away.clear()
    for steps in range(0, 60, 3):
        for _ in range(steps):
            if group.calls:
                group.calls.popleft()()
        died = group.members[other.name]
        group.calls.clear()
        Member(group, died.name, died.log, died.store)
        group.run(1)
    group.run(250)
    assert titles(group.members[other.name]) == titles(leader)
    assert group.members[other.name].driver.fold_error is None


@pytest.mark.parametrize("what", [GroupSnapshotBegin, GroupSnapshotPart])
def test_Q9_a_spoiled_snapshot_is_refused_and_the_next_one_is_taken(
    group: Group, what: type[Message]
) -> None:
    """Its bytes are not those that were announced; the disk of the receiver has not failed."""
    leader, other = away_and_behind(group)
    spoiled: list[Message] = []

    def spoil(message: Message) -> Message:
        if not isinstance(message, what) or spoiled[-1:] not in ([], [message]):
            return message
        spoiled.append(message)
        if isinstance(message, GroupSnapshotPart):
            return msgspec.structs.replace(message, content=bytes(len(message.content)))
        assert isinstance(message, GroupSnapshotBegin)
        return msgspec.structs.replace(message, digest=b"x" * 32)

    group.spoil = spoil
    group.away.clear()
    group.run(60)
    assert spoiled
    assert titles(other) == []
    assert isinstance(other.driver.incoming.error, BadQuorumSnapshot)
    assert other.driver.state.disk == "fine"
    group.run(250)
    assert titles(other) == titles(leader)


def test_Q9_an_offer_without_parts_changes_nothing(group: Group) -> None:
    leader = group.leader()
    other = next(member for member in group.members.values() if member is not leader)
    state = other.driver.state
    offer = SnapshotOffer(
        TAG, leader.driver.state.me, state.me, state.term, 999, 1, 0, state.log.config
    )
    other.driver.receive(offer)
    group.run(2)
    assert other.driver.state.log.boundary == 0


def test_Q10_a_learner_that_joins_late_is_brought_up_by_a_snapshot_and_promoted(
    group: Group, tmp_path: Path
) -> None:
    leader, _ = away_and_behind(group)
    heard: list[ChangeOutcome | None] = []
    leader.driver.change(ChangeMembers("add", peer="dee", key=b"dee"), 50, heard.append)
    group.run(10)
    assert heard[0] is not None
    log = MemoryQuorumLog()
    log.join("team", incarnation=1, tag=TAG, voter=heard[0].id)
    store = with_quorum(make_store("memory", tmp_path), tag=TAG, voter=heard[0].id)
    dee = Member(group, "dee", log, store)
    group.run(60)
    assert titles(dee) == titles(leader)
    leader.driver.change(ChangeMembers("promote", id=heard[0].id), 50, heard.append)
    group.run(10)
    assert heard[1] == ChangeOutcome(heard[1].index if heard[1] else 0, id=heard[0].id)
    assert dee.driver.state.log.config.is_voter(heard[0].id)
