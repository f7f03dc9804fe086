"""The other end of the bench of links: echoes frames on a link, and on a bare TLS connection.

Run as a program it prints the addresses of both and echoes until its input ends.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Sequence

from holdfast.bus.links.links import BusLinks
from holdfast.bus.links.tls_net import TlsNet
from holdfast.bus.ports import Link
from holdfast.protocol.bus_frames import FrameKind, Stream, WelcomeFrame
from holdfast.rules.bus.succession import KeySuccession
from holdfast.service.clock import SystemClock

ECHO_SEED, ASK_SEED = b"e" * 32, b"a" * 32
ANYWHERE = "127.0.0.1:0"
HEAD_BYTES = 4


class Trusting:
    """`LinkEvents` that let everybody in and echo every frame."""

    async def welcome(self, peer: bytes) -> WelcomeFrame:
        return WelcomeFrame(name="bench", incarnation=bytes(16))

    async def follow(self, peer: bytes, chain: Sequence[KeySuccession]) -> bool:
        return False

    async def admit(self, peer: bytes, welcome: WelcomeFrame) -> str:
        return welcome.name

    def link_up(self, link: Link) -> None: ...

    def frame(self, link: Link, kind: FrameKind, stream: Stream, body: bytes) -> None:
        link.taken(stream, len(body))
        link.send(kind, stream, body)

    def frames_end(self, link: Link) -> None: ...
    def writable(self, link: Link) -> None: ...
    def link_down(self, link: Link, error: Exception | None) -> None: ...


def links_of(seed: bytes, events: Trusting, net: TlsNet) -> BusLinks:
    return BusLinks(
        seed,
        net,
        events,
        random=os.urandom,
        jitter=random.random,
        now_ms=SystemClock().now_ms,
    )


class BareEcho(asyncio.Protocol):
    """Frames with a length before them, and nothing else."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._raw = b""

    def data_received(self, data: bytes) -> None:
        raw = self._raw + data
        at, out = 0, []
        while at + HEAD_BYTES <= len(raw):
            end = at + HEAD_BYTES + int.from_bytes(raw[at : at + HEAD_BYTES])
            if end > len(raw):
                break
            out += self.take(raw[at + HEAD_BYTES : end])
            at = end
        self._raw = raw[at:]
        if out:
            self.transport.write(b"".join(out))

    def take(self, body: bytes) -> list[bytes]:
        """What to answer."""
        return [len(body).to_bytes(HEAD_BYTES), body]


async def serve() -> None:
    net = TlsNet()
    link = await links_of(ECHO_SEED, Trusting(), net).listen(ANYWHERE)
    bare = await net.listen(ANYWHERE, BareEcho)
    print(link, bare.address, flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve())
