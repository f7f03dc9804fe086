"""Seeds for tests that run many worlds: few and fixed in CI, many and fresh in a soak.

    @pytest.mark.parametrize("seed", seeds(10))
    def test_S3_…(seed: int) -> None: ...

`HOLDFAST_SEED` is the first seed and `HOLDFAST_SEED_FACTOR` multiplies how many there are;
tools/soak.py sets both. Nothing here looks at a clock, so every pytest worker collects the same
tests.
"""

from __future__ import annotations

import os


def seeds(count: int) -> range:
    first = int(os.environ.get("HOLDFAST_SEED", "0"))
    factor = int(os.environ.get("HOLDFAST_SEED_FACTOR", "1"))
    assert count * factor > 0, "a test without seeds proves nothing"
    return range(first, first + count * factor)
