"""Writes of a node from an event loop, by the loop's queue (`storage/loop_queue.py`).

A write takes the same way as every other (see `engine`); it waits for its commit without holding up
the loop.
"""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from typing import Any, TypeVar

from holdfast.node.core.engine import NodeEngine
from holdfast.rules.errors import HoldfastError
from holdfast.storage.group_commit import GroupWriter
from holdfast.storage.loop_queue import LoopQueue
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
        self._queue = LoopQueue(writer, self._answer)

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
        self._queue.put(_AsyncTicket(name, work, self._queue.sink, future))
        return future

    def _answer(self, tickets: list[Ticket]) -> None:
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

    def _is_retried(self, ticket: _AsyncTicket, error: BaseException) -> bool:
        """Counts a failure; hands the write over once more if there is room for it now."""
        if ticket.retried or not isinstance(error, HoldfastError):
            return False
        if not self.engine.write_failed(ticket.name, error):
            return False
        ticket.error, ticket.retried = None, True
        self._queue.put(ticket)
        return True
