"""The clock by which messages that wait run out of time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.bus.counted_clock import ClockSeen, CountedClock, after_absence
from holdfast.rules.limits import CLOCK_ABSENCE_MS, CLOCK_STEP_MS, DAY_MS, HOUR_MS

START = 1_700_000_000_000
YEAR = 365 * DAY_MS


class _Clocks:
    def __init__(self) -> None:
        self.wall, self.ticks = START, 0

    def run(self, ms: int) -> None:
        self.wall += ms
        self.ticks += ms


def test_B4_a_clock_that_leaps_and_comes_back_counts_only_what_has_passed() -> None:
    clocks = _Clocks()
    counted = CountedClock(lambda: clocks.wall, lambda: clocks.ticks)
    assert counted.now_ms() == START
    for leap in (YEAR, -YEAR, CLOCK_STEP_MS + 1, -CLOCK_STEP_MS - 1):
        clocks.run(HOUR_MS)
        clocks.wall += leap
        before = clocks.ticks
        assert counted.now_ms() == START + before
    clocks.run(30 * DAY_MS)
    assert counted.now_ms() == clocks.wall == START + clocks.ticks


@given(st.lists(st.tuples(st.integers(0, DAY_MS), st.integers(-YEAR, YEAR)), max_size=20))
def test_B4_leaps_never_make_a_message_older_than_it_is(steps: list[tuple[int, int]]) -> None:
    clocks = _Clocks()
    counted = CountedClock(lambda: clocks.wall, lambda: clocks.ticks)
    counted.now_ms()
    for ran, leap in steps:
        clocks.run(ran)
        before = counted.now_ms()
        clocks.wall += leap
        assert counted.now_ms() - before <= CLOCK_STEP_MS


def test_B4_of_a_long_absence_one_day_counts() -> None:
    seen = ClockSeen(START)
    assert after_absence(seen, START + 3 * HOUR_MS).counted_ms == START + 3 * HOUR_MS
    away = after_absence(seen, START + YEAR)
    assert away.counted_ms == START + CLOCK_ABSENCE_MS
    back = after_absence(away, START + 2 * DAY_MS)
    assert back.counted_ms == START + DAY_MS, "set right: what was counted stays so"
    assert after_absence(back, START).counted_ms == START
    assert after_absence(None, START) == seen
