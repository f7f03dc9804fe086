"""Buses that are joined by links in memory: frames go across in the next turn of the loop.

The links keep what a `Link` promises (order, credit, room, one end told to both), so that a test of
messages needs no sockets, and can cut, hold and forge what passes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.bus.bus import Bus
from holdfast.bus.options import BusOptions
from holdfast.bus.static_peers import StaticPeers
from holdfast.protocol.bus_frames import FrameKind, Stream, WelcomeFrame
from holdfast.rules.bus.mesh_store import MeshStore
from holdfast.rules.errors import HoldfastError, PeerUnreachable
from holdfast.rules.keys import card_of, public_key

WINDOW = 256 * 1024


def run(test: Coroutine[Any, Any, None]) -> None:
    """Runs a test in a loop of its own; it may take half a minute at most."""

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test

    asyncio.run(bounded())


class MemoryLink:
    """One end of a link."""

    def __init__(self, peer: bytes, name: str, welcome: WelcomeFrame, *, dialled: bool) -> None:
        self.peer, self.name, self.welcome, self.dialled = peer, name, welcome, dialled
        self.address = "memory:0"
        self._loop = asyncio.get_running_loop()
        self.since = self._loop.time()
        self.rtt_ms: float | None = None
        self.other: MemoryLink
        self.bus: Bus
        self.credit = dict.fromkeys(Stream, WINDOW)
        self.is_up = True
        self.is_held = False
        """What this end sends stays on the way until it is let go."""
        self.on_the_way: deque[tuple[FrameKind, Stream, bytes]] = deque()
        self.sent: list[tuple[FrameKind, Stream, bytes]] = []
        self.faults: list[HoldfastError] = []
        self.goodbye = ""
        self.drops: Callable[[FrameKind], bool] = lambda kind: False
        self._starved = False

    def available(self, stream: Stream) -> int:
        room = max(0, self.credit[stream]) if self.is_up else 0
        self._starved = self._starved or room == 0
        return room

    def has_room(self, stream: Stream, size: int = 0) -> bool:
        fits = self.is_up and (self.credit[stream] >= min(size, WINDOW))
        self._starved = self._starved or not fits
        return fits

    async def room(self, stream: Stream, size: int = 0) -> None:
        while not self.has_room(stream, size):
            await asyncio.sleep(0)

    def send(self, kind: FrameKind, stream: Stream, body: bytes, *, at_once: bool = False) -> None:
        if not self.is_up:
            raise PeerUnreachable(f"the link to {self.name} has ended")
        if stream is not Stream.CONTROL:
            self.credit[stream] -= len(body)
        self.sent.append((kind, stream, body))
        if not self.drops(kind):
            self.on_the_way.append((kind, stream, body))
            self._loop.call_soon(self._pass)

    def let_go(self) -> None:
        self.is_held = False
        self._loop.call_soon(self._pass)

    def _pass(self) -> None:
        while self.on_the_way and not self.is_held and self.other.is_up and self.is_up:
            kind, stream, body = self.on_the_way.popleft()
            try:
                self.other.bus.router.frame(self.other, kind, stream, body)
                self.other.bus.router.frames_end(self.other)
            except HoldfastError as error:
                self.other.broken(error)

    def taken(self, stream: Stream, size: int) -> None:
        """Credit goes back to the other end."""
        other = self.other
        other.credit[stream] += size
        assert other.credit[stream] <= WINDOW, "more was taken than was sent"
        if other.is_up and other._starved:
            other._starved = False
            self._loop.call_soon(other.bus.router.writable, other)

    async def ping(self) -> float:
        self.rtt_ms = 0.1
        return 0.1

    def stop_reading(self) -> None:
        self.other.is_held = True

    def read_on(self) -> None:
        self.other.let_go()

    def blame(self, error: HoldfastError) -> None:
        self.faults.append(error)

    def broken(self, error: HoldfastError) -> None:
        self.faults.append(error)
        self.close(error.code, error.message)

    def close(self, code: str, message: str = "") -> None:
        if self.is_up:
            self.goodbye = code
            self.cut()

    def cut(self) -> None:
        """The link ends for both, without a word."""
        for end in (self, self.other):
            if end.is_up:
                end.is_up = False
                self._loop.call_soon(end.bus.router.link_down, end, None)


async def bound(name: str, *others: str, store: MeshStore | None = None, batch: bool = True) -> Bus:
    """A bus by this name that knows others by their names."""
    peers = StaticPeers(card_of(other, public_key(seed_of(other))) for other in others)
    options = BusOptions(
        seed=seed_of(name), name=name, listen=(), store=store, peers=peers, batch=batch
    )
    return await Bus.bind_with(options)


def seed_of(name: str) -> bytes:
    return name.encode().ljust(32, b".")


async def join(one: Bus, two: Bus) -> MemoryLink:
    """A link between two buses, as seen from the first, which dialled."""
    told_by_one = await one.router.welcome(two.key)
    told_by_two = await two.router.welcome(one.key)
    near = MemoryLink(
        two.key, await one.router.admit(two.key, told_by_two), told_by_two, dialled=True
    )
    far = MemoryLink(
        one.key, await two.router.admit(one.key, told_by_one), told_by_one, dialled=False
    )
    near.other, far.other, near.bus, far.bus = far, near, one, two
    one.router.link_up(near)
    two.router.link_up(far)
    return near
