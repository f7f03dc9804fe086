"""A peer that says hello as it should and then, or before, whatever a test likes."""

from __future__ import annotations

import asyncio
import os

from holdfast.bus.links.frame_connection import FrameConnection
from holdfast.bus.links.hello import Greeter
from holdfast.bus.links.tls_net import TlsNet
from holdfast.protocol.bus_frame_reader import RawFrame
from holdfast.protocol.bus_frames import FrameKind, Stream
from holdfast.rules.errors import HoldfastError
from support.bus_links import Told


class RawLink:
    """A `FrameSink` that keeps what comes, and a transport to write anything to."""

    def __init__(self, seed: bytes, net: TlsNet | None = None) -> None:
        self.frames: list[RawFrame] = []
        self.connection = FrameConnection(self._made)
        self.is_lost = False
        self._changed = asyncio.Event()
        self._seed, self._net = seed, net or TlsNet()

    def _made(self, connection: FrameConnection) -> None:
        self.transport = connection._open()

    async def connect(self, address: str) -> RawLink:
        """Connects, and says nothing."""
        await self._net.dial(address, lambda: self.connection)
        return self

    async def link(self, address: str, key: bytes) -> RawLink:
        """Connects, and says hello to the peer with this key."""
        await self.connect(address)
        greeter = Greeter(self._seed, Told("raw", {key: "it"}), os.urandom)
        await greeter.dial(self.connection, [key], lambda peer: None)
        self.connection.hand_over(self)
        return self

    def listen(self) -> RawLink:
        """Keeps all that comes from now on."""
        self.connection.hand_over(self)
        return self

    def write(self, raw: bytes) -> None:
        self.transport.write(raw)

    def send(self, kind: FrameKind, stream: Stream, body: bytes) -> None:
        self.connection.send(kind, stream, body)

    async def until_lost(self) -> list[FrameKind]:
        """Waits for the end. Which frames came before."""
        while not self.is_lost:
            self._changed.clear()
            await self._changed.wait()
        return [FrameKind(kind) for kind, _, _ in self.frames]

    async def until_frames(self, count: int) -> None:
        while len(self.frames) < count:
            self._changed.clear()
            await self._changed.wait()

    def heard(self) -> None: ...
    def all_taken(self) -> None: ...
    def may_send(self) -> None: ...

    def take(self, frame: RawFrame) -> None:
        self.frames.append(frame)
        self._changed.set()

    def broken(self, error: HoldfastError) -> None:
        raise error

    def lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._changed.set()
