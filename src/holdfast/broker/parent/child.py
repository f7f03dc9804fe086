"""One process of a broker, as its parent sees it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from holdfast.broker.broker import ticks_ms
from holdfast.broker.processes.line import ProcessLine
from holdfast.broker.processes.place import ProcessPlace, encode_place
from holdfast.rules import limits
from holdfast.transport.handed import hand_over

_LEFT_ALONE: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "HOLDFAST_READY_FD")
"""What the service manager, and whoever has started the broker, say to the parent alone."""

Command = Sequence[str]


class ChildProcess:
    """One life of one process."""

    def __init__(
        self, command: Command, place: Callable[[list[int], int], ProcessPlace], doors: int
    ) -> None:
        pairs = [socket.socketpair() for _ in range(doors + 1)]
        theirs = [end for _, end in pairs]
        (self._own_line, *self.doors) = [end for end, _ in pairs]
        for door in self.doors:
            door.setblocking(False)
        fds = [end.fileno() for end in theirs]
        told = place(fds[1:], fds[0])
        self.number = told.number
        environ = {name: text for name, text in os.environ.items() if name not in _LEFT_ALONE}
        self.process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=fds,
            # Ctrl-C of a terminal is for the parent, which then asks them to end.
            process_group=0,
        )
        for end in theirs:
            end.close()
        raw = encode_place(told)
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already, and its end is seen as any other
            # Not closed: while it is open the process knows that its parent is there.
            self.process.stdin.write(len(raw).to_bytes(4, "big") + raw)
            self.process.stdin.flush()
        self.line: ProcessLine | None = None
        self.ready = asyncio.Event()
        self.begun = ticks_ms()
        self.heard = ticks_ms()
        self.connections = self.taken = self.handed = 0
        self.is_gone = False

    async def hear(self) -> ProcessLine:
        """The line to it, from now on."""
        self.line = await ProcessLine.of(self._own_line)
        return self.line

    @property
    def serves(self) -> bool:
        return self.ready.is_set() and not self.is_gone

    @property
    def is_quiet(self) -> bool:
        """Whether it has not said that it lives, as it does every second: perhaps its loop does not
        turn any more.
        """
        return ticks_ms() - self.heard > limits.PROCESS_QUIET_MS

    @property
    def load(self) -> int:
        """How many connections it has, with those that it has not taken yet."""
        return self.connections + max(0, self.handed - self.taken)

    def hand(self, door: int, connection: socket.socket) -> bool:
        if not hand_over(self.doors[door], connection):
            return False
        self.handed += 1
        return True

    async def gone(self) -> int:
        """Waits until it is gone, and closes what was open to it; its exit code."""
        code = await asyncio.to_thread(self.process.wait)
        self.is_gone = True
        for end in self.doors:
            end.close()
        if self.line is not None:
            self.line.close()
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        return code
