"""The same service on real voters: three nodes with Raft logs of their own, linked on loopback."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.node.core.write_queue import queue_get
from holdfast.node.library.aio import AsyncMesh, AsyncNode
from holdfast.node.library.aio_entities import LINEARIZABLE, LOCAL
from holdfast.rules.bodies import encode_body
from holdfast.rules.errors import LeaseHeld, NotFresh, TaskTaken
from holdfast.rules.ids import id_text, parse_id
from holdfast.rules.limits import LEASE_TTL_MS_MIN
from holdfast.rules.quorum.intents import LeaseAcquire
from holdfast.rules.quorum.write_queue import QueuedWrite, WriteStatus
from holdfast.storage.ports import Reader
from support.envelopes import MESH, make_id
from support.voter_nodes import VoterNode, until, voted

ID = id_text(make_id(77))
LONG_MS = 60_000


async def mesh_of(node: VoterNode) -> AsyncMesh:
    """The mesh, as a program in the process that holds the bus has it."""
    async_node = AsyncNode(node.node)
    async_node.bus._api = node.host.api
    return await async_node.mesh(MESH)


def queued(node: VoterNode) -> QueuedWrite:
    def read(tx: Reader) -> QueuedWrite:
        row = queue_get(tx, MESH, parse_id(ID))
        assert row is not None
        return row

    return node.node._engine.read("queue", read)


async def _all_vote(nodes: list[VoterNode]) -> list[AsyncMesh]:
    await nodes[0].host.operators.init(MESH, [node.name for node in nodes[1:]])
    await until(lambda: all(node.part in ("voter", "coordinator") for node in nodes))
    return [await mesh_of(node) for node in nodes]


def test_Q3_Q9_writes_tasks_leases_and_reads_of_every_voter_are_one_order(tmp_path: Path) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        meshes = await _all_vote(nodes)
        fences = []
        for base, mesh in enumerate(meshes):
            fields = {"title": f"by {base}"}
            fences.append((await mesh.entities.put("mission", "m", fields, base=base)).fence)
        assert fences == sorted(fences)
        for mesh in meshes:
            found = await mesh.entities.get("mission", "m")
            assert found.read.mode == "fresh"
            assert found.entity is not None
            assert (found.entity.revision, found.entity.fields) == (3, {"title": "by 2"})
        ana, bo, cy = meshes
        task = (await ana.tasks.create("build")).task
        both = (mesh.tasks.claim(task) for mesh in (bo, cy))
        won = await asyncio.gather(*both, return_exceptions=True)
        assert [isinstance(one, TaskTaken) for one in won].count(True) == 1
        async with bo.lease("deploy", LONG_MS) as lease:
            with pytest.raises(LeaseHeld):
                async with cy.lease("deploy", LONG_MS):
                    pass
            await bo.entities.put("mission", "m", {"title": "guarded"}, lease=lease)
        # Nobody renews this one: whoever coordinates lets it expire, and the next gets it.
        short = encode_body(LeaseAcquire(LEASE_TTL_MS_MIN))
        await nodes[0].host.quorum.intend(MESH, "lease.acquire", "left", short)
        async with cy.lease("left", LONG_MS, wait_ms=LONG_MS) as lease:
            assert lease.check() > fences[-1]

    voted(tmp_path, story, "ana", "bo", "cy")


def test_Q6_Q9_a_write_of_a_minority_waits_and_is_applied_when_a_majority_is_back(
    tmp_path: Path,
) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        ana, bo, cy = nodes
        meshes = await _all_vote(nodes)
        await meshes[0].entities.put("mission", "m", {"title": "before"})
        await bo.down()
        await cy.down()
        await until(lambda: not ana.order.has_quorum)
        told = await meshes[0].entities.put(
            "mission", "m", {"title": "waits"}, intent_id=ID, timeout_ms=100
        )
        assert told.state == "queued"
        with pytest.raises(NotFresh):
            await ana.host.quorum.confirm(MESH, LINEARIZABLE, timeout_ms=100)
        local = await meshes[0].entities.get("mission", "m", demand=LOCAL)
        assert local.entity is not None
        assert (local.entity.fields, local.read.mode) == ({"title": "before"}, "degraded")
        assert local.read.pending_write_count == 1
        await bo.up()
        await until(lambda: queued(ana).status is WriteStatus.APPLIED)
        found = await (await mesh_of(bo)).entities.get("mission", "m")
        assert found.entity is not None
        assert found.entity.fields == {"title": "waits"}
        assert queued(ana).attempts >= 1

    voted(tmp_path, story, "ana", "bo", "cy")
