"""A list that is longer than the screen goes through a pager, as with git.

The pager is $HOLDFAST_PAGER, else $PAGER, else `less`; empty or `cat` means none. It is started
only at a terminal, and only once there is more than a screenful; what came before is held back.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.apps.cli import output

if TYPE_CHECKING:
    import subprocess


@contextmanager
def paged(wanted: bool = True) -> Iterator[None]:
    """What the block prints as data goes through the pager, if there is a screen and one is wanted.

    Whoever leaves the pager early has seen enough: the rest of the block is not run, and that is no
    error.
    """
    command = _command() if wanted and sys.stdout.isatty() else ""
    if not command:
        yield
        return
    import shutil  # here, because most lists go to no screen

    screen = _Screen(command, shutil.get_terminal_size().lines - 1)
    before = output.divert(screen.write)
    try:
        yield
    except BrokenPipeError:
        if not screen.was_left:
            raise
    finally:
        output.divert(before)
        screen.end()


class _Screen:
    """Holds a screenful; more than that opens the pager."""

    def __init__(self, command: str, lines: int) -> None:
        self._command, self._room = command, lines
        self._held: list[bytes] = []
        self._pager: subprocess.Popen[bytes] | None = None
        self.was_left = False
        """The pager was closed by its user while there was more to print."""

    def write(self, data: bytes) -> None:
        if self._pager is None:
            self._held.append(data)
            self._room -= data.count(b"\n")
            if self._room >= 0:
                return
            self._pager = _start(self._command)
            data = b"".join(self._held)
            self._held.clear()
        stream = self._pager.stdin
        assert stream is not None
        try:
            stream.write(data)
        except BrokenPipeError:
            self.was_left = True
            raise

    def end(self) -> None:
        if self._pager is None:
            for data in self._held:
                sys.stdout.buffer.write(data)
            return
        assert self._pager.stdin is not None
        # Ctrl-C is for the pager while it is open: it stops a search, and does not end the list.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            try:
                self._pager.stdin.close()
            except BrokenPipeError:
                self.was_left = True
            self._pager.wait()
        finally:
            signal.signal(signal.SIGINT, before)


def _command() -> str:
    if os.environ.get("TERM", "dumb") == "dumb":
        return ""
    for variable in ("HOLDFAST_PAGER", "PAGER"):
        if variable in os.environ:
            command = os.environ[variable].strip()
            return "" if command == "cat" else command
    import shutil

    return "less" if shutil.which("less") else ""


def _start(command: str) -> subprocess.Popen[bytes]:
    """By the shell, as everybody starts it: $PAGER may have options. `less` shows colours, does not
    fold lines, and leaves the list on the screen, unless its user has told it otherwise.
    """
    import subprocess

    sys.stdout.flush()
    return subprocess.Popen(
        command, shell=True, stdin=subprocess.PIPE, env={"LESS": "FRSX", **os.environ}
    )
