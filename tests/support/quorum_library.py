"""Nodes of the library whose bus is held by the test: with real quorums, and without links."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

from holdfast.node.bus.api import BusApi
from holdfast.node.library.aio import AsyncMesh, AsyncNode
from holdfast.node.library.node import Mesh
from holdfast.node.quorum.api import QuorumApi
from support.envelopes import MESH
from support.mesh_orders import SharedOrder
from support.nodes import Nodes
from support.quorum_homes import QuorumHome, quorum_homes, with_voters
from support.source import HandClock


class HeldBus:
    """All of a bus that the way to the quorums needs."""

    def __init__(self, quorum: QuorumApi) -> None:
        self.quorum = quorum

    async def close(self) -> None: ...


@asynccontextmanager
async def async_meshes(
    kind: str, folder: Path, *peers: str, **settings: Any
) -> AsyncIterator[list[tuple[QuorumHome, AsyncMesh]]]:
    """The mesh of each node for coroutines, with the home behind it."""
    async with quorum_homes(kind, folder, *peers, **settings) as homes:
        found = []
        for home in homes:
            node = AsyncNode(home.node)
            node.bus._api = cast(BusApi, HeldBus(home.api))
            found.append((home, await node.mesh(MESH)))
        yield found


@contextmanager
def waiting_mesh(kind: str, folder: Path) -> Iterator[tuple[QuorumHome, Mesh]]:
    """The mesh of a node for callers that wait: its quorum lives on the loop of `node.bus`."""
    nodes = Nodes(kind, folder, HandClock())
    node = nodes.open("ana")
    with_voters(node)
    bus = node.bus

    async def begin() -> QuorumHome:
        home = QuorumHome(node, SharedOrder())
        await home.api.start()
        return home

    home = bus.loop_thread.run(begin())
    bus._bus()._api = cast(BusApi, HeldBus(home.api))
    try:
        yield home, node.mesh(MESH)
    finally:
        bus.loop_thread.run(home.api.close())
        nodes.close()
