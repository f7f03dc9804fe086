"""What goes wrong among voters, drawn from the seed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import TYPE_CHECKING, Final

from holdfast.rules.limits import HOUR_MS
from holdfast.rules.quorum.raft.events import StepDown, TransferLeadership

if TYPE_CHECKING:
    from holdfast.simulate.quorum.machine import VoterMachine
    from holdfast.simulate.quorum.quorum import QuorumWorld

EVERY_MS_MAX: Final = 2_500
PAUSE_MS_MAX: Final = 6_000
FULL_MS_MAX: Final = 6_000


class QuorumStorm:
    """Plans one bad thing after the other until it is ended."""

    def __init__(self, world: QuorumWorld) -> None:
        self._world = world
        self._rng = world.fork("storm")
        self._over = False

    def begin(self) -> None:
        self._next()

    def end(self) -> None:
        self._over = True

    def _next(self) -> None:
        self._world.at(self._rng.randrange(1, EVERY_MS_MAX), self._strike, name="storm")

    def _strike(self) -> None:
        if self._over:
            return
        deeds: list[tuple[str, Callable[[], None]]] = [
            ("kill", lambda: self._crash("kill")),
            ("power", lambda: self._crash("power")),
            ("doom", self._doom),
            ("cut", self._cut),
            ("isolate", self._isolate),
            ("heal", self._world.network.heal),
            ("bad line", self._bad_line),
            ("good line", self._good_line),
            ("pause", self._pause),
            ("slow disk", self._slow_disk),
            ("quick disk", self._quick_disk),
            ("clock", self._clock),
            ("full disk", self._full_disk),
            ("hung disk", self._hung_disk),
            ("alone with learners", self._alone_with_learners),
            ("backup", lambda: self._any().back_up()),
            ("restore", self._restore),
            ("transfer", lambda: self._tell_leader(TransferLeadership())),
            ("step down", lambda: self._tell_leader(StepDown())),
        ]
        name, deed = self._rng.choice(deeds)
        self._world.note(f"storm: {name}")
        self._world.happened[name] += 1
        deed()
        self._next()

    def _any(self) -> VoterMachine:
        return self._rng.choice(list(self._world.machines.values()))

    def _crash(self, death: str) -> None:
        machine = self._any()
        if machine.up:
            machine.crash("power" if death == "power" else "kill")
            self._world.start_soon(machine)

    def _doom(self) -> None:
        machine = self._any()
        if machine.up:
            machine.doom(self._rng.choice(("kill", "power")), self._rng.randrange(1, 60))

    def _cut(self) -> None:
        """Some ways between machines are cut, each in one direction."""
        ways = list(permutations(self._world.machines, 2))
        self._world.network.cut_off(way for way in ways if self._rng.random() < 0.4)

    def _isolate(self) -> None:
        """The leader, if there is one, is alone."""
        leader = self._world.leader() or self._any()
        names = [name for name in self._world.machines if name != leader.name]
        both = [(leader.name, name) for name in names] + [(name, leader.name) for name in names]
        self._world.network.cut_off(both)

    def _bad_line(self) -> None:
        line = self._world.network.line
        line.loss, line.doubling = self._rng.random() * 0.3, self._rng.random() * 0.3
        line.delay_ms_max = self._rng.choice((20, 200, 800))

    def _good_line(self) -> None:
        line = self._world.network.line
        line.loss, line.doubling, line.delay_ms_max = 0.0, 0.0, 20

    def _pause(self) -> None:
        machine = self._rng.choice([self._world.leader() or self._any(), self._any()])
        if machine.up and not machine.is_paused:
            machine.pause()
            self._world.at(self._rng.randrange(PAUSE_MS_MAX), machine.resume, name="resume")

    def _slow_disk(self) -> None:
        self._any().slow_disk_ms = self._rng.choice((50, 400, 3_000))

    def _quick_disk(self) -> None:
        for machine in self._world.machines.values():
            machine.slow_disk_ms = 0

    def _clock(self) -> None:
        """A clock jumps, or stands still."""
        clock = self._any().clock
        clock.skew_ms = self._rng.choice((-HOUR_MS, 0, HOUR_MS))
        clock.frozen_ms = clock.now_ms() if self._rng.random() < 0.3 else None

    def _full_disk(self) -> None:
        machine = self._any()
        machine.weather.full = True

        def room() -> None:
            machine.weather.full = False

        self._world.at(self._rng.randrange(FULL_MS_MAX), room, name="room on a disk")

    def _hung_disk(self) -> None:
        """Nothing is answered for longer than an election takes."""
        self._any().slow_disk_ms = 8_000

    def _alone_with_learners(self) -> None:
        """The leader reaches those who have no vote, and nobody else."""
        leader = self._world.leader()
        if leader is None or leader.driver is None:
            return
        config = leader.driver.state.log.config
        voters = [
            member.peer
            for member in config.members
            if member.place == "voter" and member.peer != leader.name
        ]
        both = [(leader.name, name) for name in voters] + [(name, leader.name) for name in voters]
        self._world.network.cut_off(both)

    def _restore(self) -> None:
        """A member's home becomes an older one. No second one before the first has joined anew, and
        none while members change or are few: nobody could go on without an operator's force.
        """
        leader = self._world.leader()
        if leader is None or leader.driver is None:
            return
        log, commit = leader.driver.state.log, leader.driver.state.commit
        machines = self._world.members()
        if (
            log.config_index > commit
            or len(log.config.voters) < 3
            or any(machine.set_back for machine in machines)
        ):
            return
        victim = self._rng.choice(machines)
        if victim.takes_part and victim.durable_last and victim is not leader:
            self._world.happened["restored"] += 1
            victim.restore()

    def _tell_leader(self, event: TransferLeadership | StepDown) -> None:
        leader = self._world.leader()
        if leader is not None and leader.driver is not None and not leader.is_paused:
            leader.driver.handle(event)
