"""Bad times for a world of the bus: work goes on while machines, disks and networks fail."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.rules.limits import BUS_CAPABILITY_MS, BUS_TTL_MS, HOUR_MS
from holdfast.simulate.bus.home_program import HomeProgram
from holdfast.simulate.bus.program import GOSSIP, NEWS
from holdfast.simulate.world.machine import Death

if TYPE_CHECKING:
    from holdfast.simulate.bus.bus import BusWorld
    from holdfast.simulate.bus.machine import BusMachine

WORK_MS_MAX: Final = 5_000
BUSY_MS_MAX: Final = 2_000
FAULT_MS_MAX: Final = 16_000
OUTAGE_MS_MAX: Final = 45_000
DOOM_HANDLES_MAX: Final = 400
DOOM_CALLS_MAX: Final = 60
LEAP_MS_MAX: Final = 2 * BUS_CAPABILITY_MS
BURST: Final = 8
BODY_BYTES_MAX: Final = 3_000

_WEIGHTS: Final = {
    **{"kill": 3, "power": 3, "restart": 2, "disk full": 1, "io error": 2},
    **{"clock jump": 1, "cut": 3, "reset": 3, "slow reader": 2, "burst": 2},
}


class BusStorm:
    """Keeps the calendar of a world full until it ends."""

    def __init__(self, world: BusWorld) -> None:
        self._world = world
        self._rng = world.fork("storm")
        self._over = False
        self._next_cut = 0
        self._faults: dict[str, Callable[[BusMachine], None]] = {
            "kill": lambda machine: self._death(machine, "kill"),
            "power": lambda machine: self._death(machine, "power"),
            "restart": world.restart,
            "disk full": self._disk_full,
            "io error": self._io_error,
            "clock jump": self._clock_jump,
            "cut": self._cut,
            "reset": lambda machine: world.network.break_some(self._rng, machine.name),
            "slow reader": self._slow_reader,
            "burst": self._burst,
        }
        self._weights = dict(_WEIGHTS)
        traits = world.traits
        for wanted, kind, weight, act in (
            (traits.restoring, "put back", 4, self._put_back),
            (traits.moving, "move", 2, self._move),
            (traits.attacked, "attack", 4, self._attack),
            (traits.homes, "lie", 4, self._lie),
            (traits.homes, "clock leap", 2, self._clock_leap),
        ):
            if wanted:
                self._faults[kind], self._weights[kind] = act, weight

    def begin(self) -> None:
        for machine in self._world.machines.values():
            self._keep_working(machine)
        self._soon(FAULT_MS_MAX, self._fault, "a fault")

    def end(self) -> None:
        self._over = True

    # --- work -----------------------------------------------------------------------------------

    def _keep_working(self, machine: BusMachine) -> None:
        most = BUSY_MS_MAX if self._world.traits.busy else WORK_MS_MAX
        self._soon(most, partial(self._work, machine), f"{machine.name} works")

    def _work(self, machine: BusMachine) -> None:
        self._keep_working(machine)
        self._act(machine)

    def _act(self, machine: BusMachine) -> None:
        world, rng = self._world, self._rng
        program, loop = machine.program, machine.loop
        if program is None or loop is None or loop.over or program.bus is None:
            return
        if isinstance(program, HomeProgram) and rng.random() < 0.5:
            chore = world.chores.draw()
            if chore.op != "sweep":  # two minutes are too short to forget anything
                loop.create_task(program.work(chore))
            return
        others = [name for name in world.machines if name != machine.name]
        id, to = machine.clock.new_id(), rng.choice(others)
        body = rng.randbytes(rng.randrange(BODY_BYTES_MAX if rng.random() < 0.2 else 100))
        drawn = rng.random()
        if drawn < 0.6:
            loop.create_task(program.send(to, id, body))
        elif drawn < 0.7:
            loop.create_task(program.publish(NEWS, id, body))
        elif drawn < 0.8:
            loop.create_task(program.publish(GOSSIP, id, body))
        else:
            timeout_ms = rng.choice((1_000, 5_000, 30_000))
            anybody = None if rng.random() < 0.4 else to
            loop.create_task(program.ask(anybody, id, body, timeout_ms))

    # --- faults ---------------------------------------------------------------------------------

    def _fault(self) -> None:
        self._soon(FAULT_MS_MAX, self._fault, "a fault")
        kind = self._rng.choices(list(self._weights), list(self._weights.values()))[0]
        machine = self._rng.choice(list(self._world.machines.values()))
        self._world.note(f"fault: {kind} for {machine.name}")
        self._world.happened[kind] += 1
        self._faults[kind](machine)

    def _death(self, machine: BusMachine, death: Death) -> None:
        drawn = self._rng.random()
        if machine.up and drawn < 0.2:
            machine.crash(death)
            self._world.start_soon(machine)
        elif drawn < 0.6 or not machine.durable:
            machine.doom(death, handles=self._rng.randrange(1, DOOM_HANDLES_MAX))
            self._burst(machine)
        else:
            machine.doom(death, calls=self._rng.randrange(DOOM_CALLS_MAX))
            self._burst(machine)

    def _disk_full(self, machine: BusMachine) -> None:
        machine.weather.full = True
        self._soon(OUTAGE_MS_MAX, partial(setattr, machine.weather, "full", False), "space again")

    def _io_error(self, machine: BusMachine) -> None:
        machine.weather.ioerr = self._rng.choice((0.02, 0.1))
        machine.weather.spares_reads = self._rng.random() < 0.7
        well = partial(setattr, machine.weather, "ioerr", 0.0)
        self._soon(OUTAGE_MS_MAX, well, "the disk is well again")

    def _clock_jump(self, machine: BusMachine) -> None:
        machine.clock.skew_ms = self._world.usual_skew(machine.name) + self._rng.randrange(
            -HOUR_MS, HOUR_MS
        )

    def _cut(self, machine: BusMachine) -> None:
        world, rng = self._world, self._rng
        if world.ticks < self._next_cut:
            return
        others = [name for name in world.machines if name != machine.name]
        if rng.random() < 0.5:
            others = [rng.choice(others)]
        ways = [way for other in others for way in ((machine.name, other), (other, machine.name))]
        if rng.random() < 0.5:
            at = rng.randrange(2)
            ways = ways[at::2]
        world.network.cut_off(ways)
        self._next_cut = world.ticks + OUTAGE_MS_MAX + 10_000
        self._soon(OUTAGE_MS_MAX, world.network.heal, "the cut ends")

    def _slow_reader(self, machine: BusMachine) -> None:
        if machine.program is not None:
            machine.program.reads_slowly_until = self._world.ticks + OUTAGE_MS_MAX
            for other in self._world.machines.values():
                self._burst(other)

    def _burst(self, machine: BusMachine) -> None:
        """More work for a while: a fault that no work meets shows nothing."""
        for _ in range(BURST):
            self._soon(1_500, partial(self._act, machine), f"{machine.name} works")

    def _put_back(self, machine: BusMachine) -> None:
        if not machine.durable:
            return
        if machine.copy_at is None or self._rng.random() < 0.2:
            self._world.restart(machine, then=machine.copy)
            self._soon(OUTAGE_MS_MAX, partial(self._put_back, machine), f"{machine.name} goes back")
        else:
            mark_too = self._rng.random() < 0.4
            self._world.restart(machine, then=partial(machine.put_back, mark_too=mark_too))

    def _move(self, machine: BusMachine) -> None:
        self._world.move()

    def _attack(self, machine: BusMachine) -> None:
        self._world.attack(self._rng)

    def _lie(self, machine: BusMachine) -> None:
        """A member that may not relay says something about others all the same."""
        liars = [one for one in self._world.homes if one.up and not self._world.may_relay(one.name)]
        for liar in liars:
            if isinstance(liar.program, HomeProgram) and liar.loop is not None:
                liar.loop.call_soon(liar.program.lie)

    def _clock_leap(self, machine: BusMachine) -> None:
        """By more than a right lasts: while it is wrong, others do not belong for it."""
        machine.clock.skew_ms = self._rng.randrange(BUS_TTL_MS, LEAP_MS_MAX)
        self._world.books.leapt(machine.name)
        well = partial(setattr, machine.clock, "skew_ms", self._world.usual_skew(machine.name))
        self._soon(OUTAGE_MS_MAX, well, f"the clock of {machine.name} is right again")

    def _soon(self, most_ms: int, act: Callable[[], object], name: str) -> None:
        """Plans `act` for a random moment within `most_ms`, unless the storm is over by then."""
        self._world.at(
            self._rng.randrange(1, most_ms), lambda: None if self._over else act(), name=name
        )
