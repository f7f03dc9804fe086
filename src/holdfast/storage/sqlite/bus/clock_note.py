"""What the wall clock showed, written down now and then: so the next process notices that the clock
was set while nobody looked (`rules/bus/counted_clock.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from holdfast.rules.bus.counted_clock import ClockSeen, CountedClock
from holdfast.rules.limits import BUS_CLOCK_NOTED_MS, SECOND_MS


class NotedClock(CountedClock):
    """A counted clock whose looks are noted in a database."""

    def __init__(self, wall_ms: Callable[[], int], ticks_ms: Callable[[], int]) -> None:
        super().__init__(wall_ms, ticks_ms)
        self._noted: ClockSeen | None = None

    def go_on(self, noted: ClockSeen | None) -> None:
        """An earlier process has left this."""
        self._noted = self.seen = noted

    async def note(self, write: Callable[[ClockSeen], Awaitable[None]]) -> None:
        """Writes down the last look: from time to time, and at a leap."""
        seen, noted = self.seen, self._noted
        if seen is None:
            return
        if (
            noted is None
            or seen.uncounted_ms != noted.uncounted_ms
            or abs(seen.wall_ms - noted.wall_ms) > BUS_CLOCK_NOTED_MS
        ):
            await write(seen)
            self._noted = seen


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def loop_ms() -> int:
    """The time of the loop, which nobody sets."""
    return int(asyncio.get_running_loop().time() * SECOND_MS)
