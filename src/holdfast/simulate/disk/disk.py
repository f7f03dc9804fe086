"""A disk that counts, fails on request, and forgets what was not synced.

The database is opened through it by name, and everything else stays as it is:

    with SimulatedDisk(FailAt(17, "ioerr")) as disk:
        connection = apsw.Connection(path, vfs=disk.name)

`FaultyDisk` counts each call, asks a plan whether it shall fail, and tells a witness what changed.
`SimulatedDisk` adds `crash()`: the process dies, alone (the system keeps what was written) or with
the power (unsynced writes are kept, lost or torn), and the files can be opened again under the same
VFS name. Plain files beside the database join in through
`holdfast.simulate.disk.files.watch_files`.

What differs from a real disk:

* apsw raises an injected error even where SQLite ignores it, as in the checkpoint after a commit or
  at a close. So a commit may look failed though it happened; what looks done is done.
* Memory mapping is off (the pragma answers 0), so that every read is seen.
* Temporary files are neither counted nor failed, and locks and shared memory never fail.
* What is written past this VFS and past the watch is unknown here and outlives every crash.
* A name that was created or changed is safe only once its directory was synced. Real file systems
  are often kinder.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, Self

import apsw

from holdfast.simulate.disk.call_log import CallLog, Witness
from holdfast.simulate.disk.faults import Plan, healthy
from holdfast.simulate.disk.platter import Fates, Platter
from holdfast.simulate.disk.vfs import BASE, Generation
from holdfast.simulate.disk.workload import lay_out, write_new

_serial = itertools.count(1)


class FaultyDisk(CallLog):
    """Real files behind a VFS of its own name, whose calls are counted and fail as the plan says.

    A context manager: leaving it takes the name out of SQLite's list. Any number may be in use at
    once. `calls` and `counts` tell how much went on, `first_fault` which call failed first.
    """

    def __init__(
        self, plan: Plan = healthy, *, witness: Witness | None = None, trace: bool = False
    ) -> None:
        super().__init__(plan, witness=witness, trace=trace)
        self.name: Final = f"holdfast-disk-{next(_serial)}"
        self._generation = Generation(self.name, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Opens no more files; connections that are open go on working. May be called twice."""
        self._generation.unregister()

    def kill(self) -> None:
        """The process dies; the system keeps all that it wrote, the shared memory included.

        Its connections can only be closed from now on. The files get new inodes, because locks and
        shared memory of the dead hang on the old ones.
        """
        with self._dying():
            for path in _with_shared_memory(self.names):
                _renew_inode(path)

    @contextmanager
    def _dying(self) -> Iterator[None]:
        with self.lock:
            self._generation.die()
            self.handles = 0
            self.life += 1
            self.backstage = True
            try:
                yield
            finally:
                self.backstage = False
                self._generation = Generation(self.name, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """What a crash did to the writes and names that were not synced."""

    mode: Literal["kill", "power"]
    kept: int = 0
    lost: int = 0
    torn: int = 0


class SimulatedDisk(FaultyDisk):
    """A `FaultyDisk` that knows what is synced and can crash.

    The same seed and the same calls leave the same choice of writes, and the same bytes if
    `seed_sqlite` has made SQLite's own salts repeatable.
    """

    def __init__(self, plan: Plan = healthy, *, seed: int = 0, trace: bool = False) -> None:
        self._platter = Platter(random.Random(f"failed syncs {seed}"))
        super().__init__(plan, witness=self._platter.apply, trace=trace)

    def crash(self, rng: random.Random, *, power_loss: bool = True) -> Crash:
        """The process dies here; its connections can only be closed from now on.

        Killed, it leaves all that it wrote, and what was unsynced stays so until the next crash.
        With the power gone, `rng` decides about each unsynced write, what is left is safe, and
        SQLite's shared memory is gone.
        """
        if not power_loss:
            self.kill()
            return Crash(mode="kill")
        with self._dying():
            fates = self._platter.random_fates(rng)
            crash = _count(fates, self._platter.all_kept())
            self._rewrite(fates)
            self._platter = Platter(self._platter.rng)
            self.witness = self._platter.apply
            self.names.clear()
            return crash

    def _rewrite(self, fates: Fates) -> None:
        image = self._platter.image(fates)
        for path in _with_shared_memory(self.names):
            os.unlink(path)
        for path in image.lost_directories:
            shutil.rmtree(path, ignore_errors=True)
        lay_out(image)


def seed_sqlite(seed: int) -> None:
    """Makes SQLite's random numbers, the salts of its logs among them, repeatable."""
    source = _SeededRandomness(seed)
    try:
        apsw.randomness(0)  # forgets the state, so that the next request seeds it anew
        apsw.randomness(1)
    finally:
        source.unregister()


class _SeededRandomness(apsw.VFS):
    """The default VFS for a moment, because SQLite asks the default one for its seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"sqlite {seed}")
        super().__init__(f"holdfast-randomness-{next(_serial)}", BASE, makedefault=True)

    def xRandomness(self, numbytes: int) -> bytes:
        return self._rng.randbytes(numbytes)


def _count(fates: Sequence[int], whole: Sequence[int]) -> Crash:
    kept = sum(fate == all_parts for fate, all_parts in zip(fates, whole, strict=True))
    lost = sum(fate == 0 for fate in fates)
    return Crash(mode="power", kept=kept, lost=lost, torn=len(fates) - kept - lost)


def _with_shared_memory(paths: Iterable[str]) -> list[str]:
    """Those that exist, and beside a database its shared memory, which no VFS call shows."""
    named = {name for path in paths for name in (path, f"{path}-shm")}
    return sorted(path for path in named if os.path.isfile(path))


def _renew_inode(path: str) -> None:
    with open(path, "rb") as file:
        content = file.read()
    os.unlink(path)
    write_new(path, content)
