"""Where a reader stands in a log: the epoch that the log counts in, and an offset.

Written as text it is `2:812`: everything up to offset 812 was read, in a log that counted in epoch
2. A log that may have gone back in time counts on in a new epoch, so an offset alone could name
another entry than the one that was read.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from holdfast.rules.errors import BadInput, EpochChanged, PastEnd, Truncated
from holdfast.rules.limits import LAMPORT_MAX


class LogCursor(NamedTuple):
    """Everything up to `offset` was read."""

    epoch: int
    offset: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.offset}"


START: Final = "start"
"""Reads from the first entry that the log still has."""

Since: TypeAlias = LogCursor | int | str | None
"""What a reader goes on after: a cursor or its text, an offset, `START`; None for what comes next.
"""

_HINT: Final = "give the cursor of a change as 2:812, an offset, or start"


def resolve_since(since: object, *, epoch: int, first: int, head: int) -> LogCursor:
    """The cursor that is meant, in a log that counts in this epoch and goes from `first` to `head`.

    Raises EpochChanged, PastEnd or Truncated if the log cannot go on from there.
    """
    if since is None:
        return LogCursor(epoch, head)
    if since == START:
        return LogCursor(epoch, first - 1)
    cursor = _read(since)
    if cursor.epoch == _ANY:
        cursor = cursor._replace(epoch=epoch)
    check_place(cursor, epoch=epoch, first=first, head=head)
    return cursor


def since_text(since: object) -> str | None:
    """`since` as it is written in an address; BadInput if it is no place."""
    if since is None or since == START:
        return None if since is None else START
    cursor = _read(since)
    return str(cursor.offset) if cursor.epoch == _ANY else str(cursor)


def check_place(cursor: LogCursor, *, epoch: int, first: int, head: int) -> None:
    """Raises unless the log can go on after the cursor without leaving anything out."""
    if cursor.epoch != epoch:
        raise EpochChanged(
            f"the log counts in epoch {epoch} now, and {cursor} is of epoch {cursor.epoch}: it may "
            "have gone back in between",
            epoch=epoch,
            hint=f"read what is there now, and go on after {LogCursor(epoch, head)}",
        )
    if cursor.offset > head:
        raise PastEnd(f"offset {cursor.offset} is past the end of the log at {head}")
    if cursor.offset < first - 1:
        raise Truncated(
            f"offset {cursor.offset + 1} is gone: the log begins at {first}",
            first_available=first,
            hint=f"read what is there now, and go on after {LogCursor(epoch, first - 1)}",
        )


_ANY: Final = 0
"""In place of an epoch: the one that the log counts in. Epochs begin with 1."""


def _read(since: object) -> LogCursor:
    if isinstance(since, str):
        epoch, colon, offset = since.rpartition(":")
        parts = (epoch if colon else str(_ANY), offset)
        # Not more digits than such a number can have: Python refuses to read very many.
        if all(part.isascii() and part.isdecimal() and len(part) <= _DIGITS for part in parts):
            found: tuple[object, ...] = tuple(map(int, parts))
        else:
            found = ()
    else:
        found = since if isinstance(since, tuple) else (_ANY, since)
    if len(found) == len(LogCursor._fields) and all(map(_fits, found)):
        return LogCursor(*found)  # type: ignore[arg-type]
    raise BadInput(f"since is {since!r:.80}, which is no place in a log", hint=_HINT)


def _fits(number: object) -> bool:
    return type(number) is int and 0 <= number <= LAMPORT_MAX


_DIGITS: Final = len(str(LAMPORT_MAX))
