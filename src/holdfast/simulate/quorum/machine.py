"""One computer of a world of voters: a disk that fails, the real Raft log on it, the real driver.

Whatever its process does is a call from the world's calendar, so death comes between any two calls,
or in the middle of a call to the disk. What a process that died had planned does not happen. A
paused process does nothing until it goes on: messages and answers of its disk wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import apsw

from holdfast.node.core.commit import CommittedEntry
from holdfast.node.quorum.embedded.group_driver import GroupDriver, GroupHooks
from holdfast.node.quorum.embedded.log_disk import entry_of, past_of, row_of
from holdfast.node.quorum.embedded.ports import Folded, FoldedEntry, Wrote
from holdfast.rules.errors import HoldfastError, StoreFailed
from holdfast.rules.quorum.raft.config import GroupConfig, GroupMember, encode_config
from holdfast.rules.quorum.raft.effects import RaftWrite, RoleChange
from holdfast.rules.quorum.raft.events import NodeStalled
from holdfast.rules.quorum.raft.messages import Message, RaftEntry
from holdfast.rules.quorum.raft.state import GroupTiming, restarted
from holdfast.simulate.disk.disk import SimulatedDisk
from holdfast.simulate.disk.files import watch_files
from holdfast.simulate.quorum.registers import Registers
from holdfast.simulate.world.machine import Death, MachineClock, Weather
from holdfast.storage.sqlite.quorum.quorum_log import SqliteQuorumLog

if TYPE_CHECKING:
    from holdfast.simulate.quorum.quorum import QuorumWorld

SCOPE: Final = "team"
TICK_MS: Final = 100
DISK_MS_MAX: Final = 30
FOLD_MS_MAX: Final = 20
STALL_TICKS: Final = 5


class VoterMachine:
    """A voter's computer. `driver` is None while it is down."""

    def __init__(self, world: QuorumWorld, name: str, folder: Path) -> None:
        self.name = name
        self.key = sha256(f"key of {name}".encode()).digest()
        self.clock = MachineClock(world)
        self.weather = Weather(world.fork(f"weather of {name}"))
        self.disk = SimulatedDisk(self.weather, seed=world.seed)
        self.driver: GroupDriver | None = None
        self.registers = Registers()
        self.life = 0
        self.slow_disk_ms = 0
        self._paused: list[Callable[[], None]] | None = None
        self._world = world
        self._rng = world.fork(f"machine of {name}")
        self._doom: Death = "kill"
        self._log: SqliteQuorumLog | None = None
        self._last_write_at = 0
        root = folder / name
        root.mkdir()
        self.home = root / "home"
        self.home.mkdir()
        self._stack = ExitStack()
        self._stack.enter_context(self.disk)
        self._stack.enter_context(watch_files(self.disk, root))

    # --- life -----------------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        return self.driver is not None

    @property
    def is_paused(self) -> bool:
        return self._paused is not None

    def found(self, tag: bytes, voter: int, config: GroupConfig) -> None:
        """The group begins: what `init` and invites do for real homes."""
        log = self._open()
        try:
            log.init(SCOPE, tag=tag, voter=voter, config=encode_config(config))
        finally:
            log.close()

    def start(self) -> None:
        """A process begins to live, or its disk says why not."""
        assert self.driver is None, "it runs already"
        self.life += 1
        world = self._world
        try:
            self._log = self._open()
            group = self._log.group(SCOPE)
            past = past_of(self._log, SCOPE, 0)
            head = self._log.head(SCOPE)
        except (HoldfastError, apsw.Error, OSError) as error:
            world.note(f"{self.name} cannot start: {type(error).__name__}")
            self.crash("kill")
            world.start_soon(self)
            return
        state = restarted(
            past,
            me=group.voter,
            group=group.tag,
            incarnation=group.incarnation,
            timing=GroupTiming(),
            next_write=head.written + 1,
            barred=group.standing == "must_rejoin",
        )
        if group.standing == "must_rejoin":
            world.broken(f"{self.name} must rejoin: {group.reason}")
        self.registers = Registers()
        self.driver = GroupDriver(
            self.name,
            state,
            self,
            self,
            _Fold(self),
            GroupHooks(
                now_ms=self.clock.now_ms,
                post=lambda call: self._soon(0, call, "pump"),
                on_role=self._on_role,
            ),
        )
        self._soon(self._rng.randrange(1, TICK_MS), self._tick, "tick")

    def _open(self) -> SqliteQuorumLog:
        log = SqliteQuorumLog(
            self.home,
            vfs=self.disk.name,
            clock=lambda: 0.0,
            file_number=lambda path: 1,
            random=self._world.fork(f"log of {self.name} {self.life}").randbytes,
            ballast_bytes=4096,
        )
        log.writer._clock = lambda: 0.0
        return log

    def crash(self, death: Death) -> None:
        """The machine goes down at once; nothing is tidied up."""
        world = self._world
        outcome = self.disk.crash(self._rng, power_loss=death == "power")
        world.note(f"{self.name} dies ({death}), {outcome.lost} writes lost")
        world.happened[death] += 1
        self.weather.calls_left = None
        log, self._log = self._log, None
        driver, self.driver = self.driver, None
        self._paused = None
        if log is not None:
            with suppress(HoldfastError, apsw.Error, OSError):
                log.abort()
        if driver is not None:
            driver.proposals, driver.reads = type(driver.proposals)(), type(driver.reads)()
            world.process_gone(self.name)

    def doom(self, death: Death, calls: int) -> None:
        """It dies after so many calls to its disk."""
        self._doom, self.weather.calls_left = death, calls

    def pause(self) -> None:
        if self._paused is None and self.up:
            self._paused = []

    def resume(self) -> None:
        """It goes on. First comes what waited on its links, then it notices that it stood still."""
        waiting, self._paused = self._paused or [], None
        for call in waiting:
            if self.driver is None or self._paused is not None:
                return
            self._act(self.life, call)
        if self.driver is not None:
            self._act(self.life, partial(self.driver.handle, NodeStalled()))

    def close(self) -> None:
        """The world ends."""
        self.weather.clear()
        if self._log is not None:
            with suppress(HoldfastError, apsw.Error, OSError):
                self._log.abort()
        self._stack.close()

    # --- calls ----------------------------------------------------------------------------------

    def _soon(self, delay: int, call: Callable[[], Any], what: str) -> None:
        life = self.life
        self._world.at(delay, lambda: self._act(life, call), name=f"{what} of {self.name}")

    def _act(self, life: int, call: Callable[[], Any]) -> None:
        """Does something in the process of that life, if it still lives."""
        if life != self.life or self.driver is None:
            return
        if self._paused is not None:
            self._paused.append(call)
            return
        call()
        if self.weather.dead:
            self.crash(self._doom)
            self._world.start_soon(self)

    def _tick(self) -> None:
        assert self.driver is not None
        self._soon(TICK_MS, self._tick, "tick")
        self.driver.tick(self._rng.randrange(1 << 16))

    def _on_role(self, change: RoleChange) -> None:
        if change.role == "leader":
            self._world.happened["elected"] += 1
            self._world.books.leads(self.name, change.term)

    def arrive(self, message: Message) -> None:
        """A message has come."""

        def take() -> None:
            assert self.driver is not None
            self.driver.receive(message)

        self._act(self.life, take)

    # --- VoterNet -------------------------------------------------------------------------------

    def send(self, to: GroupMember, message: Message) -> None:
        if not self.weather.dead:
            self._world.carry(self.name, to.peer, message)

    # --- GroupDisk ------------------------------------------------------------------------------

    def write(self, write: RaftWrite, done: Wrote) -> None:
        world = self._world
        takes = self.slow_disk_ms + self._rng.randrange(1 + DISK_MS_MAX)
        at = self._last_write_at = max(self._last_write_at, world.ticks + takes)
        driver = self.driver

        def save() -> None:
            log = self._log
            assert log is not None
            assert driver is not None
            error: HoldfastError | None = None
            try:
                log.save(row_of(write, SCOPE, driver.state.me))
            except HoldfastError as failed:
                error = failed
            except apsw.Error as failed:
                error = StoreFailed(str(failed))
            if self.weather.dead:
                return
            if error is not None:
                world.happened["disk failed"] += 1
                world.restart_soon(self)
            done(error)

        self._soon(max(0, at - world.ticks), save, f"write {write.number}")

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[RaftEntry]:
        assert self._log is not None
        with self.weather.fine():
            rows = self._log.entries(SCOPE, first, last + 1, bytes_max)
        return [entry_of(row) for row in rows]


class _Fold:
    """A `CommitFold`: the registers of a machine, which take their time."""

    def __init__(self, machine: VoterMachine) -> None:
        self._machine = machine

    @property
    def applied(self) -> int:
        return self._machine.registers.applied

    def fold(self, entries: Sequence[CommittedEntry], upto: int, done: Folded) -> None:
        machine = self._machine

        def apply() -> None:
            folded: list[FoldedEntry] = machine.registers.fold(entries, upto)
            world = machine._world
            world.books.applied(machine.name, entries, [one.id for one in folded])
            world.learned(entries, upto)
            done(folded)

        machine._soon(machine._rng.randrange(1 + FOLD_MS_MAX), apply, f"fold to {upto}")
