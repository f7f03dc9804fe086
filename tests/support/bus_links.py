"""Two peers with real links, and what they tell of them."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from holdfast.bus.links.dialling import WantedPeer
from holdfast.bus.links.links import BusLinks
from holdfast.bus.links.tls_net import TlsNet
from holdfast.bus.ports import Link, Net
from holdfast.protocol.bus_frames import FrameKind, Stream, WelcomeFrame
from holdfast.rules.bus.succession import KeySuccession
from holdfast.rules.errors import NotTrusted
from holdfast.rules.keys import public_key
from holdfast.service.clock import SystemClock

ANYWHERE = "127.0.0.1:0"
_TEST_S_MAX = 20


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs a test on an event loop, to its end or until it hangs."""

    @wraps(test)
    def run() -> None:
        async def bounded() -> None:
            async with asyncio.timeout(_TEST_S_MAX):
                await test()

        asyncio.run(bounded())

    return run


@dataclass
class Told:
    """`LinkEvents` that remember what happened, and wake whoever waits for something."""

    name: str
    trusted: dict[bytes, str]
    """Names by key."""
    takes: bool = True
    """Every frame is taken at once."""
    up: list[Link] = field(default_factory=list)
    ended: list[tuple[Link, Exception | None]] = field(default_factory=list)
    frames: list[tuple[FrameKind, Stream, bytes]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """Everything in order, as words."""
    on_frame: Callable[[Link, FrameKind, Stream, bytes], None] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def welcome(self, peer: bytes) -> WelcomeFrame:
        if peer not in self.trusted:
            raise NotTrusted("nobody knows this peer")
        return WelcomeFrame(name=self.name, incarnation=bytes(16))

    async def follow(self, peer: bytes, chain: Sequence[KeySuccession]) -> bool:
        return False

    async def admit(self, peer: bytes, welcome: WelcomeFrame) -> str:
        if peer not in self.trusted:
            raise NotTrusted("nobody knows this peer")
        return self.trusted[peer]

    def link_up(self, link: Link) -> None:
        self.up.append(link)
        self._note(f"up {link.name} {'out' if link.dialled else 'in'}")

    def frame(self, link: Link, kind: FrameKind, stream: Stream, body: bytes) -> None:
        if self.on_frame is not None:
            self.on_frame(link, kind, stream, body)
            return
        self.frames.append((kind, stream, body))
        if self.takes and stream is not Stream.CONTROL:
            link.taken(stream, len(body))
        self._note(f"frame {kind.name} {len(body)}")

    def frames_end(self, link: Link) -> None: ...
    def writable(self, link: Link) -> None:
        self._note("writable")

    def link_down(self, link: Link, error: Exception | None) -> None:
        self.ended.append((link, error))
        self._note(f"down {link.name}")

    def _note(self, word: str) -> None:
        self.seen.append(word)
        self._changed.set()

    async def until(self, holds: Callable[[], bool], timeout_s: float = 30) -> None:
        """Waits for events until something holds."""
        async with asyncio.timeout(timeout_s):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


@dataclass
class LinkedPeer:
    """One peer of a test."""

    links: BusLinks
    told: Told
    address: str

    @property
    def key(self) -> bytes:
        return self.links.key

    def want(self, other: LinkedPeer, *addresses: str) -> None:
        wanted = WantedPeer((other.key,), addresses or (other.address,))
        self.links.refresh({other.told.name: wanted})

    async def link_to(self, other: LinkedPeer) -> Link:
        """The link to the other peer, when it is up."""
        await self.told.until(lambda: self.links.link_to([other.key]) is not None)
        link = self.links.link_to([other.key])
        assert link is not None
        return link


def key_seeds(count: int) -> list[bytes]:
    """Seeds of keys, the lowest public key first."""
    return sorted((bytes([number + 1]) * 32 for number in range(count)), key=public_key)


async def peer(
    name: str,
    seed: bytes,
    trusted: dict[bytes, str],
    net: Net | None = None,
    listen: str = ANYWHERE,
) -> LinkedPeer:
    told = Told(name, trusted)
    links = BusLinks(
        seed,
        net or TlsNet(),
        told,
        random=os.urandom,
        jitter=random.Random(name).random,
        now_ms=SystemClock().now_ms,
    )
    return LinkedPeer(links, told, await links.listen(listen))


async def two_peers(net: Callable[[], Net] = TlsNet) -> tuple[LinkedPeer, LinkedPeer]:
    """Ana with the lower key, and Bo. Each has a network of its own, and trusts the other."""
    low, high = key_seeds(2)
    ana = await peer("ana", low, {public_key(high): "bo"}, net())
    return ana, await peer("bo", high, {public_key(low): "ana"}, net())
