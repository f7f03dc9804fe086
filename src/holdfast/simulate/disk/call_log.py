"""The records of one simulated disk: its calls, its faults, and which file has which name.

Everything that does I/O on a simulated disk (the VFS under SQLite, the watch over plain files) asks
here first whether the call may pass, and reports here afterwards what it changed.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable

from holdfast.simulate.disk.faults import DiskCall, Kind, Op, Plan, healthy
from holdfast.simulate.disk.platter import (
    Deleted,
    DirectoryMade,
    Event,
    FileCreated,
    FileFound,
    Renamed,
)

Witness = Callable[[Event], None]


class CallLog:
    """Counts calls, asks the plan, numbers files, and reports every change to a witness, in order.

    A caller that changes the disk holds `lock` from `enter` until its report, so that the order of
    the reports is the order of the changes whatever the threads do.
    """

    def __init__(
        self, plan: Plan = healthy, *, witness: Witness | None = None, trace: bool = False
    ) -> None:
        self.plan = plan
        self.calls = 0
        self.counts: Counter[Op] = Counter()
        self.trace: list[DiskCall] | None = [] if trace else None
        self.first_fault: DiskCall | None = None
        self.lock = threading.RLock()
        self.witness: Witness = witness if witness is not None else _look_away
        self.names: dict[str, int] = {}
        self.handles = 0
        """Files that SQLite holds open."""
        self.life = 0
        """How often the process has died."""
        self.backstage = False
        """True while the simulator itself moves files, which is neither counted nor reported."""
        self._files = itertools.count(1)

    def enter(self, op: Op, path: str, *, creates: bool = False) -> Kind | None:
        """Counts a call; returns the fault that it must fail with, or None."""
        call = DiskCall(self.calls, op, os.path.basename(path), creates)
        self.calls += 1
        self.counts[op] += 1
        if self.trace is not None:
            self.trace.append(call)
        kind = self.plan(call)
        if kind is not None and self.first_fault is None:
            self.first_fault = call
        return kind

    def create(self, path: str) -> int:
        """Records that a file was created; returns its number."""
        file = self.names[path] = next(self._files)
        self.witness(FileCreated(path, file))
        return file

    def find(self, path: str, content: bytes) -> int:
        """Records a file that was there before this disk knew it; returns its number."""
        file = self.names[path] = next(self._files)
        self.witness(FileFound(path, file, content))
        return file

    def delete(self, path: str) -> None:
        """Records that the file or directory under this path was deleted."""
        self.names.pop(path, None)
        self.witness(Deleted(path))

    def make_directory(self, path: str) -> None:
        """Records that a directory was made."""
        self.witness(DirectoryMade(path))

    def move(self, source: str, target: str) -> None:
        """Records that a known file was renamed."""
        file = self.names[target] = self.names.pop(source)
        self.witness(Renamed(source, target, file))


def _look_away(event: Event) -> None:
    """The witness of a disk whose changes nobody records."""
