"""The wall clock of brokers that share a PostgreSQL: that of its server.

Each of them sweeps what all have stored. If one went by a clock of its own that is behind, another
would sweep what it stored as soon as it is there. So they all go by one clock, which is asked at
every look and counted on by the ticks of the process in between.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.service.clock import Clock


class ServerClock:
    """Counts on from what the server's clock showed; until it was asked, our own counts."""

    def __init__(self, own: Clock, ticks_ms: Callable[[], int]) -> None:
        self._own, self._ticks_ms = own, ticks_ms
        self._ahead_ms: int | None = None

    def set(self, server_ms: int | None) -> None:
        if server_ms is not None:
            self._ahead_ms = server_ms - self._ticks_ms()

    def now_ms(self) -> int:
        if self._ahead_ms is None:
            return self._own.now_ms()
        return self._ticks_ms() + self._ahead_ms

    def new_id(self) -> bytes:
        return self._own.new_id()
