"""When an entry of the log was recorded, by a wall clock that may be set.

Each entry keeps what the wall clock showed. A clock that runs, or is corrected by seconds, gives
times that never fall along the log (`next_time` smooths what is smaller than `CLOCK_STEP_MS`). One
that is set back by more makes a **turn**: the entries before it show later times than those after
it. Turns are few and noted beside the log, so between two of them a time is found by halving.

Of the two sides of a turn one is wrong:

- The clock was *ahead* before it. Then those entries count as recorded no later than the first one
  after the turn. This is so as long as the time before the turn has not come yet. When it has, the
  clock was ahead if it then got there by running rather than by being set forward.
- The clock was *behind* after it. Then those entries count as recorded no earlier than the last
  one before the turn.

Whoever is about to forget something by its age asks `cautious`, so that nothing looks older than it
is. Then a clock was ahead only if its time has not come yet; and what was recorded behind counts as
recorded when the clock was right again. A time that has not come yet counts as now, or, if one is
cautious, as a moment later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.rules.limits import CLOCK_STEP_MS, LOG_TURNS_MAX

TimeAt = Callable[[int], int]
"""What the wall clock showed for the entry at an offset, or for the last one before it."""


class ClockTurn(NamedTuple):
    """The clock was set back: `high_ms` was the time before, `low_ms` that of the entry at
    `offset`.
    """

    offset: int
    high_ms: int
    low_ms: int


class _Stretch(msgspec.Struct, frozen=True):
    """The entries from `first` to `last`, whose times do not fall, and between which times they
    count.
    """

    first: int
    last: int
    floor_ms: int
    top_ms: int


def next_time(newest_ms: int, now_ms: int) -> int:
    """The time of an entry after one of `newest_ms`; if it is less, the clock has made a turn."""
    return max(newest_ms, now_ms) if newest_ms - now_ms <= CLOCK_STEP_MS else now_ms


def with_turn(turns: Sequence[ClockTurn], turn: ClockTurn) -> tuple[ClockTurn, ...]:
    """The turns of a log with another one. Of too many, the oldest goes. Those before the first
    entry of a truncated log stay: they may say that the first entries are younger than they seem.
    """
    return (*turns, turn)[-LOG_TURNS_MAX:]


def recorded_by(
    at_ms: int,
    now_ms: int,
    bounds: tuple[int, int],
    turns: Sequence[ClockTurn],
    time_at: TimeAt,
    *,
    cautious: bool,
) -> int:
    """The last offset that counts as recorded at or before a time; 0 for none."""
    for stretch in reversed(_stretches(now_ms, bounds, turns, time_at, cautious)):
        if stretch.top_ms <= at_ms:
            return stretch.last
        if stretch.floor_ms <= at_ms:
            found = _first_from(stretch.first, stretch.last, at_ms + 1, time_at) - 1
            if found >= stretch.first:
                return found
    return 0


def _stretches(
    now_ms: int,
    bounds: tuple[int, int],
    turns: Sequence[ClockTurn],
    time_at: TimeAt,
    cautious: bool,
) -> list[_Stretch]:
    first, last = bounds
    if first > last:
        return []
    inside = [turn for turn in turns if turn.offset <= last]
    starts = [first, *(turn.offset for turn in inside)]
    ends = [*(turn.offset - 1 for turn in inside), last]
    ahead: list[bool] = []
    floors = [0]
    believed = 0
    for number, turn in enumerate(inside):
        high = turn.high_ms
        if high > now_ms:  # it was ahead; before that leap, it may still have shown more than now
            come = _first_from(starts[number], ends[number], now_ms + 1, time_at) - 1
            high = believed = max(believed, time_at(come) if come >= starts[number] else 0)
        before, after = _way_back(high, inside[number:], ends[number + 1 :], now_ms, time_at)
        ran = not cautious and before - turn.low_ms >= after - before
        was_behind = high > turn.low_ms and not ran
        ahead.append(ran or turn.high_ms > now_ms)
        floors.append(max(floors[-1], (after if cautious else high) if was_behind else 0))
        believed = max(believed, high)
    tops = [now_ms + cautious]
    for turn, was_ahead, floor in reversed(list(zip(inside, ahead, floors[1:], strict=True))):
        tops.append(min(tops[-1], max(turn.low_ms, floor)) if was_ahead else tops[-1])
    found = zip(starts, ends, floors, reversed(tops), strict=True)
    return [
        _Stretch(max(start, first), end, floor, top)
        for start, end, floor, top in found
        if max(start, first) <= end
    ]


def _way_back(
    high_ms: int, turns: Sequence[ClockTurn], ends: Sequence[int], now_ms: int, time_at: TimeAt
) -> tuple[int, int]:
    """The last time below `high_ms` after the first of these turns, and the first that is not and
    has come. The clock ran there if it was near by then, and was set if it was not.
    """
    for turn, end in zip(turns, ends, strict=True):
        reached = _first_from(turn.offset, end, high_ms, time_at)
        if reached <= end and time_at(reached) <= now_ms:
            return time_at(reached - 1), time_at(reached)
    return time_at(ends[-1]), now_ms


def _first_from(first: int, last: int, at_ms: int, time_at: TimeAt) -> int:
    """The first offset of a stretch with a time of at least `at_ms`; last + 1 for none."""
    low, high = first, last + 1
    while low < high:
        middle = (low + high) // 2
        if time_at(middle) >= at_ms:
            high = middle
        else:
            low = middle + 1
    return low
