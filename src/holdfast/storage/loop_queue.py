"""Writes from an event loop: those of one turn of the loop go to the group writer together, and the
results of a group come back together. So many coroutines share one commit and two hand-overs.

Once a write was handed to the writer it happens, even if its coroutine is cancelled meanwhile.

The writer's queue has an end (`QUEUE_OPS_MAX`). Writes that find no room there wait here, in order:
their coroutines wait anyway, so they cost no more than those do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.rules.limits import GROUP_MS_MAX
from holdfast.storage.group_commit import GroupWriter
from holdfast.storage.ports import Work
from holdfast.storage.tickets import Sink, Ticket

T = TypeVar("T")


class LoopQueue:
    """What the coroutines of one event loop have to write."""

    def __init__(self, writer: GroupWriter, answered: Callable[[list[Ticket]], None]) -> None:
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._answered = answered
        """Called in the loop with tickets that have a result or an error."""
        self._waiting: list[Ticket] = []
        self._backlog = False
        """Whether the queue had no room for all that wait."""
        self._under_way = 0
        """Handed to the writer, and not answered yet."""
        self.sink: Sink = self._finished  # one object, so that the writer can group by it

    def put(self, ticket: Ticket) -> None:
        """Queues a write whose sink is that of this queue."""
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
        self._answered(tickets)
        if self._backlog:
            self._hand_over()


class _Awaited(Ticket):
    __slots__ = ("future",)

    def __init__(self, work: Work[Any], sink: Sink, future: asyncio.Future[Any]) -> None:
        super().__init__(work, sink)
        self.future = future


class LoopWrites:
    """Runs writes of the loop in which it was made; each is answered after its commit."""

    def __init__(self, writer: GroupWriter) -> None:
        self._writer = writer
        self._queue = LoopQueue(writer, _answer)
        self._loop = asyncio.get_running_loop()

    def __call__(self, work: Work[T]) -> asyncio.Future[T]:
        self._writer.refuse_if_forked()
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(_Awaited(work, self._queue.sink, future))
        return future


def _answer(tickets: list[Ticket]) -> None:
    for ticket in tickets:
        assert isinstance(ticket, _Awaited)
        if ticket.future.done():  # cancelled while the writer was at work
            continue
        if ticket.error is None:
            ticket.future.set_result(ticket.result)
        else:
            ticket.future.set_exception(ticket.error)
