"""Many deadlines, one timer.

Most deadlines are called off long before they come: a request has its reply, a handler returns. A
timer of the loop for each would be paid twice, when it is set and when it is found dead. Here they
wait in one heap, the loop knows the earliest only, and those that were called off are thrown away
when they come to the top, or when they are most of what is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

_FEW: Final = 64
"""So many may lie there dead."""


class Deadline:
    """Calls once, when its time has come, unless it is called off before."""

    __slots__ = ("_call", "_deadlines")

    def __init__(self, deadlines: Deadlines, call: Callable[[], None]) -> None:
        self._deadlines = deadlines
        self._call: Callable[[], None] | None = call

    @property
    def is_off(self) -> bool:
        return self._call is None

    def cancel(self) -> None:
        if self._call is not None:
            self._call = None
            self._deadlines.one_is_off()

    def come(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()


class Deadlines:
    """All deadlines of one kind. Belongs to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Deadline]] = []
        self._number = 0
        self._off = 0
        """How many of them were called off."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def __len__(self) -> int:
        """How many lie here, those that were called off too."""
        return len(self._heap)

    def add(self, at: float, call: Callable[[], None]) -> Deadline:
        """Calls at a time of the loop."""
        deadline = Deadline(self, call)
        self._number += 1
        heappush(self._heap, (at, self._number, deadline))
        if self._timer is None or at < self._timer_at:
            self._set_timer(at)
        return deadline

    def one_is_off(self) -> None:
        self._off += 1
        if self._off > _FEW and self._off * 2 > len(self._heap):
            self._heap = [one for one in self._heap if not one[2].is_off]
            heapify(self._heap)
            self._off = 0

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(at, self._look), at

    def _look(self) -> None:
        """What is due is called; the timer is set for the first that is not."""
        self._timer = None
        # The timer may come early by less than the loop's clock can tell.
        now = max(self._loop.time(), self._timer_at)
        try:
            while self._heap and (self._heap[0][0] <= now or self._heap[0][2].is_off):
                deadline = heappop(self._heap)[2]
                if deadline.is_off:
                    self._off -= 1
                else:
                    deadline.come()
        finally:
            if self._heap and (self._timer is None or self._heap[0][0] < self._timer_at):
                self._set_timer(self._heap[0][0])

    def close(self) -> None:
        """Nothing comes any more."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
