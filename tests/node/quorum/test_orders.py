"""One host for both engines: what operators and programs say reaches the right one."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.node.quorum.api import ReadDemand
from holdfast.node.quorum.etcd.orders import place_job
from holdfast.rules.bodies import encode_body
from holdfast.rules.errors import AlreadyExists, BadInput, NoVoters
from holdfast.rules.quorum.intents import EntityChange
from support.envelopes import MESH
from support.etcd_orders import new_scope
from support.etcd_server import etcd_server
from support.quorum_state import operation
from support.voter_nodes import VoterNode, until, voted

SECRET = "hunter2"


async def put(node: VoterNode, title: str) -> str:
    body = EntityChange((operation("put", "mission", "m1", {"title": title}),))
    quorum = node.host.quorum
    receipt = await quorum.intend(MESH, "entity.change", "mission/m1", encode_body(body))
    assert receipt.outcome is not None
    return receipt.outcome.value


def test_Q13_a_mesh_is_decided_by_the_engine_that_its_operator_names(tmp_path: Path) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        ana, bo = nodes
        address = etcd_server().address(scope=new_scope())
        quorum = ana.host.quorum
        for engine in ("raft", f"etcds://user:{SECRET}@far", f"etcd://user:{SECRET}@far"):
            with pytest.raises(BadInput) as refused:
                await quorum.init(MESH, (), engine=engine)
            assert SECRET not in f"{refused.value} {refused.value.hint}"
        with pytest.raises(BadInput):
            await quorum.init(MESH, ("bo",), engine=address)
        with pytest.raises(NoVoters):
            await quorum.status(MESH)
        status = await quorum.init(MESH, (), engine=address)
        assert (status.engine, status.part, status.coordinator) == ("etcd", "coordinator", "ana")
        with pytest.raises(AlreadyExists):
            await quorum.init(MESH, ())
        assert await put(ana, "one") == "applied"

        await bo.host.quorum.init(MESH, (), engine=f"{address}&join=yes")
        assert await put(bo, "two") == "applied"
        assert (await quorum.confirm(MESH, ReadDemand())).mode == "fresh"
        row = ana.mission()
        assert row is not None
        assert b"two" in row.fields
        with pytest.raises(BadInput, match="members of its own"):
            await quorum.add(MESH, "bo")
        await quorum.transfer(MESH, "bo", timeout_ms=60_000)
        status = await quorum.recover(MESH, accept_loss=True)
        assert status.incarnation == 2

        await ana.down()
        await ana.up()
        await until(lambda: ana.host.etcd_orders.require(MESH).has_quorum)
        assert await put(ana, "three") == "applied"
        row = ana.mission()
        assert row is not None
        assert (row.revision, row.fence.incarnation) == (3, 2)
        job = ana.node._engine.read("place", lambda tx: tx.job_get(place_job(MESH)))
        assert job is not None
        assert job.cursor["address"] == address

    voted(tmp_path, story, "ana", "bo")
