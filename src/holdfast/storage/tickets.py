"""One write that waits, and how the writes of a group are answered."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.rules.errors import HoldfastError, StoreClosed

if TYPE_CHECKING:
    from holdfast.storage.ports import Work

Sink = Callable[[list["Ticket"]], None]
"""Gets those tickets of a group that share it, once they have a result or an error."""

log = logging.getLogger("holdfast")


class Ticket:
    """One write that waits: its work, who gets the answer, and its result or error."""

    __slots__ = ("error", "result", "sink", "taken", "work")

    def __init__(self, work: Work[Any], sink: Sink) -> None:
        self.work = work
        self.sink = sink
        self.taken = False
        """Whether it has left the queue to be run."""
        self.result: Any = None
        self.error: BaseException | None = None

    def value(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


def copy(error: BaseException) -> BaseException:
    """Copies an error, so that each caller raises an exception of its own."""
    if isinstance(error, HoldfastError):
        twin = type(error).__new__(type(error))
        twin.args = error.args
        twin.__dict__.update(error.__dict__)
        twin.__cause__ = error.__cause__
        return twin
    return error


def deliver(tickets: list[Ticket]) -> None:
    """Answers a group. Tickets that share a sink (that of an event loop) are passed in one call."""
    if not tickets:
        return
    sink = tickets[0].sink
    if all(ticket.sink is sink for ticket in tickets):
        _call(sink, tickets)
        return
    by_sink: dict[Sink, list[Ticket]] = {}
    for ticket in tickets:
        by_sink.setdefault(ticket.sink, []).append(ticket)
    for sink, group in by_sink.items():
        _call(sink, group)


def _call(sink: Sink, tickets: list[Ticket]) -> None:
    try:
        sink(tickets)
    except Exception:
        # Other callers still wait for their answers, and the next groups for this thread.
        log.exception("a caller could not be told what came of its write")


def reject(tickets: list[Ticket]) -> None:
    for ticket in tickets:
        ticket.error = StoreClosed("the write was aborted before it began")
    deliver(tickets)
