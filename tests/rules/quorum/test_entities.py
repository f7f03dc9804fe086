"""Q1, Q5, Q11: what entities may hold, and the shape that they have together."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.rules import limits
from holdfast.rules.bodies import TaskCreate
from holdfast.rules.data_classes import ENTITY_TYPES, WriteClass, write_class_of
from holdfast.rules.ids import id_text
from holdfast.rules.quorum.degraded_read import make_snapshot
from holdfast.rules.reconcile import Outcome
from support.envelopes import make_id
from support.quorum_state import QuorumState, change, intent, operation

SAMPLES: dict[str, dict[str, Any]] = {
    "task": {"title": "t", "description": "", "column": "todo", "dependencies": [], "steps": [{}]},
    "task_metadata": {"priority": "high", "modelOverrides": {"a": 1}, "documents": ["d"]},
    "mission": {"title": "m"},
    "milestone": {"title": "k", "missionId": "x"},
    "slice": {"title": "s", "milestoneId": "x"},
    "feature": {"title": "f", "sliceId": "x"},
    "agent_definition": {"name": "a", "model": "m", "maxTokens": 5},
    "project_settings": {"theme": "dark", "requirePassword": True, "token": ""},
    "mesh_settings": {"handoff": "park", "minority": "queue", "lostAfterMs": 5_000},
}


@pytest.fixture
def state() -> QuorumState:
    return QuorumState()


def refusal(state: QuorumState, *operations: Any) -> str:
    decision = state.fold(change(*operations))
    assert decision.outcome is None
    return decision.reason


def put(state: QuorumState, type: str, id: str, **fields: Any) -> None:
    decision = state.fold(change(operation("put", type, id, {**SAMPLES[type], **fields})))
    assert decision.outcome is Outcome.APPLIED, decision


def test_Q1_every_row_of_the_matrix_that_is_an_entity_can_be_written(state: QuorumState) -> None:
    assert set(SAMPLES) == set(ENTITY_TYPES)
    for type, fields in SAMPLES.items():
        # In the order of the matrix, so that parents come first.
        made = {**fields, "laterField": {"kept": [1]}}
        base = 0 if type == "task_metadata" else None
        id = "quorum" if type == "mesh_settings" else "x"
        decision = state.fold(change(operation("put", type, id, made, base=base)))
        assert decision.outcome is Outcome.APPLIED, (type, decision)
        assert msgspec.json.decode(state.entities[type, id].fields) == made
        assert write_class_of(ENTITY_TYPES[type], voters=True) is WriteClass.STRONG


@pytest.mark.parametrize(
    ("type", "fields", "reason"),
    [
        ("task", {}, "bad_entity"),
        ("task", {"title": ""}, "bad_entity"),
        ("task", {"title": 5}, "bad_entity"),
        ("task", {"title": "t", "dependencies": "x"}, "bad_entity"),
        ("task", {"title": "t", "dependencies": [1]}, "bad_entity"),
        ("task", {"title": "t", "dependencies": ["a", "a"]}, "bad_entity"),
        ("task", {"title": "t", "dependencies": [f"t{n}" for n in range(65)]}, "bad_entity"),
        ("task", {"title": "t", "steps": [1]}, "bad_entity"),
        ("task", {"title": "t", "steps": [{}] * 257}, "bad_entity"),
        ("task", {"title": "t", "column": ""}, "bad_entity"),
        ("task", {"title": "t", "description": None}, "bad_entity"),
        ("task_metadata", {"priority": True}, "bad_entity"),
        ("task_metadata", {"modelOverrides": []}, "bad_entity"),
        ("task_metadata", {"documents": {}}, "bad_entity"),
        ("milestone", {"title": "k"}, "bad_entity"),
        ("milestone", {"title": "k", "missionId": 4}, "bad_entity"),
        ("milestone", {"title": "k", "missionId": "none"}, "orphaned"),
        ("slice", {"title": "k", "milestoneId": "none"}, "orphaned"),
        ("feature", {"title": "k", "sliceId": "none"}, "orphaned"),
        ("task_metadata", {}, "orphaned"),
        ("agent_definition", {}, "bad_entity"),
        ("agent_definition", {"name": "a", "worktreePath": "/x"}, "bad_entity"),
        ("agent_definition", {"name": "a", "last_heartbeat_at": 5}, "bad_entity"),
        ("agent_definition", {"name": "a", "apiKey": "s3"}, "secret_refused"),
        ("project_settings", {"apiKey": "s3"}, "secret_refused"),
        ("project_settings", {"deep": [{"GitHub-Token": "s3"}]}, "secret_refused"),
        ("project_settings", {"providerAuth": {"x": 1}}, "secret_refused"),
        ("project_settings", {"OPENAI_API_KEY": "s3"}, "secret_refused"),
        ("project_settings", {"db": {"password": "s3"}}, "secret_refused"),
        ("mesh_settings", {}, "bad_entity"),  # under another id than theirs
        ("mesh_settings", {"handoff": "drop"}, "bad_entity"),
        ("mesh_settings", {"minority": "local"}, "bad_entity"),
        ("mesh_settings", {"lostAfterMs": 0}, "bad_entity"),
        ("mesh_settings", {"lostAfterMs": True}, "bad_entity"),
        ("mission", {f"f{n}": 1 for n in range(257)}, "over_limit"),
        ("mission", {"title": "t", "x": "y" * limits.ENTITY_BYTES_MAX}, "over_limit"),
        ("mission", {"title": "t", "": 1}, "bad_key"),
        ("mission", {"title": "t", "deep": [{"n": 2**53}]}, "bad_entity"),
        ("mission", {"title": "t", "n": -(2**53)}, "bad_entity"),
    ],
)
def test_Q5_fields_that_break_a_rule_of_their_type_are_refused(
    state: QuorumState, type: str, fields: dict[str, Any], reason: str
) -> None:
    base = 0 if type == "task_metadata" else None
    id = "quorum" if type == "mesh_settings" and fields else "x"
    decision = state.fold(change(operation("put", type, id, fields, base=base)))
    assert (decision.outcome, decision.reason) == (None, reason)
    assert "s3" not in repr(decision)
    assert not state.entities


def test_Q9_what_entities_may_hold_can_be_written_as_a_snapshot(state: QuorumState) -> None:
    odd = {"n": 2**53 - 1, "m": -(2**53) + 1, "text": "9" * 40, "x": [1e300, 0.1, -0.0], "é": None}
    put(state, "mission", "x", **odd)
    fields = msgspec.json.decode(state.entities["mission", "x"].fields)
    assert len(make_snapshot("team", "ana", 0, fields).version) == 64


def test_Q11_a_secret_in_a_patch_is_refused_too(state: QuorumState) -> None:
    put(state, "project_settings", "x")
    secret = operation("patch", "project_settings", "x", {"accessToken": "s3"})
    assert refusal(state, secret) == "secret_refused"


def test_Q5_a_patch_may_not_take_away_what_its_type_needs_or_grow_too_large(
    state: QuorumState,
) -> None:
    put(state, "mission", "x")
    bare = operation("patch", "mission", "x", {"goal": 1}, removed=("title",))
    assert refusal(state, bare) == "bad_entity"
    large = {"a": "y" * (limits.ENTITY_BYTES_MAX - 100)}
    assert state.fold(change(operation("patch", "mission", "x", large))).outcome
    more = operation("patch", "mission", "x", {"b": "y" * 200})
    assert refusal(state, more) == "over_limit"
    for start in (0, 250):
        fields = {f"f{n}": n for n in range(start, start + 250)}
        grown = state.fold(change(operation("patch", "mission", "x", {**fields, "a": 1})))
    assert (grown.outcome, grown.reason) == (None, "over_limit")


def test_Q5_a_parent_with_children_stays_unless_they_go_with_it(state: QuorumState) -> None:
    put(state, "mission", "m")
    put(state, "milestone", "k", missionId="m")
    put(state, "slice", "s", milestoneId="k")
    put(state, "feature", "f", sliceId="s")
    gone = {
        type: operation("delete", type, id)
        for type, id in (("mission", "m"), ("milestone", "k"), ("slice", "s"), ("feature", "f"))
    }
    for type in ("mission", "milestone", "slice"):
        assert refusal(state, gone[type]) == "has_children"
    assert refusal(state, gone["mission"], gone["milestone"]) == "has_children"
    assert state.fold(change(*gone.values())).outcome is Outcome.APPLIED
    assert all(row.deleted for row in state.entities.values())


def test_Q5_children_may_move_and_then_their_parent_may_go(state: QuorumState) -> None:
    put(state, "mission", "m")
    put(state, "mission", "n")
    put(state, "milestone", "k", missionId="m")
    nowhere = operation("patch", "milestone", "k", {"missionId": "gone"})
    assert refusal(state, nowhere) == "orphaned"
    moves = operation("patch", "milestone", "k", {"missionId": "n"})
    leaves = operation("delete", "mission", "m")
    # The mission that gets a child in this intent cannot go with it.
    assert refusal(state, moves, operation("delete", "mission", "n")) == "orphaned"
    assert state.fold(change(leaves, moves)).outcome is Outcome.APPLIED
    assert state.entities["milestone", "k"].parent == "n"
    new = operation("put", "milestone", "l", {"title": "l", "missionId": "fresh"})
    above = operation("put", "mission", "fresh", {"title": "later in the same intent"})
    assert state.fold(change(new, above)).outcome is Outcome.APPLIED


def test_Q5_dependencies_never_close_a_circle(state: QuorumState) -> None:
    put(state, "task", "a", dependencies=["b"])
    assert refusal(state, operation("put", "task", "x", {"title": "t", "dependencies": ["x"]})) == (
        "dependency_cycle"
    )
    assert refusal(state, operation("put", "task", "b", {"title": "t", "dependencies": ["a"]})) == (
        "dependency_cycle"
    )
    put(state, "task", "b", dependencies=["c"])
    put(state, "task", "c")
    closes = operation("patch", "task", "c", {"dependencies": ["a"]})
    assert refusal(state, closes) == "dependency_cycle"
    opens = operation("patch", "task", "b", {"dependencies": []})
    assert state.fold(change(closes, opens)).outcome is Outcome.APPLIED


def test_Q5_a_chain_of_dependencies_is_followed_only_so_far(state: QuorumState) -> None:
    for n in range(limits.DEPENDENCY_WALK_MAX + 1):
        fields = {"title": "t", "dependencies": [f"t{n - 1}"] if n else []}
        row = QuorumState()
        row.fold(change(operation("put", "task", f"t{n}", fields)))
        state.entities.update(row.entities)
    last = operation("put", "task", "end", {"title": "t", "dependencies": ["t1024"]})
    assert refusal(state, last) == "over_limit"
    near = operation("put", "task", "end", {"title": "t", "dependencies": ["t1023"]})
    assert state.fold(change(near)).outcome is Outcome.APPLIED


def test_Q5_a_task_changes_its_column_only_from_where_it_was_seen(state: QuorumState) -> None:
    put(state, "task", "x")
    moves = operation("patch", "task", "x", {"column": "done"})
    assert refusal(state, moves) == "base_required"
    assert refusal(state, operation("put", "task", "x", {"title": "t"})) == "base_required"
    stays = operation("patch", "task", "x", {"column": "todo", "description": "d"})
    assert state.fold(change(stays)).outcome is Outcome.APPLIED
    based = operation("patch", "task", "x", {"column": "done"}, base=2)
    assert state.fold(change(based)).outcome is Outcome.APPLIED


def test_Q1_metadata_may_belong_to_a_task_that_was_created_by_a_turn(state: QuorumState) -> None:
    id = make_id(40)
    name = id_text(id)
    metadata = operation("put", "task_metadata", name, {"priority": 1}, base=0)
    assert refusal(state, metadata) == "orphaned"
    state.fold(intent("task.create", name, TaskCreate("t"), id=id))
    assert state.fold(change(metadata)).outcome is Outcome.APPLIED
    put(state, "task", name)
    assert state.fold(change(operation("delete", "task", name))).outcome is Outcome.APPLIED
    put(state, "task", "x")
    state.fold(change(operation("put", "task_metadata", "x", {}, base=0)))
    assert refusal(state, operation("delete", "task", "x")) == "has_children"
