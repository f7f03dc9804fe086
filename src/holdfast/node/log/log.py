"""The node's log for its readers: ranges, named consumers, confirmations, truncation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.views import Consumer
from holdfast.node.log import consumers as readers
from holdfast.node.log import serve
from holdfast.protocol.log_wire import Batch, Confirmation, Fetch
from holdfast.rules import limits
from holdfast.rules.arguments import checks_arguments
from holdfast.rules.errors import AlreadyExists, BadInput
from holdfast.rules.filters import EVERYTHING, Filter
from holdfast.rules.rows import Columns, Entry
from holdfast.service.caller import LOCAL
from holdfast.storage.ports import Reader, Transaction


class Head(NamedTuple):
    """The ends of the log. A cursor is epoch and offset: a restored log counts in a new epoch."""

    epoch: int
    first: int
    offset: int


@checks_arguments()
class Log:
    """The log: every envelope once, own and received, in the order in which this node stored
    them.
    """

    def __init__(self, engine: NodeEngine) -> None:
        self._engine = engine

    def head(self) -> Head:
        return self._engine.read("log.head", lambda tx: Head(tx.epoch(), *tx.log_bounds()))

    def range(self, start: int = 1, end: int | None = None) -> Iterator[Entry]:
        """Entries with start <= offset < end, without moving any consumer; a page in memory at a
        time.
        """
        first, last = self._bounds()
        stop = last + 1 if end is None else end
        if start < 1 or stop < start:
            raise BadInput(f"[{start}, {stop}) is not a range of offsets")
        position = start

        def page(tx: Reader) -> Sequence[Entry]:
            nonlocal position
            # Checked again for every page: the log may be truncated while it is being read.
            readers.check_there(position, stop, tx.log_bounds()[0])
            rows = tx.log_range(position, stop, limits.CHUNK_ROWS)
            position = rows[-1].offset + 1 if rows else position
            return rows

        readers.check_there(start, stop, first)
        return self._engine.pages(page)

    def tail(self, count: int = 20) -> list[Entry]:
        def read(tx: Reader) -> list[Entry]:
            first, last = tx.log_bounds()
            return tx.log_range(max(first, last - count + 1), last + 1, count)

        return self._engine.read("log.tail", read)

    # --- consumers ---------------------------------------------------------------------------

    def consumers(self) -> list[Consumer]:
        def read(tx: Reader) -> list[Consumer]:
            head = tx.log_bounds()[1]
            return [Consumer.of(row, head) for row in tx.consumer_list()]

        return self._engine.read("consumer.list", read)

    def add_consumer(
        self,
        name: str,
        start: str | int = "start",
        *,
        retire_ms: int | None = None,
        retire_lag: int | None = None,
        filter: Filter = EVERYTHING,
    ) -> Consumer:
        """Registers a reader. From now on sweeps remove nothing that it has not confirmed.

        A sweep retires a reader that has not confirmed for longer than `retire_ms`, or for which
        more than `retire_lag` entries wait. With a `filter` it gets only what passes; the rest
        counts as confirmed with its neighbours.
        """
        readers.check_reader(name, retire_ms, retire_lag)
        filter.check()
        now = self._engine.ctx.now_ms()

        def work(tx: Transaction) -> Consumer:
            if tx.consumer_get(name) is not None:
                raise AlreadyExists(f"consumer {name!r} is registered already")
            row = msgspec.structs.replace(
                readers.fresh(tx, name, start, now),
                retire_ms=retire_ms,
                retire_lag=retire_lag,
                filter=filter,
            )
            tx.consumer_put(row)
            return Consumer.of(row, tx.log_bounds()[1])

        return self._engine.write("consumer.add", work)

    def fetch(self, consumer: str, limit: int = limits.FETCH_ROWS_DEFAULT) -> list[Entry]:
        """What a consumer has not confirmed, oldest first: the same again until it confirms."""
        readers.check_limit(limit)

        def read(tx: Reader) -> list[Entry]:
            row = readers.require(tx, consumer)
            _, spans = readers.unread(tx, row, None)
            look = partial(_look, tx, row.filter)
            found: list[Entry] = []
            while spans and not found:
                # Until the end: to the caller an empty list means that there is nothing new.
                for piece in readers.pieces(look, _raws, spans, limit):
                    found += _entries(piece)
                    upto = piece.upto
                spans = [(max(start, upto + 1), end) for start, end in spans if end > upto + 1]
            return found

        return self._engine.read("fact.fetch", read)

    def batch(self, consumer: str, limit: int = limits.FETCH_ROWS_DEFAULT) -> Batch:
        """The same as a batch with its bounds. A reader with a filter confirms up to `upto`, and
        with it the entries that it did not get.
        """
        return serve.serve_batch(self._engine, LOCAL, Fetch(consumer=consumer, limit=limit))

    def confirm(
        self,
        consumer: str,
        offset: int | None = None,
        *,
        ranges: Iterable[tuple[int, int]] | None = None,
    ) -> Consumer:
        """Confirms everything up to an offset, or half-open ranges. Going backwards changes
        nothing; past the end raises PastEnd.
        """
        spans = None if ranges is None else list(ranges)
        confirmation = Confirmation(consumer=consumer, offset=offset, ranges=spans)
        return serve.confirm(self._engine, LOCAL, confirmation)

    def retire(self, consumer: str) -> None:
        """Forgets a reader: the log no longer keeps entries for it."""
        serve.retire(self._engine, LOCAL, consumer)

    def _bounds(self) -> tuple[int, int]:
        return self._engine.read("log.range", lambda tx: tx.log_bounds())


def _look(tx: Reader, filter: Filter, start: int, end: int, limit: int, bytes_max: int) -> Columns:
    return tx.log_columns(start, end, limit, bytes_max, filter)


def _raws(piece: Columns) -> list[bytes]:
    return piece.raw


def _entries(piece: Columns) -> list[Entry]:
    columns = (getattr(piece, name) for name in Entry.__struct_fields__)
    return [Entry(*row) for row in zip(*columns, strict=True)]
