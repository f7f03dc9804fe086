"""Q1: how each kind of data travels."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.rules.data_classes import (
    FAMILIES,
    TRAVELS,
    DataClass,
    WriteClass,
    data_class_of,
    write_class_of,
)
from holdfast.rules.errors import BadValue

# Written out a second time, so that a slip in the matrix is seen.
WITH_VOTERS = {
    "tasks": "strong",
    "task_metadata": "strong",
    "missions": "strong",
    "agent_definitions": "strong",
    "agent_runtime": "local",
    "project_settings": "strong",
    "auth_material": "queued",
    "run_activity": "local",
    "run_outcomes": "queued",
    "audit_events": "append-only",
    "leases": "strong",
    "node_status": "strong",
    "file_blobs": "queued",
    "memory": "queued",
    "state": "queued",
    "vectors": "append-only",
    "facts": "append-only",
    "messages": "queued",
    "peer_cache": "local",
}


def test_Q1_write_classes_have_the_words_of_the_contract() -> None:
    assert list(WriteClass) == ["strong", "append-only", "queued", "local"]


def test_Q1_every_data_class_stands_in_the_matrix() -> None:
    assert set(TRAVELS) == set(DataClass)
    assert set(DataClass) == set(WITH_VOTERS)


@pytest.mark.parametrize("data_class", DataClass)
def test_Q1_with_voters_each_class_travels_as_the_contract_says(data_class: DataClass) -> None:
    assert write_class_of(data_class, voters=True) == WITH_VOTERS[data_class]


@pytest.mark.parametrize("data_class", DataClass)
def test_Q1_without_voters_only_tasks_travel_in_another_way(data_class: DataClass) -> None:
    without = write_class_of(data_class, voters=False)
    if data_class in (DataClass.TASKS, DataClass.TASK_METADATA):
        assert without is WriteClass.QUEUED
    else:
        assert without is write_class_of(data_class, voters=True)


@pytest.mark.parametrize("voters", [True, False])
@pytest.mark.parametrize("data_class", DataClass)
def test_Q1_no_strong_write_is_ever_made_local(data_class: DataClass, voters: bool) -> None:
    if WriteClass.STRONG in TRAVELS[data_class]:
        assert write_class_of(data_class, voters=voters) is not WriteClass.LOCAL
    # And whether something leaves the node at all never depends on voters.
    local = [travel is WriteClass.LOCAL for travel in TRAVELS[data_class]]
    assert all(local) or not any(local)


def test_Q1_every_family_of_a_node_has_its_data_class() -> None:
    families = ["memory", "state", "vector", "file", "task", "fact", "message", "audit", "peer"]
    assert list(FAMILIES) == families
    found = [write_class_of(data_class_of(family), voters=False) for family in families]
    assert found == [
        "queued",
        "queued",
        "append-only",
        "queued",
        "queued",
        "append-only",
        "queued",
        "append-only",
        "local",
    ]
    assert write_class_of(data_class_of("task"), voters=True) is WriteClass.STRONG


def test_Q1_an_unknown_family_is_refused() -> None:
    with pytest.raises(BadValue, match="unknown family 'tasks'"):
        data_class_of("tasks")


@pytest.mark.parametrize("table", [TRAVELS, FAMILIES])
def test_Q1_nobody_changes_the_matrix_at_run_time(table: Any) -> None:
    with pytest.raises(TypeError):
        table["x"] = None
