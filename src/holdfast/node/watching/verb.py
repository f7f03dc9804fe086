"""A verb that yields what is new is described once, by a method that says what to follow:

    @watches
    def watch(self, prefix: str = "", *, since: Since = None) -> WatchSource[LogChange]: ...

Callers get a method with the same parameters that returns a `ChangeWatch`. The library for
coroutines makes its verb of the same method (`library.aio_verbs.watched`).

This module stands on the CLI's cold path: it must not import asyncio.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from holdfast.node.watching.source import WatchSource
    from holdfast.node.watching.watches import ChangeWatch

F = TypeVar("F")
P = ParamSpec("P")
T = TypeVar("T")


def watches(
    prepare: Callable[Concatenate[F, P], WatchSource[T]],
) -> Callable[Concatenate[F, P], ChangeWatch[T]]:
    """Makes a verb that yields what is new, from a method that says what to follow."""

    @wraps(prepare)
    def verb(self: F, /, *args: P.args, **kwargs: P.kwargs) -> ChangeWatch[T]:
        # It brings asyncio and sockets with it, which most callers do not need.
        from holdfast.node.watching.watches import ChangeWatch

        return ChangeWatch(prepare(self, *args, **kwargs))

    returns = prepare.__annotations__["return"].removeprefix("WatchSource")
    prepare.__annotations__["return"] = f"ChangeWatch{returns}"
    vars(verb)["follow"] = prepare
    return verb
