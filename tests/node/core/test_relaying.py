"""What came by another way goes to a broker only by way of a node that may relay there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.node.links.receive import receive_batch
from holdfast.node.links.registry import Links
from holdfast.node.sync.mesh_state import MeshState
from holdfast.node.sync.receive import decode_page, receive_page
from holdfast.node.trust.trust import Trust
from holdfast.protocol.frames import Entries
from holdfast.protocol.log_wire import Batch
from holdfast.rules.broker_rows import FeedRow
from holdfast.rules.envelope import decode
from holdfast.rules.filters import Filter
from holdfast.rules.limits import BUS_RELAY_MS
from holdfast.rules.rows import KnownMember, LinkRow, OutboxRow, ZoneRow
from holdfast.storage.files.home import HomePaths
from holdfast.storage.ports import Transaction
from support.envelopes import MESH, fact_append, state_set
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


# --- by links and files ---------------------------------------------------------------------------


def alone(nodes: Nodes, *grants: str) -> MeshNode:
    """A member at a broker who is not on the bus."""
    ana = MeshNode(nodes.open("ana"))
    share(ana.node)
    granted(ana, *grants)
    return ana


def bring_by_link(node: MeshNode, *raws: bytes) -> None:
    """As a link to bob that carries any does."""
    filter = Filter(meshes=(MESH,))
    row = LinkRow(name="bob", url="https://bob:1", zone="bob", filter=filter, added_at=1)

    def add(tx: Transaction) -> None:
        tx.zone_put(ZoneRow(name="bob", keys=(), added_at=1))
        tx.link_put(row)

    node.engine.write("test", add)
    offsets = list(range(1, len(raws) + 1))
    receive_batch(node.engine, "bob", Batch(1, 1, len(raws), 1, len(raws), offsets, list(raws)))


RAWS = (
    state_set("k", 1, lamport=1),
    fact_append("s", "p", 1, lamport=2),
    state_set("theirs", 1, lamport=3, origin="cai"),
)


def by_link(node: MeshNode) -> None:
    bring_by_link(node, *RAWS)


def by_apply(node: MeshNode) -> None:
    assert [one.error for one in node.node.apply(RAWS)] == [None] * 3


WAYS = pytest.mark.parametrize("way", [by_link, by_apply], ids=["link", "apply"])


@WAYS
def test_Z6_who_may_relay_hands_on_what_links_and_files_bring(
    nodes: Nodes, way: Callable[[MeshNode], None]
) -> None:
    ana = alone(nodes, "read", "write", "relay")
    way(ana)
    assert [row.id for row in waiting(ana)] == [decode(raw).id for raw in RAWS]
    now = nodes.clock.now_ms()
    assert min(row.not_before for row in waiting(ana)) > now, "others may be faster"
    way(ana)  # it comes again
    assert len(waiting(ana)) == len(RAWS)


@WAYS
@pytest.mark.parametrize("grants", [("read", "write"), ("read", "relay"), ()])
def test_Z6_who_may_not_relay_hands_on_nothing_of_others(
    nodes: Nodes, way: Callable[[MeshNode], None], grants: tuple[str, ...]
) -> None:
    ana = alone(nodes, *grants)
    way(ana)
    assert waiting(ana) == []


def test_Z6_what_the_broker_brought_is_not_handed_back_to_it(nodes: Nodes) -> None:
    ana = alone(nodes, "read", "write", "relay")
    feed = [FeedRow(at, "change", b"%16d" % at, raw) for at, raw in enumerate(RAWS, 1)]
    page = decode_page(Entries(mesh=MESH, epoch=1, after=0, to=3, rows=feed, last=3))
    received = receive_page(ana.engine, MeshState(ana.node.mesh(MESH).info()), page)
    assert received.new == 3
    by_link(ana)
    assert waiting(ana) == []


def test_Z6_what_was_quarantined_and_passes_now_is_handed_on(nodes: Nodes) -> None:
    ana = alone(nodes, "read", "write", "relay")
    raw = state_set("k", 1, mesh="lab", lamport=1)
    filter = Filter(meshes=("lab",))
    link = LinkRow(name="bob", url="https://bob:1", zone="bob", filter=filter, added_at=1)

    def add(tx: Transaction) -> None:
        tx.zone_put(ZoneRow(name="bob", keys=(), added_at=1))
        tx.link_put(link)

    ana.engine.write("test", add)
    receive_batch(ana.engine, "bob", Batch(1, 1, 1, 1, 1, [1], [raw]))
    ana.node.create_mesh("lab")
    share(ana.node, "lab")
    member = KnownMember(mesh="lab", key=ana.key, name="ana", grants=("write", "relay"))
    ana.engine.store.write(lambda tx: tx.known_members_put("lab", [member]))
    links = Links(ana.engine, Trust(ana.engine, HomePaths(ana.node.home)))
    assert links.retry_quarantined("bob").passed == 1
    rows = ana.engine.read("test", lambda tx: tx.outbox_list("broker:lab", ("pending",), 0, 9))
    assert [row.id for row in rows] == [decode(raw).id]
