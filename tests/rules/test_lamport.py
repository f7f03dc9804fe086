"""The Lamport clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.errors import BadStamp
from holdfast.rules.lamport import (
    after_loss,
    ceiling,
    check_incoming,
    highest_taken,
    merge_run,
    tick,
)
from holdfast.rules.limits import (
    CRASH_LAMPORT_SKIP,
    DAY_MS,
    KNOWN_PAST_MS,
    LAMPORT_LEAP_MAX,
    LAMPORT_MAX,
    LAMPORT_STEP_MAX,
)

TIMES = st.integers(0, 2**62)
NOW = KNOWN_PAST_MS + 30 * DAY_MS
WALLS = st.sampled_from([-5, 0, 1000, KNOWN_PAST_MS, NOW, NOW + 400 * DAY_MS, 5 * 10**12, 2**62])
"""Wall clocks: dead ones, right ones, ones that are ahead."""


@given(TIMES, TIMES)
def test_S4_a_tick_is_past_both_clocks_by_one(value: int, incoming: int) -> None:
    assert tick(value) == value + 1
    assert tick(value, incoming) == max(value, incoming) + 1


@given(TIMES, TIMES, WALLS)
def test_S4_a_stamp_passes_exactly_up_to_the_highest_that_a_clock_takes(
    value: int, leap: int, now: int
) -> None:
    most = highest_taken(value, now)
    assert check_incoming(value, 1, now) == 1, "the past always passes"
    assert check_incoming(value, most, now) == most
    assert most <= value + max(LAMPORT_LEAP_MAX, LAMPORT_STEP_MAX)
    assert most <= max(value + LAMPORT_STEP_MAX, ceiling(now))
    with pytest.raises(BadStamp):
        check_incoming(value, most + 1 + leap, now)


@pytest.mark.parametrize("value", [0, 1, 2**40])
def test_S4_the_leap_has_a_limit_of_its_own(value: int) -> None:
    late = 2**62
    assert check_incoming(value, value + LAMPORT_LEAP_MAX, late)
    with pytest.raises(BadStamp, match=r"2\^48"):
        check_incoming(value, value + LAMPORT_LEAP_MAX + 1, late)


def test_S4_a_clock_that_stands_at_nothing_takes_the_highest_that_a_mesh_has_given() -> None:
    in_2100 = 4_102_444_800_000
    for now in (0, KNOWN_PAST_MS, NOW, in_2100):
        assert check_incoming(0, ceiling(now), now) == ceiling(now)


@given(WALLS)
def test_S4_no_number_of_envelopes_moves_a_clock_past_its_time(now: int) -> None:
    """The outsiders' attack: each stamp as far ahead of the last as passes."""
    value = 0
    for _ in range(40_000):
        value = tick(value, highest_taken(value, min(now, NOW)))
    assert value <= ceiling(NOW) + 40_000 * (LAMPORT_STEP_MAX + 1)
    assert value < LAMPORT_MAX // 2**15, "a step each: 2^49 envelopes reach the end, not 2^15"


def test_S4_honest_nodes_are_not_refused_whatever_their_wall_clocks_show() -> None:
    """A thousand stamps a millisecond for a whole day, judged by a node with a dead clock."""
    value = 1000 * DAY_MS
    for now in (-1, 0, KNOWN_PAST_MS, NOW):
        assert check_incoming(0, value, now) == value


@pytest.mark.parametrize("worn", [ceiling(NOW) + 1, 2**50, 2**62, LAMPORT_MAX - 2**20])
def test_S4_a_worn_mesh_goes_on_in_small_steps(worn: int) -> None:
    assert check_incoming(worn, worn + 1, NOW)
    assert check_incoming(worn, worn + LAMPORT_STEP_MAX, NOW)
    with pytest.raises(BadStamp):
        check_incoming(worn, worn + LAMPORT_STEP_MAX + 1, NOW)
    there = after_loss(worn, CRASH_LAMPORT_SKIP, NOW)
    assert worn < there < LAMPORT_MAX
    assert check_incoming(worn, there + LAMPORT_STEP_MAX // 4, NOW), (
        "and others take what it writes"
    )


def test_S4_a_million_crashes_leave_a_clock_that_everybody_takes() -> None:
    value = 0
    for _ in range(1_000_000):
        value = after_loss(value, CRASH_LAMPORT_SKIP, 0)
    assert check_incoming(0, value, 0) == value
    assert value < ceiling(0) // 4


def test_S4_at_its_end_a_clock_skips_nothing_more() -> None:
    assert after_loss(LAMPORT_MAX, CRASH_LAMPORT_SKIP, NOW) == LAMPORT_MAX - 1


@pytest.mark.parametrize(
    "stamp", [0, -1, -(2**63), LAMPORT_MAX, 2**63, 2**70, True, False, 1.0, "1", None]
)
def test_S4_only_a_positive_63_bit_integer_is_a_stamp(stamp: object) -> None:
    with pytest.raises(BadStamp):
        check_incoming(LAMPORT_MAX - 1, stamp, NOW)  # type: ignore[arg-type]
    assert check_incoming(LAMPORT_MAX - 2, LAMPORT_MAX - 1, NOW) == LAMPORT_MAX - 1


NEAR_THE_END = st.integers(LAMPORT_MAX - LAMPORT_LEAP_MAX - 9, LAMPORT_MAX)
NEAR_THE_TOP = st.integers(ceiling(NOW) - 9, ceiling(NOW) + 9)
STAMPS = st.integers(-3, 40) | st.integers(2**14, 2**14 + 40) | NEAR_THE_TOP | NEAR_THE_END


@given(
    st.integers(0, 40) | NEAR_THE_TOP | NEAR_THE_END,
    st.lists(STAMPS | st.booleans(), max_size=8),
    WALLS,
)
def test_S4_a_run_of_merged_events_is_one_after_the_other(
    value: int, stamps: list[int], now: int
) -> None:
    expected: int | None = value
    for stamp in stamps:
        try:
            check_incoming(expected, stamp, now)  # type: ignore[arg-type]
        except BadStamp:
            expected = None
            break
        expected = tick(expected, stamp)  # type: ignore[arg-type]
    if expected is None:
        with pytest.raises(BadStamp):
            merge_run(value, stamps, now)
    else:
        assert merge_run(value, stamps, now) == expected
