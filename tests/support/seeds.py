"""Seeds for tests that run many worlds: few and fixed in CI, many and fresh in a soak.

    @pytest.mark.parametrize("seed", seeds(10))
    def test_S3_…(seed: int) -> None: ...

`HOLDFAST_SEED` is the first seed and `HOLDFAST_SEED_FACTOR` multiplies how many there are;
tools/soak.py sets both. `seeds` looks at no clock, so every pytest worker collects the same tests.

`rotating` is for tests that go through their seeds inside: another part of a known range each day,
so that the whole range is gone through again and again at little cost a day. `part` is the same for
the points of a sweep, and a soak goes through all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from time import time
from typing import TypeVar

Point = TypeVar("Point")

DAY_S = 24 * 3600


def seeds(count: int) -> range:
    first = int(os.environ.get("HOLDFAST_SEED", "0"))
    factor = int(os.environ.get("HOLDFAST_SEED_FACTOR", "1"))
    assert count * factor > 0, "a test without seeds proves nothing"
    return range(first, first + count * factor)


def rotating(count: int, of: int) -> range:
    """So many of [0, of), others tomorrow; in a soak as `seeds` gives them."""
    if "HOLDFAST_SEED" in os.environ:
        return seeds(count)
    part = int(time() // DAY_S) % (of // count)
    return range(part * count, (part + 1) * count)


def part(points: Iterable[Point], of: int) -> list[Point]:
    """Every `of`-th point, others tomorrow; in a soak all of them."""
    known = list(points)
    if "HOLDFAST_SEED" in os.environ:
        return known
    return known[int(time() // DAY_S) % of :: of]
