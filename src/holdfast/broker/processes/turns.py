"""Which process gets the next connection."""

from __future__ import annotations

from collections.abc import Mapping


def in_turn(loads: Mapping[int, int], last: int) -> list[int]:
    """The processes in the order in which they are asked to take a connection: the one with the
    fewest first; of equals, the next after the one that was asked `last`.
    """
    most = max(loads, default=0) + 1
    return sorted(loads, key=lambda number: (loads[number], (number - last - 1) % most))
