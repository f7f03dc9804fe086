"""Finds the test that leaves something open.

    make test ARGS="-p support.leaks tests/bus"

A socket, a task or a coroutine that nobody closed warns when it is collected, and with that warning
an unrelated test fails, on another day. With this plugin everything is collected right after each
test, and the test that left something is the one that fails. It doubles the time of short tests.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator

import pytest


def pytest_collection_finish() -> None:
    """What was imported by now stays anyway, and is not looked through after every test."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    ended = yield
    left: list[str] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda told: left.append(f"{told.exc_value!r} in {told.object!r}")
    try:
        for _ in range(2):  # what a finalizer lets go of is found by the second
            gc.collect()
    finally:
        sys.unraisablehook = before
    assert not left, "this test left open: " + "; ".join(left)
    return ended
