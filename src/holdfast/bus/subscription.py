"""A subscription: the messages of a pattern, for one reader that takes them at its own speed.

The buffer holds so many messages. When it is full, messages that are kept stay in the store until
there is room, others wait beyond the buffer, and for both the sender gets no credit back, so that
it stops. That bounds what one link can bring; of a peer that comes again with a link after the
other, while nobody reads, what exceeds a few windows is dropped and counted.

A message that is kept is finished when the reader asks for the next one, or leaves without an
error. Until then it belongs to this subscription; afterwards, unfinished, to the next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.bus.credit import Credit
from holdfast.bus.received import ReceivedMessage
from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.errors import BusClosed
from holdfast.rules.limits import (
    BUS_BEYOND_BYTES_MAX,
    BUS_BEYOND_MAX,
    BUS_BUFFER_BYTES,
)

if TYPE_CHECKING:
    from holdfast.bus.topics import Topics


class BusSubscription:
    """An async iterator of messages. Open it with `async with`."""

    def __init__(
        self, topics: Topics, pattern: str, *, buffer: int, durable: bool, manual: bool
    ) -> None:
        self.pattern, self.durable = pattern, durable
        self.cursor = 0
        """All messages of the inbox up to this number were looked at for this subscription."""
        self.is_caught_up = False
        self.is_filling = False
        self._topics, self._buffer, self._manual = topics, buffer, manual
        self._ready: deque[ReceivedMessage] = deque()
        self._bytes = 0
        """Of the bodies of these."""
        self._beyond: deque[tuple[ReceivedMessage, Credit]] = deque()
        self._beyond_of: dict[PeerKey, tuple[int, int]] = {}
        """How many of these came over links of a peer, and the bytes of their bodies."""
        self._reader: asyncio.Future[None] | None = None
        self._current: ReceivedMessage | None = None
        self._is_open = False
        self._error: Exception | None = None

    @property
    def waiting(self) -> int:
        """How many messages the reader has not taken yet."""
        return len(self._ready) + len(self._beyond)

    @property
    def room(self) -> int:
        if self._beyond or self._bytes >= BUS_BUFFER_BYTES:
            return 0
        return self._buffer - len(self._ready)

    # --- the reader's side ---------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._finish_current()
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        if not self._is_open:
            await self._open()
        if self._current is not None:
            current, self._current = self._current, None
            current.finish()
        while not self._ready:
            if self._error is not None:
                raise self._error
            if not self._is_open:
                raise StopAsyncIteration
            assert self._reader is None, "a subscription has one reader"
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        message = self._ready.popleft()
        self._bytes -= len(message.body)
        if self._beyond:
            waited, credit = self._beyond.popleft()
            self._tally(waited, credit, -1)
            self._hold(waited)
            credit.release()
        elif not self.is_caught_up:
            self._topics.fill(self)
        if not self._manual:
            self._current = message
        return message

    async def close(self) -> None:
        """Ends the subscription. What was not finished stays for the next one; peers keep messages
        for a durable subscription until it is forgotten (`Bus.forget`).
        """
        if self._is_open:
            self._is_open = False
            self._topics.closed(self)
        self._drop_waiting()
        self._wake()

    async def _open(self) -> None:
        if not self._is_open and self._error is None:
            await self._topics.opened(self)
            self._is_open = True
            self._topics.fill(self)

    def _finish_current(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.finish()

    # --- the bus's side --------------------------------------------------------------------------

    def finished(self, number: int) -> None:
        """The reader has done what was to be done with a message of the inbox."""
        self._topics.finished(number, self)

    def add(self, message: ReceivedMessage) -> None:
        """A message for which there is room."""
        self._ready.append(message)
        self._bytes += len(message.body)
        if self._reader is not None:
            self._wake()

    def _hold(self, message: ReceivedMessage) -> None:
        self._ready.append(message)
        self._bytes += len(message.body)

    def add_passing(self, message: ReceivedMessage, credit: Credit) -> bool:
        """A message that is not kept anywhere else; False if it is dropped, because links of its
        peer that have ended have left too much.
        """
        if self.room > 0:
            self._hold(message)
        else:
            count, size = self._beyond_of.get(credit.peer, (0, 0))
            if count >= BUS_BEYOND_MAX or size >= BUS_BEYOND_BYTES_MAX:
                return False
            credit.hold()
            self._tally(message, credit, 1)
            self._beyond.append((message, credit))
        self._wake()
        return True

    def _tally(self, message: ReceivedMessage, credit: Credit, sign: int) -> None:
        count, size = self._beyond_of.pop(credit.peer, (0, 0))
        if count + sign:
            self._beyond_of[credit.peer] = count + sign, size + sign * len(message.body)

    def fail(self, error: Exception) -> None:
        """The bus is closing: the reader gets this error when it has read what is there."""
        self._error = self._error or error
        self._wake()

    def end(self) -> None:
        self.fail(BusClosed("the bus is closed"))

    def _drop_waiting(self) -> None:
        while self._beyond:
            self._beyond.popleft()[1].release()
        self._beyond_of.clear()
        self._ready.clear()
        self._bytes = 0

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
