"""Whether a clock is believed when something is about to be forgotten by it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.clock_check import ClockCheck, ClockNote, note_after, observe, start
from holdfast.rules.limits import CLOCK_ABSENCE_MS, CLOCK_LEAP_MS, CLOCK_STEADY_MS, DAY_MS, HOUR_MS

WALL = 1_800_000_000_000
START = start(wall_ms=WALL, ticks_ms=0, note=ClockNote(WALL - HOUR_MS, WALL - HOUR_MS, 0))


def after(pace: ClockCheck, ticks: int, *, ahead: int = 0) -> ClockCheck:
    """A look so much later, at a clock that is so much ahead of what it should show."""
    return observe(pace, wall_ms=WALL + ticks + ahead, ticks_ms=ticks)


def test_D7_a_clock_that_keeps_pace_is_believed() -> None:
    assert START.is_believed
    assert after(after(START, HOUR_MS), 40 * DAY_MS).is_believed
    assert start(wall_ms=WALL, ticks_ms=5, note=None).is_believed, "there is nothing to sweep"


def test_D7_a_clock_that_leaps_ahead_is_not_believed_until_it_was_steady_for_a_day() -> None:
    leapt = after(START, HOUR_MS, ahead=40 * DAY_MS)
    assert not leapt.is_believed
    steady = HOUR_MS + CLOCK_STEADY_MS
    assert not after(leapt, steady - 1, ahead=40 * DAY_MS).is_believed
    assert after(leapt, steady, ahead=40 * DAY_MS).is_believed


def test_D7_a_clock_that_leaps_again_begins_its_day_anew() -> None:
    leapt = after(START, HOUR_MS, ahead=40 * DAY_MS)
    again = after(leapt, 20 * HOUR_MS, ahead=80 * DAY_MS)
    assert not after(again, HOUR_MS + CLOCK_STEADY_MS, ahead=80 * DAY_MS).is_believed


def test_D7_a_clock_that_comes_back_is_believed_at_once() -> None:
    leapt = after(START, HOUR_MS, ahead=40 * DAY_MS)
    assert after(leapt, 2 * HOUR_MS).is_believed
    assert after(START, HOUR_MS, ahead=-40 * DAY_MS).is_believed, "nothing goes early by it"


def test_D7_small_leaps_that_add_up_are_one_large_one() -> None:
    pace = START
    for hour in range(1, 8):
        pace = after(pace, hour * HOUR_MS, ahead=hour * HOUR_MS)
    assert not pace.is_believed


def again(
    pace: ClockCheck, note: ClockNote | None, ticks: int, ahead: int, down: int
) -> ClockCheck:
    """A restart: the other clock begins anew, the wall clock has gone on."""
    wall = WALL + ticks + ahead
    kept = note_after(pace, note, wall_ms=wall, ticks_ms=ticks)
    return start(wall_ms=wall + down, ticks_ms=7, note=kept)


def test_D7_who_was_down_for_long_cannot_tell_that_from_a_wrong_clock() -> None:
    assert again(START, None, HOUR_MS, 0, CLOCK_ABSENCE_MS).is_believed
    assert not again(START, None, HOUR_MS, 0, CLOCK_ABSENCE_MS + 1).is_believed


def test_D7_a_restart_while_the_clock_is_wrong_does_not_make_it_right() -> None:
    before = note_after(START, None, wall_ms=WALL, ticks_ms=0)
    leapt = after(START, HOUR_MS, ahead=40 * DAY_MS)
    kept = note_after(leapt, before, wall_ms=WALL + HOUR_MS + 40 * DAY_MS, ticks_ms=HOUR_MS)
    assert kept.believed_at == WALL
    assert not start(wall_ms=WALL + 40 * DAY_MS + 2 * HOUR_MS, ticks_ms=0, note=kept).is_believed
    assert start(wall_ms=WALL + 2 * HOUR_MS, ticks_ms=0, note=kept).is_believed, "it is back"


def test_D7_a_day_of_steadiness_may_be_spread_over_restarts() -> None:
    """Of a laptop that is closed every night."""
    wall, note = WALL, ClockNote(WALL - 9 * DAY_MS, WALL - 9 * DAY_MS, 0)
    believed = []
    for _ in range(4):
        pace = start(wall_ms=wall, ticks_ms=0, note=note)
        pace = observe(pace, wall_ms=wall + 8 * HOUR_MS, ticks_ms=8 * HOUR_MS)
        note = note_after(pace, note, wall_ms=wall + 8 * HOUR_MS, ticks_ms=8 * HOUR_MS)
        believed.append(pace.is_believed)
        wall += DAY_MS
    assert believed == [False, False, True, True]


@given(st.lists(st.tuples(st.integers(1, 6 * HOUR_MS), st.integers(-90 * DAY_MS, 90 * DAY_MS))))
def test_D7_a_clock_far_ahead_is_believed_only_after_a_day_of_looks(
    looks: list[tuple[int, int]],
) -> None:
    pace, ticks, steady_from, anchor = START, 0, 0, 0
    for more, ahead in looks:
        ticks += more
        if abs(ahead - anchor) > CLOCK_LEAP_MS:
            steady_from, anchor = ticks, ahead
        pace = after(pace, ticks, ahead=ahead)
        if ahead > 2 * CLOCK_LEAP_MS and pace.is_believed:
            was = pace.believed_ms
            assert was is not None
            assert (
                ahead - (was - WALL) <= 2 * CLOCK_LEAP_MS or ticks - steady_from >= CLOCK_STEADY_MS
            )
