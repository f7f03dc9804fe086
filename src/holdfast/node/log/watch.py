"""Waking those who wait for the log to grow, without looking again and again.

Three things ring: a commit of this process, by the store's own call; a commit of another process
that has the home open, by a datagram to `wake.sock`; and, since a datagram may get lost, a look
once a second. However often it rings in one turn of the loop, the end of the log is read once, and
only those are woken who wait for less.

News that stand in no log (a link's state, the disk) are kept for a moment, numbered, and wake those
who asked for news.
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
from holdfast.rules.limits import NEWS_KEPT_MAX, SECOND_MS, WATCH_MS
from holdfast.transport.unix_socket import bound

_DRAIN_MAX = 256
"""Datagrams read in one turn of the loop: one is enough to know, the rest must not pile up."""


class Notice(NamedTuple):
    """Something that happened outside the log."""

    number: int
    kind: str
    document: dict[str, Any]


class _Waiter(NamedTuple):
    future: asyncio.Future[bool]
    beyond: int
    after: int | None


class LogWatch:
    """Who waits for what. All but `ring` and `post` belong to the loop's thread."""

    def __init__(self, read_head: Callable[[], int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._read_head = read_head
        self._rung = False
        self._waiting: set[_Waiter] = set()
        self._news: deque[Notice] = deque(maxlen=NEWS_KEPT_MAX)
        self._told = 0
        self.head = read_head()
        self.closing = False
        self.on_look: Callable[[], None] = lambda: None
        """Told of every ring, once in a turn of the loop, whether or not the log has grown."""

    @property
    def told(self) -> int:
        """The number of the newest news."""
        return self._told

    # --- from any thread ---------------------------------------------------------------------

    def ring(self) -> None:
        """The log may have grown."""
        if self._rung:
            return
        self._rung = True
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            self._loop.call_soon_threadsafe(self.look)

    def post(self, kind: str, document: dict[str, Any]) -> None:
        """Tells those who listen for news."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take, kind, document)

    # --- in the loop -------------------------------------------------------------------------

    def look(self) -> None:
        """Reads the end of the log, and wakes those who wait for less."""
        self._rung = False  # before reading: what is committed from now on rings again
        try:
            self.head = self._read_head()
        except HoldfastError:
            return  # the store is closing or its disk failed: those who wait ask it themselves
        self._wake()
        self.on_look()

    def news(self, after: int) -> list[Notice]:
        """What was posted after a number, as far as it is still kept."""
        return [found for found in self._news if found.number > after]

    async def wait(self, beyond: int, timeout_s: float, *, after: int | None = None) -> bool:
        """Returns when the log goes beyond an offset (or, with `after`, at later news): True. Or
        when time is up or the node is closing: False.
        """
        if self.head > beyond or (after is not None and self._told > after):
            return True
        if self.closing or timeout_s <= 0:
            return False
        waiter = _Waiter(self._loop.create_future(), beyond, after)
        alarm = self._loop.call_later(timeout_s, _answer, waiter.future, False)
        self._waiting.add(waiter)
        try:
            return await waiter.future
        finally:
            alarm.cancel()
            self._waiting.discard(waiter)

    def close(self) -> None:
        """Answers everybody who waits; nobody waits from now on."""
        self.closing = True
        for waiter in self._waiting:
            _answer(waiter.future, False)

    async def watch(self) -> None:
        """Looks now and then, in case a nudge got lost. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(WATCH_MS / SECOND_MS)
            self.look()

    def _take(self, kind: str, document: dict[str, Any]) -> None:
        self._told += 1
        self._news.append(Notice(self._told, kind, document))
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiting:
            if self.head > waiter.beyond or (
                waiter.after is not None and self._told > waiter.after
            ):
                _answer(waiter.future, True)


class WakeSocket:
    """Where other processes that write to this home nudge us."""

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
