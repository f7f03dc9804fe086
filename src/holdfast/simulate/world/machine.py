"""One computer of a simulated world: a disk that fails, a clock that jumps, and a real node.

Whatever the node does happens inside `activity`, so that death can come in the middle of it: a
doomed machine has a number of disk calls left, after which nothing that it does reaches the disk.
When the activity ends (in whatever error), the machine crashes, by a kill or by a power cut. Its
caller never hears an answer that was given after that call, exactly as with a real death.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

from holdfast.node.core.metrics import Metrics
from holdfast.node.home.opening import Opened, open_home
from holdfast.node.library.node import Node
from holdfast.rules.errors import HoldfastError
from holdfast.simulate.disk.disk import SimulatedDisk
from holdfast.simulate.disk.faults import DiskCall, Kind
from holdfast.simulate.disk.files import watch_files
from holdfast.simulate.world.world import World
from holdfast.storage.files.blobs import Blob, FileBlobs, Found, Source

Death = Literal["kill", "power"]
_READS: Final = frozenset({"open", "read", "size"})


class Died(Exception):
    """The machine died in the middle of what it was doing: its caller got no answer."""


class MachineClock:
    """The clock of one node: that of the world, plus a skew, or frozen. Ids come from the world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.skew_ms = 0
        self.frozen_ms: int | None = None

    def now_ms(self) -> int:
        if self.frozen_ms is not None:
            return self.frozen_ms
        return self._world.now_ms + self.skew_ms

    def new_id(self) -> bytes:
        return self._world.new_id()


class Weather:
    """The plan of a machine's disk: how it fails now, and how many calls it has left to live."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.full = False
        self.ioerr = 0.0
        self.spares_reads = False
        self.calls_left: int | None = None
        self._fine = False

    @contextmanager
    def fine(self) -> Iterator[None]:
        """Nothing fails and no call counts, while the simulator itself looks."""
        before, self._fine = self._fine, True
        try:
            yield
        finally:
            self._fine = before

    @property
    def dead(self) -> bool:
        return self.calls_left is not None and self.calls_left < 0

    def __call__(self, call: DiskCall) -> Kind | None:
        if self._fine:
            return None
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                return "ioerr"
        if self.full and call.needs_space:
            return "full"
        if not self.ioerr or (self.spares_reads and call.op in _READS):
            return None
        return "ioerr" if self._rng.random() < self.ioerr else None

    def clear(self) -> None:
        self.full, self.ioerr, self.calls_left = False, 0.0, None


class Machine:
    """A peer's computer. `node` is None while it is down."""

    def __init__(self, world: World, peer: str, folder: Path, *, sync: str = "full") -> None:
        self.peer = peer
        # A folder of its own around the home, so that the disk also knows of the home's name.
        root = folder / peer
        root.mkdir()
        self.home = root / "home"
        self.clock = MachineClock(world)
        self.weather = Weather(world.fork(f"weather of {peer}"))
        self.disk = SimulatedDisk(self.weather, seed=world.seed)
        self.node: Node | None = None
        self.since_start: set[str] = set()
        """The operations that it has done since it was last started."""
        self.last_death: Death = "kill"
        self._world = world
        self._sync = sync
        self._rng = world.fork(f"deaths of {peer}")
        self._doom: Death = "kill"
        self._stack = ExitStack()
        self._stack.enter_context(self.disk)
        self._stack.enter_context(watch_files(self.disk, root))

    @property
    def up(self) -> bool:
        return self.node is not None

    def start(self) -> Node:
        """Opens the home, which is made first if it is not there. May raise what opening raises."""
        assert self.node is None, "it runs already"
        with self.activity():
            opened = open_home(
                self.home,
                peer=self.peer,
                create=True,
                sync=self._sync,
                source=self.clock,
                vfs=self.disk.name,
                environ={},
            )
            self.node = Node(tamed(opened, self.clock))
            self.since_start.clear()
        return self.node

    def stop(self) -> None:
        """Closes the node. If the disk fails meanwhile, the machine crashes instead."""
        assert self.node is not None
        try:
            with self.activity():
                self.node.close()
        except HoldfastError:
            self.crash("kill")
            raise
        if self.disk.handles:
            self.crash("kill")
        self.node = None

    def crash(self, death: Death) -> None:
        """The machine goes down at once; nothing is tidied up."""
        self.last_death = death
        outcome = self.disk.crash(self._rng, power_loss=death == "power")
        self._world.note(
            f"{self.peer} dies ({death}), {outcome.lost} writes lost, {outcome.torn} torn"
        )
        self.weather.calls_left = None
        if self.node is not None:
            self.node._opened.abandon()
        self.node = None
        self._set_ages()

    @contextmanager
    def offline(self) -> Iterator[None]:
        """While the machine is down, the block works on its files past the disk, and it lasts."""
        assert self.node is None, "it runs"
        # What was written before and not synced is settled now; the disk then finds what there is.
        self.disk.crash(self._rng)
        self.disk.backstage = True
        try:
            yield
        finally:
            self.disk.backstage = False
            self._set_ages()

    def doom(self, death: Death, calls: int) -> None:
        """After this many more disk calls the machine dies, in the middle of what it then does."""
        self._doom = death
        self.weather.calls_left = calls

    @contextmanager
    def activity(self) -> Iterator[None]:
        """Around whatever the node does; raises `Died` if the machine died inside the block."""
        try:
            yield
        except Exception:
            if not self.weather.dead:
                raise
        if self.weather.dead:
            self.crash(self._doom)
            raise Died(self.peer)

    def close(self) -> None:
        """Ends the machine, as the world ends."""
        self.weather.clear()
        if self.node is not None:
            with suppress(HoldfastError):
                self.stop()
        self._stack.close()

    def _set_ages(self) -> None:
        set_ages(self.home, self.clock)


