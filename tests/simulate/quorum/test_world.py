"""Storms over voters; what a quorum promises is kept, and planted bugs are found."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.node.quorum.embedded import group_driver, incoming_snapshot
from holdfast.node.quorum.embedded.committed_entries import readable_entries
from holdfast.node.quorum.embedded.group_driver import GroupDriver
from holdfast.node.quorum.embedded.open_proposals import OpenProposals
from holdfast.rules.errors import HoldfastError
from holdfast.rules.quorum.compaction import LogLimits, LogSizes
from holdfast.rules.quorum.raft import commit, membership, reads
from holdfast.rules.quorum.raft.config import majority
from holdfast.rules.quorum.raft.effects import RaftEffects, RaftWrite
from holdfast.rules.quorum.raft.events import DiskWrote, RaftEvent
from holdfast.rules.quorum.raft.state import GroupState
from holdfast.simulate.quorum.quorum import tell
from holdfast.simulate.world.seeds import PromiseBroken
from support.seeds import part, rotating

pytestmark = pytest.mark.sim

WORLDS, KNOWN = 1, 1000
WORLDS_MAX = 20
IN_SOAK = "HOLDFAST_SEED" in os.environ
FINDING_MAX = 30
"""A planted bug is found in one of so many worlds."""

# What must have happened in these worlds together.
EXPECTED = {
    *("acknowledged", "denied", "unknown", "read", "read unanswered", "elected"),
    *("kill", "power", "doom", "cut", "isolate", "pause", "slow disk", "transfer", "step down"),
    *("loss", "duplicate", "reorder", "partition", "clock"),
    *("snapshot", "add done", "promote done", "remove done", "join", "restored", "change refused"),
    *("full disk", "disk full", "hung disk", "alone with learners"),
}


@pytest.mark.timeout(300)
def test_Q3_Q4_R1_voters_keep_every_promise_through_a_storm() -> None:
    """A storm in which nothing happens shows nothing, so there are more of them until everything
    has.
    """
    happened: Counter[str] = Counter()
    worlds = list(rotating(WORLDS, KNOWN))
    for seed in worlds:
        happened += tell(seed).happened
    more = (seed for seed in range(WORLDS_MAX) if seed not in worlds)
    while missing := sorted(EXPECTED - happened.keys()):
        another = next(more, None)
        assert another is not None, f"the worlds no longer show {missing}"
        happened += tell(another).happened


def test_R1_a_seed_tells_the_same_story_of_voters_again() -> None:
    assert tell(3).digest == tell(3).digest


# --- planted bugs --------------------------------------------------------------------------------


def _acknowledges_before_the_disk(patch: pytest.MonkeyPatch) -> None:
    """The driver tells the machine at once that the disk has a write."""
    original = GroupDriver._save

    def save(self: GroupDriver, write: RaftWrite) -> None:
        original(self, write)
        self._events.append(DiskWrote(write.number, write.term, write.last))

    patch.setattr(GroupDriver, "_save", save)
    patch.setattr(GroupDriver, "_wrote", lambda self, write, commit, error: None)
    _sends_votes_before_the_disk(patch)


def _reads_without_asking(patch: pytest.MonkeyPatch) -> None:
    """A leader believes that it still leads."""
    patch.setattr(reads, "_is_confirmed", lambda state, round: True)


def _denies_what_a_leader_has(patch: pytest.MonkeyPatch) -> None:
    """A client whose time is over hears that its command is not committed."""
    patch.setattr(OpenProposals, "exposed", lambda self, ids: None)


def _answers_before_it_has_applied(patch: pytest.MonkeyPatch) -> None:
    """A confirmed read is served from whatever this node has."""
    original = GroupDriver._tell

    def tell_all(self: GroupDriver, effects: RaftEffects) -> None:
        original(self, effects)
        self.reads.applied(1 << 40)

    patch.setattr(GroupDriver, "_tell", tell_all)


def _sends_votes_before_the_disk(patch: pytest.MonkeyPatch) -> None:
    """Messages do not wait for the write that they rest on."""
    step = GroupDriver._step

    def step_and_send(self: GroupDriver, event: RaftEvent) -> None:
        step(self, event)
        while self._after:
            self._send(self._after.popleft()[1])

    patch.setattr(GroupDriver, "_step", step_and_send)


def _forgets_the_config_of_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    """The log begins after a snapshot, and does not say who belongs to the group."""
    patch.setattr(incoming_snapshot, "encode_config", lambda config: b"")


def _drops_what_was_not_folded(patch: pytest.MonkeyPatch) -> None:
    """A log is shortened by its length alone."""

    def compact_to(limits: LogLimits, sizes: LogSizes, **others: Any) -> int:
        return max(int(others["boundary"]), sizes.floor(1, 1 << 40))

    patch.setattr(group_driver, "compact_to", compact_to)


def _promotes_who_lags(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "caught_up", lambda state, id: True)


def _counts_learners(patch: pytest.MonkeyPatch) -> None:
    """Whoever has an entry on its disk counts, with a vote or without."""

    def agreed(state: GroupState) -> int:
        counted = sorted([state.durable, *(peer.match for peer in state.peers)], reverse=True)
        return min(counted[majority(state.log.config) - 1], state.durable)

    patch.setattr(commit, "agreed", agreed)


def _applies_the_tail_twice(patch: pytest.MonkeyPatch) -> None:
    """After a snapshot the driver goes back to what it was about to fold before."""
    original = GroupDriver._taken_in

    def taken_in(self: GroupDriver, error: HoldfastError | None) -> None:
        original(self, error)
        first = self.state.log.boundary + 1
        if self._folding and first <= self._committed:
            entries = self._entries(first, self._committed, 1 << 20)
            upto = first + len(entries) - 1
            run = readable_entries(self.state.incarnation, first, entries)
            self._fold.fold(run, upto, lambda results: None)

    patch.setattr(GroupDriver, "_taken_in", taken_in)


def _answers_no_stranger(patch: pytest.MonkeyPatch) -> None:
    """A member that was away knows only those whom its own log tells of."""
    patch.setattr(GroupDriver, "_meet", lambda self, contact: None)


RARE = (_sends_votes_before_the_disk, _answers_no_stranger)
"""Found in one world of ten: looked for in a soak."""
PLANTED = (
    _forgets_the_config_of_a_snapshot,
    _drops_what_was_not_folded,
    _promotes_who_lags,
    _counts_learners,
    _applies_the_tail_twice,
    _acknowledges_before_the_disk,
    _reads_without_asking,
    _denies_what_a_leader_has,
    _answers_before_it_has_applied,
)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "plant",
    part(PLANTED, of=len(PLANTED)) + (list(RARE) if IN_SOAK else []),
    ids=lambda plant: plant.__name__,
)
def test_R1_the_world_of_voters_finds_a_planted_bug(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(FINDING_MAX):
        try:
            tell(seed)
        except (PromiseBroken, AssertionError):
            return
    pytest.fail("nothing was found")
