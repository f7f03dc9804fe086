"""A WebSocket on the server's side, on a connection that began as HTTP.

The protocol's state machine is that of `websockets`, which does no I/O itself. Around it is as
little as possible: an idle connection is two small objects and a timer, and no task. Nothing is
compressed: envelopes are small, and a few compressed bytes could fill the memory.

A client that is silent, or does not read what it is sent, for too long is cut off. While it does
not read, nothing is read from it either: else its pings alone would fill the memory with pongs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, MutableSet
from typing import Any, Final, Protocol

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from holdfast.rules import limits

_REASON_BYTES_MAX: Final = 120
_CLOSING_S: Final = 2.0
_DATA: Final = (Opcode.BINARY, Opcode.CONT)
_UNSUPPORTED: Final = 1003
_TOO_LARGE: Final = 1009
_POLICY: Final = 1008
_LOST: Final = 1006


class WebSocketHandler(Protocol):
    """What the application does on a WebSocket. All calls come from the loop, and none may wait."""

    def opened(self, socket: WebSocketConnection) -> None: ...
    def message(self, raw: bytes) -> None: ...
    def room(self) -> None:
        """Called when the client has read what was sent: the application may send more."""

    def stopping(self) -> None:
        """Called when the server stops."""

    def closed(self, code: int) -> None: ...


class WebSocketConnection(asyncio.Protocol):
    """One WebSocket, made for a request that asks for it."""

    __slots__ = (
        *("_all", "_begun", "_code", "_held", "_line", "_loop", "_parts", "_paused_at"),
        *("_fragments", "_pings", "_protocol", "_received_at", "_timer", "_unproved", "transport"),
    )

    def __init__(self, line: WebSocketHandler, all: MutableSet[Any]) -> None:
        """`all` holds the connections of the server; this one adds itself when it begins."""
        self._line = line
        self._all = all
        self._protocol = ServerProtocol(max_size=limits.UNPROVED_BYTES_MAX)
        self._parts = bytearray()
        self._begun = False
        """Whether the first frame of a message in several frames has come."""
        self._fragments = self._pings = 0
        """Frames of the message that has begun, and pings since the last tick."""
        self._unproved: int | None = 0
        """Bytes that have come before the client proved its key; None after that."""
        self._paused_at: float | None = None
        """Since when the client has not read what it was sent; None if it reads."""
        self._held = False
        """Whether the application wants nothing more to be read."""
        self._code = _LOST

    def begin(
        self, transport: asyncio.Transport, path: str, headers: Iterable[tuple[bytes, bytes]]
    ) -> bool:
        """Answers the request. Returns False, and answers nothing, if it is none for a
        WebSocket.
        """
        # The protocol object parses the request itself.
        lines = [b"GET ", path.encode("latin-1"), b" HTTP/1.1\r\n"]
        for name, value in headers:
            lines += [name, b": ", value, b"\r\n"]
        self._protocol.receive_data(b"".join([*lines, b"\r\n"]))
        events = self._protocol.events_received()
        if len(events) != 1 or not isinstance(events[0], Request):
            return False
        response = self._protocol.accept(events[0])
        if response.status_code != 101:
            return False
        self._protocol.send_response(response)
        self.transport = transport
        self._loop = asyncio.get_running_loop()
        self._received_at = self._loop.time()
        self._all.add(self)
        transport.set_protocol(self)
        self._flush()
        self._timer = self._loop.call_later(limits.SOCKET_PING_MS / limits.SECOND_MS, self._tick)
        self._line.opened(self)
        return True

    # --- what the application calls ------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._protocol.state is State.OPEN

    @property
    def has_room(self) -> bool:
        return self._paused_at is None

    def send(self, frames: Iterable[bytes]) -> None:
        """Sends each frame as one binary message; does nothing on a socket that is closing."""
        if self._protocol.state is not State.OPEN:
            return
        for raw in frames:
            self._protocol.send_binary(raw)
        self._flush()

    def close(self, code: int, reason: str = "") -> None:
        if self._protocol.state is State.OPEN:
            text = reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")
            self._protocol.send_close(code, text)
            self._code = code
            self._flush()
            self._loop.call_later(_CLOSING_S, self.transport.abort)

    def proved(self, *, member: bool) -> None:
        """The client has proved its key: it may send as much as it likes. A member's messages may
        be large, and large ones may wait for it to read them.
        """
        self._unproved = None
        if member and not self.transport.is_closing():
            self._protocol.max_message_size = limits.FRAME_BYTES_MAX
            self.transport.set_write_buffer_limits(high=limits.CONNECTION_UNREAD_BYTES)

    def pause(self) -> None:
        """Stops reading until `resume`."""
        self._held = True
        self._read_or_not()

    def resume(self) -> None:
        self._held = False
        self._read_or_not()

    def _read_or_not(self) -> None:
        if self.transport.is_closing():
            return
        if self._held or self._paused_at is not None:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
            self._received_at = self._loop.time()  # while we did not read, silence proves nothing

    def cut(self, code: int) -> None:
        """Closes at once, without a close frame, which the client would not read anyway."""
        self._code = code
        self.transport.abort()

    # --- what the server and the event loop call -----------------------------------------------

    def shutdown(self) -> None:
        """Called by the server when it stops."""
        self._line.stopping()

    def data_received(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        protocol = self._protocol
        if self._unproved is not None:
            self._unproved += len(data)
            if self._unproved > limits.UNPROVED_BYTES_MAX:
                self.cut(_TOO_LARGE)
                return
        protocol.receive_data(data)
        for event in protocol.events_received():
            if type(event) is Frame:
                self._on_frame(event)
        self._flush()
        if protocol.parser_exc is not None and self._code == _LOST:
            # The client broke the protocol, and the protocol object has sent it a close frame.
            self._code = protocol.close_code or _LOST

    def _on_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            self._code = self._protocol.close_code or _LOST
        elif frame.opcode is Opcode.TEXT:
            self.close(_UNSUPPORTED, "frames here are binary")
        elif frame.opcode is Opcode.PING:
            self._pings += 1
            if self._pings > limits.PINGS_MAX:
                self.cut(_POLICY)
        elif frame.opcode in _DATA and self.is_open:
            if frame.fin and not self._begun:
                self._line.message(bytes(frame.data))
                return
            self._fragments = 0 if frame.fin else self._fragments + 1
            if self._fragments > limits.FRAGMENTS_MAX:
                self.cut(_POLICY)
                return
            # Not a list: many empty frames must not cost more memory than they bring bytes.
            self._parts += frame.data
            self._begun = not frame.fin
            if frame.fin:
                message, self._parts = bytes(self._parts), bytearray()
                self._line.message(message)

    def eof_received(self) -> None:
        self._protocol.receive_eof()
        self._flush()

    def pause_writing(self) -> None:
        self._paused_at = self._loop.time()
        self._read_or_not()

    def resume_writing(self) -> None:
        self._paused_at = None
        self._read_or_not()
        self._line.room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._all.discard(self)
        self._line.closed(self._code)

    def _flush(self) -> None:
        parts = self._protocol.data_to_send()
        if not parts or self.transport.is_closing():
            return
        ends = parts[-1] == b""  # by this the protocol object says that nothing more will follow
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if data:
            self.transport.write(data)
        if ends:
            self.transport.close()
            # `close` waits until the client has read everything, which may be never.
            self._loop.call_later(_CLOSING_S, self.transport.abort)

    def _tick(self) -> None:
        self._pings = 0
        now = self._loop.time()
        silent_s = limits.SOCKET_SILENT_MS / limits.SECOND_MS
        waits = self.transport.is_reading() and now - self._received_at > silent_s
        if waits or (self._paused_at is not None and now - self._paused_at > silent_s):
            self.cut(_LOST)
            return
        if self.is_open and self._paused_at is None:
            self._protocol.send_ping(b"")
            self._flush()
        self._timer = self._loop.call_later(limits.SOCKET_PING_MS / limits.SECOND_MS, self._tick)
