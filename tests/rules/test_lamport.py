"""The Lamport clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.errors import BadStamp
from holdfast.rules.lamport import check_incoming, merge_run, tick
from holdfast.rules.limits import LAMPORT_LEAP_MAX, LAMPORT_MAX

TIMES = st.integers(0, 2**62)


@given(TIMES, TIMES)
def test_S4_a_tick_is_past_both_clocks_by_one(value: int, incoming: int) -> None:
    assert tick(value) == value + 1
    assert tick(value, incoming) == max(value, incoming) + 1


@given(TIMES, st.integers(1, LAMPORT_LEAP_MAX))
def test_S4_a_stamp_that_is_not_absurdly_ahead_passes(value: int, leap: int) -> None:
    assert check_incoming(value, value + leap) == value + leap
    assert check_incoming(value, 1) == 1, "the past always passes"


@pytest.mark.parametrize("value", [0, 1, 2**40])
def test_S4_the_leap_has_a_limit(value: int) -> None:
    assert check_incoming(value, value + LAMPORT_LEAP_MAX)
    with pytest.raises(BadStamp):
        check_incoming(value, value + LAMPORT_LEAP_MAX + 1)


@pytest.mark.parametrize(
    "stamp", [0, -1, -(2**63), LAMPORT_MAX, 2**63, 2**70, True, False, 1.0, "1", None]
)
def test_S4_only_a_positive_63_bit_integer_is_a_stamp(stamp: object) -> None:
    with pytest.raises(BadStamp):
        check_incoming(LAMPORT_MAX - 1, stamp)  # type: ignore[arg-type]
    assert check_incoming(LAMPORT_MAX - 2, LAMPORT_MAX - 1) == LAMPORT_MAX - 1


NEAR_THE_END = st.integers(LAMPORT_MAX - LAMPORT_LEAP_MAX - 9, LAMPORT_MAX)
STAMPS = st.integers(-3, 40) | st.integers(LAMPORT_LEAP_MAX, LAMPORT_LEAP_MAX + 40) | NEAR_THE_END


@given(st.integers(0, 40) | NEAR_THE_END, st.lists(STAMPS | st.booleans(), max_size=8))
def test_S4_a_run_of_merged_events_is_one_after_the_other(value: int, stamps: list[int]) -> None:
    expected: int | None = value
    for stamp in stamps:
        try:
            check_incoming(expected, stamp)  # type: ignore[arg-type]
        except BadStamp:
            expected = None
            break
        expected = tick(expected, stamp)  # type: ignore[arg-type]
    if expected is None:
        with pytest.raises(BadStamp):
            merge_run(value, stamps)
    else:
        assert merge_run(value, stamps) == expected
