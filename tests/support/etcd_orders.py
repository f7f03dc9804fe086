"""Orders in the etcd of the tests: each test has a scope of its own, and nodes that use it."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager

from holdfast.node.quorum.etcd.engine import EtcdEngine
from holdfast.node.quorum.etcd.follower import OrderFollower
from holdfast.protocol.etcd_json import WATCH
from holdfast.rules.etcd.entry import OrderedEntry, OrderPoint
from holdfast.rules.etcd.outcome import EntryAppended
from holdfast.rules.ids import uuid7
from holdfast.transport.etcd_address import parse_etcd_address
from holdfast.transport.etcd_gateway import EtcdGateway
from holdfast.transport.http_stream import HttpStream
from support.etcd_server import HOST
from support.fake_etcd import Answering, Asked, Said

ENOUGH_MS = 30_000
MADE_MS = 1_800_000_000_000
_numbers = itertools.count()


def new_scope() -> str:
    return f"s{os.getpid()}-{next(_numbers)}"


def new_id(made_ms: int = MADE_MS) -> bytes:
    return uuid7(made_ms, os.urandom(10))


class OrderNode:
    """A node with a gateway of its own."""

    def __init__(self, address: str, scope: str, name: str) -> None:
        self.gateway = EtcdGateway(parse_etcd_address(address))
        self.order = EtcdEngine(self.gateway, scope, node=name, nonce=lambda: os.urandom(16))

    async def append(self, body: bytes, id: bytes | None = None) -> EntryAppended:
        got = await self.order.append(
            id or new_id(), b"of " + body[:32], body, timeout_ms=ENOUGH_MS
        )
        assert isinstance(got, EntryAppended)
        return got


async def first_point(node: OrderNode) -> OrderPoint:
    """Behind a first entry: other tests compact, and nobody can watch from the start on."""
    return OrderPoint((await node.append(b"first")).position, 1)


@asynccontextmanager
async def order_nodes(*addresses: str) -> AsyncGenerator[Sequence[OrderNode], None]:
    """A new order and a node for each address; the first one coordinates."""
    scope = new_scope()
    nodes = [OrderNode(address, scope, f"n{at}") for at, address in enumerate(addresses)]
    try:
        await nodes[0].order.begin(1, timeout_ms=ENOUGH_MS)
        await nodes[0].order.coordinate(timeout_ms=ENOUGH_MS)
        yield nodes
    finally:
        for node in nodes:
            await node.gateway.close()


async def take(follower: OrderFollower, count: int) -> list[OrderedEntry]:
    """The next entries, at least so many."""
    found: list[OrderedEntry] = []
    async with aclosing(follower.pieces()) as pieces:
        while len(found) < count:
            found += await anext(pieces)
    return found


def run(story: Callable[[], Awaitable[None]]) -> None:
    """Ends also where something hangs."""

    async def bounded() -> None:
        async with asyncio.timeout(90):
            await story()

    asyncio.run(bounded())


def forward(port: int, *, lose: Callable[[Asked], bool]) -> Answering:
    """Hands calls on to a real member; the answers to those that are to be lost are lost."""

    async def answering(asked: Asked, writer: asyncio.StreamWriter) -> Said | None:
        stream = await HttpStream.open(HOST, port, None)
        try:
            got = await stream.ask(_request(asked), 1 << 25)
        finally:
            stream.close()
        return None if lose(asked) else Said(*got)

    return answering


def forward_lines(port: int, change: Callable[[bytes], bytes | None]) -> Answering:
    """The same for watches, line by line: `change` may leave one out. Other calls pass."""
    plain = forward(port, lose=lambda asked: False)

    async def answering(asked: Asked, writer: asyncio.StreamWriter) -> Said | None:
        if asked.path != WATCH:
            return await plain(asked, writer)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        stream = await HttpStream.open(HOST, port, None)
        async with aclosing(stream.lines(_request(asked), 1 << 25)) as lines:
            async for _, line in lines:
                changed = change(line)
                if changed is not None:
                    writer.write(b"%x\r\n%s\n\r\n" % (len(changed) + 1, changed))
                    await writer.drain()
        return None

    return answering


def _request(asked: Asked) -> bytes:
    head = [f"POST {asked.path} HTTP/1.1", *(f"{k}: {v}" for k, v in asked.headers.items())]
    return "\r\n".join([*head, "", ""]).encode() + asked.body
