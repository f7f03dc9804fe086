"""Nodes that share a mesh over real links of the bus: TLS, hellos, credit."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.bus.bus import Bus
from holdfast.bus.options import BusOptions
from holdfast.bus.static_peers import StaticPeers
from holdfast.node.bus.meshes.exchange import MeshExchange
from holdfast.rules.keys import card_of
from support.envelopes import MESH
from support.mesh_links import MeshNode, seed_of, until_same
from support.nodes import Nodes
from support.source import HandClock


async def bound(node: MeshNode, *peers: str) -> Bus:
    options = BusOptions(seed=seed_of(node.name), name=node.name, peers=StaticPeers(peers))
    bus = await Bus.bind_with(options)
    bus.attach(node.exchange)
    return bus


def test_B4_two_nodes_converge_over_the_bus(tmp_path: Path) -> None:
    async def story() -> None:
        ana, bob = (MeshNode(nodes.open(name)) for name in ("ana", "bob"))
        ana.knows(bob)
        bob.knows(ana)
        for one in (ana, bob):
            await one.exchange.start()
            await one.exchange.share(MESH)
            for number in range(300):
                one.node.mesh(MESH).facts.append(one.name, "is", number)
            for number in range(3):
                one.node.mesh(MESH).audit.append("activityLog", [one.name, number])
                one.node.mesh(MESH).telemetry.set("run", f"{number}", f"stays-with-{one.name}")
        bob.node.mesh(MESH).files.share("big", b"content" * 600_000)
        first = await bound(ana, card_of("bob", bob.key))
        known = f"{first.card}@{first.addresses[0]}"
        second = await bound(bob, known)
        await until_same(ana, bob)
        assert ana.node.mesh(MESH).files.read("big", peer="bob") == b"content" * 600_000
        ana.node.mesh(MESH).state.set("live", 1)
        await until_same(ana, bob)
        await second.close()
        ana.node.mesh(MESH).state.set("while away", 1)
        bob.exchange = MeshExchange(bob.engine, bob.key)
        await bob.exchange.start()
        third = await bound(bob, known)
        await until_same(ana, bob)
        for bus in (first, third):
            await bus.close()
        for one in (ana, bob):
            audit = one.node.mesh(MESH).audit
            assert [(chain.origin, chain.last) for chain in audit.streams()] == [
                *(("ana", 3), ("bob", 3))
            ]
            assert all(chain.sound and chain.gapless for chain in audit.verify())
            other = b"stays-with-bob" if one is ana else b"stays-with-ana"
            held = [path.read_bytes() for path in one.node.home.rglob("*") if path.is_file()]
            assert not any(other in content for content in held), "telemetry is not carried"

    nodes = Nodes("sqlite", tmp_path, HandClock())
    try:
        asyncio.run(story())
    finally:
        nodes.close()
