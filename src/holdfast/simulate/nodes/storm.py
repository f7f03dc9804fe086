"""Bad times for a world of nodes: work goes on while machines, disks, clocks and links fail.

Faults come one after another, each for a while, and never more of them than the nodes promise to
bear: a partition is over, and all nodes could talk again, before the next one begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.rules.limits import DAY_MS, HOUR_MS, SECOND_MS
from holdfast.simulate.nodes.link import SimulatedLink
from holdfast.simulate.world.machine import Death, Machine
from holdfast.simulate.world.network import LineQuality
from holdfast.simulate.world.workload import WorkItem

if TYPE_CHECKING:
    from holdfast.simulate.nodes.nodes import NodeWorld

MINUTE_MS: Final = 60 * SECOND_MS
CHORE_MS_MAX: Final = 80 * MINUTE_MS
PULL_MS_MAX: Final = 150 * MINUTE_MS
SLOW_PULL_MS_MAX: Final = 500 * MINUTE_MS
FAULT_MS_MAX: Final = 100 * MINUTE_MS
OUTAGE_MS_MAX: Final = 60 * MINUTE_MS
QUIET_AFTER_PARTITION_MS: Final = 120 * MINUTE_MS
RETRIES_MAX: Final = 4
AUDIT_EVERY_CHORES: Final = 12
DOOM_CALLS_MAX: Final = 60
FAULT_CHORES: Final = 8
LEAP_MS: Final = 40 * DAY_MS

EVERYDAY: Final = LineQuality(loss=0.05, doubling=0.1, delay_ms_max=2 * SECOND_MS)
BAD: Final = LineQuality(loss=0.3, doubling=0.3, delay_ms_max=30 * MINUTE_MS)

# An error of the disk hits few of the calls that are made while it lasts.
_WEIGHTS: Final = {
    **{"kill": 2, "power": 2, "restart": 2, "disk full": 2, "io error": 4},
    **{"clock jump": 2, "clock leap": 2, "clock freeze": 2, "partition": 2, "bad line": 2},
}
FAULTS: Final = tuple(_WEIGHTS)


class Storm:
    """Keeps the calendar of a world full until it ends."""

    def __init__(self, world: NodeWorld) -> None:
        self._world = world
        self._rng = world.fork("storm")
        self._over = False
        self._chores = 0
        self._next_partition = 0
        self._weights: Mapping[str, int] = {
            kind: weight
            for kind, weight in _WEIGHTS.items()
            if world.leaping or kind != "clock leap"
        }
        self._faults: dict[str, Callable[[Machine], None]] = {
            "kill": lambda machine: self._death(machine, "kill"),
            "power": lambda machine: self._death(machine, "power"),
            "restart": self._restart,
            "disk full": self._disk_full,
            "io error": self._io_error,
            "clock jump": self._clock_jump,
            "clock leap": self._clock_leap,
            "clock freeze": self._clock_freeze,
            "partition": self._partition,
            "bad line": self._bad_line,
        }

    def begin(self) -> None:
        self._world.links.line = EVERYDAY
        for machine in self._world.machines.values():
            self._soon(CHORE_MS_MAX, partial(self._work, machine), f"{machine.peer} works")
        for relation in self._world.relations:
            self._keep_pulling(relation)
        self._soon(FAULT_MS_MAX, self._fault, "a fault")

    def end(self) -> None:
        """From now on, nothing happens that this storm has planned."""
        self._over = True

    # --- work -----------------------------------------------------------------------------------

    def _work(self, machine: Machine) -> None:
        self._soon(CHORE_MS_MAX, lambda: self._work(machine), f"{machine.peer} works")
        if machine.up:
            self._do(machine, self._world.chores.draw(), RETRIES_MAX)
            self._chores += 1
            if self._chores % AUDIT_EVERY_CHORES == 0 and machine.up:
                self._world.look_into(machine)

    def _do(self, machine: Machine, chore: WorkItem, retries: int, past: int | None = None) -> None:
        """Does a piece of work, and plans it again if it failed. `past` is how often the node had
        been restored when the work was first asked for: after another restore nobody asks again,
        because what the lost work did may be known elsewhere.
        """
        world = self._world
        if past is None:
            past = world.went_back[machine.peer]
        elif past != world.went_back[machine.peer]:
            return
        if machine.up:
            self._mark_weather(machine, chore.op)
            if world.perform(machine, chore):
                self._spread(machine)
                return
        if retries:
            self._soon(
                OUTAGE_MS_MAX,
                lambda: self._do(machine, chore, retries - 1, past),
                f"{machine.peer} asks for {chore.op} again",
            )

    def _mark_weather(self, machine: Machine, op: str) -> None:
        marks = self._world.marks
        if machine.clock.frozen_ms is not None:
            marks["clock freeze", op] += 1
        elif machine.clock.skew_ms:
            marks["clock jump", op] += 1
        if any(machine.peer in way for way in self._world.links.cut):
            marks["partition", op] += 1

    def _spread(self, machine: Machine) -> None:
        """Some readers hear of news at once; the others wait until they ask by themselves."""
        for relation in self._world.relations:
            news = relation.source == machine.peer and not relation.slow
            if news and self._rng.random() < 0.3:
                pull = partial(self._world.pull, relation)
                self._soon(SECOND_MS, pull, f"{relation.reader} hears of news at {machine.peer}")

    def _keep_pulling(self, relation: SimulatedLink) -> None:
        self._soon(
            SLOW_PULL_MS_MAX if relation.slow else PULL_MS_MAX,
            partial(self._pull, relation),
            f"{relation.reader} asks {relation.source}",
        )

    def _pull(self, relation: SimulatedLink) -> None:
        """Pulls from time to time, by the link that has this name now, if there is one."""
        self._keep_pulling(relation)
        for now in self._world.relations:
            if (now.reader, now.name) == (relation.reader, relation.name):
                self._world.pull(now)

    # --- faults ---------------------------------------------------------------------------------

    def _fault(self) -> None:
        self._soon(FAULT_MS_MAX, self._fault, "a fault")
        kind = self._rng.choices(list(self._weights), list(self._weights.values()))[0]
        machine = self._rng.choice(list(self._world.machines.values()))
        self._world.note(f"fault: {kind} for {machine.peer}")
        self._faults[kind](machine)

    def _death(self, machine: Machine, death: Death) -> None:
        if machine.up and self._rng.random() < 0.2:
            machine.crash(death)
            self._world.mark_death(machine, "nothing")
        else:
            # A machine that is down dies in the middle of its next start.
            machine.doom(death, self._rng.randrange(DOOM_CALLS_MAX))

    def _restart(self, machine: Machine) -> None:
        for op in sorted(machine.since_start):
            self._world.marks["restart", op] += 1
        self._world.reopen(machine)

    def _disk_full(self, machine: Machine) -> None:
        machine.weather.full = True
        self._busy_time(machine)
        self._soon(OUTAGE_MS_MAX, partial(setattr, machine.weather, "full", False), "space again")

    def _io_error(self, machine: Machine) -> None:
        machine.weather.ioerr = self._rng.choice((0.03, 0.1, 0.2))
        machine.weather.spares_reads = self._rng.random() < 0.7
        self._busy_time(machine)
        well = partial(setattr, machine.weather, "ioerr", 0.0)
        self._soon(OUTAGE_MS_MAX, well, "the disk is well again")

    def _busy_time(self, machine: Machine) -> None:
        """Plans more work for the time of a fault: a fault that no work meets shows nothing."""
        for _ in range(FAULT_CHORES):
            self._soon(
                OUTAGE_MS_MAX // 4,
                lambda: self._do(machine, self._world.chores.draw(evenly=True), RETRIES_MAX),
                f"{machine.peer} works",
            )

    def _clock_jump(self, machine: Machine) -> None:
        machine.clock.skew_ms = self._rng.randrange(-HOUR_MS, HOUR_MS)

    def _clock_leap(self, machine: Machine) -> None:
        """The clock shows a day that is weeks off, is set right after a while, and nobody sweeps
        meanwhile: that would forget by a wrong clock. Each machine errs in one direction only.
        """
        world = self._world
        if machine.peer not in world.machines or world.age_watch.is_new(machine.peer):
            return
        ahead = list(world.machines).index(machine.peer) % 2 == 0
        self._set_clock(machine, LEAP_MS if ahead else -LEAP_MS)
        self._busy_time(machine)
        self._soon(OUTAGE_MS_MAX, partial(self._set_clock, machine, 0), "the clock is set right")

    def _set_clock(self, machine: Machine, skew_ms: int) -> None:
        machine.clock.skew_ms = skew_ms
        self._world.age_watch.leapt(machine.peer)

    def _clock_freeze(self, machine: Machine) -> None:
        machine.clock.frozen_ms = machine.clock.now_ms()
        self._busy_time(machine)
        thaw = partial(setattr, machine.clock, "frozen_ms", None)
        self._soon(OUTAGE_MS_MAX, thaw, "the clock goes on")

    def _partition(self, machine: Machine) -> None:
        world, rng = self._world, self._rng
        if world.ticks < self._next_partition:
            return
        alone = {machine.peer}
        ways = [pair for pair in world.pairs() if (pair[0] in alone) != (pair[1] in alone)]
        if rng.random() < 0.4:  # one direction only
            ways = [pair for pair in ways if pair[rng.randrange(2)] in alone]
        world.links.cut_off(ways)
        self._next_partition = world.ticks + OUTAGE_MS_MAX + QUIET_AFTER_PARTITION_MS
        self._soon(OUTAGE_MS_MAX, world.links.heal, "the partition ends")

    def _bad_line(self, machine: Machine) -> None:
        self._world.links.line = BAD
        good = partial(setattr, self._world.links, "line", EVERYDAY)
        self._soon(OUTAGE_MS_MAX, good, "the line is good again")

    def _soon(self, most_ms: int, act: Callable[[], object], name: str) -> None:
        """Plans `act` for a random moment within `most_ms`, unless the storm is over by then."""
        self._world.at(
            self._rng.randrange(1, most_ms), lambda: None if self._over else act(), name=name
        )
