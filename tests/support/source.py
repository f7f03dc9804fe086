"""Time and ids that a test sets by hand."""

from __future__ import annotations

import random

from holdfast.rules.ids import uuid7

START_MS = 1_700_000_000_000


class HandClock:
    """A source whose clock stands still until it is moved, and whose ids come from a seed."""

    def __init__(self, at_ms: int = START_MS, seed: object = 0) -> None:
        self.at_ms = at_ms
        self._rng = random.Random(f"ids {seed}")

    def now_ms(self) -> int:
        return self.at_ms

    def new_id(self) -> bytes:
        return uuid7(self.at_ms, self._rng.randbytes(10))

    def advance(self, ms: int) -> None:
        self.at_ms += ms
