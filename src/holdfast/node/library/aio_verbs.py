"""How the verbs of the library become verbs for coroutines. Each takes its parameters, types and
documentation from the verb that it is made of, and differs only in how it runs:

    written     a write: prepared at once, then committed together with others of the event loop
    turned      a turn of a task: written, or decided by the quorum of the mesh
    at_once     a read that takes microseconds: it runs in the event loop
    in_thread   everything that may take long
    streamed    an iterator over pages, each read in a thread
    watched     what is new, as it comes, each page read in a thread

The verb is looked up on the object with each call, so that a class which overrides it is heeded.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from itertools import islice
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from holdfast.node.core.loop_writer import LoopWriter
from holdfast.node.core.operations import ThenTask
from holdfast.node.library.families import Tasks
from holdfast.node.library.quorum_reach import Reach
from holdfast.node.library.strong_tasks import ask_turn
from holdfast.node.watching.watches import AsyncChangeWatch, ChangeWatch
from holdfast.rules.errors import HasVoters
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.rows import TaskRow

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class AsyncFace(Generic[S]):
    """Verbs for coroutines, each made of one of `S`."""

    def __init__(self, sync: S) -> None:
        self._sync = sync


class AsyncWriter(AsyncFace[S]):
    """The same, with verbs that write."""

    def __init__(self, writer: LoopWriter, sync: S) -> None:
        super().__init__(sync)
        self._writer = writer


class AsyncTurns(AsyncWriter[Tasks]):
    """The same for tasks, which a quorum may decide."""

    def __init__(self, writer: LoopWriter, sync: Tasks, reach: Reach | None = None) -> None:
        super().__init__(writer, sync)
        self._reach = reach
        self._has_voters = False


def written(
    verb: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[AsyncWriter[S], P], Coroutine[Any, Any, T]]:
    """A verb that `verbs.writes` has made; it is counted under the same name."""
    prepare, operation = vars(verb)["__wrapped__"], vars(verb)["operation"]

    @wraps(verb)
    async def call(self: AsyncWriter[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await self._writer.write(operation, prepare(self._sync, *args, **kwargs))
        return result

    return call


def turned(
    verb: Callable[Concatenate[Tasks, P], TaskRow],
) -> Callable[Concatenate[AsyncTurns, P], Coroutine[Any, Any, TaskRow]]:
    """A verb that `verbs.turns` has made: where there are voters, the quorum decides it."""
    prepare, operation = vars(verb)["__wrapped__"], vars(verb)["operation"]

    @wraps(verb)
    async def call(self: AsyncTurns, /, *args: P.args, **kwargs: P.kwargs) -> TaskRow:
        work: ThenTask = prepare(self._sync, *args, **kwargs)
        try:
            if not self._has_voters:
                return await self._writer.write(operation, work)
        except HasVoters:
            if self._reach is None:
                raise
            self._has_voters = True
        assert self._reach is not None, "else it was raised"
        return await ask_turn(self._writer.engine, self._reach, work.change)

    return call


def at_once(
    verb: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[AsyncFace[S], P], Coroutine[Any, Any, T]]:
    @wraps(verb)
    async def call(self: AsyncFace[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = getattr(self._sync, verb.__name__)(*args, **kwargs)
        return result

    return call


def in_thread(
    verb: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[AsyncFace[S], P], Coroutine[Any, Any, T]]:
    @wraps(verb)
    async def call(self: AsyncFace[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        run: Callable[..., T] = getattr(self._sync, verb.__name__)
        return await asyncio.to_thread(run, *args, **kwargs)

    return call


def streamed(
    verb: Callable[Concatenate[S, P], Iterator[T]],
) -> Callable[Concatenate[AsyncFace[S], P], AsyncIterator[T]]:
    @wraps(verb)
    def call(self: AsyncFace[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return _stream(getattr(self._sync, verb.__name__)(*args, **kwargs))

    shown = inspect.signature(verb)
    vars(call)["__signature__"] = shown.replace(return_annotation=f"Async{shown.return_annotation}")
    return call


async def _stream(rows: Iterator[T]) -> AsyncIterator[T]:
    while page := await asyncio.to_thread(lambda: list(islice(rows, CHUNK_ROWS))):
        for row in page:
            yield row


def watched(
    verb: Callable[Concatenate[S, P], ChangeWatch[T]],
) -> Callable[Concatenate[AsyncFace[S], P], AsyncChangeWatch[T]]:
    """A verb that `verbs.watches` has made."""
    follow = vars(verb)["follow"]

    @wraps(verb)
    def call(self: AsyncFace[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncChangeWatch[T]:
        return AsyncChangeWatch(follow(self._sync, *args, **kwargs))

    shown = inspect.signature(verb)
    vars(call)["__signature__"] = shown.replace(return_annotation=f"Async{shown.return_annotation}")
    return call
