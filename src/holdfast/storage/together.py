"""The writes of a group that runs without savepoints: those that can be, are carried out as one.

A write may say of its kind how many of them are carried out `together`: then those that stand next
to each other in the queue, from the first, are handed over at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.rules.errors import Refused

if TYPE_CHECKING:
    from holdfast.storage.ports import Transaction
    from holdfast.storage.tickets import Ticket


class Together(Protocol):
    def __call__(self, tx: Transaction, works: Iterable[Any], /) -> Sequence[Any]:
        """Carries out as many of the works, from the first, as it can as one, with what would come
        of them one by one; returns their results. One that it refuses has the error for a result,
        and has changed nothing.
        """


class Open(Protocol):
    """A transaction that is open, as the group writer drives it."""

    transaction: Transaction

    def changes(self) -> int: ...
    def alive(self) -> bool: ...


def carry_out_next(open: Open, tickets: Sequence[Ticket], start: int) -> int:
    """Carries out writes from `start` on, as one or the first of them alone. Returns how many have
    their result, or the error that refused them before anything had changed; any other error is
    raised.
    """
    ticket = tickets[start]
    together: Together | None = getattr(ticket.work, "together", None)
    if together is not None and start + 1 < len(tickets):
        answers = together(open.transaction, _of_one_kind(tickets, start, together))
        if answers:
            _answer(islice(tickets, start, None), answers)
            return len(answers)
    before = open.changes()
    try:
        ticket.result = ticket.work(open.transaction)
    except Refused as error:
        if open.changes() != before or not open.alive():
            raise
        ticket.error = error
    return 1


def _of_one_kind(tickets: Sequence[Ticket], start: int, together: Together) -> Iterator[Any]:
    for ticket in islice(tickets, start, None):
        if getattr(ticket.work, "together", None) is not together:
            return
        yield ticket.work


def _answer(tickets: Iterable[Ticket], answers: Sequence[Any]) -> None:
    for ticket, answer in zip(tickets, answers, strict=False):
        if isinstance(answer, Refused):
            ticket.error = answer
        else:
            ticket.result = answer
