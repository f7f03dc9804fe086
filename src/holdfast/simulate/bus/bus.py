"""A world of the bus: peers without a broker, and everything that goes wrong between them.

Each machine runs the real `Bus` on real links and a real store, in a loop of its own (`machine`,
`program`), on a network that breaks anywhere (`net`). Processes are killed between any two steps,
machines lose their power, disks fill up, fail, and are put back to older copies, clocks jump, and
somebody brings parcels again that he has recorded.

In every other world the machines have homes (`home_machine`, `home_program`), join a mesh over the
bus and write to it; homes are restored from backups, and members that may not relay bring what
others have not written.

What must hold all the time is stated in `books` and `tap`:

* no handler gets a message twice, and messages of one sender come in order;
* no number is ever used for two messages, and none is taken twice;
* every request ends in time, with its reply or an error of the bus, and is handled once;
* no error of a task is lost, no loop spins, and what waits in memory is bounded;

and in `mesh_books`, for meshes:

* each entry stands in a log once, and only if its origin wrote it;
* what a home covers is what its log holds.

And in the end, when nothing fails any more: every message that was promised has been handled, every
outbox is empty, any two peers have exactly one link, nobody lacks an entry that somebody has who
may bring it, homes with the same entries have the same rows and digests, and a bus that is closed
leaves no task.

    python -m holdfast.simulate bus 42
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, Self

from holdfast.rules.errors import BusClosed, BusError, HoldfastError
from holdfast.rules.ids import id_text
from holdfast.rules.limits import DAY_MS
from holdfast.simulate.bus.books import BusBooks
from holdfast.simulate.bus.home_machine import HomeMachine
from holdfast.simulate.bus.home_program import HomeProgram
from holdfast.simulate.bus.machine import PORT, RESTART_MS_MAX, BusMachine
from holdfast.simulate.bus.mesh_books import MESH, MeshBooks
from holdfast.simulate.bus.net import BusNetwork
from holdfast.simulate.bus.program import reply_to
from holdfast.simulate.bus.storm import BusStorm
from holdfast.simulate.bus.tap import ParcelTap
from holdfast.simulate.bus.traits import traits_of
from holdfast.simulate.disk.disk import seed_sqlite
from holdfast.simulate.disk.workload import scratch
from holdfast.simulate.world.faults import Faults
from holdfast.simulate.world.invariants import differences
from holdfast.simulate.world.seeds import PromiseBroken, replayable
from holdfast.simulate.world.workload import Workload
from holdfast.simulate.world.world import World

STORM_MS: Final = 120_000
CALM_MS_MAX: Final = 400_000
LOOK_MS: Final = 5_000
REOPEN_MS_MAX: Final = 10_000
JOIN_ALL_MS_MAX: Final = 120_000
YEAR_MS: Final = 365 * DAY_MS
TASKS_MAX: Final = 2_000
"""Tasks of one process, most of them sends and requests of its program that wait."""


class BusWorld(World):
    """Machines, the networks between them, and the books."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.traits = traits_of(seed)
        self.happened: Counter[str] = Counter()
        self.network = BusNetwork(self, lambda what: self.happened.update([what]))
        self.tap = ParcelTap((), self.broken)
        self.network.taps.append(self.tap)
        self.books = BusBooks(lambda: self.ticks, self.broken)
        self.meshes = MeshBooks(self.traits.peers, self.traits.relays, self.broken)
        self.chores = Workload(self.fork("chores"), self.new_id, (MESH,))
        self.machines: dict[str, BusMachine] = {}
        self.is_calm, self.calm_since = False, 0
        self._problems: list[str] = []
        self._faults = Faults()
        self._stack = ExitStack()
        self._started_at: dict[str, int] = {}
        self._reopening: dict[str, int] = {}
        self._moves = 0
        self._gossip: dict[tuple[str, int, bytes], None] = {}

    # --- beginning and end ----------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self._stack.close()  # nobody else will: what has not begun is not ended
            raise
        return self

    def _begin(self) -> None:
        seed_sqlite(self.seed)
        logging.getLogger("holdfast").addHandler(self._faults)
        self._stack.callback(logging.getLogger("holdfast").removeHandler, self._faults)
        folder = self._stack.enter_context(scratch())
        for number, name in enumerate(self.traits.peers, 1):
            machine = (
                HomeMachine(self, name, folder)
                if self.traits.homes
                else BusMachine(self, name, folder, durable=name in self.traits.durable)
            )
            machine.clock.skew_ms = self.usual_skew(name)
            self.machines[name] = machine
            self._stack.callback(machine.close)
            self.network.give_host(name, f"10.0.0.{number}")
            if self.traits.two_networks:
                self.network.give_host(name, f"10.1.0.{number}", "second lan")
        self._make_homes()
        for machine in self.machines.values():
            self._start(machine)
        self.go_on(5_000)
        self._let_join()

    def _make_homes(self) -> None:
        """Homes, and a mesh that the first of them shares."""
        homes = self.homes
        if not homes:
            return
        for home in homes:
            home.make()
        rights = {True: ("read", "write", "relay"), False: ("read", "write")}
        owner, *others = homes
        invites = owner.share({home.name: rights[self.may_relay(home.name)] for home in others})
        for home in others:
            home.invite = invites[home.name]

    def _let_join(self) -> None:
        """Waits until all have joined; nothing fails before that."""
        until = self.ticks + JOIN_ALL_MS_MAX
        waiting = self.homes
        while waiting and self.ticks < until:
            self.go_on(LOOK_MS)
            waiting = [home for home in self.homes if not home.has_joined]
        if waiting:
            raise PromiseBroken(f"seed {self.seed}: {waiting[0].name} cannot join")
        for home in self.homes:
            home.invite = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def homes(self) -> list[HomeMachine]:
        """The machines that have homes: all or none."""
        return [machine for machine in self.machines.values() if isinstance(machine, HomeMachine)]

    def may_relay(self, name: str) -> bool:
        return name in self.traits.relays

    def broken(self, text: str) -> None:
        """A promise is broken. Whoever runs the world hears of it after the event: code under test
        could swallow an exception.
        """
        self.note(f"BROKEN: {text}")
        self._problems.append(text)

    def step(self) -> bool:
        happened = super().step()
        if self._faults.heard:
            self.broken(f"a fault of the bus: {self._faults.heard.pop()}")
        if self._problems:
            raise PromiseBroken(f"seed {self.seed}: {'; '.join(self._problems[:3])}")
        return happened

    def go_on(self, ms: int) -> None:
        self.run(until=self.ticks + ms)

    def storm(self) -> None:
        storm = BusStorm(self)
        storm.begin()
        until = self.ticks + STORM_MS
        while self.ticks < until:
            self.go_on(LOOK_MS)
            self._look_at_memory()
        storm.end()

    def calm(self) -> None:
        """Nothing fails any more: everything that was promised comes about."""
        self.is_calm, self.calm_since = True, self.ticks
        self.network.heal()
        for machine in self.machines.values():
            machine.weather.clear()
            machine.clock.skew_ms = self.usual_skew(machine.name)
            if machine.program is not None:
                machine.program.reads_slowly_until = 0
        until = self.ticks + CALM_MS_MAX
        left = ["nobody has looked"]
        while left and self.ticks < until:
            self.go_on(LOOK_MS)
            left = self._left()
        if left:
            raise PromiseBroken(f"seed {self.seed}: at calm {'; '.join(left[:4])}")
        problems = [line for home in self.homes for line in home.audited()] + self._apart()
        if problems:
            raise PromiseBroken(f"seed {self.seed}: {'; '.join(problems[:4])}")
        self._close_all()

    def _apart(self) -> list[str]:
        """Where homes differ that hold the same entries."""
        if not self.homes or not self.meshes.is_whole():
            return []
        self.happened["equal"] += 1
        first, *others = self.homes
        rows, digests = first.mesh_rows(), first.mesh_digests()
        apart = []
        for home in others:
            both = f"{first.name} and {home.name} end up apart"
            apart += [f"{both}: {line}" for line in differences(rows, home.mesh_rows())]
            if home.mesh_digests() != digests:
                apart.append(f"{both}: their streams have other digests")
        return apart

    # --- machines -------------------------------------------------------------------------------

    def _start(self, machine: BusMachine) -> None:
        self._started_at[machine.name] = self.ticks
        machine.start()

    def start_soon(self, machine: BusMachine) -> None:
        """A machine that is down comes back after a while."""

        def start() -> None:
            if not machine.up:
                self._start(machine)

        delay = self.rng.randrange(10, RESTART_MS_MAX)
        self.at(delay, start, name=f"{machine.name} starts")

    def give_up_start(self, machine: BusMachine, life: int) -> None:
        """Its process could not bind the bus, and ends."""
        if machine.up and machine.life == life:
            machine.crash("kill")
            self.start_soon(machine)

    def restart(self, machine: BusMachine, then: Callable[[], None] | None = None) -> None:
        """Ends the process in an orderly way, does something while it is down, and starts it."""
        program, loop, life = machine.program, machine.loop, machine.life
        if program is None or loop is None or loop.over or program.bus is None:
            return

        async def end() -> None:
            await program.end()
            self.at(0, ended, name=f"{machine.name} ends")

        def ended() -> None:
            if machine.life != life or machine.loop is not loop:
                return
            self._check_nothing_left(machine)
            machine.ended()
            if then is not None:
                then()
            self.start_soon(machine)

        loop.create_task(end())

    def reopen_soon(self, machine: BusMachine) -> None:
        """The store of a machine has to be opened anew; somebody sees to it after a while."""
        life = machine.life
        if self._reopening.get(machine.name) == life:
            return
        self._reopening[machine.name] = life
        self.happened["store failed"] += 1

        def look() -> None:
            if machine.life == life and machine.up:
                self.restart(machine)
                self.at(20_000, kill, name=f"somebody has enough of {machine.name}")

        def kill() -> None:
            if machine.life == life and machine.up:
                machine.crash("kill")
                self.start_soon(machine)

        self.at(self.rng.randrange(10, REOPEN_MS_MAX), look, name=f"{machine.name} is reopened")

    def usual_skew(self, name: str) -> int:
        """How far the clock of a machine is off when nothing has happened to it."""
        return YEAR_MS if name == self.traits.year_off else 0

    def ticks_of_life(self, name: str) -> int:
        """When the process that runs, or ran last, on a machine was started."""
        return self._started_at[name]

    def _check_nothing_left(self, machine: BusMachine) -> None:
        """A closed bus has no tasks and no connections."""
        assert machine.loop is not None
        left = [task.get_name() for task in machine.loop.tasks if not task.done()]
        mine = [name for name in left if name.startswith("holdfast")]
        if isinstance(machine.program, HomeProgram):
            mine += machine.program.left_over()
        if mine:
            self.broken(f"{machine.name} has closed its bus, and leaves {mine[:3]}")
        open_ends = [
            end
            for end in self.network.ends.values()
            if end.net is machine.net and end.open and end.protocol is not None
        ]
        if open_ends:
            self.broken(f"{machine.name} has closed its bus, and leaves {len(open_ends)} streams")

    def _close_all(self) -> None:
        for machine in self.machines.values():
            self.restart(machine)
        self.go_on(60_000)

    # --- addresses ------------------------------------------------------------------------------

    def known_addresses(self, machine: BusMachine, other: BusMachine) -> list[str]:
        """Where the others are, as somebody has written it down."""
        return [f"{host}:{PORT}" for host in self.network.hosts_of(other.name)]

    def listens_at(self, machine: BusMachine) -> tuple[str, ...]:
        return (f"0.0.0.0:{PORT}",)

    def name_of(self, key: bytes) -> str:
        return next(name for name, machine in self.machines.items() if machine.key == key)

    def move(self) -> None:
        """The first machine gets another address."""
        name = self.traits.peers[0]
        self._moves += 1
        self.network.take_host(self.network.hosts_of(name)[0])
        self.network.give_host(name, f"10.0.1.{self._moves}")

    # --- what the program tells -----------------------------------------------------------------

    def trouble(self, machine: BusMachine, what: str, error: HoldfastError) -> None:
        """A call of the bus has failed. Callers get errors of the bus and no others."""
        self.note(f"{machine.name} cannot {what}: {type(error).__name__}: {error.message}")
        self.happened[f"{what}: {error.code}"] += 1
        if not isinstance(error, BusError):
            self.broken(f"{machine.name} got {type(error).__name__} from {what}: {error}")
        ending = isinstance(error, BusClosed)
        if self.is_calm and what in ("send", "read", "publish") and not ending:
            self.broken(f"{machine.name} cannot {what} at calm: {error.code} {error.message}")

    def heard_gossip(self, name: str, life: int, id: bytes) -> None:
        self.happened["heard"] += 1
        if (name, life, id) in self._gossip:
            self.broken(f"{name} heard {id_text(id)} twice")
        self._gossip[name, life, id] = None

    def check_reply(self, asker: str, id: bytes, reply: Any) -> None:
        asked = self.books.asked[id]
        if reply.id != id or reply.body != reply_to(reply.peer, asked.body):
            self.broken(f"{asker} got another reply than the one to {id_text(id)}")

    # --- the attacker ---------------------------------------------------------------------------

    def attack(self, rng: Any) -> None:
        """Somebody brings a parcel again, as it was or changed, by a link of its sender."""
        if not self.tap.recorded:
            return
        parcel = rng.choice(list(self.tap.recorded))
        machine = self.machines[parcel.source]
        program = machine.program
        if program is None or program.bus is None or machine.loop is None or machine.loop.over:
            return
        body = parcel.body
        if rng.random() < 0.3:
            at = rng.randrange(len(body))
            body = body[:at] + bytes((body[at] ^ 1 << rng.randrange(8),)) + body[at + 1 :]
        self.tap.injected[body] = None
        machine.loop.call_soon(program.inject, rng.choice(list(self.machines)), parcel.stream, body)

    # --- what holds -----------------------------------------------------------------------------

    def _look_at_memory(self) -> None:
        for machine in self.machines.values():
            if machine.loop is not None and len(machine.loop.tasks) > TASKS_MAX:
                self.broken(f"{machine.name} has {len(machine.loop.tasks)} tasks")

    def _left(self) -> list[str]:
        """What is still to come, as sentences."""
        left = [
            f"{name} is down"
            for name, machine in self.machines.items()
            if machine.program is None or machine.program.bus is None
        ]
        if left:
            return left
        left = list(self.books.owed()) + self._meshes_left()
        left += [
            f"request {id_text(asked.id)} has not ended"
            for asked in self.books.asked.values()
            if self.ticks <= asked.until
        ]
        return left + self._links_left() + self._outboxes_left()

    def _meshes_left(self) -> list[str]:
        left = list(self.meshes.owed()) if self.homes else []
        for home in self.homes:
            if home.has_failed:
                self.reopen_soon(home)
                left.append(f"the store of {home.name} has failed")
        return left

    def _links_left(self) -> list[str]:
        names = list(self.machines)
        pairs: Counter[tuple[str, str]] = Counter()
        for end in self.network.ends.values():
            if end.open and end.number % 2:
                one, two = sorted(end.way)
                pairs[one, two] += 1
        wanted = [(one, two) for one in names for two in names if one < two]
        return [
            f"{one} and {two} have {pairs[one, two]} links"
            for one, two in wanted
            if pairs[one, two] != 1
        ]

    def _outboxes_left(self) -> list[str]:
        waiting = {name: machine.waits_for() for name, machine in self.machines.items()}
        return [
            f"{name} still keeps something for {whom}" for name, whom in waiting.items() if whom
        ]


def tell(seed: int) -> BusWorld:
    """A storm and the calm after it; returns the world, closed."""
    quiet = logging.getLogger("holdfast")
    before = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        with replayable("bus", seed), BusWorld(seed) as world:
            world.storm()
            world.calm()
    finally:
        quiet.setLevel(before)
    return world
