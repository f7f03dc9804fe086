"""Tasks in a mesh with voters: the same verbs, and the quorum decides."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.rules.errors import IdReused, TaskEnded, TaskTaken, UnknownTask, WriteQueued
from holdfast.rules.ids import id_text
from holdfast.rules.tasks import TaskStatus
from support.envelopes import MESH, make_id
from support.nodes import KINDS, Nodes
from support.quorum_homes import comes_true, run, with_voters
from support.quorum_library import async_meshes, waiting_mesh
from support.source import HandClock

ID = id_text(make_id(77))
OTHER = id_text(make_id(78))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_S10_the_verbs_of_tasks_go_through_the_quorum(kind: str, tmp_path: Path) -> None:
    with waiting_mesh(kind, tmp_path) as (home, mesh):
        task = mesh.tasks.create("build", description="it", id=ID)
        assert (task.task, task.status, task.title) == (ID, TaskStatus.OPEN, "build")
        assert mesh.tasks.create("build", description="it", id=ID) == task
        with pytest.raises(IdReused):
            mesh.tasks.create("other", id=ID)
        claimed = mesh.tasks.claim(ID, id=OTHER)
        assert claimed.claimed_by == "ana"
        assert mesh.tasks.claim(ID, id=OTHER) == claimed, "the same turn"
        assert mesh.tasks.release(ID).status is TaskStatus.OPEN
        assert mesh.tasks.claim(ID).generation == 1
        assert mesh.tasks.complete(ID).status is TaskStatus.COMPLETED
        with pytest.raises(TaskEnded):
            mesh.tasks.cancel(ID)
        with pytest.raises(UnknownTask):
            mesh.tasks.claim("none")
        assert len(home.shared.entries) == 5
        assert all(entry.op.startswith("task.") for entry in home.node.log.range())


def test_S10_of_two_claims_the_one_that_is_committed_first_holds(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with async_meshes(kind, tmp_path, "ana", "bob") as ((home, ana), (_, bob)):
            await ana.tasks.create("build", id=ID)
            home.shared.gate.clear()
            both = [asyncio.create_task(mesh.tasks.claim(ID)) for mesh in (ana, bob)]
            await comes_true(lambda: len(home.shared.proposed) == 3)
            home.shared.gate.set()
            mine, theirs = await asyncio.gather(*both, return_exceptions=True)
            winner, loser = (mine, theirs) if not isinstance(mine, Exception) else (theirs, mine)
            assert isinstance(loser, TaskTaken)
            assert (await bob.tasks.get(ID)).claimed_by == winner.claimed_by  # type: ignore[union-attr]

    run(story)


def test_S10_a_refusal_from_an_old_store_is_not_believed(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with async_meshes(kind, tmp_path, "ana", "bob") as ((_, ana), (home, bob)):
            home.order.cut = True
            await ana.tasks.create("build", id=ID)
            with pytest.raises(UnknownTask):
                await bob.tasks.claim(ID)
            home.order.cut = False
            assert (await bob.tasks.claim(ID)).claimed_by == "bob"
            home.order.cut = True
            with pytest.raises(TaskTaken):
                await ana.tasks.complete(ID)

    run(story)


def test_Q1_a_turn_without_a_quorum_is_queued_and_never_made_here_alone(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with async_meshes(kind, tmp_path) as ((home, mesh),):
            await mesh.tasks.create("build", id=ID)
            home.shared.lose_quorum()
            with pytest.raises(WriteQueued):
                await mesh.tasks.claim(ID, id=OTHER)
            assert (await mesh.tasks.get(ID)).claimed_by is None
            home.shared.regain()
            await comes_true(lambda: home.node.mesh(MESH).tasks.get(ID).claimed_by == "ana")
            assert (await mesh.tasks.claim(ID, id=OTHER)).claimed_by == "ana"

    run(story)


def test_Q1_turns_from_before_the_voters_are_known_by_their_ids(kind: str, tmp_path: Path) -> None:
    with waiting_mesh(kind, tmp_path / "a") as (home, _):
        nodes = Nodes(kind, tmp_path / "b", HandClock())
        node = nodes.open("ana")
        first = node.mesh(MESH).tasks.create("build", id=ID)
        with_voters(node)
        node.bus._bus()._api = home.node.bus._bus()._api
        again = node.mesh(MESH).tasks.create("build", id=ID)
        assert again == first
        nodes.close()
