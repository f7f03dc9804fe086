"""When entries were recorded, by a wall clock that was set now and then."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.limits import CLOCK_STEP_MS, DAY_MS, HOUR_MS, LOG_TURNS_MAX
from holdfast.rules.recorded import (
    ClockTurn,
    next_time,
    recorded_by,
    with_turn,
)

START = 1_800_000_000_000
YEAR = 400 * DAY_MS


class Log:
    """A log in lists, with the true time of each entry beside it."""

    def __init__(self) -> None:
        self.first = 1
        self.times: list[int] = []
        self.true: list[int] = []
        self.turns: tuple[ClockTurn, ...] = ()
        self.now = START

    def write(self, *, wrong_ms: int = 0) -> int:
        shown = self.now + wrong_ms
        newest = self.times[-1] if self.times else shown
        time = next_time(newest, shown)
        if time < newest:
            self.turns = with_turn(self.turns, ClockTurn(len(self.times) + 1, newest, time))
        self.times.append(time)
        self.true.append(self.now)
        return len(self.times)

    def at(self, at_ms: int, now_ms: int | None = None, *, cautious: bool = False) -> int:
        return recorded_by(
            at_ms,
            self.now if now_ms is None else now_ms,
            (self.first, len(self.times)),
            self.turns,
            lambda offset: self.times[offset - 1] if offset >= self.first else 0,
            cautious=cautious,
        )


@pytest.mark.parametrize("cautious", [False, True])
def test_S19_a_clock_that_was_ahead_once_harms_nothing_after_it_was_corrected(
    cautious: bool,
) -> None:
    log = Log()
    for wrong in (0, 0, YEAR, YEAR, 0, 0, 0):
        log.now += HOUR_MS
        log.write(wrong_ms=wrong)
    seen = [log.at(START + hour * HOUR_MS, cautious=cautious) for hour in range(9)]
    assert seen == [0, 1, 2, 2, 2, 5, 6, 7, 7], "what came at the leap counts as the next did"


def test_S19_what_stands_in_the_future_counts_as_now() -> None:
    log = Log()
    log.write()
    log.write(wrong_ms=YEAR)
    log.now += HOUR_MS
    assert log.at(log.now) == 2, "although nothing was written since the correction"
    assert log.at(log.now - 1) == 1


def test_S19_a_clock_that_was_behind_once_does_not_make_what_came_before_it_older() -> None:
    log = Log()
    for wrong in (0, 0, -YEAR, -YEAR, 0, 0):
        log.now += HOUR_MS
        log.write(wrong_ms=wrong)
    assert [log.at(START + hour * HOUR_MS) for hour in range(7)] == [0, 1, 4, 4, 4, 5, 6]
    old = [log.at(START + hour * HOUR_MS, cautious=True) for hour in range(7)]
    assert old == [0, 1, 2, 2, 2, 5, 6], "nor itself: it may be as young as the correction"


def test_S19_a_short_leap_is_found_out_also_when_its_time_has_come() -> None:
    log = Log()
    for minute in range(0, 300, 10):
        log.now = START + minute * 60_000
        log.write(wrong_ms=2 * HOUR_MS if 50 <= minute < 60 else 0)
    # At 110 minutes the entry of minute 50 says 170, long past by now.
    assert log.at(START + 110 * 60_000) == 12
    assert log.at(START + 110 * 60_000, cautious=True) < 12, "it may be younger than it seems"


def test_S19_small_steps_back_are_smoothed_and_note_nothing() -> None:
    log = Log()
    for wrong in (0, -CLOCK_STEP_MS, 0, -5, 7):
        log.write(wrong_ms=wrong)
    assert log.turns == ()
    assert log.times == sorted(log.times)
    log.write(wrong_ms=-CLOCK_STEP_MS)
    assert len(log.turns) == 1


WALKS = st.lists(
    st.tuples(
        st.integers(0, 3 * DAY_MS),
        st.sampled_from([0, 0, 0, 0, YEAR, 2 * DAY_MS, -YEAR, -2 * DAY_MS, 5000, -5000]),
    ),
    min_size=1,
    max_size=40,
)


def walked(steps: Sequence[tuple[int, int]]) -> Log:
    """A log whose first and last entry were written by a right clock. No clock is behind by less
    than the time since the last entry: nobody can tell that from a clock that is right.
    """
    log = Log()
    log.write()
    for wait, wrong in steps:
        log.now += wait
        right = max(t for t, true in zip(log.times, log.true, strict=True) if t <= true + 60_000)
        unseen = right <= log.now + wrong + CLOCK_STEP_MS
        log.write(wrong_ms=max(wrong, 0) if unseen else wrong)
    log.now += 2 * DAY_MS
    log.write()
    return log


@given(WALKS, st.lists(st.integers(0, 130 * DAY_MS), min_size=1, max_size=9), st.booleans())
def test_S19_later_points_hold_more_and_now_holds_all(
    steps: list[tuple[int, int]], asked: list[int], cautious: bool
) -> None:
    log = walked(steps)
    found = [log.at(START + ms, cautious=cautious) for ms in sorted(asked)]
    assert found == sorted(found)
    assert log.at(log.now + 1, cautious=cautious) == len(log.times)


def check_ages(log: Log) -> None:
    for percent in range(0, 100, 3):
        age = (log.now - START) * percent // 100
        old = log.at(log.now - age, cautious=True)
        assert all(log.now - true >= age - CLOCK_STEP_MS for true in log.true[:old])


@given(WALKS)
def test_S17_whatever_the_clock_did_nothing_looks_older_than_it_is(
    steps: list[tuple[int, int]],
) -> None:
    check_ages(walked(steps))


@given(WALKS, st.integers(1, 42), st.sampled_from([1, -1]))
def test_S17_nothing_looks_older_when_the_log_is_truncated(
    steps: list[tuple[int, int]], first: int, sign: int
) -> None:
    """For clocks that are only ahead, or only behind: of one that goes from the one to the other,
    the last right time may be truncated.
    """
    log = walked([(wait, sign * abs(wrong)) for wait, wrong in steps])
    log.first = min(first, len(log.times))
    check_ages(log)


def test_S17_of_too_many_turns_the_oldest_goes() -> None:
    turns: tuple[ClockTurn, ...] = ()
    for number in range(LOG_TURNS_MAX + 5):
        turns = with_turn(turns, ClockTurn(number + 1, 9000 - number, 10))
    assert len(turns) == LOG_TURNS_MAX
    assert turns[0].offset == 6


def test_S19_a_million_entries_are_searched_by_halving() -> None:
    asked: list[int] = []

    def time_at(offset: int) -> int:
        asked.append(offset)
        return offset if offset < 500_000 else offset - 400_000

    turns = (ClockTurn(500_000, 499_999, 100_000),)
    found = recorded_by(450_000, 600_000, (1, 1_000_000), turns, time_at, cautious=False)
    assert found == 850_000
    assert len(asked) < 100
