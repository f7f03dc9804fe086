"""What came over the bus goes to a broker only by way of a node that may relay there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.node.sync.mesh_state import MeshState
from holdfast.node.sync.receive import decode_page, receive_page
from holdfast.protocol.frames import Entries
from holdfast.rules.broker_rows import FeedRow
from holdfast.rules.limits import BUS_RELAY_MS
from holdfast.rules.rows import KnownMember, OutboxRow
from support.envelopes import MESH
from support.mesh_links import MeshNode, connect, until_same
from support.nodes import KINDS, Nodes, share
from support.source import HandClock

LANE = f"broker:{MESH}"


@pytest.fixture(params=KINDS)
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(request.param, tmp_path, HandClock())
    yield made
    made.close()


def granted(node: MeshNode, *grants: str) -> None:
    """What the broker last said that this node may do."""
    row = KnownMember(mesh=MESH, key=node.key, name=node.name, grants=grants)
    node.engine.store.write(lambda tx: tx.known_members_put(MESH, [row]))


def waiting(node: MeshNode) -> list[OutboxRow]:
    return node.engine.read("test", lambda tx: tx.outbox_list(LANE, ("pending",), 0, 99))


async def bus_only_writer(nodes: Nodes, *grants: str) -> tuple[MeshNode, MeshNode]:
    """Bob writes, and is on the bus only; ana has a broker too, which granted her this."""
    ana, bob = MeshNode(nodes.open("ana")), MeshNode(nodes.open("bob"))
    share(ana.node)
    granted(ana, *grants)
    for one, other in ((ana, bob), (bob, ana)):
        one.knows(other)
        await one.exchange.start()
        await one.exchange.share(MESH)
    bob.node.mesh(MESH).state.set("k", 1)
    bob.node.mesh(MESH).facts.append("s", "p", 1)
    connect(ana, bob)
    await until_same(ana, bob)
    return ana, bob


def test_B4_who_may_relay_hands_what_came_over_the_bus_to_the_broker_once(nodes: Nodes) -> None:
    async def story() -> None:
        ana, bob = await bus_only_writer(nodes, "read", "write", "relay")
        rows = waiting(ana)
        assert [row.id for row in rows] == [entry.id for entry in bob.node.log.range()]
        now = nodes.clock.now_ms()
        due = ana.engine.read("test", lambda tx: tx.outbox_due(LANE, now, 99))
        assert due == [], "its origin, or another that relays, may be faster"
        assert max(row.not_before for row in rows) - now <= 1.5 * BUS_RELAY_MS
        assert waiting(bob) == [], "it has no broker"
        for one in (ana, bob):
            await one.exchange.close()

    asyncio.run(story())


@pytest.mark.parametrize("grants", [("read", "write"), ("read", "relay"), ()])
def test_B4_who_may_not_relay_hands_nothing_on(nodes: Nodes, grants: tuple[str, ...]) -> None:
    async def story() -> None:
        ana, bob = await bus_only_writer(nodes, *grants)
        assert waiting(ana) == []
        ana.node.mesh(MESH).state.set("own", 1)
        assert [row.entity for row in waiting(ana)] == ["state//own"]
        for one in (ana, bob):
            await one.exchange.close()

    asyncio.run(story())


def test_B4_what_the_broker_brings_meanwhile_is_not_handed_in(nodes: Nodes) -> None:
    async def story() -> None:
        ana, bob = await bus_only_writer(nodes, "read", "write", "relay")
        entries = list(bob.node.log.range())
        feed = [FeedRow(7, "change", b"b" * 16, entries[0].raw)]
        page = decode_page(Entries(mesh=MESH, epoch=1, after=0, to=7, rows=feed, last=7))
        received = receive_page(ana.engine, MeshState(ana.node.mesh(MESH).info()), page)
        assert (received.new, received.known) == (0, 1)
        assert [row.id for row in waiting(ana)] == [entries[1].id]
        done = ana.engine.read("test", lambda tx: tx.outbox_get(LANE, entries[0].id))
        assert done is not None
        assert (done.state, done.broker_epoch, done.broker_seq) == ("done", 1, 7)
        for one in (ana, bob):
            await one.exchange.close()

    asyncio.run(story())
