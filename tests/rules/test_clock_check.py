"""Whether a clock is believed when something is about to be forgotten by it."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.clock_check import ClockCheck, ClockNote, note_after, observe, start
from holdfast.rules.limits import (
    CLOCK_ABSENCE_MS,
    CLOCK_LEAP_MS,
    CLOCK_STEADY_MS,
    CLOCK_STEP_MS,
    DAY_MS,
    HOUR_MS,
)

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


class Run:
    """A broker through restarts: true time, a wall clock that is off, and the note."""

    def __init__(self) -> None:
        self.true, self.off, self.ticks = WALL, 0, 0
        self.note: ClockNote | None = None
        self.pace: ClockCheck | None = None

    @property
    def wall(self) -> int:
        return self.true + self.off

    @property
    def sweeps_by(self) -> int:
        assert self.note is not None
        return self.wall - self.note.uncounted_ms

    def look(self, *, after: int = 0, down: bool = False) -> None:
        self.true += after
        ran = 0 if down or self.pace is None else after
        if down or self.pace is None:
            self.ticks = 0
            self.pace = start(wall_ms=self.wall, ticks_ms=0, note=self.note)
        else:
            self.ticks += after
            self.pace = observe(self.pace, wall_ms=self.wall, ticks_ms=self.ticks)
        self.note = note_after(
            *(self.pace, self.note),
            wall_ms=self.wall,
            ticks_ms=self.ticks,
            ran_ms=ran,
            kept_ms=KEPT,
        )


KEPT = 10 * DAY_MS


def test_D7_what_was_stored_behind_has_its_whole_time_when_the_clock_is_right_again() -> None:
    run = Run()
    run.look()
    run.off = -400 * DAY_MS
    run.look(after=HOUR_MS, down=True)
    stored_at = run.wall
    run.off = 0
    run.look(after=HOUR_MS)
    assert run.sweeps_by - stored_at <= HOUR_MS, "it is an hour old, not 400 days"
    run.look(after=5 * DAY_MS)
    assert run.sweeps_by - stored_at <= 6 * DAY_MS
    run.look(after=KEPT)
    run.look(after=HOUR_MS)
    assert run.sweeps_by == run.wall, "nothing from then can be left"


def test_D7_a_clock_that_leaps_and_comes_back_leaves_nothing_uncounted() -> None:
    run = Run()
    run.look()
    run.off = 400 * DAY_MS
    run.look(after=HOUR_MS)
    assert run.sweeps_by <= run.true
    run.off = 0
    run.look(after=HOUR_MS)
    assert run.sweeps_by == run.wall == run.true


def test_D7_a_leap_during_the_time_that_is_uncounted_does_not_end_it() -> None:
    run = Run()
    run.look()
    run.off = -400 * DAY_MS
    run.look(down=True)
    stored_at = run.wall
    run.off = 0
    run.look(after=HOUR_MS)
    run.off = 40 * DAY_MS
    run.look(after=HOUR_MS)
    run.off = 0
    run.look(after=HOUR_MS)
    assert run.sweeps_by - stored_at <= 3 * HOUR_MS


def test_D7_a_note_of_earlier_code_is_read() -> None:
    old = msgspec.json.decode(b'{"believed_at":5,"seen_at":6,"steady_ms":7}', type=ClockNote)
    assert (old.uncounted_ms, old.uncounted_until) == (0, 0)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3 * DAY_MS),
            st.sampled_from([0, 0, 40 * DAY_MS, -40 * DAY_MS, -400 * DAY_MS, 1000, -1000]),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_D7_no_broker_sweeps_what_it_has_not_kept_for_its_whole_time(
    looks: list[tuple[int, int, bool]],
) -> None:
    """Whatever the clock does: what is stored now and swept later was kept, by true time. Looks
    come right after each leap, as the broker makes them.
    """
    run = Run()
    run.look()
    stored: list[tuple[int, int]] = []
    for after, off, down in looks:
        run.look(after=after, down=down)
        run.off = off
        run.look(down=down)
        for expires_at, stored_at in stored:
            if run.sweeps_by >= expires_at:
                assert run.true - stored_at >= KEPT - 60 * CLOCK_STEP_MS
        stored.append((run.wall + KEPT, run.true))
