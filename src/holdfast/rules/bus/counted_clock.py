"""By which clock the time of messages that wait for a peer runs out.

A message may wait for so long. If that were measured by the wall clock alone, a clock that leaps a
year ahead would end everything that waits. So leaps do not count, as at a broker
(`rules/clock_check.py`): what the wall clock went ahead without having been seen running is taken
out, and when the clock is set back, that is taken off again. It is never less than nothing: what
was put in by a clock that was ahead waits for longer.

Other than a broker, a node is often switched off, and then time goes on for its messages. But while
it was off, nobody saw the clock run: of a longer absence only `CLOCK_ABSENCE_MS` counts.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.rules.limits import CLOCK_ABSENCE_MS, CLOCK_STEP_MS


class ClockSeen(msgspec.Struct, frozen=True):
    """The wall clock at the last look."""

    wall_ms: int
    uncounted_ms: int = 0
    """By how much it went ahead in ways that do not count."""

    @property
    def counted_ms(self) -> int:
        return self.wall_ms - self.uncounted_ms


def after_absence(seen: ClockSeen | None, wall_ms: int) -> ClockSeen:
    """At the start of a process, or where nobody has looked for an unknown time."""
    if seen is None:
        return ClockSeen(wall_ms)
    gap = wall_ms - seen.wall_ms
    leap = gap - CLOCK_ABSENCE_MS if gap > CLOCK_ABSENCE_MS else min(gap, 0)
    return ClockSeen(wall_ms, max(0, seen.uncounted_ms + leap))


def after_run(seen: ClockSeen, wall_ms: int, ran_ms: int) -> ClockSeen:
    """After another look, `ran_ms` later by a clock that only counts."""
    leap = wall_ms - seen.wall_ms - ran_ms
    if abs(leap) <= CLOCK_STEP_MS:
        return ClockSeen(wall_ms, seen.uncounted_ms)
    return ClockSeen(wall_ms, max(0, seen.uncounted_ms + leap))


class CountedClock:
    """Looks at both clocks whenever it is asked."""

    def __init__(self, wall_ms: Callable[[], int], ticks_ms: Callable[[], int]) -> None:
        """`ticks_ms` only counts: nobody sets it."""
        self._wall_ms, self._ticks_ms = wall_ms, ticks_ms
        self._looked_at: int | None = None
        self.seen: ClockSeen | None = None
        """What the last look found, or what an earlier process has noted."""

    def now_ms(self) -> int:
        """The time that counts, in milliseconds since 1970 or a little less."""
        wall, ticks = self._wall_ms(), self._ticks_ms()
        if self._looked_at is None or self.seen is None:
            self.seen = after_absence(self.seen, wall)
        else:
            self.seen = after_run(self.seen, wall, ticks - self._looked_at)
        self._looked_at = ticks
        return self.seen.counted_ms
