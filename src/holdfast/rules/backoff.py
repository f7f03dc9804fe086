"""How long to wait before trying again.

Each failure in a row doubles the longest wait, up to a limit. The wait itself is drawn by lot
between the shortest and that. Without the lot, all nodes that lost the same source at the same
moment would come back at the same moment, again and again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from holdfast.rules.limits import BACKOFF_MS_MAX, BACKOFF_MS_MIN

_DOUBLINGS_MAX = 32
"""Beyond this every wait is the longest one; it only keeps the power small."""

S = TypeVar("S", bound=StrEnum)


class RetryPlan(msgspec.Struct, Generic[S], frozen=True):
    """What follows from a failure of some long-lived work."""

    state: S
    """What people see meanwhile."""
    delay_ms: int | None
    """How long to wait before the next try; None: until somebody puts something right."""


def backoff_ms(attempts: int, jitter: float) -> int:
    """The wait after this many failures in a row; `jitter` is a lot from [0, 1)."""
    assert attempts >= 1, "nothing has failed yet"
    assert 0.0 <= jitter < 1.0, "a lot lies in [0, 1)"
    longest = min(BACKOFF_MS_MAX, BACKOFF_MS_MIN << min(attempts, _DOUBLINGS_MAX))
    return BACKOFF_MS_MIN + int(jitter * (longest - BACKOFF_MS_MIN))


class Allowance(msgspec.Struct, frozen=True):
    """How often the other side may make us do something: `most` times in a row, and once more for
    every `every_ms` that has passed since.
    """

    most: int
    every_ms: int
    spent: int = 0
    since: int = 0
    """When the first of those that are spent comes back begins to be counted."""

    def spend(self, now_ms: int) -> Allowance | None:
        """What is left after one more; None if that is too many."""
        back = (now_ms - self.since) // self.every_ms
        spent = max(0, self.spent - back)
        since = now_ms if spent == 0 else self.since + back * self.every_ms
        if spent >= self.most:
            return None
        return msgspec.structs.replace(self, spent=spent + 1, since=since)


def longest_ms(jitter: float) -> int:
    """A wait near the longest, for what only a person can put right: it is tried from time to time,
    and not by all nodes at once. `jitter` is a lot from [0, 1).
    """
    assert 0.0 <= jitter < 1.0, "a lot lies in [0, 1)"
    half = BACKOFF_MS_MAX // 2
    return BACKOFF_MS_MAX - int(jitter * half)
