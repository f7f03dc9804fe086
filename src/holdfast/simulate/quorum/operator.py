"""Somebody who changes who belongs to a group, while everything fails.

In a storm members come and go. Whoever was set back is removed and added anew, a learner that has
caught up is promoted, and a machine joins as soon as a committed config gives it an id. What the
operator asks for goes to whoever leads; the answer may never come, and then the config tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.rules.limits import QUORUM_PROMOTE_LAG_MAX
from holdfast.rules.quorum.raft.effects import ChangeOutcome
from holdfast.rules.quorum.raft.events import ChangeMembers

if TYPE_CHECKING:
    from holdfast.simulate.quorum.machine import VoterMachine
    from holdfast.simulate.quorum.quorum import QuorumWorld

EVERY_MS_MAX: Final = 1_500
PATIENCE_TICKS: Final = 30
VOTERS_MIN: Final = 3
"""Nobody is removed below this, but for those that have lost their disks."""


class GroupOperator:
    """Acts from time to time, until the world ends."""

    def __init__(self, world: QuorumWorld) -> None:
        self._world = world
        self._rng = world.fork("operator")
        self.mends_only = False
        """Nobody comes or goes any more but for a reason."""

    def begin(self) -> None:
        self._world.at(self._rng.randrange(1, EVERY_MS_MAX), self._act, name="operator")

    def _act(self) -> None:
        self.begin()
        leader = self._world.leader()
        if leader is None or leader.driver is None or leader.is_paused:
            return
        self._let_join(leader)
        if leader.driver is None or leader.driver.changes:
            return
        change = self._next_change(leader)
        if change is not None:
            self._ask(leader, change)

    def _let_join(self, leader: VoterMachine) -> None:
        """Machines to which a committed config gives an id that they do not have."""
        assert leader.driver is not None
        state = leader.driver.state
        config = state.log.config_at(state.commit)[1]
        for member in config.members:
            machine = self._world.machines[member.peer]
            if machine.voter < member.id:
                self._world.happened["join"] += 1
                self._world.note(f"{machine.name} joins as {member.id}")
                machine.join(state.group, member.id, config.members)

    def _next_change(self, leader: VoterMachine) -> ChangeMembers | None:
        assert leader.driver is not None
        world, config = self._world, leader.driver.state.log.config
        for member in config.members:
            if world.machines[member.peer].set_back:
                return ChangeMembers("remove", id=member.id)
        learners = [member.id for member in config.members if member.place == "learner"]
        if learners and self._rng.random() < 0.7:
            return ChangeMembers("promote", id=self._rng.choice(learners))
        names = {member.peer for member in config.members}
        outside = [machine for machine in world.machines.values() if machine.name not in names]
        voters = config.voters
        few = len(voters) + len(learners) < VOTERS_MIN
        if outside and (few or (not self.mends_only and self._rng.random() < 0.5)):
            chosen = self._rng.choice(outside)
            return ChangeMembers("add", peer=chosen.name, key=chosen.key)
        if not self.mends_only and len(voters) > VOTERS_MIN and self._rng.random() < 0.6:
            return ChangeMembers("remove", id=self._rng.choice(voters))
        return None

    def _ask(self, leader: VoterMachine, change: ChangeMembers) -> None:
        assert leader.driver is not None
        world, before = self._world, leader.driver.state.log

        def answered(outcome: ChangeOutcome | None) -> None:
            if outcome is None:
                world.happened["change unknown"] += 1
            elif outcome.index:
                world.happened[f"{change.change} done"] += 1
            else:
                world.happened["change refused"] += 1

        leader.driver.change(change, PATIENCE_TICKS, answered)
        if leader.driver is None or change.change != "promote":
            return
        after = leader.driver.state.log
        if after.config.is_voter(change.id) and not before.config.is_voter(change.id):
            member = after.config.member(change.id)
            assert member is not None
            there = world.machines[member.peer].durable_last
            if there + QUORUM_PROMOTE_LAG_MAX < before.last:
                world.broken(
                    f"{member.peer} was promoted with entries up to {there} of {before.last}"
                )
