"""Work that is done once a night, by the wall clock of the place.

A period that begins at every start never comes round on a machine that is started every day. So the
wall clock decides, and a night is a number: it changes at `NIGHT_HOUR` of local time. Whoever does
the work keeps the number of the night in which it was done last. A clock that leaps, in whichever
direction, is in another night, and the work is done once more.
"""

from __future__ import annotations

from holdfast.rules.limits import DAY_MS, HOUR_MS, NIGHT_HOUR


def night_of(now_ms: int, utc_offset_ms: int) -> int:
    """The number of the night that began last, at a place whose clocks are `utc_offset_ms` ahead of
    UTC.
    """
    return (now_ms + utc_offset_ms - NIGHT_HOUR * HOUR_MS) // DAY_MS


def is_due(done_in: int | None, now_ms: int, utc_offset_ms: int) -> bool:
    """Whether nightly work is due that was done last in the night `done_in`; None: never yet."""
    return done_in != night_of(now_ms, utc_offset_ms)
