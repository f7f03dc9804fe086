"""Watches how full the disk is, warns before its end, and keeps a way back from it.

`look` measures, cheaply: what the file system says, the size of the database's files, and two sums
that the database keeps. The engine calls `admit` before every write that adds data; it refuses at
the level `full`. The engine calls `relieve` after a write that met a full disk: it releases the
ballast, so that confirming, retiring and sweeping work, and from then on the node refuses what adds
data until a look finds room again.

                    look finds room
        ┌───────────────────────────────────┐
        ▼                                   │
    accepting ──look: full, or relieve──▶ refusing
    (ballast laid)                        (ballast released once a write has met the end)
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from holdfast.node.core.engine import NodeEngine
from holdfast.rules.disk_pressure import DEFAULT_BOUNDS, Bounds, Pressure, pressure
from holdfast.rules.errors import DiskFull, HoldfastError
from holdfast.rules.limits import MIB
from holdfast.storage.files.ballast import Ballast, free_bytes
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite.space import space

log = logging.getLogger("holdfast")

_HINT = (
    "free some space; or let readers confirm, or retire those that are gone: holdfast consumer "
    "retire NAME; then: holdfast sweep. Reads, confirmations and deletions still work"
)
_BLOCK = 512


class DiskWatch:
    """How full one home is. Safe to use from any thread."""

    def __init__(
        self,
        engine: NodeEngine,
        paths: HomePaths,
        limit_bytes: int | None = None,
        *,
        bounds: Bounds = DEFAULT_BOUNDS,
        ballast: Ballast | None = None,
        on_change: Callable[[Pressure], None] | None = None,
    ) -> None:
        """`on_change` is called with every new level, in the thread that found it."""
        self._engine = engine
        self._paths = paths
        self.limit_bytes = limit_bytes
        self._bounds = bounds
        self.ballast = Ballast(paths.root) if ballast is None else ballast
        self._listeners = [] if on_change is None else [on_change]
        self._lock = threading.Lock()
        self._met_end = 0
        """How many writes have met a full disk."""
        self.last = Pressure(0.0, "ok", 0, 0)
        """What the last look found; before the first look every write is accepted."""

    def watch(self) -> None:
        """From now on the engine calls `admit` and `relieve`."""
        self._engine.admit = self.admit
        self._engine.relieve = self.relieve

    def unwatch(self) -> None:
        self._engine.admit = self._engine.relieve = None

    def on_change(self, listener: Callable[[Pressure], None]) -> None:
        """Calls the listener with every new level, in the thread that found it."""
        self._listeners.append(listener)

    # --- looking -----------------------------------------------------------------------------

    def look(self) -> Pressure:
        """Measures, announces a new level, and lays the ballast again where there is room."""
        began = self._met_end
        used, free = measure(self._paths)
        with self._lock:
            # A write met the end while we measured: these numbers are older, and the next look is
            # soon.
            if self._met_end > began:
                return self.last
            before = self.last
            found = self.last = pressure(used, free, self.limit_bytes, before.level, self._bounds)
        if found.level == "ok":
            self._lay()
        self._tell(before, found)
        return found

    def _lay(self) -> None:
        try:
            self.ballast.lay()
        except HoldfastError as error:
            # Another process used the space first. The next look measures again.
            log.warning("%s", error.message)

    def _tell(self, before: Pressure, found: Pressure) -> None:
        if before.level == found.level:
            return
        _announce(self._paths.root, found)
        for listener in self._listeners:
            listener(found)

    # --- what the engine calls -------------------------------------------------------------------

    def admit(self) -> None:
        """Raises DiskFull at the level `full`."""
        last = self.last
        if last.level == "full":
            raise DiskFull(
                f"the home is {last.fill:.0%} full, with {last.room // MIB} MiB left: the node "
                "refuses what adds data",
                hint=_HINT,
            )

    def relieve(self) -> None:
        """Releases the ballast after a write met a full disk, and sets the level to `full`."""
        with self._lock:
            self._met_end += 1
            before = self.last
            found = self.last = Pressure(1.0, "full", before.used, 0)
        try:
            if self.ballast.release():
                log.warning("%s met a full disk; its ballast is released", self._paths.root)
        except HoldfastError as error:
            log.error("%s", error.message)
        self._tell(before, found)


def measure(paths: HomePaths) -> tuple[int, int]:
    """Bytes that a home uses, and bytes that it could still use: on the disk and in its
    database.
    """
    inside = space(paths.database)
    files = (paths.database, paths.wal, paths.shm)
    used = sum(_allocated(path) for path in files) + inside.blobs - inside.reusable
    return used, free_bytes(paths.root) + inside.reusable


def _allocated(path: Path) -> int:
    """The bytes that a file takes on the disk: its blocks, because a file may have holes."""
    try:
        return os.stat(path).st_blocks * _BLOCK
    except FileNotFoundError:
        return 0


def _announce(home: Path, found: Pressure) -> None:
    what = f"{home} is {found.fill:.0%} full, with {found.room // MIB} MiB left"
    if found.level == "full":
        log.warning("%s: what adds data is refused until there is room; %s", what, _HINT)
    elif found.level == "high":
        log.warning("%s: free some space before it is needed", what)
    else:
        log.info("%s: there is room again", what)
