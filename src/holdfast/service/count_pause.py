"""Figures that take as long as there are rows are not counted at every question.

The metrics are scraped as often as somebody likes, and that must not slow down those who use the
service. So a large count is followed by a pause that is `FIGURES_PAUSE` times as long, in which
everybody gets the last figures. What is small is counted whenever somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.rules.limits import FIGURES_PAUSE, FIGURES_ROWS

T = TypeVar("T")


class CountPause(Generic[T]):
    """The last figures, and until when they are good enough."""

    def __init__(self, ticks: Callable[[], float]) -> None:
        """`ticks` are seconds that never go back."""
        self._ticks = ticks
        self._last: T | None = None
        self._good_until = 0.0
        self._began = 0.0

    def begin(self) -> T | None:
        """The last figures; None if they are to be counted, which begins now."""
        self._began = self._ticks()
        return self._last if self._began < self._good_until else None

    def counted(self, figures: T, rows: int) -> T:
        """Keeps figures for which so many rows were counted."""
        ended = self._ticks()
        pause = FIGURES_PAUSE if rows > FIGURES_ROWS else 0
        self._last, self._good_until = figures, ended + pause * (ended - self._began)
        return figures
