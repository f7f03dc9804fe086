"""Where a node takes its time and its ids from: the real ones here, simulated ones in
`holdfast.simulate`.
"""

from __future__ import annotations

import sys
import time
from typing import Protocol

if sys.version_info >= (3, 14):
    from uuid import uuid7 as _uuid7
else:
    from uuid_utils import uuid7 as _uuid7


class Clock(Protocol):
    """The two things that a node cannot decide by rule."""

    def now_ms(self) -> int:
        """Wall-clock time. It may jump in both directions; nothing that must be right depends on
        it.
        """

    def new_id(self) -> bytes:
        """A new message id."""


def utc_offset_ms(at_ms: int) -> int:
    """By how much local time is ahead of UTC at a moment."""
    return time.localtime(at_ms / 1000).tm_gmtoff * 1000


def elapsed_ms() -> int:
    """Time that only goes forward: for measuring how long something lasts. Where the system can
    tell, it goes on while the machine sleeps.
    """
    return time.clock_gettime_ns(_ELAPSED) // 1_000_000


_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clock, and ids that grow within the process even when that clock does not."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def new_id(self) -> bytes:
        return _uuid7().bytes
