"""Counts that take as long as there are rows, for pages that must not wait for them.

A page gets what was counted last. What is too old is counted anew beside it, one count at a time,
and after each count there is a pause that is many times as long as the count took: so counting
never costs more than a small part of a core, however many pages are open and however much changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from holdfast.apps.web.live.changes import Changes
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import CONSOLE_COUNTS_MAX, CONSOLE_PATIENCE_MS, SECOND_MS

KIND: Final = "counts"
"""The kind of change when something has been counted."""
_PAUSE_FACTOR: Final = 30
_PAUSE_S_MIN: Final = 1.0

Count = Callable[[], Awaitable[Any]]


class _Known:
    def __init__(self) -> None:
        self.value: Any = None
        self.due = 0.0
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class Counted:
    """What was counted last, by what it is a count of."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._known: dict[Hashable, _Known] = {}
        self._turn = asyncio.Lock()

    async def latest(self, key: Hashable, count: Count) -> Any:
        """What was counted last; None if that takes longer than a page waits. Then it comes by
        itself.
        """
        known = self._known.get(key)
        if known is None:
            while len(self._known) >= CONSOLE_COUNTS_MAX:
                self._forget(next(iter(self._known)))
            known = self._known[key] = _Known()
        if known.task is None:
            wait = known.due - monotonic()
            if wait <= 0:
                known.task = asyncio.create_task(self._count(known, count))
            elif known.timer is None:
                # Something may have changed since: it is counted when the pause is over.
                loop = asyncio.get_running_loop()
                known.timer = loop.call_later(wait, self._again, known, count)
        if known.value is None and known.task is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(CONSOLE_PATIENCE_MS / SECOND_MS):
                    await asyncio.shield(known.task)
        return known.value

    async def close(self) -> None:
        for key in list(self._known):
            self._forget(key)

    def _again(self, known: _Known, count: Count) -> None:
        known.timer = None
        if known.task is None and not self._changes.closing:
            known.task = asyncio.create_task(self._count(known, count))

    async def _count(self, known: _Known, count: Count) -> None:
        before = known.value
        async with self._turn:
            begun = monotonic()
            try:
                known.value = await count()
            except HoldfastError:
                known.value = None  # it may not be asked any more, or not now
            took = monotonic() - begun
        known.due = monotonic() + max(_PAUSE_S_MIN, _PAUSE_FACTOR * took)
        known.task = None
        if known.value != before:
            self._changes.note(KIND)

    def _forget(self, key: Hashable) -> None:
        known = self._known.pop(key)
        if known.timer is not None:
            known.timer.cancel()
        if known.task is not None:
            known.task.cancel()
