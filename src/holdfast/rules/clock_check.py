"""Whether a broker believes its wall clock when it is about to forget something by it.

A broker forgets by its wall clock: messages after days, ids after weeks. A clock that leaps ahead
makes everything old at once, and what goes then is gone. A second clock, which only counts on,
cannot tell the time but shows the leap. So a clock is believed

- at the start, if it is not more than `CLOCK_ABSENCE_MS` ahead of when it was last believed, which
  is written down: a broker that was down for longer cannot tell that from a wrong clock;
- while it keeps pace with the other clock, within `CLOCK_LEAP_MS`; being behind does no harm;
- again when it is back where it was believed, or when it has kept pace for `CLOCK_STEADY_MS`, which
  goes on counting after a restart.

Until then a broker forgets nothing, unless an operator runs a sweep. That costs room, nothing else.

A clock that was *behind* does its harm later: what was stored meanwhile has expired by the time
that the clock is set right. So what the wall clock went ahead without being seen running, by a leap
or while the broker was down, does not count towards any age (`uncounted_ms`), until everything that
was stored before has had its whole time. When the clock goes back, that is taken off again.
"""

from __future__ import annotations

import msgspec

from holdfast.rules.limits import CLOCK_ABSENCE_MS, CLOCK_LEAP_MS, CLOCK_STEADY_MS, CLOCK_STEP_MS


class ClockCheck(msgspec.Struct, frozen=True):
    """How far the wall clock is ahead of the one that only counts, and since when."""

    ahead_ms: int
    since_ms: int
    """Since when the wall clock has kept pace, by the clock that only counts."""
    believed_ms: int | None
    """How far ahead the wall clock was when it was last believed; None: not since the start."""

    @property
    def is_believed(self) -> bool:
        return self.believed_ms is not None and self.ahead_ms - self.believed_ms <= CLOCK_LEAP_MS


class ClockNote(msgspec.Struct, frozen=True):
    """What a broker writes down about its clock, for its next start."""

    believed_at: int
    """What the wall clock showed when it was last believed."""
    seen_at: int
    """What the wall clock showed at the last look, believed or not."""
    steady_ms: int
    """For how long the wall clock had kept pace by then."""
    uncounted_ms: int = 0
    """How much the wall clock went ahead that does not count towards any age."""
    uncounted_until: int = 0
    """Until when, by the wall clock."""


def start(*, wall_ms: int, ticks_ms: int, note: ClockNote | None) -> ClockCheck:
    """The state at the start of a process. Without a note the broker has never run before."""
    ahead = wall_ms - ticks_ms
    if note is None or wall_ms - note.believed_at <= CLOCK_ABSENCE_MS:
        return ClockCheck(ahead, ticks_ms, ahead)
    goes_on = 0 <= wall_ms - note.seen_at <= CLOCK_ABSENCE_MS
    return ClockCheck(ahead, ticks_ms - note.steady_ms if goes_on else ticks_ms, None)


def observe(pace: ClockCheck, *, wall_ms: int, ticks_ms: int) -> ClockCheck:
    """The state after another look at both clocks."""
    ahead = wall_ms - ticks_ms
    if abs(ahead - pace.ahead_ms) > CLOCK_LEAP_MS:
        return ClockCheck(ahead, ticks_ms, pace.believed_ms)
    if ticks_ms - pace.since_ms >= CLOCK_STEADY_MS:
        # Measured anew from here: the small corrections of a good clock add up over years.
        return ClockCheck(ahead, pace.since_ms, ahead)
    return pace


def note_after(
    pace: ClockCheck,
    before: ClockNote | None,
    *,
    wall_ms: int,
    ticks_ms: int,
    ran_ms: int = 0,
    kept_ms: int = 0,
) -> ClockNote:
    """What the broker writes down after a look. Since the last one it ran for `ran_ms`, as far as
    it knows; `kept_ms` is how long it keeps anything at most.
    """
    steady = min(ticks_ms - pace.since_ms, CLOCK_STEADY_MS)
    believed_at = wall_ms if pace.is_believed else 0 if before is None else before.believed_at
    uncounted = (0, 0) if before is None else _uncounted(before, wall_ms, ran_ms, kept_ms)
    return ClockNote(believed_at, wall_ms, steady, *uncounted)


def _uncounted(note: ClockNote, wall_ms: int, ran_ms: int, kept_ms: int) -> tuple[int, int]:
    """`uncounted_ms` and `uncounted_until` after another look."""
    leap = wall_ms - note.seen_at - ran_ms
    over = note.seen_at + ran_ms >= note.uncounted_until
    before, until = (0, 0) if over else (note.uncounted_ms, note.uncounted_until)
    if not note.seen_at or abs(leap) <= CLOCK_STEP_MS:
        return before, until
    if leap > 0:
        return before + leap, wall_ms + kept_ms
    return max(0, before + leap), until + leap
