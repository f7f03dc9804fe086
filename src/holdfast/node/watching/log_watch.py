"""Waking the tasks that wait for the log to grow, without polling.

Three things ring: a commit of this process, by the store's own call; a commit of another process
that has the home open, by a datagram to `wake.sock`; and, since a datagram may get lost, a look
once a second. However often it rings in one turn of the loop, the end of the log is read once, and
only tasks that wait for a lower offset are woken.

Notices of what is in no log (a link's state, the disk) are kept for a while, numbered, and wake the
tasks that wait for notices.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import LAMPORT_MAX, NEWS_KEPT_MAX, SECOND_MS, WATCH_MS
from holdfast.transport.unix_socket import bound

_DRAIN_MAX = 256
"""Datagrams read in one turn of the loop: one is enough to ring, the rest must not pile up."""


class Notice(NamedTuple):
    """Something that happened outside the log."""

    number: int
    kind: str
    document: dict[str, Any]


class _Waiter(NamedTuple):
    future: asyncio.Future[bool]
    beyond: int
    after: int | None
    looks: int | None = None


class LogWatch:
    """The tasks that wait, and for what. Only `ring` and `post` may be called from other
    threads.
    """

    def __init__(self, read_head: Callable[[], int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._read_head = read_head
        self._rung = False
        self._waiting: set[_Waiter] = set()
        self._news: deque[Notice] = deque(maxlen=NEWS_KEPT_MAX)
        self.last_notice = 0
        """The number of the newest notice."""
        self.head = read_head()
        self.looks = 0
        """How many times the end of the log was read, because something rang."""
        self.closing = False
        self.on_look: list[Callable[[], None]] = []
        """Called after every ring, once in a turn of the loop, whether or not the log has grown."""

    # --- from any thread ---------------------------------------------------------------------

    def ring(self) -> None:
        """The log may have grown."""
        if self._rung:
            return
        self._rung = True
        with suppress(RuntimeError):  # the loop has ended: no task waits any more
            self._loop.call_soon_threadsafe(self.look)

    def post(self, kind: str, document: dict[str, Any]) -> None:
        """Adds a notice and wakes the tasks that wait for notices."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take, kind, document)

    # --- in the loop -------------------------------------------------------------------------

    def look(self) -> None:
        """Reads the end of the log, and wakes the tasks that wait for a lower offset."""
        self._rung = False  # before reading: a commit from now on rings again
        try:
            self.head = self._read_head()
        except HoldfastError:
            return  # the store is closing or its disk failed: the waiting calls find that out too
        self.looks += 1
        self._wake()
        for listener in self.on_look:
            listener()

    def news(self, after: int) -> list[Notice]:
        """The notices after a number, as far as they are still kept."""
        return [notice for notice in self._news if notice.number > after]

    async def wait(self, beyond: int, timeout_s: float, *, after: int | None = None) -> bool:
        """True as soon as the log goes beyond an offset (or, with `after`, at a later notice);
        False when time is up or the node is closing.
        """
        if self.head > beyond or (after is not None and self.last_notice > after):
            return True
        if self.closing or timeout_s <= 0:
            return False
        return await self._waited(_Waiter(self._loop.create_future(), beyond, after), timeout_s)

    async def rung(self, looks: int, timeout_s: float) -> bool:
        """True as soon as something has rung after that many looks, whether or not the log has
        grown by it; False when time is up or the node is closing.
        """
        if self.looks != looks:
            return True
        if self.closing:
            return False
        future = self._loop.create_future()
        return await self._waited(_Waiter(future, LAMPORT_MAX, None, looks), timeout_s)

    async def _waited(self, waiter: _Waiter, timeout_s: float) -> bool:
        alarm = self._loop.call_later(timeout_s, _answer, waiter.future, False)
        self._waiting.add(waiter)
        try:
            return await waiter.future
        finally:
            alarm.cancel()
            self._waiting.discard(waiter)

    def close(self) -> None:
        """Ends every wait; from now on no call waits."""
        self.closing = True
        for waiter in self._waiting:
            _answer(waiter.future, False)

    async def watch(self) -> None:
        """Looks once a second, in case a datagram got lost. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(WATCH_MS / SECOND_MS)
            self.look()

    def _take(self, kind: str, document: dict[str, Any]) -> None:
        self.last_notice += 1
        self._news.append(Notice(self.last_notice, kind, document))
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiting:
            if (
                self.head > waiter.beyond
                or (waiter.after is not None and self.last_notice > waiter.after)
                or (waiter.looks is not None and self.looks != waiter.looks)
            ):
                _answer(waiter.future, True)


class WakeSocket:
    """The socket to which other processes that write to this home send a datagram."""

    def __init__(self, path: Path, log_watch: LogWatch) -> None:
        self._path = path
        self._log_watch = log_watch
        self._socket = bound(path, socket.SOCK_DGRAM)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._nudged)

    def _nudged(self) -> None:
        for _ in range(_DRAIN_MAX):
            try:
                self._socket.recv(1)
            except BlockingIOError:
                break
        self._log_watch.ring()

    def close(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        self._socket.close()


def _answer(future: asyncio.Future[bool], answer: bool) -> None:
    if not future.done():
        future.set_result(answer)
