"""Entities, strong tasks and writes that waited, over a connection to a daemon with voters."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast.node.library.aio_entities import LOCAL, entity_operation, within
from holdfast.node.log.entity_history import entity_history
from holdfast.node.settings import Settings
from holdfast.rules.errors import (
    BadInput,
    FenceTooOld,
    HasChildren,
    IdReused,
    LeaseHeld,
    LeaseNotHeld,
    NoQuorum,
    NotFresh,
    RevisionMoved,
    StoreClosed,
    UnknownEntity,
    UnknownEntityType,
    UnknownMessage,
)
from holdfast.rules.quorum.intents import Guard
from holdfast.transport.fault_proxy import FaultProxy
from support.daemon import PATIENCE_S
from support.envelopes import MESH
from support.quorum_daemon import quorum_daemon

ID = "01a1effb-5a14-7544-9893-6c376cfe8516"


def test_Q5_entities_are_changed_and_read_over_a_connection(tmp_path: Path) -> None:
    with quorum_daemon(tmp_path) as up, holdfast.connect(up.home) as node:
        entities = node.mesh("team").entities
        first = entities.put("mission", "m/1", {"title": "a", "note": 1}, base=0)
        assert (first.state, first.outcome) == ("committed", "applied")
        again = entities.put("mission", "x", {"title": "b"}, intent_id=ID)
        assert entities.put("mission", "x", {"title": "b"}, intent_id=ID).id == again.id == ID
        with pytest.raises(IdReused):
            entities.put("mission", "x", {"title": "c"}, intent_id=ID)
        entities.patch("mission", "m/1", {"title": "b"}, remove=["note"], base=1)
        with pytest.raises(RevisionMoved):
            entities.patch("mission", "m/1", {"title": "c"}, base=1)
        found = entities.get("mission", "m/1")
        assert found.entity is not None
        assert (found.entity.revision, found.entity.fields) == (2, {"title": "b"})
        assert found.entity.fence > first.fence
        assert found.read.mode == "fresh"
        assert entities.get("mission", "m/1", demand=within(60_000)).entity == found.entity
        assert [one.id for one in entities.list("mission").entities] == ["m/1", "x"]
        assert [one.id for one in entities.list("mission", after="m/1").entities] == ["x"]
        assert entities.list("mission", limit=1).entities == (found.entity,)
        entities.put("milestone", "s", {"title": "s", "missionId": "m/1"})
        with pytest.raises(HasChildren):
            entities.delete("mission", "m/1")
        both = [
            entity_operation("delete", "milestone", "s"),
            entity_operation("delete", "mission", "m/1", base=2),
        ]
        entities.change(both)
        gone = entities.get("mission", "m/1")
        assert (gone.entity, gone.read.mode) == (None, "fresh")
        with pytest.raises(UnknownEntityType):
            entities.get("odd", "m")
        with pytest.raises(BadInput):
            entities.put("mission", 3, {})  # type: ignore[arg-type]
        past = entities.history("mission", "m/1").revisions
        assert [(one.revision, one.deleted, one.whole) for one in past] == [
            *((1, False, True), (2, False, False), (3, True, True))
        ]
        assert past[0].commit.fence.order < past[1].commit.fence.order
        engine = up.daemon.daemon.api.engine
        inside = engine.read("test", lambda tx: entity_history(tx, MESH, "mission", "m/1"))
        assert list(past) == inside
        assert list(entities.history("mission", "m/1", after=2).revisions) == inside[2:]
        with pytest.raises(UnknownEntity):
            entities.history("mission", "never")


def test_Q4_a_lease_is_held_and_renewed_over_a_connection(tmp_path: Path) -> None:
    with quorum_daemon(tmp_path) as up, holdfast.connect(up.home) as node:
        team = node.mesh("team")
        with team.lease("deploy", ttl_ms=1_000) as lease:
            fence = lease.check()
            with pytest.raises(LeaseHeld), team.lease("deploy"):
                pass
            team.entities.put("mission", "m", {"title": "a"}, lease=lease)
            assert not lease.wait_ended(1_200), "it was renewed"
            assert lease.fence == fence
        with pytest.raises(LeaseNotHeld):
            lease.check()
        with team.lease("deploy", wait_ms=5_000) as later:
            assert later.fence > fence
            with pytest.raises(FenceTooOld):
                team.entities.put("mission", "m", {"title": "b"}, lease=Guard("deploy", 1, 1, 1))
            up.lose_quorum()
            with pytest.raises(NoQuorum), team.lease("other"):
                pass
            up.regain()
    with pytest.raises(StoreClosed):
        team.lease("deploy")


def test_Q4_a_lease_ends_in_time_where_the_daemon_is_gone(tmp_path: Path) -> None:
    with quorum_daemon(tmp_path, Settings(tcp="127.0.0.1:0")) as up:
        token = up.daemon.daemon.api.trust.add_token("own")
        host, _, port = up.daemon.tcp.removeprefix("http://").rpartition(":")
        with FaultProxy((host, int(port))) as proxy:
            address = "http://{}:{}".format(*proxy.address)
            with (
                holdfast.connect(address, token=token) as node,
                node.mesh("team").lease("deploy", ttl_ms=1_000) as lease,
            ):
                proxy.refuse()
                proxy.cut()
                assert lease.wait_ended(PATIENCE_S * 1_000)
                with pytest.raises(LeaseNotHeld):
                    lease.check()


def test_Q6_a_write_that_waits_is_seen_and_replayed_over_a_connection(tmp_path: Path) -> None:
    with quorum_daemon(tmp_path) as up, holdfast.connect(up.home) as node:
        team = node.mesh("team")
        up.lose_quorum()
        waiting = team.entities.put("mission", "m", {"title": "a"}, timeout_ms=0)
        assert waiting.state == "queued"
        with pytest.raises(NotFresh):
            team.entities.get("mission", "m")
        assert team.entities.get("mission", "m", demand=LOCAL).entity is None
        (write,) = team.writes.list("pending")
        assert write.id == waiting.id == team.writes.get(waiting.id).id
        assert team.writes.list("failed") == []
        assert team.writes.conflicts() == []
        with pytest.raises(UnknownMessage):
            team.writes.get(ID)
        up.regain()
        team.writes.replay()
        assert team.entities.get("mission", "m").entity is not None
        assert [one.status for one in team.writes.list()] == ["applied"]


def test_Q1_a_task_of_a_mesh_with_voters_is_decided_by_them(tmp_path: Path) -> None:
    with quorum_daemon(tmp_path) as up, holdfast.connect(up.home) as node:
        tasks = node.mesh("team").tasks
        task = tasks.create("paint")
        assert tasks.claim(task.task).claimed_by == "ana"
        assert [row.place > 0 for row in tasks.events(task.task)] == [True, True]


def test_Q5_coroutines_have_the_same_verbs(tmp_path: Path) -> None:
    async def story(home: Path) -> None:
        async with holdfast.aconnect(home) as node:
            team = await node.mesh("team")
            await team.entities.put("mission", "m", {"title": "a"})
            found = await team.entities.get("mission", "m")
            assert found.entity is not None
            assert await team.writes.list() == []
            assert len((await team.entities.history("mission", "m")).revisions) == 1
            async with team.lease("deploy") as lease:
                await team.entities.patch("mission", "m", {"title": "b"}, lease=lease)

    with quorum_daemon(tmp_path) as up:
        asyncio.run(story(up.home))
