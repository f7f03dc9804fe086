"""`mesh.entities`: one verb for every change, and reads that say how fresh they are."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from holdfast.node.library.aio_entities import LOCAL, AsyncEntities, entity_operation, within
from holdfast.node.library.entities import Entities
from holdfast.rules.errors import (
    BadInput,
    HasChildren,
    HasVoters,
    IdReused,
    NoQuorum,
    NotFresh,
    RevisionMoved,
    TooStale,
    UnknownEntity,
    UnknownEntityType,
)
from holdfast.rules.ids import id_text
from support.envelopes import MESH, make_id
from support.nodes import KINDS, Nodes
from support.quorum_homes import run
from support.quorum_library import async_meshes, waiting_mesh
from support.source import HandClock

ID = id_text(make_id(77))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_Q5_entities_are_put_patched_deleted_and_read(kind: str, tmp_path: Path) -> None:
    with waiting_mesh(kind, tmp_path) as (_, mesh):
        entities = mesh.entities
        first = entities.put("mission", "m", {"title": "a", "note": 1}, base=0)
        assert (first.state, first.outcome) == ("committed", "applied")
        entities.patch("mission", "m", {"title": "b"}, remove=["note"], base=1)
        found = entities.get("mission", "m")
        assert found.read.mode == "fresh"
        assert found.entity is not None
        assert (found.entity.revision, found.entity.fields) == (2, {"title": "b"})
        assert found.entity.fence > first.fence
        entities.put("milestone", "s", {"title": "s", "missionId": "m"})
        with pytest.raises(HasChildren):
            entities.delete("mission", "m")
        both = [
            entity_operation("delete", "milestone", "s"),
            entity_operation("delete", "mission", "m", base=2),
        ]
        entities.change(both)
        assert entities.get("mission", "m").entity is None
        history = entities.history("mission", "m").revisions
        assert [(one.revision, one.deleted) for one in history] == [
            (1, False),
            (2, False),
            (3, True),
        ]
        with pytest.raises(UnknownEntity):
            entities.history("mission", "never")


def test_Q5_a_change_for_another_revision_is_refused_and_one_id_is_one_change(
    kind: str, tmp_path: Path
) -> None:
    with waiting_mesh(kind, tmp_path) as (home, mesh):
        entities = mesh.entities
        entities.put("mission", "m", {"title": "a"}, intent_id=ID)
        assert entities.put("mission", "m", {"title": "a"}, intent_id=ID).number == 1
        with pytest.raises(IdReused):
            entities.put("mission", "m", {"title": "b"}, intent_id=ID)
        with pytest.raises(RevisionMoved):
            entities.put("mission", "m", {"title": "b"}, base=7)
        with pytest.raises(BadInput):
            entities.change([])
        with pytest.raises(UnknownEntityType):
            entities.get("misson", "m")
        assert len(home.shared.entries) == 2


def test_Q9_each_read_is_as_fresh_as_it_says_or_refused(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with async_meshes(kind, tmp_path, "ana", "bob") as ((home, ana), (away, bob)):
            away.order.cut = True
            await ana.entities.put("mission", "m", {"title": "a"})
            assert (await bob.entities.get("mission", "m", demand=LOCAL)).entity is None
            with pytest.raises(NotFresh):
                await bob.entities.get("mission", "m")
            with pytest.raises(TooStale):
                await bob.entities.list("mission", demand=within(1_000))
            away.order.cut = False
            listed = await bob.entities.list("mission")
            assert [one.id for one in listed.entities] == ["m"]
            assert (listed.read.mode, listed.read.source_node_id) == ("fresh", "bob")
            home.shared.lose_quorum()
            told = await bob.entities.put("mission", "n", {"title": "b"})
            assert told.state == "queued"
            local = await bob.entities.get("mission", "n", demand=LOCAL)
            assert local.entity is None, "what waits is not state"
            assert (local.read.mode, local.read.pending_write_count) == ("degraded", 1)

    run(story)


def test_Q9_lists_are_read_in_pages(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with async_meshes(kind, tmp_path) as ((_, mesh),):
            for name in "abc":
                await mesh.entities.put("mission", name, {"title": name})
            page = await mesh.entities.list("mission", limit=2)
            rest = await mesh.entities.list("mission", after=page.entities[-1].id)
            assert [one.id for one in (*page.entities, *rest.entities)] == ["a", "b", "c"]

    run(story)


def test_U2_both_faces_have_the_same_verbs() -> None:
    def verbs(face: type) -> dict[str, str]:
        found = inspect.getmembers(face, inspect.isfunction)
        return {
            name: str(inspect.signature(verb)) for name, verb in found if not name.startswith("_")
        }

    assert verbs(Entities) == verbs(AsyncEntities)


def test_Q1_without_a_way_to_the_voters_nothing_is_written(kind: str, tmp_path: Path) -> None:
    nodes = Nodes(kind, tmp_path, HandClock())
    node = nodes.open("ana")
    try:
        node.bus._bus()._api = _NoQuorums()  # type: ignore[assignment]
        with pytest.raises(NoQuorum):
            node.mesh(MESH).entities.put("mission", "m", {"title": "a"})
        from holdfast.node.library.node import Mesh

        with pytest.raises(HasVoters):
            Mesh(node._engine, MESH).entities.put("mission", "m", {"title": "a"})
    finally:
        nodes.close()


class _NoQuorums:
    """A bus of a process that takes part in no quorum."""

    quorum = None

    async def close(self) -> None: ...
