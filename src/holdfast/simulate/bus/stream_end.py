"""One end of a simulated connection: a transport of asyncio.

Bytes go from the buffer of the sender into the pipe, a few at a time, come out at the other end in
order, and are counted as taken when the receiver's protocol has got them. Only so many may be in
the pipe: a receiver that pauses lets the buffer of its sender grow, and the sender's protocol is
told to pause.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from holdfast.simulate.bus.net import BusNetwork, MachineNet

PIPE_BYTES_MAX: Final = 128 * 1024
"""Bytes that are under way or wait in the receiver's kernel."""
PIECE_BYTES_MAX: Final = 32 * 1024
HIGH_BYTES: Final = 64 * 1024
GIVE_UP_MS: Final = (6_000, 30_000)
"""A sender gives up when nothing of what it sent has been taken for this long."""
FIN: Final = None
"""Travels behind the last byte of a side that closes."""

Way = tuple[str, str]
"""From one machine to another."""


class StreamEnd(asyncio.Transport):
    """A transport whose other end is `far`."""

    far: StreamEnd

    def __init__(
        self,
        network: BusNetwork,
        net: MachineNet,
        number: int,
        hosts: tuple[str, str],
        certificate: bytes,
    ) -> None:
        """`hosts` are the one of this end and the one of the other."""
        host, other = hosts
        super().__init__(
            {"certificate": certificate, "sockname": (host, 0), "peername": (other, 0)}
        )
        self.network, self.net, self.number, self.host = network, net, number, host
        self.open = True
        """Neither closed nor broken, as far as this end knows."""
        self.lost = False
        """What it sends leads nowhere: the host has gone, or the other machine has."""
        self._spared: int | None = None
        """How many bytes still get through after a reset; None if there was none."""
        self.protocol: asyncio.BaseProtocol | None = None
        self._closing = False
        self._unsent = bytearray()
        self._under_way = 0
        """Bytes that have left and are not taken."""
        self._held: deque[bytes | None] = deque()
        """What has reached a cut, in order."""
        self._received: deque[bytes | None] = deque()
        """What this end's kernel has and its protocol has not."""
        self._last_arrival = 0
        self._reading = True
        self._told_to_pause = False
        self._high, self._low = HIGH_BYTES, HIGH_BYTES // 4
        self._progress_at = network.world.ticks
        self._giving_up = False

    @property
    def way(self) -> Way:
        return (self.net.machine, self.far.net.machine)

    # --- as asyncio knows it --------------------------------------------------------------------

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol
        protocol.connection_made(self)
        self._wake()

    def begin_if_open(self, make: Callable[[], asyncio.BaseProtocol]) -> None:
        """The listener's side begins, in its own loop."""
        if self.open and not self.net.over:
            self.net.loop.call_soon(lambda: self.begin(make()) if self.open else None)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self.protocol is not None
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self._closing or not self.open

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self.is_closing() or self.net.over or self.net.loop.over:
            return
        for tap in self.network.taps:
            tap.written(self, bytes(data))
        self._unsent += data
        self._pump()
        if len(self._unsent) > self._high and not self._told_to_pause:
            self._told_to_pause = True
            self.get_protocol().pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._wake()

    def is_reading(self) -> bool:
        return self._reading and self.open

    def close(self) -> None:
        if self.is_closing():
            return
        self._closing = True
        self._pump()

    def abort(self) -> None:
        if self.open:
            self._tell_far(ConnectionResetError("the peer has reset the connection"))
            self._end(None)

    # --- sending --------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Lets as much go as the pipe takes; a piece may end at any byte."""
        rng = self.network.rng
        while self._unsent and self._under_way < PIPE_BYTES_MAX:
            size = min(len(self._unsent), PIECE_BYTES_MAX)
            if rng.random() < 0.15:
                size = rng.randrange(1, size + 1)
            piece = bytes(self._unsent[:size])
            del self._unsent[:size]
            self._launch(piece)
        if self._told_to_pause and len(self._unsent) <= self._low and self.open:
            self._told_to_pause = False
            self.get_protocol().resume_writing()
        if self._closing and not self._unsent and self.open:
            self._launch(FIN)
            self._end(None)

    def _launch(self, piece: bytes | None) -> None:
        world = self.network.world
        if not self._under_way:
            self._progress_at = world.ticks
        self._under_way += len(piece or b"")
        # Nothing overtakes in a stream.
        self._last_arrival = max(self._last_arrival, world.ticks + self.network.delay())
        name = f"{self.way[0]} to {self.way[1]}: {'end' if piece is None else len(piece)}"
        world.at(self._last_arrival - world.ticks, self._arrive, piece, name=name)
        self._watch()

    def _arrive(self, piece: bytes | None) -> None:
        """A piece has crossed the network, or met a cut."""
        if self._spared is not None:
            piece = (piece or b"")[: self._spared]
            self._spared -= len(piece)
        if self.lost or piece == b"":
            return
        if self._held or self.network.is_cut(*self.way):
            self._held.append(piece)
            return
        far = self.far
        if far.net.over:
            # The machine is up again and knows nothing of this connection; or nobody is there.
            if self.network.process_on(far.net.machine) is not None:
                self._end_soon(ConnectionResetError("the peer knows of no such connection"))
            return
        if not far.open:
            if piece is not FIN:
                self._end_soon(ConnectionResetError("the peer has closed the connection"))
            return
        far._received.append(piece)
        far._wake()

    def try_again(self) -> None:
        """The way is open again: what waited comes now."""
        if self._held and not self.network.is_cut(*self.way):
            waiting = list(self._held)
            self._held.clear()
            for piece in waiting:
                self._arrive(piece)
        self._acknowledge()

    def _watch(self) -> None:
        """Gives up when nothing moves for long, as a kernel does."""
        if self._giving_up or not self.open:
            return
        self._giving_up = True
        wait = self.network.rng.randrange(*GIVE_UP_MS)

        def look() -> None:
            self._giving_up = False
            if not self.open or not self._under_way:
                return
            if self.network.world.ticks - self._progress_at >= wait and self._stands_still():
                self.network.happened("gave up")
                self._end_soon(TimeoutError("the peer does not answer"))
                return
            self._watch()

        self.network.world.at(wait, look, name=f"{self.way[0]} looks whether {self.way[1]} answers")

    def _stands_still(self) -> bool:
        """A kernel that has the bytes answers, also if its process does not read them."""
        there = sum(len(piece or b"") for piece in self.far._received)
        return self.lost or self.far.net.over or self._under_way > there or bool(self._unacked)

    # --- receiving ------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._received and self._reading and self.protocol is not None:
            self.net.loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        while self._received and self._reading and self.open:
            piece = self._received.popleft()
            if piece is FIN:
                self._eof()
                return
            self._taken += len(piece)
            self._hand_over(piece)
        self._acknowledge()

    def _hand_over(self, piece: bytes) -> None:
        protocol = self.protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            while piece:
                room = memoryview(protocol.get_buffer(len(piece)))
                size = min(len(room), len(piece))
                room[:size] = piece[:size]
                protocol.buffer_updated(size)
                piece = piece[size:]
        else:
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(piece)

    _taken = 0
    """Bytes that the protocol has got and the sender has not heard of."""

    @property
    def _unacked(self) -> int:
        return self.far._taken

    def _acknowledge(self) -> None:
        if self._taken and not self.network.is_cut(*self.way) and not self.lost:
            far, taken, self._taken = self.far, self._taken, 0
            far._under_way -= taken
            far._progress_at = self.network.world.ticks
            if far.open and not far.net.over:
                far.net.loop.call_soon(far._pump)

    def _eof(self) -> None:
        protocol = self.protocol
        if isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol):
            protocol.eof_received()
        self._end(None)

    # --- ends -----------------------------------------------------------------------------------

    def _end_soon(self, error: Exception | None) -> None:
        """This end learns from its kernel that the connection is over."""
        if self.open and not self.net.over:
            self.net.loop.call_soon(self._end, error)

    def _end(self, error: Exception | None) -> None:
        if not self.open:
            return
        self.open = False
        self._unsent.clear()
        self._received.clear()
        self._forget()
        if self.protocol is not None and not self.net.over:
            self.net.loop.call_soon(self.protocol.connection_lost, error)

    def _forget(self) -> None:
        for tap in self.network.taps:
            tap.ended(self)
        if not self.far.open or self.far.net.over:
            self.network.ends.pop(self.number, None)
            self.network.ends.pop(self.far.number, None)

    def _tell_far(self, error: Exception) -> None:
        """A reset travels to the other end, if it gets through."""

        def reset() -> None:
            if not self.lost and not self.network.is_cut(*self.way):
                self.far._end_soon(error)

        self.network.world.at(
            self.network.delay(), reset, name=f"{self.way[0]} resets {self.way[1]}"
        )

    def fall_silent(self) -> None:
        """The power is gone: what has left arrives, and nothing more."""
        self.open = False
        self._forget()

    def reset_by_kill(self) -> None:
        """The process is gone, and its kernel ends the connection: with a reset if the process
        left something unread, which may overtake what was sent.
        """
        if not self.open:
            return
        self.open = False
        if self._received or self.network.rng.random() < 0.3:
            self._tell_far(ConnectionResetError("the peer's process has ended"))
        else:
            self._launch(FIN)
        self._forget()

    def reset_in_between(self, rng: random.Random) -> None:
        """Both ends hear of a reset a little later; of the bytes under way some still arrive."""
        self.network.happened("reset")
        for end in (self, self.far):
            end._spared = rng.randrange(end._under_way + 1)
            error = ConnectionResetError("something in between has reset the connection")
            self.network.world.at(
                self.network.delay(), end._end_soon, error, name=f"reset of {end.way[0]}"
            )
