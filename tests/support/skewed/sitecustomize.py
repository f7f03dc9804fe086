"""Sets the wall clock of a Python process forward or back, as a wrong system clock would be."""

from __future__ import annotations

import os
import time

_ahead_ns = int(os.environ["HOLDFAST_TEST_AHEAD_S"]) * 1_000_000_000
_true_ns = time.time_ns


def _time_ns() -> int:
    return _true_ns() + _ahead_ns


def _time() -> float:
    return _time_ns() / 1e9


time.time_ns = _time_ns
time.time = _time
