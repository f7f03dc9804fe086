"""How a job ends when a signal comes: soon, wherever it is, and with nothing left behind.

The main thread of a job may be anywhere: in a call to Java, in one to a server that does not
answer, in an import. Python would run a signal's handler there only when that returns, and an
exception in the midst of a call to Spark leaves half a conversation and pages of traces. So a
thread of its own gets the signals, and ends the process from there. That loses nothing: what a job
has committed stays, and nobody sees the rest.

A job that goes on for ever ends gently at the first signal: see `gently`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Final

from holdfast.rules.limits import SECOND_MS, SPARK_END_MS_MAX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_MOMENT_S: Final = 0.02
_OVER: Final = b"\0"
_KILLED: Final = 128
"""A process that ended by a signal has this and the number of the signal as its exit code."""


class SignalThread:
    """Waits for signals, for as long as `watching` lasts."""

    def __init__(self, last_words: Callable[[int], None]) -> None:
        """`last_words` is called with the signal before the process ends."""
        self._last_words = last_words
        self._gently: Callable[[], None] | None = None
        self._is_main = threading.current_thread() is threading.main_thread()

    @contextmanager
    def watching(self) -> Iterator[SignalThread]:
        """SIGINT and SIGTERM end the process while the block runs. Only the main thread can have
        that; in another one nothing changes.
        """
        if not self._is_main:
            yield self
            return
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        before = {which: signal.getsignal(which) for which in SIGNALS}
        waked = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self.hold()
        thread = threading.Thread(target=self._wait, args=(reading,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            signal.set_wakeup_fd(waked)
            for which, handler in before.items():
                signal.signal(which, handler)
            os.write(writing, _OVER)
            thread.join()
            os.close(reading)
            os.close(writing)

    def hold(self) -> None:
        """Takes the signals back from whoever has taken them: Spark does when it starts."""
        if threading.current_thread() is threading.main_thread():
            for which in SIGNALS:
                signal.signal(which, _noted)

    @contextmanager
    def gently(self, stop: Callable[[], None]) -> Iterator[None]:
        """The first signal calls `stop` while the block runs; the next one ends the process."""
        self._gently = stop
        try:
            yield
        finally:
            self._gently = None

    def _wait(self, reading: int) -> None:
        while (came := os.read(reading, 1)) not in (b"", _OVER):
            stop, self._gently = self._gently, None
            if stop is not None:
                stop()
            elif came[0] in SIGNALS:
                self._end(came[0])

    def _end(self, number: int) -> None:
        try:
            self._last_words(number)
            _fall_silent()
            end_children(SPARK_END_MS_MAX)
        finally:
            os._exit(_KILLED + number)


def _fall_silent() -> None:
    """The last words were said. The main thread may notice that Java is gone before the process
    ends, and Spark would tell of it in pages.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def _noted(number: int, frame: FrameType | None) -> None:
    """A handler that leaves the signal to the thread."""


def end_children(patience_ms: int) -> None:
    """Ends the processes that this one has started, which is the Java of Spark. It removes its
    files and ends its workers; after `patience_ms` it is killed.
    """
    until = monotonic() + patience_ms / SECOND_MS
    for pid in _children():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    pause = threading.Event()
    while _children() and monotonic() < until:
        pause.wait(_MOMENT_S)
    for pid in _children():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_remotely(sessions: Sequence[SparkSession]) -> None:
    """Asks the servers of these sessions to end what runs for them, if they can be asked."""

    def ask() -> None:
        for session in sessions:
            session.interruptAll()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(SPARK_END_MS_MAX / SECOND_MS)


def _children() -> list[int]:
    """The children of this process that are alive. Those that have ended are waited for."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    lists = list(Path("/proc/self/task").glob("*/children"))
    if lists:
        return [int(pid) for path in lists for pid in path.read_text(encoding="ascii").split()]
    asked = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, check=False)
    pairs = (map(int, line.split()) for line in asked.stdout.splitlines())
    return [pid for pid, parent in pairs if parent == os.getpid() and _is_alive(pid)]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
