"""Reading a stream of server-sent events of the daemon, in a coroutine.

A thread reads the socket, because the client of this project waits; events go to the event loop one
by one. The thread reads on only when the last event was taken, so a slow reader costs one event of
memory and the daemon notices it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Final, NamedTuple

from holdfast.protocol.log_wire import JSON
from holdfast.rules.errors import BadAnswer, HoldfastError, Unreachable
from holdfast.rules.limits import BODY_BYTES_MAX, HEARTBEAT_MS
from holdfast.transport.http_client import Client
from holdfast.transport.remote_errors import error_of

_PATIENCE_MS: Final = 4 * HEARTBEAT_MS
_ENDED: Final = 503
"""The status of an error whose code is not known here."""


class StreamEvent(NamedTuple):
    """One event."""

    kind: str
    data: bytes


class EventStream:
    """One open stream. Belongs to one event loop."""

    def __init__(self, address: str, path: str) -> None:
        self._client = Client(address, read_ms=_PATIENCE_MS)
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.Future[StreamEvent] | None = None
        self._turn = threading.Semaphore(0)
        self._ended = False
        self._thread = threading.Thread(target=self._read, name="holdfast-bus-events", daemon=True)
        self._thread.start()

    async def next(self) -> StreamEvent:
        """The next event. Raises what the daemon answered, the error by which it ends the stream,
        or Unreachable when it just ends.
        """
        if self._ended:
            raise Unreachable("the stream of the daemon has ended")
        if self._next is None:
            self._next = self._loop.create_future()
            self._turn.release()
        # A caller that is cancelled loses nothing: the event stays for the next call.
        event = await asyncio.shield(self._next)
        self._next = None
        if event.kind == "error":
            self.close()
            raise error_of(_ENDED, JSON, event.data, "the daemon")
        return event

    def close(self) -> None:
        """Ends the stream; the daemon notices at once."""
        self._ended = True
        if self._next is not None:
            self._next.cancel()
        self._client.abort()
        self._turn.release()

    def _read(self) -> None:
        try:
            for event in events(self._client.stream("GET", self._path)):
                self._turn.acquire()
                if self._ended:
                    return
                self._tell(event, None)
            raise Unreachable("the daemon has ended the stream")
        except HoldfastError as error:
            self._turn.acquire()
            self._tell(None, error)
        finally:
            self._client.close()

    def _tell(self, event: StreamEvent | None, error: HoldfastError | None) -> None:
        def tell() -> None:
            waiting = self._next
            if waiting is None or waiting.done():
                return
            if event is not None:
                waiting.set_result(event)
            else:
                assert error is not None
                waiting.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(tell)
        except RuntimeError:  # the loop has closed: nobody waits any more
            self._ended = True


def events(pieces: Iterator[bytes]) -> Iterator[StreamEvent]:
    """Events in the bytes of a stream; comments and retries are passed over."""
    rest = b""
    for piece in pieces:
        rest += piece
        *blocks, rest = rest.split(b"\n\n")
        if len(rest) > BODY_BYTES_MAX:
            raise BadAnswer("the daemon sent an event that is too large")
        for block in blocks:
            fields = dict(
                line.split(b": ", 1)
                for line in block.split(b"\n")
                if b": " in line and not line.startswith(b":")
            )
            if b"data" in fields:
                yield StreamEvent(fields.get(b"event", b"").decode(), fields[b"data"])
