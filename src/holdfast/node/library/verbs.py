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
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.operations import ThenTask
from holdfast.rules.errors import HasVoters
from holdfast.rules.rows import TaskRow
from holdfast.storage.ports import Work

if TYPE_CHECKING:
    from holdfast.node.library.bus import NodeBus

P = ParamSpec("P")
T = TypeVar("T")


class HasEngine(Protocol):
    _engine: NodeEngine


F = TypeVar("F", bound=HasEngine)


def opened_bus(bus: Callable[[], NodeBus] | None) -> NodeBus:
    """The bus of the node. HasVoters if the caller has none to ask."""
    if bus is None:
        raise HasVoters("voters decide that, and this program has no way to ask them")
    return bus()


class HasBus(HasEngine, Protocol):
    _bus: Callable[[], NodeBus] | None
    _has_voters: bool
    """A turn was refused because the mesh has voters: the next need not try."""


B = TypeVar("B", bound=HasBus)


def turns(
    operation: str,
) -> Callable[[Callable[Concatenate[B, P], ThenTask]], Callable[Concatenate[B, P], TaskRow]]:
    """As `writes`, for turns of tasks: in a mesh with voters the quorum decides them."""

    def make(
        prepare: Callable[Concatenate[B, P], ThenTask],
    ) -> Callable[Concatenate[B, P], TaskRow]:
        @wraps(prepare)
        def verb(self: B, /, *args: P.args, **kwargs: P.kwargs) -> TaskRow:
            work = prepare(self, *args, **kwargs)
            try:
                if not self._has_voters:
                    return self._engine.write(operation, work)
            except HasVoters:
                if self._bus is None:
                    raise
                self._has_voters = True
            # It brings asyncio with it, which a mesh without voters does not need.
            from holdfast.node.library.strong_tasks import ask_turn

            bus = opened_bus(self._bus)
            asked = ask_turn(self._engine, bus.quorums(), work.change)
            return bus.loop_thread.run(asked)

        prepare.__annotations__["return"] = "TaskRow"
        vars(verb)["operation"] = operation
        return verb

    return make


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