def tamed(opened: Opened, clock: MachineClock) -> Opened:
    """Takes real time and chance out of a home, so that a seed always tells one story."""
    opened.engine.ctx.blobs = _MachineBlobs(opened.paths.blobs, clock)
    opened.engine.metrics = _Untimed()
    opened.engine.metrics.begin(opened.paths.metrics, opened.engine.ctx.now_ms, 0.0)
    opened.store.writer._clock = lambda: 0.0
    return opened


def set_ages(home: Path, clock: MachineClock) -> None:
    """Sets the times of blobs by a machine's clock: the simulator wrote them in real time."""
    for path in sorted((home / "blobs").rglob("*")):
        _set_age(path, clock)


class _MachineBlobs(FileBlobs):
    """Blobs whose age goes by the machine's clock, and that are always listed in one order."""

    def __init__(self, root: Path, clock: MachineClock) -> None:
        super().__init__(root)
        self._clock = clock

    def put(self, source: Source) -> Blob:
        blob = super().put(source)
        _set_age(self._path(blob.sha256), self._clock)
        return blob

    def put_piece(self, sha: str, start: int, data: bytes) -> int:
        here = super().put_piece(sha, start, data)
        _set_age(self._partial_path(sha), self._clock)
        return here

    def finish(self, sha: str, size: int) -> Blob:
        blob = super().finish(sha, size)
        _set_age(self._path(sha), self._clock)
        return blob

    def scan(self) -> Iterator[Found]:
        yield from sorted(super().scan(), key=repr)


def _set_age(path: Path, clock: MachineClock) -> None:
    seconds = clock.now_ms() / 1000
    os.utime(path, (seconds, seconds))


class _Untimed(Metrics):
    """Counts without times: a line whose length varies would tear in other places."""

    def line(self, name: str, now_ms: int, document: dict[str, Any]) -> dict[str, Any]:
        return {"at": now_ms}

    def tell(self, **more: Any) -> None:
        """Nothing: whether a line is due, the real clock would say."""
