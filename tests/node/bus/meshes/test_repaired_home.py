"""A home that was repaired counts its shared meshes again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.node.library.node import open_node
from holdfast.node.recovery.repair import repair_home
from support.envelopes import MESH
from support.mesh_links import MeshNode, connect, until, until_same
from support.nodes import Nodes
from support.source import HandClock


def test_S12_after_a_repair_a_shared_mesh_is_counted_again(tmp_path: Path) -> None:
    async def story() -> None:
        ana, bob = (MeshNode(nodes.open(name)) for name in ("ana", "bob"))
        for one, other in ((ana, bob), (bob, ana)):
            one.knows(other)
            await one.exchange.start()
            await one.exchange.share(MESH)
            for number in range(50):
                one.node.mesh(MESH).facts.append("s", "p", number)
        await ana.exchange.close()
        home = ana.node.home
        ana.node.close()
        repair_home(home)
        again = MeshNode(open_node(home))
        await again.exchange.start()
        await again.exchange.share(MESH)
        connect(again, bob)
        await until_same(again, bob)

        def counted() -> list[tuple[str, int, int]]:
            streams = again.exchange.status().streams
            return [(one.origin, one.epoch, one.entries) for one in streams]

        # The exchange hears of what it has stored a moment after the log has it.
        whole = [("ana", 1, 50), ("ana", 2, 0), ("bob", 1, 50)]
        await until(lambda: counted() == whole, (again,))
        assert not any(one.trouble or one.missing for one in again.exchange.status().streams)
        for one in (again, bob):
            await one.exchange.close()
        again.node.close()

    nodes = Nodes("sqlite", tmp_path, HandClock())
    try:
        asyncio.run(story())
    finally:
        nodes.close()
