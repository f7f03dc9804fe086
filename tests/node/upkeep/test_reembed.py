"""Moving vectors to another model: in chunks, with progress, resumable; the old goes at last."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast.node.library.node import Mesh, Node
from holdfast.rules.errors import BadVector, UnknownModel
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.vectors import Model
from support import envelopes as e
from support.nodes import Nodes, team
from support.source import HandClock

DAY_MS = 24 * 3600 * 1000
OLD = Model(provider="test", name="old", dim=2)
NEW = Model(provider="test", name="new", dim=3)


def embed(texts: list[str]) -> Sequence[list[float]]:
    return [[float(len(text)), 0.0, 0.0] for text in texts]


def contents(mesh: Mesh, model: Model) -> list[str]:
    origin = [0.0] * model.dim
    return sorted(hit.content for hit in mesh.vectors.search(origin, model=model, limit=1000))


def fill(node: Node, count: int) -> None:
    for n in range(count):
        team(node).vectors.store(f"k{n:03}", [n, 0], model=OLD, content=f"c{n:03}", metadata=[n])


def test_S8_reembedding_moves_every_vector_of_ours_with_its_content(node: Node) -> None:
    fill(node, 5)
    node.apply([e.vector_store("theirs", [1, 1], model=OLD, content="theirs", lamport=1)])
    seen: list[tuple[int, int]] = []
    moved = team(node).vectors.reembed(OLD, NEW, embed, progress=lambda *at: seen.append(at))
    assert moved == 5
    assert seen[-1] == (5, 5)
    assert contents(team(node), NEW) == [f"c{n:03}" for n in range(5)]
    assert contents(team(node), OLD) == ["theirs"], "other peers move theirs"
    hits = team(node).vectors.search([4.0, 0, 0], model=NEW)
    assert sorted(hit.metadata[0] for hit in hits) == [0, 1, 2, 3, 4]
    old = next(row for row in team(node).vectors.models() if row.id == OLD.fingerprint)
    assert old.deprecated_at is not None


def test_S8_reembedding_goes_in_chunks_and_resumes_after_a_failure(nodes: Nodes) -> None:
    node = nodes.open()
    fill(node, CHUNK_ROWS + 20)
    calls = 0

    def fails_in_the_second_chunk(texts: list[str]) -> Sequence[list[float]]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ConnectionError("the model is away")
        return embed(texts)

    with pytest.raises(ConnectionError):
        team(node).vectors.reembed(OLD, NEW, fails_in_the_second_chunk)
    assert len(contents(team(node), NEW)) == CHUNK_ROWS
    assert len(contents(team(node), OLD)) == 20, "both models answer meanwhile"
    node = nodes.reopen(node)
    assert team(node).vectors.reembed(OLD, NEW, embed) == 20
    assert len(contents(team(node), NEW)) == CHUNK_ROWS + 20
    assert contents(team(node), OLD) == []
    assert team(node).vectors.reembed(OLD, NEW, embed) == 0, "nothing is left to do"


def test_S8_what_changed_while_the_model_was_at_work_is_not_overwritten(node: Node) -> None:
    vectors = team(node).vectors
    fill(node, 3)

    def slow(texts: list[str]) -> Sequence[list[float]]:
        if "c000" in texts:
            vectors.store("k000", [9, 9], model=OLD, content="changed meanwhile")
            vectors.delete("k001", model=OLD)
        return embed(texts)

    assert vectors.reembed(OLD, NEW, slow) == 2
    assert contents(team(node), NEW) == ["c002", "changed meanwhile"]
    assert contents(team(node), OLD) == []


def test_S8_a_younger_vector_under_the_new_model_is_not_overwritten(node: Node) -> None:
    vectors = team(node).vectors
    fill(node, 2)
    vectors.store("k000", [1, 2, 3], model=NEW, content="written under the new model")
    assert vectors.reembed(OLD, NEW, embed) == 2
    assert contents(team(node), NEW) == ["c001", "written under the new model"]
    assert contents(team(node), OLD) == []


def test_S8_an_embedding_that_does_not_fit_moves_nothing(node: Node) -> None:
    fill(node, 2)
    vectors = team(node).vectors
    for wrong in (lambda texts: [[1.0, 2.0, 3.0]], lambda texts: [[1.0], [2.0]]):
        with pytest.raises(BadVector):
            vectors.reembed(OLD, NEW, wrong)
    assert contents(team(node), OLD) == ["c000", "c001"]
    assert contents(team(node), NEW) == []
    with pytest.raises(BadVector):
        vectors.reembed(OLD, OLD, embed)
    with pytest.raises(UnknownModel):
        vectors.reembed(NEW, OLD, embed)


def known(node: Node) -> set[str]:
    return {row.name for row in team(node).vectors.models()}


def test_S8_an_emptied_model_goes_after_thirty_unread_days(node: Node, clock: HandClock) -> None:
    fill(node, 2)
    team(node).vectors.reembed(OLD, NEW, embed)
    clock.advance(29 * DAY_MS)
    assert node.sweep().models == 0
    assert contents(team(node), OLD) == [], "a search: the thirty days begin anew"
    clock.advance(30 * DAY_MS)
    assert node.sweep().models == 0
    clock.advance(1)
    assert node.sweep().models == 1
    assert known(node) == {"new"}
    assert contents(team(node), OLD) == [], "an unknown model finds nothing"
    assert contents(team(node), NEW) == ["c000", "c001"]


def test_S8_a_deprecated_model_that_still_has_vectors_stays(node: Node, clock: HandClock) -> None:
    fill(node, 1)
    node.apply([e.vector_store("theirs", [1, 1], model=OLD, content="theirs", lamport=1)])
    team(node).vectors.reembed(OLD, NEW, embed)
    clock.advance(100 * DAY_MS)
    assert node.sweep().models == 0
    assert contents(team(node), OLD) == ["theirs"]


def test_S8_a_model_that_is_not_deprecated_stays_however_long_it_is_unread(
    node: Node, clock: HandClock
) -> None:
    fill(node, 1)
    team(node).vectors.delete("k000", model=OLD)
    clock.advance(400 * DAY_MS)
    assert node.sweep().models == 0
    assert known(node) == {"old"}


def test_S8_a_vector_that_comes_after_its_model_went_brings_it_back(
    node: Node, clock: HandClock
) -> None:
    fill(node, 1)
    team(node).vectors.reembed(OLD, NEW, embed)
    clock.advance(31 * DAY_MS)
    assert node.sweep().models == 1
    node.apply([e.vector_store("late", [1, 1], model=OLD, content="late", lamport=99)])
    assert contents(team(node), OLD) == ["late"]


def test_S8_a_new_vector_of_a_key_replaces_the_one_before(node: Node) -> None:
    vectors = team(node).vectors
    vectors.store("k", [1, 0], model=OLD, content="one")
    vectors.store("k", [2, 0], model=OLD, content="two")
    assert contents(team(node), OLD) == ["two"]
    vectors.delete("k", model=OLD)
    assert contents(team(node), OLD) == []
    vectors.store("k", [3, 0], model=OLD, content="three")
    assert contents(team(node), OLD) == ["three"]
    rows = node._engine.read(
        "x", lambda tx: tx.vector_scan("team", OLD.fingerprint, 0, 99, live_only=False)
    )
    assert [(row.content, row.live, row.tombstone) for _, row in rows] == [
        *(("one", False, False), ("two", False, False), ("", False, True), ("three", True, False))
    ]


def test_S8_storing_under_a_model_that_was_left_warns_once(node: Node) -> None:
    vectors = team(node).vectors
    fill(node, 1)
    vectors.reembed(OLD, NEW, embed)
    assert node.take_warnings() == []
    stored = vectors.store("late", [1, 2], model=OLD)
    vectors.store("later", [1, 2], model=OLD)
    vectors.store("right", [1, 2, 3], model=NEW)
    (warning,) = node.take_warnings()
    assert (warning.type, warning.mesh, warning.by_peer) == (
        "vector_model_deprecated",
        "team",
        node.peer,
    )
    assert warning.entity == f"{OLD.provider}:{OLD.name}:{OLD.version}"
    assert warning.at_lamport == stored.stamp.lamport
    vectors.store("again", [1, 2], model=OLD)
    assert len(node.take_warnings()) == 1, "who has read it and goes on is told again"
