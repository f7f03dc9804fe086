"""Random walks of groups: every step keeps the laws, and when all is healed they decide."""

from __future__ import annotations

import pytest

from support.raft_walk import RaftWalk, ReadWalk
from support.seeds import seeds

STEPS = 800
WALKS = 120


@pytest.mark.parametrize("seed", seeds(WALKS))
def test_Q4_a_walk_breaks_no_law_and_ends_in_agreement(seed: int) -> None:
    RaftWalk(seed).run(STEPS)


@pytest.mark.parametrize("seed", seeds(20))
def test_Q9_no_leader_that_was_cut_off_serves_a_stale_read(seed: int) -> None:
    ReadWalk(seed).run(STEPS)


def test_R1_walks_meet_what_they_are_there_for() -> None:
    """Crashes, changes, transfers, restores, snapshots and reads all happen."""
    met: dict[str, int] = {}
    served = 0
    for seed in range(60):
        walk = RaftWalk(seed).run(STEPS)
        served += walk.world.laws.served
        for what, times in walk.done.items():
            met[what] = met.get(what, 0) + times
    for what in ("crash", "compact", "transfer", "restore", "isolate", "add", "remove"):
        assert met.get(what, 0) >= 3, f"{what}: {met}"
    assert served >= 60
    assert met.get("undecided", 0) <= 6


def test_R1_the_same_seed_is_the_same_walk() -> None:
    one, other = RaftWalk(5).run(STEPS), RaftWalk(5).run(STEPS)
    assert [node.state for node in one.world.alive] == [node.state for node in other.world.alive]
