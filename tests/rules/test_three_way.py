"""Two changes of one value: merged where they do not meet, and a clash where they do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.three_way import merge

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("base", "theirs", "ours", "value", "clashes"),
    [
        ({"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 2}, ()),
        ({"a": 1}, {"a": 1, "b": 1}, {"a": 1, "c": 1}, {"a": 1, "c": 1, "b": 1}, ()),
        ({"a": 1, "b": 1}, {"b": 1}, {"a": 1, "b": 2}, {"b": 2}, ()),
        ({"a": 1}, {}, {"a": 2}, {"a": 2}, (".a",)),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, {"a": {"b": 3}}, {"a": {"b": 3}}, (".a.b",)),
        ({}, {"a": {"x": 1}}, {"a": {"y": 1}}, {"a": {"y": 1, "x": 1}}, ()),
        ([1], [1, 2], [1, 3], [1, 3], (".",)),
        ("a", "b", "c", "c", (".",)),
        ("a", "b", "b", "b", ()),
        ({"a": None}, {}, {"a": None}, {}, ()),
        ({"a": 1}, {"a": True}, {"a": 1.0}, {"a": 1.0}, (".a",)),
    ],
)
def test_S18_what_does_not_meet_is_merged(
    base: Any, theirs: Any, ours: Any, value: Any, clashes: tuple[str, ...]
) -> None:
    assert merge(base, theirs, ours) == (value, clashes)


@given(VALUES, VALUES)
def test_S18_a_side_that_changed_nothing_changes_nothing(base: Any, other: Any) -> None:
    assert merge(base, base, other) == (other, ())
    assert merge(base, other, base) == (other, ())
    assert merge(base, other, other) == (other, ())


@given(VALUES, VALUES, VALUES)
def test_S18_both_sides_come_to_the_same_unless_they_clash(base: Any, one: Any, two: Any) -> None:
    here, there = merge(base, one, two), merge(base, two, one)
    assert set(here.clashes) == set(there.clashes)
    if not here.clashes:
        assert here.value == there.value
