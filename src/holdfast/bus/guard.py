"""Where errors of a store become errors of the bus: the one place.

A store has errors of its own kind: a full disk, a lost server, a bug. Callers of the bus know only
`BusError`. What a store raises as a `BusError` by itself (no room, a number that was seen) passes
as it is, everything else becomes `BusStoreFailed` with its cause. A directory of peers may look
into a store too: so it is guarded in the same way.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from holdfast.rules.errors import BusError, BusStoreFailed, HoldfastError

T = TypeVar("T")


async def guarded(call: Awaitable[T]) -> T:
    """The answer of a store."""
    try:
        return await call
    except BusError:
        raise
    except Exception as error:
        raise store_failed(error) from error


def store_failed(error: Exception) -> BusStoreFailed:
    """What callers of the bus get for an error of the store's own kind."""
    if isinstance(error, HoldfastError):
        return BusStoreFailed(f"the store of the bus: {error.message}", hint=error.hint or None)
    return BusStoreFailed(f"the store of the bus: {type(error).__name__}: {error}")
