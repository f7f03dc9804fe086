"""Writes from an event loop: those of one turn of the loop go to the group writer together, and the
results of a group come back together. So many coroutines share one commit and two hand-overs.

A write takes the same way as every other (see `engine`); it waits for its commit without holding up
the loop. Once it was handed to the writer it happens, even if its coroutine is cancelled meanwhile.

The writer's queue has an end (`QUEUE_OPS_MAX`). Writes that find no room there wait here, in order:
their coroutines wait anyway, so they cost no more than those do.
"""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from typing import Any, TypeVar

from holdfast.node.core.engine import NodeEngine
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import GROUP_MS_MAX
from holdfast.storage.group_commit import GroupWriter
from holdfast.storage.ports import Work
from holdfast.storage.tickets import Sink, Ticket

T = TypeVar("T")


class _AsyncTicket(Ticket):
    """A write of a coroutine, with its name and the time when it was handed in."""

    __slots__ = ("begun", "future", "name", "retried")

    def __init__(self, name: str, work: Work[Any], sink: Sink, future: asyncio.Future[Any]) -> None:
        super().__init__(work, sink)
        self.name, self.future, self.begun = name, future, perf_counter_ns()
        self.retried = False


class LoopWriter:
    """Runs the writes of one event loop."""

    def __init__(self, engine: NodeEngine, writer: GroupWriter) -> None:
        self.engine = engine
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Ticket] = []
        self._backlog = False
        """Whether the queue had no room for all that wait."""
        self._under_way = 0
        """Handed to the writer, and not answered yet."""
        self._sink = self._finished  # one object, so that the writer can group by it

    def write(self, name: str, work: Work[T]) -> asyncio.Future[T]:
        """Runs a write as `NodeEngine.write` does. The future has its result or its error, after
        the commit.
        """
        self._writer.refuse_if_forked()  # its loop is the parent's too
        future: asyncio.Future[T] = self._loop.create_future()
        try:
            self.engine.admit_write(name)
        except HoldfastError as error:
            future.set_exception(error)
            return future
        self._queue(_AsyncTicket(name, work, self._sink, future))
        return future

    def _queue(self, ticket: _AsyncTicket) -> None:
        if not self._waiting:
            self._loop.call_soon(self._hand_over)
        self._waiting.append(ticket)

    def _hand_over(self) -> None:
        if not self._waiting:
            return
        try:
            taken = self._writer.submit(self._waiting)
        except BaseException as error:
            waiting, self._waiting, self._backlog = self._waiting, [], False
            for ticket in waiting:
                ticket.error = error
            self._under_way += len(waiting)
            self._answer(waiting)
            return
        del self._waiting[:taken]
        self._under_way += taken
        self._backlog = bool(self._waiting)
        if self._backlog and not self._under_way:
            # Others have filled the queue, and no answer of ours will tell when there is room.
            self._loop.call_later(GROUP_MS_MAX / 1000, self._hand_over)

    def _finished(self, tickets: list[Ticket]) -> None:
        """Called by the writer, in its thread."""
        try:
            self._loop.call_soon_threadsafe(self._answer, tickets)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            # The loop ended while the writer was at work: no coroutine waits any more.

    def _answer(self, tickets: list[Ticket]) -> None:
        self._under_way -= len(tickets)
        now = perf_counter_ns()
        metrics = self.engine.metrics
        for ticket in tickets:
            assert isinstance(ticket, _AsyncTicket)
            error = ticket.error
            if error is not None and self._is_retried(ticket, error):
                continue
            metrics.add(ticket.name, now - ticket.begun)
            future = ticket.future
            if future.done():  # cancelled while the writer was at work
                continue
            if error is None:
                future.set_result(ticket.result)
            else:
                future.set_exception(error)
        if self._backlog:
            self._hand_over()

    def _is_retried(self, ticket: _AsyncTicket, error: BaseException) -> bool:
        """Counts a failure; hands the write over once more if there is room for it now."""
        if ticket.retried or not isinstance(error, HoldfastError):
            return False
        if not self.engine.write_failed(ticket.name, error):
            return False
        ticket.error, ticket.retried = None, True
        self._queue(ticket)
        return True
