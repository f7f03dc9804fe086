"""Homes with a mesh that has voters, each with a `LocalQuorum` on one order of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from holdfast.node.core.loop_writer import LoopWriter
from holdfast.node.library.node import Node
from holdfast.node.quorum.service.lane import LoopWrite
from holdfast.node.quorum.service.local_quorum import LocalQuorum
from holdfast.node.quorum.service.operators import QuorumOperators
from holdfast.rules.bodies import Body, Nothing, encode_body, encode_value
from holdfast.rules.quorum.intents import (
    EntityChange,
    EntityOperation,
    Guard,
    OperationKind,
    entity_name,
)
from holdfast.storage.ports import Reader, Transaction
from support.committed_rows import quorum_row
from support.envelopes import MESH
from support.mesh_orders import NodeOrder, SharedOrder
from support.nodes import Nodes, store_of
from support.source import HandClock

T = TypeVar("T")
PATIENCE_S = 60


class QuorumHome:
    """One node with its order and its quorums."""

    def __init__(
        self,
        node: Node,
        shared: SharedOrder,
        *,
        clock: HandClock | None = None,
        write: Callable[[LoopWrite], LoopWrite] = lambda write: write,
        **settings: Any,
    ) -> None:
        self.node, self.shared = node, shared
        self.engine = node._engine
        self.clock_ms = 0
        """Monotonic time, as its quorums see it."""
        self.clock = clock or HandClock()
        writer = LoopWriter(self.engine, node._opened.store.writer)
        self.order: NodeOrder = shared.add(self.engine, writer.write)
        self.api = LocalQuorum(
            self.engine,
            write(writer.write),
            shared.order_of(node.peer),
            cast(QuorumOperators, None),  # these tests need none
            monotonic_ms=lambda: self.clock_ms,
            chance=lambda: 0.0,
            **settings,
        )

    def read(self, look: Callable[[Reader], T]) -> T:
        with store_of(self.node).read() as reader:
            return look(reader)

    async def intend(self, op: str, entity: str, body: Body | None = None, **given: Any) -> Any:
        encoded = encode_body(Nothing() if body is None else body)
        return await self.api.intend(MESH, op, entity, encoded, **given)

    async def put(
        self, mission: str, title: str = "t", *, base: int | None = None, **given: Any
    ) -> Any:
        op = operation("put", "mission", mission, {"title": title}, base=base)
        return await self.change(op, **given)

    async def change(self, *operations: EntityOperation, **given: Any) -> Any:
        first = operations[0]
        name = entity_name(first.type, first.id)
        return await self.intend("entity.change", name, EntityChange(operations), **given)

    async def settings(self, **fields: Any) -> None:
        await self.change(operation("put", "mesh_settings", "quorum", fields))

    def missions(self) -> dict[str, str]:
        rows = self.read(lambda tx: tx.entity_list(MESH, "mission", "", 1000))
        return {row.id: row.fields.decode() for row in rows}


def operation(
    kind: OperationKind,
    type: str,
    id: str,
    fields: Mapping[str, Any] | None = None,
    *,
    base: int | None = None,
    guard: Guard | None = None,
) -> EntityOperation:
    return EntityOperation(kind, type, id, base, encode_value(dict(fields or {})), (), None, guard)


def with_voters(node: Node) -> None:
    def work(tx: Transaction) -> None:
        if tx.quorum_get(MESH) is None:
            tx.quorum_put(quorum_row())

    store_of(node).write(work)


@asynccontextmanager
async def quorum_homes(
    kind: str, folder: Path, *peers: str, start: bool = True, **settings: Any
) -> AsyncIterator[list[QuorumHome]]:
    """Homes that share one order; the first one coordinates."""
    clock = HandClock()
    nodes = Nodes(kind, folder, clock)
    shared = SharedOrder()
    homes: list[QuorumHome] = []
    try:
        for peer in peers or ("ana",):
            node = nodes.open(peer)
            with_voters(node)
            homes.append(QuorumHome(node, shared, clock=clock, **settings))
        for home in homes if start else ():
            await home.api.start()
        yield homes
    finally:
        for home in homes:
            await home.api.close()
        nodes.close()


def run(story: Callable[[], Awaitable[None]]) -> None:
    """Ends also where something hangs."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story()

    asyncio.run(bounded())


async def comes_true(condition: Callable[[], bool]) -> None:
    """Returns as soon as it holds, which some task of the loop brings about."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)
