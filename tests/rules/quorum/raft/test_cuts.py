"""One-way and partial cuts of three nodes: all 64 of them."""

from __future__ import annotations

from itertools import combinations, permutations
from random import Random

import pytest

from support.raft_world import RaftWorld

WAYS = list(permutations((1, 2, 3), 2))
CUTS = [cut for size in range(7) for cut in combinations(WAYS, size)]


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("leader", [0, 1])
def test_Q3_a_majority_that_can_talk_both_ways_elects_and_commits(
    cut: tuple[tuple[int, int], ...], leader: int
) -> None:
    """From a group that has a leader, and from one that has none."""
    random = Random(1)
    world = RaftWorld(3)
    if leader:
        assert world.elect(lambda id: 0 if id == leader else 4).id == leader
    world.cut |= set(cut)
    before = len(world.laws.committed)
    committed = False
    for _ in range(120):
        world.tick(lambda id: random.getrandbits(16))
        if (node := world.leader()) and node.state.leads_settled and not committed:
            world.propose(node)
            world.settle()
        committed = len(world.laws.committed) > before + 1
        if committed:
            break
    talking = any(
        (one, other) not in cut and (other, one) not in cut
        for one, other in combinations((1, 2, 3), 2)
    )
    if talking:
        assert committed, "a majority can talk and does not decide"
    if len(cut) == 6:
        assert not committed, "a node decides alone"


@pytest.mark.parametrize("cut", [cut for cut in CUTS if 0 < len(cut) < 4], ids=str)
def test_Q4_cuts_that_leave_the_leader_its_majority_depose_nobody(
    cut: tuple[tuple[int, int], ...],
) -> None:
    """While the leader talks with one other, terms stand still: the third asks in vain."""
    world = RaftWorld(3)
    leader = world.elect(lambda id: 0 if id == 1 else 4)
    talks = [id for id in (2, 3) if (1, id) not in cut and (id, 1) not in cut]
    world.cut |= set(cut)
    random = Random(2)
    for _ in range(60):
        world.tick(lambda id: random.getrandbits(16))
    if talks:
        assert leader.state.role == "leader"
        assert leader.state.term == 1
