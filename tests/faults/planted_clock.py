"""Bugs about wall clocks that are wrong for a while, for `faults.planted`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.rules import clock_check
from holdfast.storage.sqlite import log

Patch = Callable[[pytest.MonkeyPatch], None]


def _times_never_fall(patch: pytest.MonkeyPatch) -> None:
    """One entry of a clock that is ahead gives its time to all that follow."""
    patch.setattr(log, "next_time", max)


def _leaps_counted(patch: pytest.MonkeyPatch) -> None:
    """A clock that was behind and is set right makes old what was stored meanwhile."""
    patch.setattr(clock_check, "_uncounted", lambda *given: (0, 0))


IN_NODES: dict[str, Patch] = {"times never fall": _times_never_fall}
IN_DELIVERY: dict[str, Patch] = {
    "leaps counted": _leaps_counted,
}
