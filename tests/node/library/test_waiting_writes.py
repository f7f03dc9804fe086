"""`mesh.writes`: programs see what waited and what clashed, and decide it."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from holdfast.node.library.aio_entities import entity_operation
from holdfast.node.library.aio_waiting_writes import AsyncWaitingWrites
from holdfast.node.library.waiting_writes import WaitingWrites
from holdfast.rules.envelope import encode
from holdfast.rules.errors import AlreadyResolved, BadInput, UnknownConflict, UnknownMessage
from holdfast.rules.ids import id_text
from support.envelopes import make_id
from support.nodes import KINDS
from support.quorum_homes import run
from support.quorum_library import async_meshes, waiting_mesh
from support.quorum_state import change, operation


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_Q6_Q7_a_program_settles_a_write_that_waited_and_clashed(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with async_meshes(kind, tmp_path) as ((home, mesh),):
            await mesh.entities.put("mission", "m", {"title": "a"})
            home.shared.lose_quorum()
            mine = await mesh.entities.patch("mission", "m", {"title": "mine"}, base=1)
            assert [one.status for one in await mesh.writes.list()] == ["pending"]
            theirs = operation("put", "mission", "m", {"title": "theirs"}, base=1)
            home.shared.append(encode(change(theirs)))
            home.shared.regain()
            await mesh.writes.replay()
            failed = await mesh.writes.get(mine.id)
            assert (failed.status, failed.outcome) == ("failed", "conflict_requires_merge")
            assert [one.id for one in await mesh.writes.list("failed")] == [mine.id]
            (conflict,) = await mesh.writes.conflicts()
            assert conflict.intent == mine.id
            both = [entity_operation("put", "mission", "m", {"title": "both"})]
            with pytest.raises(BadInput):
                await mesh.writes.resolve(mine.id, "committed", operations=both)
            done = await mesh.writes.resolve(mine.id, "fields", operations=both, by="policy:both")
            assert done.resolution.startswith("fields by policy:both")
            stands = (await mesh.entities.get("mission", "m")).entity
            assert stands is not None
            assert stands.fields == {"title": "both"}
            assert await mesh.writes.conflicts() == []
            assert len(await mesh.writes.conflicts(settled=True)) == 1
            with pytest.raises(AlreadyResolved):
                await mesh.writes.resolve(conflict.number, "intent")

    run(story)


def test_Q7_what_nobody_knows_is_not_settled(kind: str, tmp_path: Path) -> None:
    with waiting_mesh(kind, tmp_path) as (_, mesh):
        mesh.entities.put("mission", "m", {"title": "a"})
        assert mesh.writes.list() == []
        with pytest.raises(UnknownConflict):
            mesh.writes.resolve(1, "committed")
        with pytest.raises(UnknownMessage):
            mesh.writes.resolve(id_text(make_id(9)), "committed")
        assert mesh.writes.replay().attempted == 0


def test_U2_both_faces_of_waiting_writes_have_the_same_verbs() -> None:
    def verbs(face: type) -> dict[str, str]:
        found = inspect.getmembers(face, inspect.isfunction)
        return {
            name: str(inspect.signature(verb)) for name, verb in found if not name.startswith("_")
        }

    assert verbs(WaitingWrites) == verbs(AsyncWaitingWrites)
