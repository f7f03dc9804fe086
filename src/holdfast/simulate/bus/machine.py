"""One computer of a world of the bus: a disk that fails, a clock that jumps, hosts, and a process.

The process is a loop of its own with a real `Bus` on it, and a program that uses the bus
(`program`). It dies between any two callbacks, or in the middle of a call to its disk. Its store is
durable or in memory. A durable one can be put back to an older copy, with or without what stands
beside the database.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import apsw

from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.rules.bus.mesh_store import MeshStore
from holdfast.rules.bus.message import MessageKind
from holdfast.rules.errors import HoldfastError
from holdfast.rules.keys import public_key
from holdfast.simulate.bus.net import MachineNet
from holdfast.simulate.bus.program import BusProgram
from holdfast.simulate.bus.watched_store import WatchedStore
from holdfast.simulate.disk.disk import SimulatedDisk
from holdfast.simulate.disk.files import watch_files
from holdfast.simulate.world.loop import SimulatedLoop
from holdfast.simulate.world.machine import Death, MachineClock, Weather
from holdfast.storage.ports import Transaction
from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore, Writes, open_alone
from holdfast.storage.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from holdfast.simulate.bus.bus import BusWorld

PORT: Final = 7000
RESTART_MS_MAX: Final = 20_000
T = TypeVar("T")


class BusMachine:
    """A peer's computer. `program` is None while it is down."""

    def __init__(self, world: BusWorld, name: str, folder: Path, *, durable: bool) -> None:
        self.name, self.durable = name, durable
        self.seed = sha256(f"key of {name}".encode()).digest()
        self.key = public_key(self.seed)
        self.clock = MachineClock(world)
        self.weather = Weather(world.fork(f"weather of {name}"))
        self.disk = SimulatedDisk(self.weather, seed=world.seed)
        self.life = 0
        self.program: BusProgram | None = None
        self.loop: SimulatedLoop | None = None
        self.net: MachineNet | None = None
        self.copy_at: int | None = None
        """When the copy was made that it could be put back to."""
        self._world = world
        self._rng = world.fork(f"machine of {name}")
        self._handles_left: int | None = None
        self._doom: Death = "kill"
        self._is_dying = False
        self._close_store: Callable[[], None] = lambda: None
        self._stop_store: Callable[[], object] = lambda: None
        self._inner: MeshStore | None = None
        self._file_number = 1
        """What the file system calls the database: another file has another number."""
        root = folder / name
        root.mkdir()
        self.home, self._copy = root / "home", folder / f"copy of {name}"
        self.home.mkdir()
        self._stack = ExitStack()
        self._stack.enter_context(self.disk)
        self._stack.enter_context(watch_files(self.disk, root))

    # --- life -----------------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        return self.program is not None

    @property
    def is_alive(self) -> bool:
        """Whether what its process does still counts."""
        return not self.weather.dead and (self._handles_left is None or self._handles_left > 0)

    def start(self) -> None:
        """A process begins to live; its bus is bound a little later, or its disk says why not."""
        assert self.program is None, "it runs already"
        self.life += 1
        self._is_dying = False
        self._handles_left = None
        world = self._world
        self.loop = SimulatedLoop(world, self.name, goes_on=self._goes_on, on_trouble=world.broken)
        self.net = world.network.start(self.name, self.loop, sha256(self.key).digest())
        self.program = self._new_program()
        self.loop.create_task(self.program.run())

    def _new_program(self) -> BusProgram:
        return BusProgram(self._world, self)

    def crash(self, death: Death) -> None:
        """The machine goes down at once; nothing is tidied up."""
        assert self.loop is not None
        world = self._world
        self.loop.stop_dead()
        world.network.end_process(self.name, power_loss=death == "power")
        outcome = self.disk.crash(self._rng, power_loss=death == "power")
        world.note(f"{self.name} dies ({death}), {outcome.lost} writes lost, {outcome.torn} torn")
        world.happened[death] += 1
        self._forget_process()
        self._forget_memory()

    def ended(self) -> None:
        """The process has closed its bus and is gone."""
        world = self._world
        world.note(f"{self.name} has ended")
        with suppress(HoldfastError, apsw.Error, OSError):
            self._stop_store()
        if self.disk.handles:
            self.crash("kill")
            return
        world.network.end_process(self.name, power_loss=False)
        self._forget_process()
        self._forget_memory()

    def _forget_memory(self) -> None:
        """What was in memory only is gone; a bus with a store in memory counts from 1 again."""
        if not self.durable:
            world = self._world
            world.books.went_back(self.name, world.ticks_of_life(self.name))
            world.tap.forgive(self.key)

    def _forget_process(self) -> None:
        assert self.loop is not None
        self.weather.calls_left = None
        self._handles_left = None
        self.loop.abandon()
        self._close_store()
        self._close_store = self._stop_store = lambda: None
        self.program = self.loop = self.net = self._inner = None

    def doom(self, death: Death, *, calls: int | None = None, handles: int | None = None) -> None:
        """It dies after so many calls to its disk, or callbacks of its loop."""
        self._doom = death
        self.weather.calls_left = calls
        self._handles_left = handles

    def _goes_on(self) -> bool:
        if self._handles_left is not None:
            self._handles_left -= 1
        if self.is_alive:
            return True
        if not self._is_dying:
            self._is_dying = True
            self._world.at(0, self._die, self.life, name=f"{self.name} dies")
        return False

    def _die(self, life: int) -> None:
        if self.life == life and self.up:
            self.crash(self._doom)
            self._world.start_soon(self)

    def close(self) -> None:
        """The world ends."""
        if self.loop is not None:
            self.loop.stop_dead()
            self._forget_process()
        self.weather.clear()
        self._stack.close()

    # --- the store ------------------------------------------------------------------------------

    async def open_store(self) -> WatchedStore:
        """The store of this life."""
        world = self._world
        chance = world.fork(f"store of {self.name} {self.life}")
        self._inner = (
            await self._open_durable(chance)
            if self.durable
            else MemoryMeshStore(
                now_ms=self.clock.now_ms, ticks_ms=lambda: world.ticks, random=chance.randbytes
            )
        )
        return WatchedStore(
            self._inner,
            self.name,
            world.books,
            chance,
            is_alive=lambda: self.is_alive,
            on_failure=lambda: world.reopen_soon(self),
        )

    async def _open_durable(self, chance: random.Random) -> MeshStore:
        """The store in a database of its own, with writes that take their time."""
        database = open_alone(self.home / "data.db", self.disk.name)
        self._close_store, self._stop_store = database.abort, database.stop
        database.writer._clock = lambda: 0.0

        async def write(work: Callable[[Transaction], T]) -> T:
            return await asyncio.to_thread(database.write, work)

        return await self._started(database, write, chance)

    async def _started(
        self, database: SqliteStore, write: Writes, chance: random.Random
    ) -> MeshStore:
        store = SqliteMeshStore(
            database,
            self.home / "bus.mark",
            write=write,
            in_thread=asyncio.to_thread,
            now_ms=self.clock.now_ms,
            ticks_ms=lambda: self._world.ticks,
            random=chance.randbytes,
            file_number=lambda path: self._file_number,
        )
        return await store.start()

    def waits_for(self) -> list[str]:
        """For whom messages stand in the outbox. Replies that nobody waits for any more may stand
        there until their time is over.
        """
        assert self._inner is not None
        with self.weather.fine():
            items = [item for _, item in _at_once(self._inner.due_outbox())]
        wanted = (MessageKind.SEND, MessageKind.PUBLISH)
        return list(dict.fromkeys(one.peer for one in items if one.message.kind in wanted))

    # --- going back -----------------------------------------------------------------------------

    def copy(self) -> None:
        """Keeps a copy of the disk of a machine that is down."""
        assert self.program is None, "it runs"
        self.disk.crash(self._rng)
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.home, self._copy)
        self.copy_at = self._world.ticks

    def put_back(self, *, mark_too: bool) -> None:
        """The disk is as it was when it was copied; without the mark, only the database is."""
        assert self.program is None, "it runs"
        assert self.copy_at is not None
        world = self._world
        self.disk.crash(self._rng)
        self.disk.backstage = True
        try:
            for path in sorted(self.home.iterdir()):
                if mark_too or path.suffix != ".mark":
                    path.unlink()
            for path in sorted(self._copy.iterdir()):
                if mark_too or path.suffix != ".mark":
                    shutil.copyfile(path, self.home / path.name)
        finally:
            self.disk.backstage = False
        if not mark_too:
            self._file_number += 1
        world.note(f"{self.name} goes back to {self.copy_at}, {mark_too=}")
        world.happened["set back with its mark" if mark_too else "set back"] += 1
        world.books.went_back(self.name, self.copy_at)
        if mark_too:
            world.tap.forgive(self.key)

    def may_have_failed(self, error: Exception) -> bool:
        """Whether a start may end with this error: it began before the disk was well for good."""
        world = self._world
        began_calm = world.is_calm and world.ticks_of_life(self.name) >= world.calm_since
        return not began_calm and isinstance(error, HoldfastError | apsw.Error | OSError)


def _at_once(look: Coroutine[Any, Any, T]) -> T:
    """The answer of a call that waits for nothing."""
    try:
        look.send(None)
    except StopIteration as answer:
        found: T = answer.value
        return found
    raise AssertionError("it waits")
