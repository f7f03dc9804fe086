"""Processes of the demo: daemons and brokers as anybody starts them, which are killed and come
back. All of them are in the group of the guard, so that none outlives the demo.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, NamedTuple

import msgspec

from holdfast.apps.demo import guard
from holdfast.rules.errors import DemoFailed

PATIENCE_S: Final = 60


class ProcessGroup:
    """The group of all processes of one demo, with its guard."""

    def __init__(self, folder: Path, *, removes: bool) -> None:
        """`removes`: the guard removes the folder if the demo dies."""
        self._folder = folder
        # Not as a module: that would import the package, and the guard needs none of it.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            process_group=0,
        )
        if removes:
            self._tell(os.fsencode(folder))

    def start(self, words: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            env=environment(self._folder),
            process_group=self._guard.pid,
            **options,
        )

    @contextmanager
    def lines(self, words: list[str], **options: Any) -> Iterator[ReadProcess]:
        """A process whose lines are read. It is killed at the end, if it has not ended: nobody
        waits for it then.
        """
        process = self.start(words, stdout=subprocess.PIPE, **options)
        assert process.stdout is not None
        try:
            yield ReadProcess(process, process.stdout)
        finally:
            process.kill()
            process.wait(PATIENCE_S)
            process.stdout.close()

    def end(self) -> None:
        """Kills whoever is left, the guard too; the folder is no business of the guard any more."""
        if self._guard.poll() is not None:
            return
        with suppress(BrokenPipeError):
            self._tell(b"")
        os.killpg(self._guard.pid, signal.SIGKILL)
        self._guard.wait(PATIENCE_S)
        assert self._guard.stdin is not None
        self._guard.stdin.close()

    def _tell(self, line: bytes) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.write(line + b"\n")
        self._guard.stdin.flush()


class ReadProcess(NamedTuple):
    process: subprocess.Popen[bytes]
    lines: IO[bytes]


class ServingProcess:
    """One process of `holdfast` that serves. A context manager: it is killed at the end, if nobody
    has ended it before.
    """

    def __init__(self, group: ProcessGroup, *words: str) -> None:
        """`words` are those of the command; it is not started yet."""
        self._group, self._words = group, words
        self._process: subprocess.Popen[bytes] | None = None
        self.listening: list[str] = []
        """Where it said that it listens."""

    @property
    def is_up(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def command(self) -> str:
        """What anybody would type to start it."""
        return f"holdfast {' '.join(self._words)}"

    def begin(self) -> None:
        """Starts it, and does not wait: several can start side by side."""
        self._process = self._group.start(
            [sys.executable, "-m", "holdfast", *self._words, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def ready(self) -> dict[str, Any]:
        """Returns when it serves, with what it said."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise DemoFailed(f"`{self.command}` did not start", hint="start it by hand to see why")
        said: dict[str, Any] = msgspec.json.decode(line)
        self.listening = said["listening"]
        return said

    def start(self) -> None:
        self.begin()
        self.ready()

    def kill(self) -> None:
        """With -9, as when the power fails. Twice is once."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait(PATIENCE_S)
        if process.stdout is not None:
            process.stdout.close()

    def __enter__(self) -> ServingProcess:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()


class LaptopProcess(ServingProcess):
    """The daemon of a home."""

    def __init__(self, group: ProcessGroup, home: Path, *words: str) -> None:
        super().__init__(group, "up", f"--home={home}", *words)
        self.bus = ""
        """HOST:PORT where its bus listens."""
        self.url = ""
        """https://HOST:PORT where its log is served, if it is."""

    def ready(self) -> dict[str, Any]:
        said = super().ready()
        self.bus = next(iter(said.get("bus", [])), "")
        self.url = next((one for one in self.listening if one.startswith("https:")), "")
        # It comes back where it was.
        page = next((one for one in self.listening if one.startswith("http:")), "")
        places = {
            "--bus-listen=127.0.0.1:0": f"--bus-listen={self.bus}",
            "--listen=127.0.0.1:0": f"--listen={self.url.removeprefix('https://')}",
            "--tcp=127.0.0.1:0": f"--tcp={page.removeprefix('http://')}",
        }
        self._words = tuple(places.get(word, word) for word in self._words)
        return said


class BrokerProcess(ServingProcess):
    def __init__(self, group: ProcessGroup, folder: Path) -> None:
        super().__init__(group, "broker", "serve", f"--store={folder}", "--tcp=127.0.0.1:0")
        self.url = ""

    def ready(self) -> dict[str, Any]:
        said = super().ready()
        self.url = self.listening[-1]
        place = f"--tcp={self.url.removeprefix('http://')}"
        self._words = tuple(place if word[:6] == "--tcp=" else word for word in self._words)
        return said


def environment(folder: Path) -> dict[str, str]:
    """Ours, and the package is found there from wherever it was imported here. Settings of the user
    are none of the demo's business. What is temporary goes with the folder. The console of each
    laptop shows the lake, once there is one.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    package = os.pathsep.join(filter(None, sys.path))
    own = {"PYTHONPATH": package, "TMPDIR": str(folder), "HOLDFAST_LAKE": str(folder / "lake")}
    return {**kept, **own}
