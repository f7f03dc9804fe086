"""What clients of voters see is linearizable, whatever fails: 500 histories of 400 calls.

Half of them are storms, half are sieges (`support.voter_histories`). A soak (tools/soak.py) tells
others each time, as many as one likes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from holdfast.node.quorum.embedded.group_driver import GroupDriver
from holdfast.node.quorum.embedded.open_reads import ReadAnswered
from holdfast.node.quorum.embedded.ports import Wrote
from holdfast.rules.quorum.raft import election, membership, reads
from holdfast.rules.quorum.raft.config import GroupMember
from holdfast.rules.quorum.raft.effects import RaftWrite
from holdfast.rules.quorum.raft.messages import AppendAnswer, HeartbeatAnswer, Message
from support.seeds import seeds
from support.voter_histories import CALLS, CUTS, siege_of, tell_number, tell_siege, wrong
from support.voter_sieges import SIEGES
from support.voter_storms import STRIKES, hand_over
from support.voter_world import Voter

pytestmark = pytest.mark.sim

HISTORIES = 500
PARTS = 10
FINDING_MAX = 64
"""A planted bug is found in one of so many histories, the first ones of those 500."""
ELECTED_MS = 3_000
"""Somebody leads by then."""
LEASE_MS = 900
"""Of a planted bug: below the shortest election timeout."""


@pytest.mark.parametrize("part", range(PARTS))
def test_Q4_Q9_R3_histories_under_faults_are_linearizable(part: int) -> None:
    answered, numbers = 0, seeds(HISTORIES)
    for number in numbers[part * len(numbers) // PARTS : (part + 1) * len(numbers) // PARTS]:
        world = tell_number(number)
        found = wrong(world)
        assert not found, f"history {number}: {found[:3]}"
        assert len(world.history) == CALLS
        answered += sum(call.ended is not None for call in world.history)
    assert answered > CALLS * len(numbers) // PARTS // 2, "a history of silence shows nothing"


def test_R3_every_directed_cut_and_every_siege_is_among_the_histories() -> None:
    sieges = Counter(siege_of(number) for number in range(HISTORIES))
    assert all(sieges[siege] >= 40 for siege in SIEGES)
    storms = {number % CUTS for number in range(HISTORIES) if siege_of(number) is None}
    assert len(storms) == CUTS == 64
    assert {"pause", "clock", "full", "link", "slow", "isolate"} <= set(STRIKES)


def test_Q13_while_leadership_is_transferred_writes_and_reads_wait_and_none_is_refused() -> None:
    for number in range(8):
        world = tell_siege(number, hand_over, tries=1)
        assert not wrong(world), number
        refused = [c for c in world.history if c.ended is None and c.began > ELECTED_MS]
        assert not refused, f"history {number}: {refused[0]}"
        assert sum(map(bool, world.handed)) >= 2, "it was handed over"


def _acknowledges_before_the_disk(patch: pytest.MonkeyPatch) -> None:
    """What a disk has acknowledged is lost with the power."""
    original = Voter.write

    def write(self: Voter, write: RaftWrite, commit: int, done: Wrote) -> None:
        original(self, write, commit, lambda error: None)
        self.soon(0, lambda: done(None))

    patch.setattr(Voter, "write", write)


def _reads_without_asking(patch: pytest.MonkeyPatch) -> None:
    """Whoever was deposed and does not know it answers."""
    patch.setattr(reads, "_is_confirmed", lambda state, round: True)


def _trusts_its_lease_by_its_clock(patch: pytest.MonkeyPatch) -> None:
    """A leader answers reads by itself for a while after it was heard: shorter than any election
    takes, by a clock that somebody may set back.
    """
    receive, read = GroupDriver.receive, GroupDriver.read
    until: dict[GroupDriver, int] = {}

    def receive_and_renew(
        self: GroupDriver, message: Message, contact: GroupMember | None = None
    ) -> None:
        if isinstance(message, AppendAnswer | HeartbeatAnswer) and message.term == self.state.term:
            until[self] = self._hooks.now_ms() + LEASE_MS
        receive(self, message, contact)

    def read_by_lease(self: GroupDriver, ticks: int, answered: ReadAnswered) -> None:
        held = self.state.leads_settled and self._hooks.now_ms() < until.get(self, 0)
        if held and self.state.commit <= self._fold.applied:
            answered(self.state.commit)
        else:
            read(self, ticks, answered)

    patch.setattr(GroupDriver, "receive", receive_and_renew)
    patch.setattr(GroupDriver, "read", read_by_lease)


def _votes_after_a_restore(patch: pytest.MonkeyPatch) -> None:
    """It has forgotten what it voted, and what it acknowledged."""
    patch.setattr(election, "may_vote", lambda state: True)


def _changes_members_twice_at_once(patch: pytest.MonkeyPatch) -> None:
    """The majorities of two configs that are two changes apart need not overlap."""
    patch.setattr(membership, "change_in_flight", lambda state: False)


def _applies_twice_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    """What was applied is known to the process, and not to the disk."""
    start = Voter.start

    def start_without_memory(self: Voter) -> None:
        if self.driver is None:
            self.registers.done.clear()
        start(self)

    patch.setattr(Voter, "start", start_without_memory)


PLANTED = (
    _acknowledges_before_the_disk,
    _reads_without_asking,
    _trusts_its_lease_by_its_clock,
    _votes_after_a_restore,
    _changes_members_twice_at_once,
    _applies_twice_after_a_crash,
)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_R1_planted_bugs_are_found_by_histories(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for number in range(FINDING_MAX):
        if found := wrong(tell_number(number)):
            print(f"history {number}: {found[0]}")
            return
    pytest.fail(f"not found in {FINDING_MAX} histories")
