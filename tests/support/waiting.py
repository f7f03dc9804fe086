"""Waiting for what another thread or process does, without counting on its speed."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from time import monotonic

PATIENCE_S = 60


def until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Returns as soon as it holds; fails if it never does."""
    deadline = monotonic() + patience_s
    never = Event()
    while not condition():
        assert monotonic() < deadline, "it did not come to this"
        never.wait(0.005)
