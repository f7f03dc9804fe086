"""The node's log for its readers: ranges, named consumers, confirmations, truncation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from holdfast.node.core import Core
from holdfast.node.views import Consumer
from holdfast.rules import limits
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    OverLimit,
    PastEnd,
    Truncated,
    UnknownConsumer,
)
from holdfast.rules.frontier import Frontier, check_confirm
from holdfast.rules.names import check_key
from holdfast.rules.rows import ConsumerRow, Entry
from holdfast.storage.ports import Reader, Transaction


class Head(NamedTuple):
    """Where the log stands. A cursor is both numbers: a restored log counts in a new epoch."""

    epoch: int
    first: int
    offset: int


class Log:
    """Append-only; every envelope once, own and received, in the order this node took them in."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def head(self) -> Head:
        return self._core.read("log.head", lambda tx: Head(tx.epoch(), *tx.log_bounds()))

    def range(self, start: int = 1, end: int | None = None) -> Iterator[Entry]:
        """Entries with start <= offset < end, without moving anybody's cursor; a page in memory at
        a time.
        """
        first, last = self._bounds()
        stop = last + 1 if end is None else end
        if start < 1 or stop < start:
            raise BadInput(f"[{start}, {stop}) is not a range of offsets")
        position = start

        def page(tx: Reader) -> Sequence[Entry]:
            nonlocal position
            # Looked at again for every page: the log may be truncated while it is being read.
            _check_there(position, stop, *tx.log_bounds())
            rows = tx.log_range(position, stop, limits.CHUNK_ROWS)
            position = rows[-1].offset + 1 if rows else position
            return rows

        _check_there(start, stop, first, last)
        return self._core.pages(page)

    def tail(self, count: int = 20) -> list[Entry]:
        def read(tx: Reader) -> list[Entry]:
            first, last = tx.log_bounds()
            return tx.log_range(max(first, last - count + 1), last + 1, count)

        return self._core.read("log.tail", read)

    # --- consumers ---------------------------------------------------------------------------

    def consumers(self) -> list[Consumer]:
        def read(tx: Reader) -> list[Consumer]:
            head = tx.log_bounds()[1]
            return [Consumer.of(row, head) for row in tx.consumer_list()]

        return self._core.read("consumer.list", read)

    def add_consumer(
        self, name: str, start: str | int = "start", *, retire_ms: int | None = None
    ) -> Consumer:
        """Registers a reader. From now on nothing that it has not confirmed is removed.

        With `retire_ms` it declares how long it is waited for: a sweep retires a reader that has
        not confirmed for longer.
        """
        check_key(name, "consumer name", limits.CONSUMER_NAME_BYTES_MAX)
        if retire_ms is not None and not 0 < retire_ms < limits.LAMPORT_MAX:
            raise BadInput(f"{retire_ms} ms is not a time to wait for a consumer")
        now = self._core.ctx.now_ms()

        def work(tx: Transaction) -> Consumer:
            if tx.consumer_get(name) is not None:
                raise AlreadyExists(f"consumer {name!r} is registered already")
            first, last = tx.log_bounds()
            position = _start(start, first, last)
            row = ConsumerRow(
                name=name,
                frontier=Frontier(position - 1).encode(),
                created_at=now,
                seen_at=now,
                retire_ms=retire_ms,
            )
            tx.consumer_put(row)
            return Consumer.of(row, last)

        return self._core.write("consumer.add", work)

    def fetch(self, consumer: str, limit: int = limits.FETCH_ROWS_DEFAULT) -> list[Entry]:
        """What a consumer has not confirmed, oldest first: the same again until it confirms."""
        if not 1 <= limit <= limits.FETCH_ROWS_MAX:
            raise OverLimit(f"limit {limit} is not between 1 and {limits.FETCH_ROWS_MAX}")

        def read(tx: Reader) -> list[Entry]:
            row = _require(tx, consumer)
            frontier = Frontier.decode(row.frontier)
            first, last = tx.log_bounds()
            _check_there(frontier.prefix + 1, last + 1, first, last)
            found: list[Entry] = []
            for start, end in frontier.holes(last):
                found += tx.log_range(start, end, limit - len(found))
                if len(found) >= limit:
                    break
            return found

        return self._core.read("fact.fetch", read)

    def confirm(
        self,
        consumer: str,
        offset: int | None = None,
        *,
        ranges: Iterable[tuple[int, int]] | None = None,
    ) -> Consumer:
        """Everything up to an offset, or half-open ranges. Backwards is a no-op, past the end an
        error.
        """
        if (offset is None) == (ranges is None):
            raise BadInput("confirm either an offset or ranges")
        spans = None if ranges is None else list(ranges)
        now = self._core.ctx.now_ms()

        def work(tx: Transaction) -> Consumer:
            row = _require(tx, consumer)
            frontier = Frontier.decode(row.frontier)
            last = tx.log_bounds()[1]
            for start, end in [(1, offset + 1)] if offset is not None else spans or []:
                check_confirm(frontier, start, end, last)
                frontier = frontier.confirm_range(start, end)
            confirmed = msgspec.structs.replace(row, frontier=frontier.encode(), seen_at=now)
            tx.consumer_put(confirmed)
            return Consumer.of(confirmed, last)

        return self._core.write("fact.confirm", work)

    def retire(self, consumer: str) -> None:
        """Forgets a reader: the log no longer waits for it."""

        def work(tx: Transaction) -> None:
            _require(tx, consumer)
            tx.consumer_drop(consumer)

        self._core.write("consumer.retire", work)

    def _bounds(self) -> tuple[int, int]:
        return self._core.read("log.range", lambda tx: tx.log_bounds())


def _start(start: str | int, first: int, last: int) -> int:
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


def _check_there(start: int, end: int, first: int, last: int) -> None:
    if start < first and end > start:
        raise Truncated(
            f"offset {start} is gone: the log begins at {first}",
            first_available=first,
            hint=f"read on from offset {first}, or take what is missing from a backup",
        )


def _require(tx: Reader, name: str) -> ConsumerRow:
    row = tx.consumer_get(name)
    if row is None:
        raise UnknownConsumer(f"there is no consumer {name!r}")
    return row
