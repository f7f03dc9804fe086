"""Bad times for links, besides those that every world of nodes has.

People pause links and resume them, remove them and add them again, perhaps for another part. Some
readers stay away for longer than they are waited for. Backups are made, and nodes go back to them.
And from time to time a person looks whether a link waits for a decision.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.rules.limits import HOUR_MS
from holdfast.simulate.nodes.storm import OUTAGE_MS_MAX, Storm
from holdfast.simulate.world.machine import Machine

if TYPE_CHECKING:
    from holdfast.simulate.nodes.link import SimulatedLink
    from holdfast.simulate.zones.zones import ZoneWorld

ZONE_FAULT_MS_MAX: Final = 3 * HOUR_MS
AWAY_MS_MAX: Final = 9 * HOUR_MS
VISIT_MS_MAX: Final = 4 * HOUR_MS
SWEEP_MS_MAX: Final = 3 * HOUR_MS


class ZoneStorm(Storm):
    """A storm in which people and backups have their part."""

    _world: ZoneWorld

    def __init__(self, world: ZoneWorld) -> None:
        super().__init__(world)
        traits = world.traits
        faults: dict[str, Callable[[], None]] = {"pause": self._pause, "idle": lambda: None}
        if traits.retiring:
            faults["stay away"] = self._stay_away
        if traits.relinking:
            faults["remove a link"] = self._remove
        if traits.restoring:
            faults |= {"backup": self._backup, "restore": self._restore}
        self._zone_faults = faults

    def begin(self) -> None:
        super().begin()
        self._soon(ZONE_FAULT_MS_MAX, self._zone_fault, "something happens to a link")
        self._soon(VISIT_MS_MAX, self._visit, "somebody looks after the links")
        for machine in self._world.machines.values():
            self._soon(SWEEP_MS_MAX, partial(self._sweep, machine), f"{machine.peer} sweeps")
        for peer in self._world.traits.restoring:
            self._world.back_up(self._world.machines[peer])

    def _zone_fault(self) -> None:
        self._soon(ZONE_FAULT_MS_MAX, self._zone_fault, "something happens to a link")
        kind = self._rng.choice(sorted(self._zone_faults))
        self._world.note(f"fault: {kind}")
        self._world.happened[kind] += 1
        self._zone_faults[kind]()

    def _visit(self) -> None:
        self._soon(VISIT_MS_MAX, self._visit, "somebody looks after the links")
        for relation in list(self._world.relations):
            self._world.look_after(relation)

    def _sweep(self, machine: Machine) -> None:
        """Sweeps from time to time, as a daemon does."""
        self._soon(SWEEP_MS_MAX, partial(self._sweep, machine), f"{machine.peer} sweeps")
        if machine.up:
            self._world.perform(machine, self._world.chores.sweep())

    # --- links ----------------------------------------------------------------------------------

    def _pause(self) -> None:
        self._pause_for(self._any(), OUTAGE_MS_MAX * 2)

    def _stay_away(self) -> None:
        waited_for = [
            relation
            for relation in self._world.relations
            if relation.retire_ms is not None or relation.retire_lag is not None
        ]
        if waited_for:
            self._pause_for(self._rng.choice(waited_for), AWAY_MS_MAX)

    def _pause_for(self, relation: SimulatedLink | None, most_ms: int) -> None:
        if relation is not None and self._world.set_paused(relation, True):
            again = partial(self._world.set_paused, relation, False)
            self._soon(most_ms, again, f"{relation.label} is resumed")

    def _remove(self) -> None:
        relation = self._any()
        if relation is None or not self._world.remove_link(relation):
            return
        self._soon(
            OUTAGE_MS_MAX * 2, partial(self._add_again, relation), f"{relation.label} comes again"
        )

    def _add_again(self, relation: SimulatedLink) -> None:
        if not self._world.add_again(relation, self._rng):
            again = partial(self._add_again, relation)
            self._soon(OUTAGE_MS_MAX, again, f"{relation.label} comes again")

    def _any(self) -> SimulatedLink | None:
        return self._rng.choice(self._world.relations) if self._world.relations else None

    # --- backups --------------------------------------------------------------------------------

    def _backup(self) -> None:
        self._world.back_up(self._one_that_goes_back())

    def _restore(self) -> None:
        self._world.restore(self._one_that_goes_back(), self._rng)

    def _one_that_goes_back(self) -> Machine:
        peers = self._world.traits.restoring
        return self._world.machines[peers[0] if len(peers) == 1 else self._rng.choice(peers)]
