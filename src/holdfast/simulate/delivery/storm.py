"""Bad times for delivery, besides those that every world of nodes has.

The broker dies, fills its disk and loses its clock as nodes do. It sweeps, is copied, and goes back
to older copies, as nodes do to theirs. Members are removed and come back. People take messages from
queues. And wires are cut.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.rules.limits import HOUR_MS
from holdfast.simulate.delivery.time import evening, fall_behind, run_ahead, sweep
from holdfast.simulate.nodes.storm import MINUTE_MS, OUTAGE_MS_MAX, Storm
from holdfast.simulate.world.machine import Machine

if TYPE_CHECKING:
    from holdfast.simulate.delivery.delivery import DeliveryWorld

HUB_FAULTS: Final = 0.4
"""Which part of the faults of machines meets the broker."""
LOOK_MS_MAX: Final = 40 * MINUTE_MS
TICK_MS_MAX: Final = 20 * MINUTE_MS
SWEEP_MS_MAX: Final = 2 * HOUR_MS
TAKE_MS_MAX: Final = 40 * MINUTE_MS
EVENT_MS_MAX: Final = HOUR_MS
SHARE_MS_MAX: Final = 20 * MINUTE_MS
NOTE_MS_MAX: Final = 90 * MINUTE_MS
SLEEP_WITHIN_MS: Final = 5 * HOUR_MS


class DeliveryStorm(Storm):
    """A storm in which the broker, people and copies have their part."""

    _world: DeliveryWorld

    def __init__(self, world: DeliveryWorld) -> None:
        super().__init__(world)
        traits = world.traits
        found: dict[str, Callable[[], None]] = {"cut a wire": self._cut}
        if traits.broker_goes_back:
            found |= {
                "copy the broker": world.copies.copy_broker,
                "the broker goes back": lambda: world.copies.broker_goes_back_to_copy(self._rng),
            }
        if traits.nodes_go_back:
            found |= {"copy a node": self._copy, "a node goes back": self._go_back}
        if traits.removing:
            found["remove a member"] = self._remove
        if traits.broker_far_ahead:
            found["the broker's clock runs ahead"] = lambda: run_ahead(world, self._rng)
        if traits.broker_far_behind:
            found["the broker's clock falls behind"] = lambda: fall_behind(world, self._rng)
        self._events = found

    def begin(self) -> None:
        super().begin()
        self._every(TICK_MS_MAX, self._world.broker_ticks, "the broker ticks")
        self._every(SWEEP_MS_MAX, partial(sweep, self._world), "the broker sweeps")
        self._every(EVENT_MS_MAX, self._event, "something happens")
        for peer, machine in self._world.machines.items():
            self._every(LOOK_MS_MAX, self._world.ends[peer].look, f"{peer} looks")
            self._every(SWEEP_MS_MAX, partial(self._sweep, machine), f"{peer} sweeps")
            self._every(TAKE_MS_MAX, partial(self._take, peer), f"{peer} takes")
        if self._world.traits.publishing:
            self._every(SHARE_MS_MAX, self._world.publication.turn, "somebody shares the notes")
            self._every(NOTE_MS_MAX, self._world.publication.work, "somebody writes notes")
        if self._world.traits.sleeping:
            self._soon(SLEEP_WITHIN_MS, partial(evening, self._world, self._rng), "an evening")
        if self._world.traits.broker_goes_back:
            self._world.copies.copy_broker()
        if self._world.traits.nodes_go_back:
            self._copy()

    def _every(self, most_ms: int, act: Callable[[], object], name: str) -> None:
        def again() -> None:
            self._soon(most_ms, again, name)
            act()

        self._soon(most_ms, again, name)

    # --- machines -------------------------------------------------------------------------------

    def _fault(self) -> None:
        if self._rng.random() >= HUB_FAULTS:
            super()._fault()
            return
        self._soon(OUTAGE_MS_MAX, self._fault, "a fault")
        kind = self._rng.choices(list(self._weights), list(self._weights.values()))[0]
        self._world.note(f"fault: {kind} for the broker")
        self._world.happened[f"hub {kind}"] += 1
        self._faults[kind](self._world.broker_machine)

    def _busy_time(self, machine: Machine) -> None:
        if machine is not self._world.broker_machine:
            super()._busy_time(machine)
            return
        # What reaches the broker meets its disk.
        for one in self._world.machines.values():
            super()._busy_time(one)

    def _spread(self, machine: Machine) -> None:
        self._world.ends[machine.peer].wake()

    def _sweep(self, machine: Machine) -> None:
        if machine.up:
            self._world.perform(machine, self._world.chores.sweep())

    # --- what else happens ----------------------------------------------------------------------

    def _event(self) -> None:
        kind = self._rng.choice(sorted(self._events))
        self._world.note(f"it happens: {kind}")
        self._world.happened[kind] += 1
        self._events[kind]()

    def _cut(self) -> None:
        wires = [end.wire for end in self._world.ends.values() if end.wire is not None]
        if wires:
            self._rng.choice(wires).cut()

    def _copy(self) -> None:
        self._world.copies.copy_node(self._rng.choice(list(self._world.machines.values())))

    def _go_back(self) -> None:
        machine = self._rng.choice(list(self._world.machines.values()))
        self._world.copies.node_goes_back(machine, self._rng)

    def _remove(self) -> None:
        mesh = self._rng.choice(self._world.meshes)
        peer = self._rng.choice(list(self._world.ends)[1:])
        if self._world.broker_machine.up and self._world.remove_member(peer, mesh):
            self._soon(OUTAGE_MS_MAX * 2, partial(self._admit, peer, mesh), f"{peer} comes back")

    def _admit(self, peer: str, mesh: str) -> None:
        if not self._world.broker_machine.up or not self._world.admit(peer, mesh):
            self._soon(OUTAGE_MS_MAX, partial(self._admit, peer, mesh), f"{peer} comes back")

    def _take(self, peer: str) -> None:
        if self._world.broker_machine.up:
            self._world.queues.take(peer, self._rng.choice(self._world.meshes))
