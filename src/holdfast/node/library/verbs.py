"""A verb that writes is described once, by a method that prepares the write:

    @writes("state.set")
    def set(self, key: str, value: object) -> Work[Receipt]: ...

Callers get a method with the same parameters that writes and returns the `Receipt`. The library for
coroutines makes its verb of the same method (`aio_verbs.written`).

This module stands on the CLI's cold path: it must not import asyncio.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from holdfast.node.core.engine import NodeEngine
from holdfast.storage.ports import Work

P = ParamSpec("P")
T = TypeVar("T")


class HasEngine(Protocol):
    _engine: NodeEngine


F = TypeVar("F", bound=HasEngine)


def writes(
    operation: str,
) -> Callable[[Callable[Concatenate[F, P], Work[T]]], Callable[Concatenate[F, P], T]]:
    """Makes a verb that runs what the method prepares, under the name that metrics count it by."""

    def make(prepare: Callable[Concatenate[F, P], Work[T]]) -> Callable[Concatenate[F, P], T]:
        @wraps(prepare)
        def verb(self: F, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return self._engine.write(operation, prepare(self, *args, **kwargs))

        # What `help` shows is what callers get, not the work.
        returns = prepare.__annotations__["return"].removeprefix("Work[").removesuffix("]")
        prepare.__annotations__["return"] = returns
        vars(verb)["operation"] = operation
        return verb

    return make
