"""One HTTP/1.1 connection of a program that lives on an event loop: `http_client` is its twin for
threads.

One exchange at a time, and the connection stays open for the next. Nothing here has a deadline of
its own: the caller puts one around every call (`asyncio.timeout_at`), and a call that ends in any
other way than with its whole answer closes the connection. What comes back is bounded: the head,
the body, and what may come around the body.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import httptools

from holdfast.rules.errors import BadAnswer
from holdfast.rules.limits import KIB

_PIECE_BYTES: Final = 64 * KIB
_AROUND_BYTES_MAX: Final = 128 * KIB
_ERROR_BYTES_MAX: Final = 64 * KIB


class PlainAnswer(NamedTuple):
    """A whole answer, whatever its status."""

    status: int
    body: bytes


class ConnectionCut(ConnectionError):
    """The other side closed the connection before the answer was whole."""

    def __init__(self, *, began: bool) -> None:
        super().__init__("the connection broke in the middle of an answer")
        self.began = began
        """Whether any byte of the answer had come."""


class HttpStream:
    """A connection that is open."""

    def __init__(self, reader: _CountingReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.is_used = False
        """Whether an exchange was made over it before."""
        self._is_free = True

    @classmethod
    async def open(cls, host: str, port: int, context: ssl.SSLContext | None) -> HttpStream:
        """Raises OSError, ssl.SSLError among them."""
        loop = asyncio.get_running_loop()
        reader = _CountingReader(limit=_PIECE_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_connection(lambda: protocol, host, port, ssl=context)
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    @property
    def is_open(self) -> bool:
        """Whether another exchange can be made over it: it has not ended, and nothing waits there
        that would be taken for the next answer.
        """
        if not self._is_free or self._reader.at_eof() or self._writer.is_closing():
            return False
        return self._reader.waiting == 0

    async def ask(self, request: bytes, bytes_max: int) -> PlainAnswer:
        """Sends a request and reads its answer. Raises OSError, or BadAnswer for what is not HTTP
        or too much.
        """
        body = bytearray()
        try:
            parts = self._begin(request)
            while not parts.is_whole:
                body += await self._next(parts)
                most = bytes_max if 200 <= parts.status < 300 else _ERROR_BYTES_MAX
                if len(body) > most:
                    raise BadAnswer(f"the answer has more than the {most} bytes expected")
            self._finish(parts)
            return PlainAnswer(parts.status, bytes(body))
        finally:
            self._close_unless_free()

    async def lines(
        self, request: bytes, bytes_max: int
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """The status and one line of the answer each, as they come. A line of more than `bytes_max`
        raises BadAnswer. What comes after the last end of a line is a line too.
        """
        rest = bytearray()
        try:
            parts = self._begin(request)
            while not parts.is_whole:
                *ends, tail = (await self._next(parts)).split(b"\n")
                for end in ends:
                    _grow(rest, end, bytes_max)
                    if rest.strip():
                        yield parts.status, bytes(rest)
                    rest.clear()
                _grow(rest, tail, bytes_max)
            self._finish(parts)
            if rest.strip():
                yield parts.status, bytes(rest)
        finally:
            self._close_unless_free()

    def close(self) -> None:
        self._is_free = False
        # At once, also where the other side does not read: nothing waits here that it should get.
        self._writer.transport.abort()

    async def wait_closed(self) -> None:
        """Until the socket itself is closed, which takes a turn of the loop."""
        with suppress(OSError):  # why it broke was told to whoever used it
            await self._writer.wait_closed()

    # --- one exchange --------------------------------------------------------------------------

    def _begin(self, request: bytes) -> _Parts:
        assert self._is_free, "one exchange at a time"
        self._is_free = False
        # Not waited for: a server that refuses a request need not read all of it, and answers. The
        # size of a request is its caller's.
        self._writer.write(request)
        return _Parts()

    async def _next(self, parts: _Parts) -> bytes:
        """What the next bytes add to the body."""
        data = await self._reader.read(_PIECE_BYTES)
        self._reader.waiting -= len(data)
        if not data:
            raise ConnectionCut(began=parts.received > 0)
        return parts.feed(data)

    def _finish(self, parts: _Parts) -> None:
        self.is_used = True
        self._is_free = parts.keeps_open

    def _close_unless_free(self) -> None:
        if not self._is_free:
            self.close()


class _CountingReader(asyncio.StreamReader):
    """Knows how many bytes have come that nobody has read."""

    waiting = 0

    def feed_data(self, data: Any) -> None:
        self.waiting += len(data)
        super().feed_data(data)


class _Parts:
    """What has come of an answer so far. The parser calls the methods that begin with `on`."""

    def __init__(self) -> None:
        self.status = 0
        self.is_whole = False
        self.received = 0
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._around = 0
        """Bytes since the last part of the body: heads, and the marks of chunks."""
        self._has_more = self._keeps_open = False

    def feed(self, data: bytes) -> bytes:
        """The part of the body in these bytes."""
        self.received += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise BadAnswer(f"it does not speak HTTP: {error}") from None
        if 0 < self.status < 200:
            raise BadAnswer(f"it answers {self.status}, which nobody asked for")
        pieces, self._pieces = self._pieces, []
        self._around = 0 if pieces else self._around + len(data)
        if self._around > _AROUND_BYTES_MAX:
            raise BadAnswer("the answer has a head without end")
        return b"".join(pieces)

    @property
    def keeps_open(self) -> bool:
        return self._keeps_open and not self._has_more

    def on_message_begin(self) -> None:
        self._has_more = self.is_whole  # more came than was asked for

    def on_headers_complete(self) -> None:
        if not self.is_whole:
            self.status = self._parser.get_status_code()
            self._keeps_open = self._parser.should_keep_alive()

    def on_body(self, piece: bytes) -> None:
        if not self.is_whole:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        self.is_whole = True


def _grow(line: bytearray, piece: bytes, bytes_max: int) -> None:
    line += piece
    if len(line) > bytes_max:
        raise BadAnswer(f"a line has more than the {bytes_max} bytes expected")
