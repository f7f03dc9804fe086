"""A mesh moves from one engine to the other and back, with real nodes, links and a real etcd."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.node.core.write_queue import queue_counts
from holdfast.node.quorum.api import ReadDemand, StrongReceipt
from holdfast.node.quorum.ports import OrderStatus
from holdfast.rules.bodies import encode_body
from holdfast.rules.errors import AlreadyExists, BadInput, HoldfastError, NoQuorum
from holdfast.rules.quorum.commit_record import CommitRecord, decode_record
from holdfast.rules.quorum.entities import read_fields
from holdfast.rules.quorum.intents import EntityChange, EntityOperation
from holdfast.rules.quorum.state_rows import QuorumRow
from support.envelopes import MESH
from support.etcd_orders import new_scope
from support.etcd_server import HOST, etcd_server
from support.voter_nodes import VoterNode, until, voted

SOON_MS = 20_000


def etcd_address(scope: str) -> str:
    port = etcd_server().ports[0]
    return f"etcd://{HOST}:{port}?allow-old-version=yes&scope={scope}"


async def write(node: VoterNode, id: str, title: str) -> StrongReceipt:
    return await node.host.quorum.intend(
        MESH, "entity.change", f"mission/{id}", _put(id, title), timeout_ms=SOON_MS
    )


async def status(node: VoterNode) -> OrderStatus:
    return await node.host.quorum.status(MESH)


def row_of(node: VoterNode) -> QuorumRow:
    row = node.node._engine.read("row", lambda tx: tx.quorum_get(MESH))
    assert row is not None
    return row


def title(node: VoterNode, id: str = "m") -> object:
    row = node.mission(id)
    return None if row is None else read_fields(row.fields)["title"]


def records(node: VoterNode) -> list[bytes]:
    rows = node.node._engine.read("commits", lambda tx: tx.commit_range(MESH, 1, 10_000))
    return [row.record for row in rows]


def decoded(node: VoterNode) -> list[CommitRecord]:
    return [decode_record(raw) for raw in records(node)]


async def same(*nodes: VoterNode) -> None:
    """Waits until all of them have the same commits."""
    await until(lambda: len({tuple(records(node)) for node in nodes}) == 1)
    assert all(
        not node.node._engine.read("trouble", lambda tx: tx.job_get(f"commits.trouble:{MESH}"))
        for node in nodes
    )


async def settled(node: VoterNode) -> None:
    """Until nothing of a node waits."""
    engine = node.node._engine
    await until(lambda: engine.read("queue", lambda tx: queue_counts(tx, MESH)).queue_depth == 0)


def check_fences(node: VoterNode) -> None:
    """Numbers have no gaps, fences and lease epochs never fall."""
    found = decoded(node)
    assert [one.number for one in found] == list(range(1, len(found) + 1))
    orders = [one.fence.order for one in found]
    assert orders == sorted(set(orders))
    epochs = [one.fence.lease_epoch for one in found]
    assert epochs == sorted(epochs), "the lease epoch never falls"


def test_Q3_Q4_a_mesh_moves_to_an_etcd_and_back(tmp_path: Path) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        ana, bo, cy, dee = nodes  # dee has no vote
        await ana.host.quorum.init(MESH, ("bo", "cy"))
        await write(bo, "m", "by voters")
        address = etcd_address(new_scope())
        moved = await bo.host.quorum.move(MESH, engine=address)
        assert (moved.engine, moved.incarnation) == ("etcd", 2)
        await write(bo, "m", "by the etcd")
        await same(ana, bo, cy, dee)
        assert [node.part for node in nodes] == ["none"] * 4, "no group decides any more"
        with pytest.raises(AlreadyExists):
            await bo.host.quorum.move(MESH, engine=address)

        # The others have no address: they ask the one that has.
        assert (await write(dee, "m", "asked for")).outcome == "applied"
        await ana.host.quorum.move(MESH, engine=address)
        assert (await status(ana)).engine == "etcd"
        assert (await write(ana, "m", "by itself")).state == "committed"

        with pytest.raises(BadInput):
            await ana.host.quorum.move(MESH, engine="paxos")
        back = await ana.host.quorum.move(MESH, ("bo", "cy"), engine="embedded")
        assert (back.engine, back.incarnation) == ("embedded", 3)
        assert sorted(ana.voters()) == ["ana", "bo", "cy"]
        for node in nodes:
            await write(node, f"of-{node.name}", "at home again")
        await write(cy, "m", "by voters again")
        await same(*nodes)
        assert {title(node) for node in nodes} == {"by voters again"}
        check_fences(dee)
        assert {one.fence.incarnation for one in decoded(dee)} == {1, 2, 3}

    voted(tmp_path, story, "ana", "bo", "cy", "dee")


def test_Q6_writes_during_a_move_wait_and_none_is_lost_or_done_twice(tmp_path: Path) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        ana, _, cy = nodes
        await ana.host.quorum.init(MESH, ("bo", "cy"))
        stop = asyncio.Event()
        wrote: list[str] = []

        async def writes(node: VoterNode) -> None:
            for number in range(10_000):
                if stop.is_set():
                    return
                id = f"{node.name}-{number}"
                await write(node, id, id)
                wrote.append(id)

        writers = [asyncio.create_task(writes(node)) for node in nodes]
        await until(lambda: len(wrote) > 20)
        await ana.host.quorum.move(MESH, engine=etcd_address(new_scope()))
        had = len(wrote)
        await until(lambda: len(wrote) > had + 10)
        await ana.host.quorum.move(MESH, ("bo", "cy"), engine="embedded")
        had = len(wrote)
        await until(lambda: len(wrote) > had + 10)
        stop.set()
        await asyncio.gather(*writers)
        for node in nodes:
            await settled(node)
        await same(*nodes)
        check_fences(cy)
        for node in nodes:
            assert all(title(node, id) == id for id in wrote)
        ids = [one.id for one in decoded(ana)]
        assert len(ids) == len(set(ids))
        applied = [one for one in decoded(ana) if one.outcome == "applied"]
        assert len(applied) == len(wrote) + 2, "each once, and the two moves"

    voted(tmp_path, story, "ana", "bo", "cy")


def test_Q8_a_voter_that_was_away_finds_out_that_its_mesh_has_moved(tmp_path: Path) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        ana, bo, cy = nodes
        await ana.host.quorum.init(MESH, ("bo", "cy"))
        await write(ana, "m", "all are there")
        await cy.down()
        await write(ana, "m", "cy is away")
        await ana.host.quorum.move(MESH, engine=etcd_address(new_scope()))
        await write(ana, "m", "in the etcd")
        await bo.down()
        await bo.up()  # what it answers to cy is on its disk
        await cy.up()
        assert cy.part == "voter", "it knows nothing yet"
        with pytest.raises(HoldfastError):
            await cy.host.quorum.confirm(MESH, ReadDemand(), timeout_ms=100)
        await until(lambda: title(cy) == "in the etcd")
        assert cy.part == "none"
        assert (await write(cy, "m", "cy again")).outcome == "applied"
        await same(*nodes)

        # And one that follows the etcd, while it moves back.
        await bo.host.quorum.move(MESH, engine=etcd_of(ana))
        await bo.down()
        await ana.host.quorum.move(MESH, ("cy",), engine="embedded")
        await write(ana, "m", "home")
        await bo.up()
        await until(lambda: title(bo) == "home")
        assert row_of(bo).engine == "embedded"

    voted(tmp_path, story, "ana", "bo", "cy")


def etcd_of(node: VoterNode) -> str:
    place = node.host.etcd_orders.place(MESH)
    assert place is not None
    return place.address


@pytest.mark.parametrize("to", ["etcd", "embedded"])
def test_Q8_a_move_that_was_cut_short_behind_the_end_of_the_old_order_goes_on(
    tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        ana, bo = nodes
        address = etcd_address(new_scope())
        engine = address if to == "etcd" else "embedded"
        voters = () if to == "etcd" else ("bo",)
        if to == "etcd":
            await ana.host.quorum.init(MESH, ("bo",))
        else:
            await ana.host.quorum.init(MESH, (), engine=address)
        await write(ana, "m", "before")

        async def dies(*_: object) -> None:
            raise NoQuorum("the process ends here")

        moves = ana.host._orders.moves
        with monkeypatch.context() as cut:
            cut.setattr(moves, "_go_on", dies)
            with pytest.raises(NoQuorum, match="ends here"):
                await ana.host.quorum.move(MESH, voters, engine=engine)
            # The old order is over, and the next one has not begun: nothing is answered from here.
            with pytest.raises(NoQuorum):
                await ana.host._orders.order(MESH).confirm(timeout_ms=500)
            queued = await ana.host.quorum.intend(
                MESH, "entity.change", "mission/m", _put("m", "between"), timeout_ms=300
            )
            assert queued.state == "queued"
            await ana.down()
        await ana.up()
        await until(lambda: title(ana) == "between")
        assert row_of(ana).engine == to
        await same(ana, bo)
        check_fences(bo)

    voted(tmp_path, story, "ana", "bo")


def _put(id: str, text: str) -> bytes:
    operation = EntityOperation("put", "mission", id, None, b'{"title":"%s"}' % text.encode())
    return encode_body(EntityChange((operation,)))
