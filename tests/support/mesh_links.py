"""Nodes that share meshes over links in memory: the real exchange on a line that tests can cut.

A line keeps the order of each stream and has credit as links of the bus have. What is under way
when it is cut is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from holdfast.bus.ports import Link
from holdfast.node.bus.meshes.exchange import MeshExchange
from holdfast.node.core.engine import NodeEngine
from holdfast.node.library.node import Node
from holdfast.protocol.bus_frames import FrameKind, Stream, WelcomeFrame
from holdfast.rules.errors import HoldfastError, PeerUnreachable
from holdfast.rules.keys import public_key
from holdfast.rules.limits import MIB
from holdfast.rules.rows import KnownMember, ZoneKey, ZoneRow
from holdfast.storage.ports import Transaction
from support.envelopes import MESH

WINDOW = 4 * MIB


def seed_of(name: str) -> bytes:
    return name.encode().ljust(32, b".")


def key_of(name: str) -> bytes:
    return public_key(seed_of(name))


class MemoryLink:
    """One end of a line."""

    dialled = True
    address = "memory"
    since = 0.0
    rtt_ms: float | None = None

    def __init__(self, name: str, key: bytes, part: MeshExchange) -> None:
        self.name, self.peer = name, key
        self.welcome = WelcomeFrame(name=name, incarnation=b"i" * 16)
        self.part = part
        self.other: MemoryLink = self
        self.up = True
        self.blamed: list[HoldfastError] = []
        self.sent: list[tuple[Stream, bytes]] = []
        """Every frame, for tests that count or repeat them."""
        self.hold: Callable[[bytes], bool] = lambda body: False
        """Frames that get lost."""
        self._credit = {Stream.MESH: WINDOW, Stream.OBJECTS: WINDOW}
        self._room = asyncio.Event()

    def available(self, stream: Stream) -> int:
        return max(0, self._credit[stream])

    def has_room(self, stream: Stream, size: int = 0) -> bool:
        return self.up and self._credit[stream] > 0

    async def room(self, stream: Stream, size: int = 0) -> None:
        while self._credit[stream] <= 0 and self.up:
            self._room.clear()
            await self._room.wait()
        if not self.up:
            raise PeerUnreachable("the line is cut")

    def send(self, kind: FrameKind, stream: Stream, body: bytes, *, at_once: bool = False) -> None:
        if not self.up:
            raise PeerUnreachable("the line is cut")
        assert kind is FrameKind.MESH
        assert self._credit[stream] > 0, "whoever sends waits for room first"
        self._credit[stream] -= len(body)
        self.sent.append((stream, body))
        if not self.hold(body):
            asyncio.get_running_loop().call_soon(self.other.receive, stream, body)

    def receive(self, stream: Stream, body: bytes) -> None:
        if self.up:
            self.part.frame(self, FrameKind.MESH, stream, body)

    def taken(self, stream: Stream, size: int) -> None:
        self.other._credit[stream] += size
        self.other._room.set()

    def stop_reading(self) -> None:
        raise AssertionError("pages of a mesh take no more than a turn")

    def read_on(self) -> None: ...

    def blame(self, error: HoldfastError) -> None:
        self.blamed.append(error)

    def broken(self, error: HoldfastError) -> None:
        self.blamed.append(error)
        cut(self)

    async def ping(self) -> float:
        return 0.0

    def close(self, code: str, message: str = "") -> None:
        cut(self)


def cut(link: MemoryLink) -> None:
    """Both ends go down."""
    for end in (link, link.other):
        if end.up:
            end.up = False
            end._room.set()
            end.part.link_down(end)


class MeshNode:
    """A node with its exchange. Its key is made from its name, unless another one is given."""

    def __init__(self, node: Node, *, key: bytes | None = None) -> None:
        self.node = node
        self.name = node.peer
        self.key = key or key_of(self.name)
        self.exchange = MeshExchange(self.engine, self.key, jitter=lambda: 0.5)

    @property
    def engine(self) -> NodeEngine:
        return self.node._engine

    def knows(self, *others: MeshNode, reads: Iterable[str] = (MESH,), relay: bool = False) -> None:
        """Trusts other nodes with meshes, and perhaps to relay in them."""

        def work(tx: Transaction) -> None:
            for other in others:
                row = ZoneRow(
                    name=other.name,
                    keys=(ZoneKey(key=other.key, added_at=1),),
                    reads=tuple(reads),
                    added_at=1,
                )
                tx.zone_put(row)
                for mesh in reads if relay else ():
                    member = KnownMember(
                        mesh=mesh, key=other.key, name=other.name, grants=("read", "relay")
                    )
                    known = tx.known_members_list(mesh)
                    tx.known_members_put(mesh, [*known, member])

        self.engine.store.write(work)

    def logged(self) -> list[bytes]:
        """The ids of everything in its log, sorted: equal sets are equal lists."""
        return sorted(entry.id for entry in self.node.log.range())


def line(one: MeshNode, two: MeshNode) -> tuple[MemoryLink, MemoryLink]:
    """Both ends of a line between two nodes, which were not told of it."""
    here = MemoryLink(two.name, two.key, one.exchange)
    there = MemoryLink(one.name, one.key, two.exchange)
    here.other, there.other = there, here
    return here, there


def connect(one: MeshNode, two: MeshNode) -> MemoryLink:
    """A line between two nodes, up at both ends; returns the first one's end."""
    here, there = line(one, two)
    ends: tuple[Link, Link] = here, there  # what a link of the bus has, these have
    one.exchange.link_up(ends[0])
    two.exchange.link_up(ends[1])
    return here


def trouble_of(node: MeshNode) -> list[str]:
    return [one.trouble for one in node.exchange.status().streams if one.trouble]


async def until(true: Callable[[], bool], nodes: Iterable[MeshNode], timeout_s: float = 20) -> None:
    """Waits until something is true; looks after each commit of a node and each turn of its
    exchange that it leads to.
    """
    loop = asyncio.get_running_loop()
    committed = asyncio.Event()

    def ring() -> None:
        with suppress(RuntimeError):  # a node that outlives the loop
            loop.call_soon_threadsafe(committed.set)

    for node in nodes:
        node.engine.store.on_commit(ring)
    async with asyncio.timeout(timeout_s):
        while not true():
            with_timeout = asyncio.wait_for(committed.wait(), 0.05)
            try:
                await with_timeout
            except TimeoutError:
                continue
            committed.clear()


async def until_same(*nodes: MeshNode, timeout_s: float = 20) -> None:
    """Waits until all logs hold the same."""

    def same() -> bool:
        first = nodes[0].logged()
        return all(node.logged() == first for node in nodes[1:])

    await until(same, nodes, timeout_s)
