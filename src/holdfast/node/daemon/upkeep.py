"""The thread of a daemon that watches the disk and sweeps.

It waits for the next thing that is due, or until it is woken:

- it measures the disk every DISK_LOOK_MS, and at once after a write that met a full disk;
- it sweeps every UPKEEP_MS, at once when the disk becomes fuller, and every UPKEEP_PRESSED_MS for
  as long as it is, because readers confirm meanwhile and more may be forgotten;
- it writes a line of metrics every METRICS_LINE_MS, with how far this node is behind others.

A failure is logged and tried again at its next time: upkeep must outlive a bad disk.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from holdfast.node.library.node import Node
from holdfast.node.upkeep.disk import DiskWatch
from holdfast.node.upkeep.sweep import SweepReport, Ttl
from holdfast.rules.disk_pressure import Pressure
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import DISK_LOOK_MS, METRICS_LINE_MS, UPKEEP_MS, UPKEEP_PRESSED_MS

log = logging.getLogger("holdfast")


class NodeUpkeep:
    """The upkeep of one open node, in a thread of its own."""

    def __init__(
        self,
        node: Node,
        disk: DiskWatch,
        *,
        ttl: Callable[[], Ttl] = Ttl,
        look_ms: int = DISK_LOOK_MS,
        sweep_ms: int = UPKEEP_MS,
        pressed_ms: int = UPKEEP_PRESSED_MS,
        line_ms: int = METRICS_LINE_MS,
        lags: Callable[[], dict[str, Any]] = dict,
        on_sweep: Callable[[SweepReport], None] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`ttl` is asked before every sweep: settings may change. `on_sweep` is called after every
        sweep, in the upkeep's thread. `lags` says how far this node is behind, for the metrics.
        """
        self._node = node
        self._disk = disk
        self._ttl = ttl
        self._look_s, self._sweep_s, self._pressed_s, self._line_s = (
            ms / 1000 for ms in (look_ms, sweep_ms, pressed_ms, line_ms)
        )
        self._lags = lags
        self._on_sweep = on_sweep
        self._clock = clock
        self._wake = threading.Event()
        self._stopping = False
        self._sweep_asked = False
        self._thread: threading.Thread | None = None
        self._next_look = self._next_sweep = self._next_line = 0.0
        disk.on_change(self._level_changed)

    # --- from other threads ------------------------------------------------------------------

    def start(self) -> None:
        """Measures the disk once, so that no write is accepted before; then starts the thread. The
        first sweep comes after a whole interval: starting is busy enough.
        """
        assert self._thread is None, "started twice"
        self._disk.watch()
        self._guarded("looking at the disk", self._disk.look)
        now = self._clock()
        self._next_look, self._next_sweep = now + self._look_s, now + self._sweep_s
        self._next_line = now + self._line_s
        self._thread = threading.Thread(target=self._serve, name="holdfast-upkeep", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> bool:
        """Stops the thread; False if a sweep did not end in time. It works in chunks, so ending it
        is harmless.
        """
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return False
        self._disk.unwatch()
        return True

    def sweep_now(self) -> None:
        """Asks for a sweep and does not wait for it."""
        self._sweep_asked = True
        self._wake.set()

    def _level_changed(self, found: Pressure) -> None:
        if found.level != "ok":
            self._sweep_asked = True
        self._wake.set()

    # --- in our thread -----------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._stopping:
            due = min(self._next_look, self._next_sweep, self._next_line)
            self._wake.wait(max(0.0, due - self._clock()))
            self._wake.clear()
            if not self._stopping:
                self.turn()

    def turn(self) -> None:
        """Does what is due now."""
        now = self._clock()
        if now >= self._next_look:
            self._guarded("looking at the disk", self._disk.look)
            self._next_look = self._clock() + self._look_s
        if self._sweep_asked or now >= self._next_sweep:
            self._sweep_asked = False
            self._guarded("sweeping", self._sweep)
            pressed = self._disk.last.level != "ok"
            self._next_sweep = self._clock() + (self._pressed_s if pressed else self._sweep_s)
        if now >= self._next_line:
            self._next_line = self._clock() + self._line_s
            self._guarded("counting the work", self._tell)

    def _tell(self) -> None:
        self._node._engine.metrics.tell(**self._lags())

    def _sweep(self) -> None:
        swept = self._node.sweep(self._ttl())
        if swept != SweepReport():
            log.info("swept %s: %s", self._node.home, swept)
            # What went may have made room.
            self._disk.look()
        if self._on_sweep is not None:
            self._on_sweep(swept)

    def _guarded(self, doing: str, work: Callable[[], object]) -> None:
        try:
            work()
        except HoldfastError as error:
            log.warning("%s of %s failed: %s", doing, self._node.home, error.message)
        except Exception:
            # A fault of ours, or of the disk: the next time may be better, and without this thread
            # nothing would notice that the disk fills up.
            log.exception("%s of %s failed", doing, self._node.home)
