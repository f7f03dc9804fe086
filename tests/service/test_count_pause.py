"""Figures are counted again only after a pause that goes with what the count took."""

from __future__ import annotations

from holdfast.rules.limits import FIGURES_PAUSE, FIGURES_ROWS
from holdfast.service.count_pause import CountPause


class Ticks:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_D16_a_large_count_is_not_made_again_at_once() -> None:
    ticks = Ticks()
    pause: CountPause[str] = CountPause(ticks)
    assert pause.begin() is None
    ticks.now += 2
    assert pause.counted("first", FIGURES_ROWS + 1) == "first"
    ticks.now += 2 * FIGURES_PAUSE - 1
    assert pause.begin() == "first", "whoever asks meanwhile gets the last figures"
    ticks.now += 1
    assert pause.begin() is None


def test_D16_a_small_count_is_made_whenever_somebody_asks() -> None:
    ticks = Ticks()
    pause: CountPause[str] = CountPause(ticks)
    assert pause.begin() is None
    ticks.now += 2
    pause.counted("first", FIGURES_ROWS)
    assert pause.begin() is None
