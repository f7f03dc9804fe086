"""A job of the pipeline as a process of its own, with all the processes that Spark starts for it.

They are known by a mark in their environment, which every child inherits: Spark's workers leave the
process group of whoever started them, and are nobody's children once that one is dead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from uuid import uuid4

from support.project import TESTS
from support.waiting import until

SCRIPT = TESTS / "faults" / "pipeline_process.py"
PATIENCE_S = 240
"""Longer than any machine needs; nothing waits for it to pass."""
_MARK = "HOLDFAST_TEST_JOB"


class PipelineChild:
    """One life of the process."""

    def __init__(
        self, folder: Path, homes: Sequence[Path], *options: str, env: dict[str, str] | None = None
    ) -> None:
        self.mark = uuid4().hex
        self.lines: list[str] = []
        self._heard: Queue[str] = Queue()
        self._errors = folder / f"stderr-{self.mark}"
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(folder), *map(str, homes), *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(env or {}), "PYTHONPATH": str(TESTS), _MARK: self.mark},
                start_new_session=True,
            )
        self._thread = threading.Thread(target=self._hear, daemon=True)
        self._thread.start()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._heard.put(line.decode().strip())
        self._heard.put("")

    def next_line(self) -> str:
        """What it says next; empty when it has ended."""
        try:
            line = self._heard.get(timeout=PATIENCE_S)
        except Empty:
            raise AssertionError(f"it says nothing any more: {self.errors}") from None
        if line:
            self.lines.append(line)
        else:
            self._heard.put("")
        return line

    def read_until(self, *lines: str) -> str:
        """Returns the line that was waited for; empty if it ended before."""
        while line := self.next_line():
            if line in lines:
                break
        return line

    def kill(self, *, whole: bool) -> None:
        """The driver, or with `whole` also the Java process that it started."""
        if self.process.poll() is None:
            (os.killpg if whole else os.kill)(self.process.pid, signal.SIGKILL)

    def end(self) -> int:
        """Waits until it and everything it started is gone; -9 is a kill."""
        self.read_until()
        code = self.process.wait(PATIENCE_S)
        until(lambda: not self.processes(), PATIENCE_S)
        return code

    def processes(self) -> dict[int, str]:
        """All of its processes that are alive: by number, with their command lines."""
        return marked_processes(f"{_MARK}={self.mark}")

    @property
    def errors(self) -> str:
        return self._errors.read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """Nothing of it is left, whatever the test has come to."""
        for pid in self.processes():
            with _gone_already():
                os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        self._thread.join(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def _gone_already() -> Iterator[None]:
    try:
        yield
    except ProcessLookupError:
        return


def marked_processes(mark: str) -> dict[int, str]:
    """All processes that are alive with this mark in their environment: by number, with their
    command lines.
    """
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                if command:  # what has none is dead, and only waits to be asked how it ended
                    found[int(entry.name)] = command.decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile, or is not ours to look at
    return found


def parent_of(pid: int) -> int:
    said = Path(f"/proc/{pid}/stat").read_text()
    return int(said.rpartition(")")[2].split()[1])
