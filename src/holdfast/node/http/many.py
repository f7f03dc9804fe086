"""Many changes in one request: each is accepted or refused by itself, and has its own result."""

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
    """The change of each item, or its error."""
    if len(given) > limits.APPEND_FACTS_MAX:
        raise OverLimit(
            f"{len(given)} {what} in one request; the most is {limits.APPEND_FACTS_MAX}"
        )
    prepared: list[Prepared] = []
    for item in given:
        try:
            prepared.append(change(item))
        except Refused as error:
            prepared.append(error)
    return prepared
