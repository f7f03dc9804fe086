"""What a node covers of a stream, against plain sets of numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.bus.meshes.coverage import (
    NOTHING,
    StreamName,
    StreamNumbers,
    cover,
    cover_all,
    lacking,
    ranges_of,
    read_told,
    told,
    united,
    without,
)
from holdfast.rules.errors import BadAnswer, OverLimit
from holdfast.rules.frontier import Frontier
from holdfast.rules.limits import BUS_STREAMS_MAX, FRONTIER_RANGES_MAX

numbers = st.sets(st.integers(1, 60))


def frontier_of(held: set[int]) -> Frontier:
    return cover_all(NOTHING, [(number, number + 1) for number in sorted(held)])


def set_of(ranges: list[tuple[int, int]]) -> set[int]:
    return {number for start, end in ranges for number in range(start, end)}


@given(numbers, numbers, st.integers(0, 60))
def test_B4_two_frontiers_tell_what_each_lacks(mine: set[int], theirs: set[int], gone: int) -> None:
    found = lacking(frontier_of(mine), frontier_of(theirs), gone)
    assert set_of(found) == {number for number in theirs - mine if number > gone}
    assert found == sorted(found), "in order, so that a request can be cut anywhere"
    assert all(a[1] < b[0] for a, b in pairwise(found)), "and apart"


@given(numbers, numbers)
def test_B4_ranges_without_a_frontier_are_a_difference_of_sets(a: set[int], b: set[int]) -> None:
    assert set_of(without(ranges_of(frontier_of(a)), frontier_of(b))) == a - b


@given(numbers, st.integers(0, 10))
def test_B4_a_word_claims_nothing_that_is_not_covered(held: set[int], most: int) -> None:
    short = told(frontier_of(held), most)
    assert len(short.ranges) <= most
    assert set_of(ranges_of(short)) <= held
    assert read_told(short.prefix, short.ranges) == short


@given(numbers, st.integers(1, 4))
def test_B4_words_that_follow_each_other_tell_everything(held: set[int], most: int) -> None:
    whole = frontier_of(held)
    heard = short = told(whole, most)
    while short.last < whole.last:
        after = short.last
        short = told(whole, most, after)
        assert short.last > after
        heard = united(heard, short)
    assert heard == whole


def test_B4_a_frontier_with_too_many_holes_claims_less_and_grows_again() -> None:
    frontier = NOTHING
    for number in range(2, 2 * FRONTIER_RANGES_MAX + 4, 2):
        frontier = cover(frontier, number, number + 1)
    held = {number for number in range(2, 2 * FRONTIER_RANGES_MAX + 4, 2)}
    claimed = set_of(ranges_of(frontier))
    assert claimed < held
    assert len(frontier.ranges) <= FRONTIER_RANGES_MAX
    whole = cover(frontier, 1, 2 * FRONTIER_RANGES_MAX + 4)
    assert whole == Frontier(2 * FRONTIER_RANGES_MAX + 3)


@pytest.mark.parametrize("ranges", [[(3, 3)], [(5, 4)], [(9, 12), (4, 6)], [(2, 2**63)]])
def test_B4_ranges_out_of_order_are_refused(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(BadAnswer):
        read_told(1, ranges)


def test_B4_a_stream_gets_one_small_number_on_a_link() -> None:
    ours, theirs = StreamNumbers(), StreamNumbers()
    names = [StreamName("team", "ana", epoch) for epoch in range(1, 4)]
    for at, name in enumerate(names):
        assert ours.give(name) == (at, True)
        theirs.learn(at, name)
    assert ours.give(names[1]) == (1, False)
    assert theirs.name(2) == names[2]
    for number, name in ((7, StreamName("team", "bo", 1)), (3, names[0])):
        with pytest.raises(BadAnswer):
            theirs.learn(number, name)
    with pytest.raises(BadAnswer):
        theirs.name(3)


def test_B4_a_peer_cannot_name_streams_without_end() -> None:
    theirs = StreamNumbers()
    for number in range(BUS_STREAMS_MAX):
        theirs.learn(number, StreamName("team", f"p{number}", 1))
    with pytest.raises(OverLimit):
        theirs.learn(BUS_STREAMS_MAX, StreamName("team", "one more", 1))
