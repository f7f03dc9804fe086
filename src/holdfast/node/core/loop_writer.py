"""Writes of one event loop: those of one turn go to the group writer together, and a group's
answers come back together, so that many coroutines share one commit and two hand-overs.

A write that was handed to the writer happens even if its coroutine is cancelled meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.node.core.engine import NodeEngine
from holdfast.rules.errors import DiskFull
from holdfast.storage.group_commit import GroupWriter, Ticket
from holdfast.storage.ports import Work

T = TypeVar("T")


class _AsyncTicket(Ticket):
    __slots__ = ("future",)

    def __init__(
        self, work: Work[Any], sink: Callable[[list[Ticket]], None], future: asyncio.Future[Any]
    ) -> None:
        super().__init__(work, sink)
        self.future = future


class LoopWriter:
    """The group writer, as one event loop uses it."""

    def __init__(self, engine: NodeEngine, writer: GroupWriter) -> None:
        self.engine = engine
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Ticket] = []
        self._sink = self._finished  # one object, so that the writer can group by it

    def write(self, work: Work[T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._hand_over)
        self._waiting.append(_AsyncTicket(work, self._sink, future))
        return future

    def add(self, work: Work[T]) -> asyncio.Future[T]:
        """A write that brings something new: refused while there is no room for it."""
        self.engine.check_room()
        return self.write(work)

    def _hand_over(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            self._writer.submit(waiting)
        except BaseException as error:
            for ticket in waiting:
                ticket.error = error
            self._answer(waiting)

    def _finished(self, tickets: list[Ticket]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._answer, tickets)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            # The loop ended while the writer was at work: nobody is left to hear of it.

    def _answer(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            assert isinstance(ticket, _AsyncTicket)
            if isinstance(ticket.error, DiskFull) and self.engine.relieve is not None:
                self.engine.relieve()
            future = ticket.future
            if future.done():  # cancelled while the writer was at work
                continue
            if ticket.error is None:
                future.set_result(ticket.result)
            else:
                future.set_exception(ticket.error)
