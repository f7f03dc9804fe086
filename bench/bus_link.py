"""What a link costs beside bare frames on the same TLS: many in flight, one at a time, and idle."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from time import perf_counter, process_time

from bench._bus_echo import ASK_SEED, ECHO_SEED, BareEcho, Trusting, links_of
from holdfast.bus.links.links import BusLinks
from holdfast.bus.links.tls_net import TlsNet
from holdfast.bus.ports import Link
from holdfast.protocol.bus_frames import FrameKind, Stream
from holdfast.rules.keys import public_key

BODY = b"x" * 500
IN_FLIGHT = 64
MANY, FEW = 100_000, 3_000
ROUNDS = 3
IDLE_LINKS = 10
IDLE_S = 40.0
"""Long enough for each link to be asked for a sign of life."""


def run() -> Iterator[tuple[str, float, str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "bench._bus_echo"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as echo:
        assert echo.stdout is not None
        link, bare = echo.stdout.readline().split()
        yield from asyncio.run(_compare(link, bare))
        echo.communicate()
    share = asyncio.run(_idle())
    print(f"  {IDLE_LINKS} idle links: {share * 100:.3f} % of a core, both ends")
    yield "ten idle links, CPU in percent of a core", share * 100, "<= 1"


async def _compare(link: str, bare: str) -> list[tuple[str, float, str]]:
    net = TlsNet()
    ours, plain = _LinkCaller(), _BareCaller()
    peer = links_of(ASK_SEED, ours, net)
    ours.link = await peer.dial(link, [public_key(ECHO_SEED)])
    await net.dial(bare, lambda: plain)
    figures = []
    for in_flight, many in ((IN_FLIGHT, MANY), (1, FEW)):
        measured: list[list[tuple[float, float]]] = [
            [await caller.ask(many, in_flight) for _ in range(ROUNDS)] for caller in (ours, plain)
        ]
        cpu = [min(took[0] for took in rounds) for rounds in measured]
        wall = [statistics.median(took[1] for took in rounds) for rounds in measured]
        print(
            f"  {in_flight} in flight: link {cpu[0]:.1f} us CPU, {wall[0]:.1f} us; "
            f"bare {cpu[1]:.1f} us CPU, {wall[1]:.1f} us"
        )
        figures.append(
            (f"link to bare frames, CPU a message, {in_flight} in flight", cpu[0] / cpu[1], "<= 2")
        )
    await peer.close()
    plain.transport.close()
    return figures


async def _idle() -> float:
    """The share of a core that ten links take, of which this process has both ends."""
    net = TlsNet()
    here = links_of(ECHO_SEED, Trusting(), net)
    address = await here.listen("127.0.0.1:0")
    others: list[BusLinks] = []
    for number in range(IDLE_LINKS):
        others.append(links_of(bytes([number]) * 32, Trusting(), net))
        await others[-1].dial(address, [here.key])
    cpu, wall = process_time(), perf_counter()
    await asyncio.sleep(IDLE_S)
    share = (process_time() - cpu) / (perf_counter() - wall)
    for links in (here, *others):
        await links.close()
    return share


class _Asking:
    """Keeps so many messages in flight until so many have come back."""

    async def ask(self, many: int, in_flight: int) -> tuple[float, float]:
        """Microseconds of CPU here, and of time, for each message."""
        self._left, self._to_send = many, many
        self._done = asyncio.get_running_loop().create_future()
        cpu, wall = process_time(), perf_counter()
        for _ in range(in_flight):
            self._next()
        await self._done
        return ((process_time() - cpu) * 1e6 / many, (perf_counter() - wall) * 1e6 / many)

    def _next(self) -> None:
        if self._to_send:
            self._to_send -= 1
            self._send()

    def _came(self) -> None:
        self._left -= 1
        if not self._left:
            self._done.set_result(None)
        self._next()

    _send: Callable[[], None]


class _LinkCaller(_Asking, Trusting):
    link: Link

    def _send(self) -> None:
        self.link.send(FrameKind.PARCEL, Stream.NEXT, BODY)

    def frame(self, link: Link, kind: FrameKind, stream: Stream, body: bytes) -> None:
        link.taken(stream, len(body))
        self._came()


class _BareCaller(_Asking, BareEcho):
    def __init__(self) -> None:
        self._out: list[bytes] = []

    def _send(self) -> None:
        self._out.append(len(BODY).to_bytes(4) + BODY)
        if len(self._out) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        out, self._out = self._out, []
        self.transport.write(b"".join(out))

    def take(self, body: bytes) -> list[bytes]:
        self._came()
        return []
