"""What silver has and a log does not make, and the other way round, counted by whole columns."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from holdfast.pipeline.lake.schema import SILVER, arrow_schema
from holdfast.pipeline.verify.silver import SilverGap, compare_with_silver

THEN = datetime(2026, 1, 1, tzinfo=UTC)
MESHES = {"0/team": "team", "0/none": "none", "1/team": "team"}
STAMP = {"lamport": 5, "peer": "bob", "id": "b"}


def rows(table: str, *some: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"mesh": "team", **row} for row in some], schema=arrow_schema(SILVER[table])
    )


def gap(table: str, silver: dict[str, Any], held: dict[str, Any]) -> SilverGap:
    """Of one row that both have."""
    ours = rows(table, {**held, "mesh": "0/team"})
    return compare_with_silver(table, rows(table, silver), ours, MESHES)["0/team", table]


def test_P3_each_node_is_compared_with_the_meshes_that_it_has() -> None:
    one = {"key": "a", "value": "1", "updated_at": THEN, "tombstone": False, **STAMP}
    silver = rows("state", one, {**one, "key": "b"}, {**one, "key": "c", "mesh": "other"})
    held = rows(
        "state",
        *({**one, "mesh": "0/team", "key": key} for key in ("a", "x", "y")),
        {**one, "mesh": "1/team"},
    )
    assert compare_with_silver("state", silver, held, MESHES) == {
        ("0/team", "state"): SilverGap(behind=1, astray=2),
        ("0/none", "state"): SilverGap(behind=0, astray=0),
        ("1/team", "state"): SilverGap(behind=1, astray=0),
    }


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        ({"lamport": 6, "peer": "ana", "id": "a"}, SilverGap(1, 0)),
        ({"lamport": 5, "peer": "zoe", "id": "a"}, SilverGap(1, 0)),
        ({"lamport": 5, "peer": "bob", "id": "c"}, SilverGap(1, 0)),
        ({"lamport": 5, "peer": "bob", "id": "a"}, SilverGap(0, 1)),
        ({"lamport": 5, "peer": "ana", "id": "z"}, SilverGap(0, 1)),
        ({"lamport": 4, "peer": "zoe", "id": "z"}, SilverGap(0, 1)),
        (STAMP, SilverGap(0, 0)),
    ],
)
def test_P3_only_a_newer_version_of_silver_is_right(
    stamp: dict[str, Any], expected: SilverGap
) -> None:
    row = {"key": "a", "value": "1", "updated_at": THEN, "tombstone": False}
    assert gap("state", {**row, **stamp}, {**row, **STAMP}) == expected


@pytest.mark.parametrize(
    ("tags", "same"),
    [
        (["x", "y"], True),
        (["x"], False),
        (["x", "z"], False),
        (["xy", ""], False),
        ([], False),
        (None, False),
    ],
)
def test_P3_lists_are_compared_item_by_item(tags: list[str] | None, same: bool) -> None:
    row = {"owner": "o", "key": "a", "value": "1", "updated_at": THEN, **STAMP}
    row |= {"tombstone": False, "tags": ["x", "y"]}
    assert gap("memory", {**row, "tags": tags}, row) == SilverGap(0, 0 if same else 1)
    assert gap("memory", {**row, "tags": None}, {**row, "tags": None}) == SilverGap(0, 0)


def test_P3_the_outcome_of_a_kept_version_may_change_and_of_a_task_with_its_last_turn() -> None:
    vector = {"owner": "o", "key": "a", "model": "m", "updated_at": THEN, "tombstone": False}
    dead, live = {**vector, **STAMP, "live": False}, {**vector, **STAMP, "live": True}
    assert gap("vectors", dead, live) == SilverGap(behind=1, astray=0)
    assert gap("vectors", {**live, "lamport": 6}, live) == SilverGap(behind=1, astray=1)
    task = {"task": "t", "known": True, "status": "open", "generation": 1, **STAMP}
    assert gap("tasks", {**task, "status": "claimed"}, task) == SilverGap(behind=1, astray=0)
    assert gap("tasks", {**task, "lamport": 4}, task) == SilverGap(behind=0, astray=1)
