"""Sign sketches: one bit per dimension, to find near vectors without reading them all.

The sketch of a vector tells on which side of the mesh's centre it lies in each dimension. Near
vectors differ in few bits, so counting differing bits picks candidates at a thirtieth of the
reading, and only candidates are measured. The count is a noisy stand-in for the distance. How noisy
depends on the data, so a search does not trust a fixed number of candidates. It widens its reach
(the number of differing bits up to which it looks) until what it found says that it has seen
enough:

    the nearest it found lie well inside the reach; had they piled up at its edge, more would
    lie beyond.

Data in which bits tell nothing fail that test at once, and are then searched exactly. So are
vectors whose variance sits in few dimensions, where most bits are about nothing
(`worth_sketching`). Measured on clustered, hierarchical, low-rank and all-positive data: recall of
0.995 and more.

Lengths. Of vectors of one length, the nearest are those with the smallest angle, and signs are
about angles. When lengths differ, a near vector may stand at a wider angle than those found, and
the reach must cover the widest one possible at the distance found (`widest_reach`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from typing import Final

from holdfast.rules.limits import (
    VECTOR_PREFILTER_FLOATS,
    VECTOR_PREFILTER_LIMIT,
    VECTOR_SKETCH_DIM_MIN,
    VECTOR_SKETCH_FLOATS,
)

WORD_BITS: Final = 64
"""Sketches are padded to whole words, which are compared several times faster than bytes."""
SAMPLE_FLOATS: Final = 98_304
"""The centre is made of so many numbers: 256 vectors of 384 dimensions, fewer of longer ones."""

SPREAD_SHARE_MIN: Final = 0.15
"""Where a smaller share of the dimensions held the variance, searches missed one in twenty."""
EVEN_NORMS: Final = 1.05
"""Lengths that differ by less count as one length."""

WITNESSES_MIN: Final = 10
"""With fewer finds than this the spread of their bit counts cannot be estimated."""
SEED_MIN: Final = 16
ROUNDS_MAX: Final = 4
CANDIDATES_MAX: Final = 4095
"""sqlite-vec gives 4096 at most; one more than wanted shows that there are too many."""
ROWS_PER_CANDIDATE: Final = 32
"""Measuring a candidate costs as much as measuring a dozen vectors in a row. Far fewer candidates
than would pay off are allowed, so that a search that gives sketches up has not lost much."""

CHANCE_DEVIATIONS: Final = 1.9
"""Three in a hundred, so about as many as may be candidates, lie so far below the mean."""

FIRST_MARGIN: Final = 2.0
ENOUGH_MARGIN: Final = 1.5
WIDEST_MARGIN: Final = 3.0
"""Standard deviations of the bit count: to look ahead, to stop, and beyond the widest angle."""


def sketch_dim(dim: int) -> int:
    """The bits of a sketch: the dimensions, rounded up to whole words."""
    return -(-dim // WORD_BITS) * WORD_BITS


def sketch_rows(dim: int, quantization: str = "float32") -> int:
    """A mesh with so many vectors gets sketches; 0 where they never help, as for what is small
    already: bits are their own sketches, and bytes are read in a quarter of the time of floats.
    """
    if quantization != "float32":
        return 0
    return 0 if dim < VECTOR_SKETCH_DIM_MIN else VECTOR_SKETCH_FLOATS // dim


def sample_step(rows: int, dim: int) -> int:
    """The centre is made from every n-th vector; this is n."""
    return max(1, rows * dim // SAMPLE_FLOATS)


def centre_of(samples: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(samples) for column in zip(*samples, strict=True)]


def worth_sketching(samples: Sequence[Sequence[float]], centre: Sequence[float]) -> bool:
    """Whether the distance is made by many dimensions, as each of them gets one bit.

    If a share s of the dimensions had all the variance, evenly, the figure below would be s.
    """
    rows = len(samples)
    variances = [
        max(0.0, sum(map(mul, column, column)) / rows - middle * middle)
        for column, middle in zip(zip(*samples, strict=True), centre, strict=True)
    ]
    squares = math.fsum(variance**2 for variance in variances)
    if squares == 0.0:
        return False
    return math.fsum(variances) ** 2 / squares >= SPREAD_SHARE_MIN * len(variances)


def worth_prefiltering(live: int, dim: int, limit: int) -> bool:
    """Whether picking candidates first costs less than measuring every vector."""
    return live * dim >= VECTOR_PREFILTER_FLOATS and limit <= VECTOR_PREFILTER_LIMIT


def norms_are_even(shortest: float, longest: float) -> bool:
    return longest <= EVEN_NORMS * shortest


def seeds(limit: int) -> int:
    """How many of the fewest differing bits to look at first."""
    return max(SEED_MIN, limit + limit // 2)


def witnesses(limit: int) -> int:
    """How many of the nearest found tell whether the reach was wide enough."""
    return max(WITNESSES_MIN, limit)


def candidates_max(live: int) -> int:
    """Beyond so many candidates, measuring every vector is cheaper."""
    return min(CANDIDATES_MAX, live // ROWS_PER_CANDIDATE)


def reach(differing: Sequence[int], dim: int, margin: float) -> int:
    """Up to how many differing bits to look, by those of the nearest found so far.

    A vector as near as the farthest of them may differ in as many bits, and some standard
    deviations more: theirs, or at least that of independent bits.
    """
    most = max(differing)
    mean = math.fsum(differing) / len(differing)
    spread = math.sqrt(math.fsum((d - mean) ** 2 for d in differing) / max(1, len(differing) - 1))
    return min(dim, int(most + margin * max(spread, _deviation(max(most, 1) / dim, dim))))


def widest_reach(distance: float, radius: float, dim: int) -> int | None:
    """The reach for vectors of any length: `radius` is how far the query is from the centre.

    Whatever lies within `distance` of the query is seen from the centre at an angle whose sine is
    at most distance / radius. None if it may stand in any direction.
    """
    if distance >= radius:
        return None
    share = math.asin(distance / radius) / math.pi
    return min(dim, int(share * dim + WIDEST_MARGIN * _deviation(share, dim)))


def takes_in_too_much(goal: int, dim: int) -> bool:
    """Whether a reach comes so close to half the bits, where vectors lie that have nothing to do
    with each other, that looking would only show that there are too many candidates.
    """
    return goal > dim / 2 - CHANCE_DEVIATIONS * _deviation(0.5, dim)


def _deviation(share: float, dim: int) -> float:
    return math.sqrt(dim * share * (1.0 - share))
