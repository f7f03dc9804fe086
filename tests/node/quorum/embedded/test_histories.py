"""What clients of voters see is linearizable, whatever fails: 500 histories of 400 calls.

A soak (tools/soak.py) tells others each time, as many as one likes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.node.quorum.embedded.group_driver import GroupDriver
from holdfast.node.quorum.embedded.open_reads import ReadAnswered
from holdfast.node.quorum.embedded.ports import Wrote
from holdfast.rules.quorum.raft import reads
from holdfast.rules.quorum.raft.config import GroupMember
from holdfast.rules.quorum.raft.effects import RaftWrite
from holdfast.rules.quorum.raft.messages import AppendAnswer, HeartbeatAnswer, Message
from support.linearizability import Register, culprits, judge, narrowed
from support.seeds import seeds
from support.voter_histories import (
    KEYS,
    WAYS,
    HistoryWorld,
    Voter,
    cut_power,
    depose,
    hand_over,
    tell,
)

pytestmark = pytest.mark.sim

CALLS = 400
HISTORIES = 500
PARTS = 10
FINDING_MAX = 64
ELECTED_MS = 3_000
"""Somebody leads by then."""
LEASE_MS = 900
"""Of a planted bug: below the shortest election timeout."""


def cuts(number: int) -> tuple[tuple[str, str], ...]:
    """One of the 64 sets of the six ways between three voters."""
    return tuple(way for bit, way in enumerate(WAYS) if number >> bit & 1)


def wrong(world: HistoryWorld) -> list[str]:
    """What a history shows that no order of its calls explains; by the calls, and by the log."""
    found = list(world.problems)
    history = [call for call in world.history if call.ended is not None or call.asked != ("read",)]
    for key in KEYS:
        calls = [call for call in history if call.key == key]
        log = world.commits(key)
        found += culprits(calls, log, Register())
        committed = {id for _, id in log}
        verdicts = judge(narrowed(calls, committed), Register())
        found += [f"{one}" for one in verdicts if one.verdict != "linearizable"]
    return found


@pytest.mark.parametrize("part", range(PARTS))
def test_Q4_Q9_R3_histories_under_faults_are_linearizable(part: int) -> None:
    """Every one of the 64 directed cuts of three voters is among them, several times."""
    answered, numbers = 0, seeds(HISTORIES)
    for number in numbers[part * len(numbers) // PARTS : (part + 1) * len(numbers) // PARTS]:
        world = tell(number, cuts(number % 64), calls=CALLS, members=number % 5 == 0)
        found = wrong(world)
        assert not found, f"history {number}: {found[:3]}"
        assert len(world.history) == CALLS
        answered += sum(call.ended is not None for call in world.history)
    assert answered > CALLS * len(numbers) // PARTS // 2, "a history of silence shows nothing"


def test_Q13_while_leadership_is_transferred_writes_and_reads_wait_and_none_is_refused() -> None:
    for number in range(8):
        world = tell(number, (), calls=CALLS, again=hand_over)
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


PLANTED = (
    (_acknowledges_before_the_disk, cut_power),
    (_reads_without_asking, depose),
    (_trusts_its_lease_by_its_clock, depose),
)


@pytest.mark.parametrize(("plant", "again"), PLANTED)
def test_R1_planted_bugs_are_found_by_histories(
    plant: Callable[[pytest.MonkeyPatch], None],
    again: Callable[[HistoryWorld], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    for number in range(FINDING_MAX):
        if found := wrong(tell(number, (), calls=CALLS, again=again)):
            assert found[0]
            return
    pytest.fail(f"not found in {FINDING_MAX} histories")


@pytest.mark.parametrize("again", [cut_power, depose])
def test_R1_without_a_bug_the_same_histories_show_nothing(
    again: Callable[[HistoryWorld], None],
) -> None:
    for number in range(8):
        assert not wrong(tell(number, (), calls=CALLS, again=again)), number
