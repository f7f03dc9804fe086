"""What a log does for a named reader: register it, find its next entries, take its confirmation.

The steps work on a transaction or on a reader of the store. `log` (for the library) and `serve`
(for other nodes) run the same steps; they differ only in who may ask and in the form of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from holdfast.rules import limits
from holdfast.rules.errors import (
    BadInput,
    EpochChanged,
    OverLimit,
    PastEnd,
    Truncated,
    UnknownConsumer,
)
from holdfast.rules.frontier import Frontier, check_confirm
from holdfast.rules.names import check_key
from holdfast.rules.rows import Columns, ConsumerRow, Page
from holdfast.storage.ports import Reader

P = TypeVar("P", Page, Columns)
Span = tuple[int, int]
"""Half-open, [start, end)."""


def check_reader(name: str, retire_ms: int | None, retire_lag: int | None) -> None:
    """Checks what a reader declares when it registers; needs no store."""
    check_key(name, "consumer name", limits.CONSUMER_NAME_BYTES_MAX)
    if retire_ms is not None and not 0 < retire_ms < limits.LAMPORT_MAX:
        raise BadInput(f"{retire_ms} ms is not a time to wait for a consumer")
    if retire_lag is not None and not 0 < retire_lag < limits.LAMPORT_MAX:
        raise BadInput(f"{retire_lag} is not a number of entries that may wait for a consumer")


def check_limit(limit: int) -> None:
    if not 1 <= limit <= limits.FETCH_ROWS_MAX:
        raise OverLimit(f"limit {limit} is not between 1 and {limits.FETCH_ROWS_MAX}")


def require(tx: Reader, name: str) -> ConsumerRow:
    row = tx.consumer_get(name)
    if row is None:
        raise UnknownConsumer(f"there is no consumer {name!r}")
    return row


def check_epoch(tx: Reader, epoch: int | None) -> None:
    """Raises EpochChanged if a reader counts in another epoch: there an offset is another entry."""
    now = tx.epoch()
    if epoch is not None and epoch != now:
        raise EpochChanged(
            f"the log counts in epoch {now}, not {epoch}",
            epoch=now,
            hint="it was restored: read it again from its first offset; known entries do no harm",
        )


def place(start: str | int, first: int, last: int) -> int:
    """The offset at which a new reader begins."""
    if start == "start":
        return first
    if start == "now":
        return last + 1
    if isinstance(start, int):
        if start > last + 1:
            raise PastEnd(f"offset {start} is past the end of the log at {last}")
        if start < first:
            raise Truncated(f"the log begins at offset {first}", first_available=first)
        return start
    raise BadInput(f"{start!r} is not a place in the log", hint="use start, now or an offset")


def fresh(tx: Reader, name: str, start: str | int, now_ms: int) -> ConsumerRow:
    """A reader that has confirmed everything before the place where it begins."""
    frontier = Frontier(place(start, *tx.log_bounds()) - 1)
    return ConsumerRow(name=name, frontier=frontier.encode(), created_at=now_ms, seen_at=now_ms)


def check_there(start: int, end: int, first: int) -> None:
    """Raises Truncated, with the first offset that there is, if [start, end) begins before it."""
    if start < first and end > start:
        raise Truncated(
            f"offset {start} is gone: the log begins at {first}",
            first_available=first,
            hint=f"read on from offset {first}, or take what is missing from a backup",
        )


# --- reading on ----------------------------------------------------------------------------------


def unread(tx: Reader, row: ConsumerRow, start: int | None) -> tuple[int, list[Span]]:
    """Where a read begins, and the spans that it covers: from `start` to the end of the log, or
    what the reader has not confirmed.
    """
    first, last = tx.log_bounds()
    if start is None:
        frontier = Frontier.decode(row.frontier)
        begin, spans = frontier.prefix + 1, frontier.holes(last)
    elif start < 1:
        raise BadInput(f"{start} is not an offset", hint="the first of any log is 1")
    else:
        begin, spans = start, [(start, last + 1)] if start <= last else []
    if begin > last + 1:
        raise PastEnd(
            f"offset {begin} is past the end of the log at {last}",
            hint="the log is older than its reader: retire the consumer and register it anew",
        )
    check_there(begin, last + 1, first)
    return begin, spans


def pieces(
    look: Callable[[int, int, int, int], P],
    raws: Callable[[P], Sequence[bytes]],
    spans: Sequence[Span],
    limit: int,
) -> Iterator[P]:
    """Reads spans of the log one after the other until `limit` rows, FETCH_BYTES_MAX bytes or
    SCAN_ROWS_MAX looked-at entries are reached. `look` takes start, end, rows and bytes; the last
    piece says how far the read got.
    """
    size, patience = limits.FETCH_BYTES_MAX, limits.SCAN_ROWS_MAX
    for start, end in spans:
        piece = look(start, end, limit, size)
        yield piece
        entries = raws(piece)
        limit -= len(entries)
        size -= sum(map(len, entries))
        patience -= end - start
        if piece.upto < end - 1 or min(limit, size, patience) <= 0:
            return


# --- confirming ----------------------------------------------------------------------------------


def confirmed(
    tx: Reader, row: ConsumerRow, offset: int | None, ranges: Iterable[Span] | None, now_ms: int
) -> ConsumerRow:
    """The reader after it confirmed everything up to an offset, or half-open ranges. Going
    backwards changes nothing; past the end raises PastEnd.
    """
    last = tx.log_bounds()[1]
    frontier = Frontier.decode(row.frontier)
    for start, end in [(1, offset + 1)] if offset is not None else ranges or ():
        check_confirm(frontier, start, end, last)
        frontier = frontier.confirm_range(start, end)
    return msgspec.structs.replace(row, frontier=frontier.encode(), seen_at=now_ms)


def check_confirmation(offset: int | None, ranges: object) -> None:
    if (offset is None) == (ranges is None):
        raise BadInput("confirm either an offset or ranges")
