"""Nodes that share a mesh over the bus end up with the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.protocol.bus_mesh import EntriesPage, read_word
from support.envelopes import MESH
from support.mesh_links import MemoryLink, MeshNode, connect, until, until_same
from support.nodes import KINDS, Nodes
from support.source import HandClock


@pytest.fixture(params=KINDS)
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(request.param, tmp_path, HandClock())
    yield made
    made.close()


@asynccontextmanager
async def sharing(*names: str, nodes: Nodes, relay: bool = False) -> AsyncIterator[list[MeshNode]]:
    """Nodes that all trust each other with one mesh, not linked yet."""
    made = [MeshNode(nodes.open(name)) for name in names]
    for one in made:
        one.knows(*(other for other in made if other is not one), relay=relay)
    for one in made:
        await one.exchange.start()
        await one.exchange.share(MESH)
    try:
        yield made
    finally:
        for one in made:
            await one.exchange.close()


def pages_of(*ends: MemoryLink) -> int:
    return sum(
        len(word.raws)
        for end in ends
        for _, body in end.sent
        if isinstance(word := read_word(body), EntriesPage)
    )


def test_B4_two_nodes_that_share_a_mesh_converge_over_a_link(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            ana.node.mesh(MESH).state.set("build", "green")
            bob.node.mesh(MESH).state.set("lint", "red")
            bob.node.mesh(MESH).facts.append("s", "p", 1)
            end = connect(ana, bob)
            await until_same(ana, bob)
            assert bob.node.mesh(MESH).state.get("build") == "green"
            assert ana.node.mesh(MESH).state.get("lint") == "red"
            # From now on each pushes what it writes.
            ana.node.mesh(MESH).state.set("build", "red")
            await until(lambda: bob.node.mesh(MESH).state.get("build") == "red", (ana, bob))
            assert pages_of(end, end.other) == 4, "each entry crossed once"

    asyncio.run(story())
