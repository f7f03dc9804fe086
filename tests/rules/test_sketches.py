"""When a search by sketches has seen enough, and when it should not begin."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.rules import sketches
from holdfast.rules.limits import (
    SEARCH_LIMIT_MAX,
    VECTOR_DIM_MAX,
    VECTOR_PREFILTER_FLOATS,
    VECTOR_PREFILTER_LIMIT,
    VECTOR_SKETCH_DIM_MIN,
)

dims = st.integers(VECTOR_SKETCH_DIM_MIN, VECTOR_DIM_MAX)


@given(dims)
def test_S8_sketches_are_whole_words_and_no_word_too_many(dim: int) -> None:
    size = sketches.sketch_dim(dim)
    assert size % 64 == 0
    assert dim <= size < dim + 64


@given(dims)
def test_S8_a_mesh_gets_sketches_before_it_is_searched_by_them(dim: int) -> None:
    rows = sketches.sketch_rows(dim)
    assert 1 <= rows <= 4096  # sqlite-vec hands out no more at once
    assert not sketches.worth_prefiltering(rows, dim, 1)
    assert len(range(0, rows, sketches.sample_step(rows, dim))) >= min(rows, 12)


@given(dims, st.integers(1, VECTOR_PREFILTER_LIMIT))
def test_S8_the_first_look_always_finds_as_many_as_wanted(dim: int, limit: int) -> None:
    live = math.ceil(VECTOR_PREFILTER_FLOATS / dim)
    assert sketches.worth_prefiltering(live, dim, limit)
    assert limit <= sketches.seeds(limit) <= live
    assert sketches.witnesses(limit) >= 10


def test_S8_short_vectors_small_meshes_and_long_lists_are_searched_one_by_one() -> None:
    assert sketches.sketch_rows(VECTOR_SKETCH_DIM_MIN - 1) == 0
    assert not sketches.worth_prefiltering(10**9, 384, VECTOR_PREFILTER_LIMIT + 1)
    assert not sketches.worth_prefiltering(10**9, 384, SEARCH_LIMIT_MAX)
    assert not sketches.worth_prefiltering(100, 384, 10)


bits = st.lists(st.integers(0, 384), min_size=10, max_size=40)


@given(bits, st.sampled_from([sketches.ENOUGH_MARGIN, sketches.FIRST_MARGIN]))
def test_S8_the_reach_takes_in_all_that_were_found(differing: list[int], margin: float) -> None:
    reach = sketches.reach(differing, 384, margin)
    assert max(differing) <= reach <= 384


@given(bits)
def test_S8_the_first_look_goes_at_least_as_far_as_is_enough(differing: list[int]) -> None:
    enough = sketches.reach(differing, 384, sketches.ENOUGH_MARGIN)
    assert sketches.reach(differing, 384, sketches.FIRST_MARGIN) >= enough


def test_S8_finds_that_pile_up_at_the_edge_ask_for_more() -> None:
    """Unrelated vectors: the nearest of many differ in about 160 bits of 384, give or take 10.
    Those within a reach of 163 are the ones below it, close to it.
    """
    assert sketches.reach([158, 160, 161, 161, 162, 162, 163, 163, 163, 163], 384, 1.5) > 173


def test_S8_finds_of_two_kinds_ask_for_the_reach_of_the_farther_kind() -> None:
    """Seven of a tight cluster and three from anywhere: those decide who the last three are."""
    assert sketches.reach([20, 21, 22, 22, 23, 24, 25, 150, 155, 157], 384, 1.5) > 200


@given(st.integers(0, 384), dims)
def test_S8_half_the_bits_are_too_many_and_few_bits_are_not(goal: int, dim: int) -> None:
    assert sketches.takes_in_too_much(dim // 2, dim)
    assert not sketches.takes_in_too_much(dim // 4, dim)
    assume(goal < dim)
    if sketches.takes_in_too_much(goal, dim):
        assert sketches.takes_in_too_much(goal + 1, dim)


@given(st.floats(0.01, 10), st.floats(0.01, 10), st.floats(0, math.pi), st.integers(192, 2048))
def test_S8_whatever_is_near_enough_stands_within_the_widest_angle(
    radius: float, length: float, angle: float, dim: int
) -> None:
    """By the law of cosines, for vectors of any length."""
    squared = radius**2 + length**2 - 2 * radius * length * math.cos(angle)
    distance = math.sqrt(max(0.0, squared))
    widest = sketches.widest_reach(distance, radius, dim)
    if widest is not None:
        assert widest >= int(dim * angle / math.pi * (1 - 1e-6)) - 1


def test_S8_where_any_direction_is_possible_there_is_no_reach() -> None:
    assert sketches.widest_reach(1.0, 1.0, 384) is None
    assert sketches.widest_reach(2.0, 1.0, 384) is None
    assert sketches.widest_reach(0.1, 0.0, 384) is None


@pytest.mark.parametrize(("longest", "even"), [(1.0, True), (1.04, True), (1.06, False)])
def test_S8_lengths_are_even_within_a_twentieth(longest: float, even: bool) -> None:
    assert sketches.norms_are_even(1.0, longest) is even


def test_S8_a_vector_of_length_zero_makes_lengths_uneven() -> None:
    assert sketches.norms_are_even(0.0, 0.0)
    assert not sketches.norms_are_even(0.0, 1.0)


def test_S8_the_centre_is_the_mean() -> None:
    assert sketches.centre_of([[1.0, 2.0], [3.0, 6.0]]) == [2.0, 4.0]


@pytest.mark.parametrize(
    ("active", "worth"), [(100, True), (50, True), (20, True), (10, False), (1, False), (0, False)]
)
def test_S8_sketches_need_many_dimensions_that_vary(active: int, worth: bool) -> None:
    samples = [
        [sign * 1.0 if place < active else 0.5 for place in range(100)]
        for sign in (1, -1, 1, -1, 1, -1)
    ]
    assert sketches.worth_sketching(samples, sketches.centre_of(samples)) is worth
