"""Many things to write in one request, each for itself: one that cannot be read or is refused does
not hold up the others, and is answered in its own place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.node.library.documents import Prepared, PreparedChange
from holdfast.rules import limits
from holdfast.rules.errors import OverLimit, Refused

T = TypeVar("T")


def lines_of(raw: bytes) -> list[bytes]:
    """The lines of NDJSON, without empty ones."""
    return [line for line in raw.split(b"\n") if line.strip()]


def each(given: Sequence[T], change: Callable[[T], PreparedChange], what: str) -> list[Prepared]:
    """Every one of them as a change, or with what is wrong with it."""
    if len(given) > limits.APPEND_FACTS_MAX:
        raise OverLimit(
            f"{len(given)} {what} in one request; the most is {limits.APPEND_FACTS_MAX}"
        )
    prepared: list[Prepared] = []
    for one in given:
        try:
            prepared.append(change(one))
        except Refused as error:
            prepared.append(error)
    return prepared
