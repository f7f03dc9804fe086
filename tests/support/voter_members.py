"""Members of a group of voters change while its clients go on."""

from __future__ import annotations

from holdfast.node.quorum.embedded.group_driver import GroupDriver
from holdfast.rules.quorum.raft.effects import ChangeOutcome
from holdfast.rules.quorum.raft.events import ChangeMembers
from support.voter_calls import PATIENCE_TICKS
from support.voter_world import NAMES, NEW, SCOPE, TAG, TICK_MS, HistoryWorld, Voter


def change_members(world: HistoryWorld) -> None:
    """Takes the vote from one of the others, through whoever leads, and gives it to a new node."""
    AskMembers(world).ask()


class AskMembers:
    """One change after the other, each until a leader has carried it out."""

    def __init__(self, world: HistoryWorld) -> None:
        self._world = world
        self._steps = [self._remove, self._add, self._promote]
        self._new = 0

    def ask(self) -> None:
        self._world.at(self._world.chance.uniform(1500, 3000), self._step)

    def _step(self) -> None:
        leader = self._world.leader()
        if leader is None or leader.driver is None or leader.paused is not None:
            self._world.at(TICK_MS, self._step)
            return
        self._find()
        leader.driver.change(self._steps[0](leader.driver), PATIENCE_TICKS, self._changed)

    def _remove(self, driver: GroupDriver) -> ChangeMembers:
        members = driver.state.log.config.members
        others = [one.id for one in members if one.id != driver.state.me]
        return ChangeMembers("remove", self._world.chance.choice(others))

    def _add(self, driver: GroupDriver) -> ChangeMembers:
        return ChangeMembers("add", peer=NEW, key=NEW.encode() * 8)

    def _promote(self, driver: GroupDriver) -> ChangeMembers:
        return ChangeMembers("promote", self._new)

    def _changed(self, outcome: ChangeOutcome | None) -> None:
        world = self._world
        if outcome is None or not outcome.index:
            world.at(TICK_MS, self._step)
            return
        done = self._steps.pop(0)
        if done == self._add:
            self._begin(outcome.id)
        if self._steps:
            world.at(TICK_MS, self._step)

    def _find(self) -> None:
        """A change without an answer may have happened all the same, or another has come before."""
        leader = self._world.leader()
        members = leader.driver.state.log.config.members if leader and leader.driver else ()
        new = [one for one in members if one.peer == NEW]
        if self._steps[0] == self._remove and members and len(members) < len(NAMES):
            self._steps.pop(0)
        elif self._steps[0] == self._add and new:
            self._steps.pop(0)
            self._begin(new[0].id)

    def _begin(self, id: int) -> None:
        self._new = id
        if NEW not in self._world.voters:
            voter = self._world.voters[NEW] = Voter(self._world, NEW, id)
            voter.log.join(SCOPE, incarnation=1, tag=TAG, voter=id)
            voter.start()
