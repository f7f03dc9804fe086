"""Whether a wall clock is believed when something is about to be forgotten by it.

A broker forgets by its wall clock: messages after days, ids after weeks. A clock that leaps ahead
makes everything old at once, and what goes then is gone. A second clock, which only counts on,
cannot tell the time but shows the leap. So a clock is believed

- at the start, if it is not more than `CLOCK_ABSENCE_MS` ahead of when it was last believed, which
  is written down: whoever was down for longer cannot tell its own absence from a clock that is
  wrong;
- while it keeps pace with the other clock, within `CLOCK_LEAP_MS`; being behind does no harm;
- again when it is back where it was believed, or when it has kept pace for `CLOCK_STEADY_MS`, which
  goes on counting after a restart.

Until then nothing is forgotten unless somebody says so. That costs room, and nothing else.
"""

from __future__ import annotations

import msgspec

from holdfast.rules.limits import CLOCK_ABSENCE_MS, CLOCK_LEAP_MS, CLOCK_STEADY_MS


class ClockCheck(msgspec.Struct, frozen=True):
    """How far the wall clock is ahead of the one that only counts, and since when."""

    ahead_ms: int
    since_ms: int
    """By the clock that counts: it has kept pace since then."""
    believed_ms: int | None
    """How far ahead it was when it was last believed; None: not since the start."""

    @property
    def is_believed(self) -> bool:
        return self.believed_ms is not None and self.ahead_ms - self.believed_ms <= CLOCK_LEAP_MS


class ClockNote(msgspec.Struct, frozen=True):
    """What outlives a process."""

    believed_at: int
    """What the wall clock showed when it was last believed."""
    seen_at: int
    """What it showed at the last look, believed or not."""
    steady_ms: int
    """For how long it had kept pace by then."""


def start(*, wall_ms: int, ticks_ms: int, note: ClockNote | None) -> ClockCheck:
    """At the start of a process. Without a note it has never run before."""
    ahead = wall_ms - ticks_ms
    if note is None or wall_ms - note.believed_at <= CLOCK_ABSENCE_MS:
        return ClockCheck(ahead, ticks_ms, ahead)
    goes_on = 0 <= wall_ms - note.seen_at <= CLOCK_ABSENCE_MS
    return ClockCheck(ahead, ticks_ms - note.steady_ms if goes_on else ticks_ms, None)


def observe(pace: ClockCheck, *, wall_ms: int, ticks_ms: int) -> ClockCheck:
    """After another look at both clocks."""
    ahead = wall_ms - ticks_ms
    if abs(ahead - pace.ahead_ms) > CLOCK_LEAP_MS:
        return ClockCheck(ahead, ticks_ms, pace.believed_ms)
    if ticks_ms - pace.since_ms >= CLOCK_STEADY_MS:
        # From here on it is measured anew: what a good clock is set right by adds up over years.
        return ClockCheck(ahead, pace.since_ms, ahead)
    return pace


def note_after(
    pace: ClockCheck, before: ClockNote | None, *, wall_ms: int, ticks_ms: int
) -> ClockNote:
    """What is to be written down after a look."""
    steady = min(ticks_ms - pace.since_ms, CLOCK_STEADY_MS)
    if pace.is_believed:
        return ClockNote(wall_ms, wall_ms, steady)
    return ClockNote(0 if before is None else before.believed_at, wall_ms, steady)
