"""Frames on one connection of the network, before and after its peer is known.

While two peers say hello, frames are taken one at a time (`next_frame`), and reading stops when the
other side sends more than a hello has. Then a link takes over and gets every frame as it comes.

Many frames come with one piece of bytes. So many are handed on in one turn of the loop, then it is
others' turn: tens of thousands of tiny frames fit into what a socket hands over at once. Whoever
gets a frame that costs many turns holds the rest back meanwhile (`stop_reading`). Everything that
is sent in one turn leaves with one write. Frames of the link itself go first. The rest leaves
in the order in which it was handed over: whoever sends asks `is_full` first, so that nothing waits
here that something more urgent would have to overtake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from holdfast.protocol.bus_frame_reader import FrameReader, RawFrame
from holdfast.protocol.bus_frames import (
    FRAME_BYTES_MAX,
    FRAME_HEAD,
    HELLO_FRAME_BYTES_MAX,
    FrameKind,
    Stream,
)
from holdfast.rules.errors import HoldfastError, PeerUnreachable
from holdfast.rules.limits import (
    BUS_CLOSE_MS_MAX,
    BUS_FRAMES_A_TURN,
    BUS_TRANSPORT_BYTES,
    BUS_UNREAD_BYTES_MAX,
    SECOND_MS,
)


class FrameSink(Protocol):
    """Who gets the frames of a connection whose peer is known."""

    def heard(self) -> None:
        """Bytes have come."""

    def take(self, frame: RawFrame) -> None: ...
    def all_taken(self) -> None:
        """All frames that came with these bytes were handed over."""

    def may_send(self) -> None:
        """There may be room again."""

    def broken(self, error: HoldfastError) -> None:
        """What came cannot be read, or what was sent is not read."""

    def lost(self, error: Exception | None) -> None:
        """The connection has ended."""


class FrameConnection(asyncio.Protocol):
    """One connection. It belongs to the loop's thread."""

    def __init__(self, made: Callable[[FrameConnection], None]) -> None:
        """`made` is called as soon as the connection is there."""
        self._made = made
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(HELLO_FRAME_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._sink: FrameSink | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._first: list[bytes] = []
        """Frames of the link itself, for the next write."""
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flushing = False
        """A write is due before the loop waits."""
        self._is_paused = False
        self._is_behind = False
        """Frames have come that are handed on in the next turn."""
        self._is_held = False
        """Somebody is at work on a frame; what follows it is handed on after that."""
        self._is_closing = False
        self._gone: Exception | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection has ended."""
        self.certificate = b""
        """The digest of the certificate that the listener shows."""
        self.host = ""
        """The machine at the other end."""

    # --- the network -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.certificate = transport.get_extra_info("certificate") or b""
        address = transport.get_extra_info("peername")
        self.host = str(address[0]) if address else ""
        self._made(self)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        if self._sink is not None:
            if not self._is_behind:
                self._hand_on(self._sink)
            return
        if self._reader.held > HELLO_FRAME_BYTES_MAX:
            self._open().pause_reading()
        self._wake()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._sink is not None:
            self._sink.may_send()

    def connection_lost(self, exc: Exception | None) -> None:
        while self._is_behind:  # what came before the end counts
            self._is_held = False
            self._go_on()
        self._is_closing, self._gone = True, exc
        if self._sink is not None:
            self._reader.drop()  # whoever still knows this connection holds no bytes by it
        if not self.closed.done():
            self.closed.set_result(None)
        self._wake()
        if self._sink is not None:
            self._sink.lost(exc)

    # --- reading -----------------------------------------------------------------------------

    async def next_frame(self) -> RawFrame:
        """The next frame of a hello. Raises PeerUnreachable if the connection ends first."""
        assert self._sink is None, "the link gets its frames itself"
        while (frame := self._reader.next()) is None:
            if self._is_closing:
                raise PeerUnreachable(f"{self.host} ended the connection in the hello")
            self._open().resume_reading()
            self._waiter = self._loop.create_future()
            await self._waiter
        return frame

    def expect_bodies_of(self, size: int) -> None:
        """The other side is no stranger any more: its frames may be as large as this."""
        self._reader.body_bytes_max = size

    def hand_over(self, sink: FrameSink) -> None:
        """The peer is known: from now on `sink` gets all frames, those first that have come."""
        self._sink = sink
        self.expect_bodies_of(FRAME_BYTES_MAX)
        if self._is_closing:
            self._loop.call_soon(sink.lost, self._gone)
            return
        self._open().resume_reading()
        self._hand_on(sink)

    def _hand_on(self, sink: FrameSink) -> None:
        # What is sent meanwhile leaves with one write at the end, in this turn.
        self._flushing = True
        sink.heard()
        next_frame, take, left = self._reader.next, sink.take, BUS_FRAMES_A_TURN
        try:
            while not self._is_closing and (frame := next_frame()) is not None:
                take(frame)
                left -= 1
                if not left or self._is_held:
                    self._is_behind = True
                    break
        except HoldfastError as error:
            sink.broken(error)
        sink.all_taken()
        if self._out or self._first:
            self._flush()
        else:
            self._flushing = False
        if self._is_behind and not self._is_closing:
            self._open().pause_reading()
            self._loop.call_soon(self._go_on)

    def stop_reading(self) -> None:
        """Nothing more of this connection is handed on, nor read, until `read_on`."""
        self._is_held = True

    def read_on(self) -> None:
        self._is_held = False
        self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Hands on what the turn before has left."""
        if not self._is_behind or self._is_held:
            return
        self._is_behind = False
        if self._sink is None or self._is_closing:
            return
        self._hand_on(self._sink)
        if not self._is_behind and not self._is_closing:
            self._open().resume_reading()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- writing -----------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether what is sent now would wait behind other bytes."""
        return self._is_paused or self._out_bytes >= BUS_TRANSPORT_BYTES

    @property
    def unsent(self) -> int:
        """Bytes that wait for the network."""
        return self._open().get_write_buffer_size()

    def send(self, kind: FrameKind, stream: Stream, body: bytes, *, at_once: bool = False) -> None:
        """Sends a frame, with all others of this turn, or `at_once`. Nothing happens on a closed
        connection.
        """
        head = FRAME_HEAD.pack(len(body) + 2, kind, stream)
        if at_once and not self._flushing:  # then nothing else waits here
            if not self._is_closing:
                self._open().write(head + body)
            if self._is_paused:
                self._look_at_unsent()
            return
        out = self._first if stream is Stream.CONTROL else self._out
        out.append(head)
        out.append(body)
        self._out_bytes += len(body)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        was_full = self._out_bytes >= BUS_TRANSPORT_BYTES
        self._write_out()
        if self._is_paused:
            self._look_at_unsent()
        elif was_full and not self._is_closing and self._sink is not None:
            self._sink.may_send()

    def _write_out(self) -> None:
        out = self._first + self._out if self._first else self._out
        self._flushing = False
        if not out:
            return
        self._first, self._out, self._out_bytes = [], [], 0
        if not self._is_closing:
            self._open().write(b"".join(out))

    def _look_at_unsent(self) -> None:
        if self._sink is None or self._is_closing:
            return
        if self.unsent > BUS_UNREAD_BYTES_MAX:
            self._sink.broken(PeerUnreachable("the peer does not read what it is sent"))

    # --- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the connection after what was sent has left, or after a while."""
        if self._is_closing:
            return
        self._write_out()
        self._is_closing = True
        transport = self._open()
        transport.close()
        cut = self._loop.call_later(BUS_CLOSE_MS_MAX / SECOND_MS, transport.abort)
        self.closed.add_done_callback(lambda _: cut.cancel())

    def abort(self) -> None:
        """Ends the connection at once; what was sent may be lost."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def _open(self) -> asyncio.Transport:
        assert self._transport is not None, "nothing is connected"
        return self._transport
