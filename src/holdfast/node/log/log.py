"""The node's log for its readers: ranges, named consumers, confirmations, truncation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.views import Consumer
from holdfast.node.log import consumers as readers
from holdfast.node.watching.verb import watches
from holdfast.protocol.log_wire import Batch, Confirmation, Fetch
from holdfast.rules import limits
from holdfast.rules.arguments import checked, checks_arguments
from holdfast.rules.cursor import LogCursor, Since
from holdfast.rules.errors import AlreadyExists, BadInput
from holdfast.rules.filters import EVERYTHING, Filter
from holdfast.rules.listed import listed, listed_rows
from holdfast.rules.names import meant_peer
from holdfast.rules.rows import Columns, Entry
from holdfast.rules.shown import ShownFace
from holdfast.service.caller import LOCAL
from holdfast.storage.ports import Reader, Transaction

if TYPE_CHECKING:
    from holdfast.node.watching.changes import LogChange
    from holdfast.node.watching.source import WatchSource


class Head(NamedTuple):
    """The ends of the log. A cursor is epoch and offset: a restored log counts in a new epoch."""

    epoch: int
    first: int
    offset: int


@checks_arguments()
class Log(ShownFace):
    """The log: every envelope once, own and received, in the order in which this node stored
    them.
    """

    def __init__(self, engine: NodeEngine) -> None:
        self._engine = engine

    def _shown_rows(self) -> Iterable[Any]:
        return reversed(self.tail())

    def head(self) -> Head:
        """Where the log begins and ends now.

        >>> node.log.head()
        Head(epoch=1, first=1, offset=...)
        """
        return self._engine.read("log.head", lambda tx: Head(tx.epoch(), *tx.log_bounds()))

    def place_at(self, at_ms: int) -> LogCursor:
        """Where the log was at a time, in milliseconds since 1970: what was recorded then or later
        follows. A watch takes it as `since`.

        >>> import time
        >>> an_hour_ago = node.log.place_at(int(time.time() * 1000) - 3_600_000)
        >>> with node.log.watch(since=an_hour_ago) as changes:
        ...     next(changes).op
        'state.set'
        """
        if not 0 <= at_ms <= limits.LAMPORT_MAX:
            raise BadInput(f"{at_ms} is no time", hint="give milliseconds since 1970")
        now = self._engine.ctx.now_ms()

        def read(tx: Reader) -> LogCursor:
            first = tx.log_bounds()[0]
            return LogCursor(tx.epoch(), max(first - 1, tx.log_at(max(0, at_ms - 1), now)))

        return self._engine.read("log.head", read)

    @listed(Entry)
    @checked
    def range(self, start: int = 1, end: int | None = None) -> Iterator[Entry]:
        """Entries with start <= offset < end, without moving any consumer; a page in memory at a
        time.

        >>> [entry.op for entry in node.log.range(1, 2)]
        ['state.set']
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

    @listed_rows(Entry)
    @checked
    def tail(self, count: int = 20) -> list[Entry]:
        """The newest entries, the oldest of them first.

        >>> len(node.log.tail(3))
        3
        """

        def read(tx: Reader) -> list[Entry]:
            first, last = tx.log_bounds()
            return tx.log_range(max(first, last - count + 1), last + 1, count)

        return self._engine.read("log.tail", read)

    @watches
    @checked
    def watch(
        self,
        *,
        mesh: str | None = None,
        ops: Iterable[str] = (),
        prefix: str = "",
        peer: str | None = None,
        since: Since = None,
    ) -> WatchSource[LogChange]:
        """Every change as it comes, of all meshes or of one. It can be narrowed down to ops, such
        as `state.set`, or `task` for all of a family; to what begins with a prefix; to what one
        peer wrote. `since` is the `cursor` of a change, to go on after it, or `start`; without it
        the watch begins with what comes next.

        >>> with node.log.watch(mesh="team", ops=["state.set"], since="start") as changes:
        ...     next(changes).op
        'state.set'
        """
        return self._follow(mesh, ops, prefix, peer, since)

    def _follow(
        self, mesh: str | None, ops: Iterable[str], prefix: str, peer: str | None, since: Since
    ) -> WatchSource[LogChange]:
        # Imported only here: most callers do not wait.
        from holdfast.node.watching.changes import LogFollowing, watch_filter

        filter, chosen = watch_filter(mesh=mesh, ops=ops, prefix=prefix, peer=peer)
        return LogFollowing(self._engine, since, filter, chosen)

    # --- consumers ---------------------------------------------------------------------------

    @listed_rows(Consumer)
    @checked
    def consumers(self) -> list[Consumer]:
        """The readers that are registered, and how far each is.

        >>> [(reader.name, reader.lag) for reader in node.log.consumers()]
        [...('lake', ...)...]
        """

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

        >>> node.log.add_consumer("mirror", "now", retire_ms=7 * 86_400_000).lag
        0
        """
        readers.check_reader(name, retire_ms, retire_lag)
        filter = msgspec.structs.replace(filter, origins=tuple(map(meant_peer, filter.origins)))
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

    @listed_rows(Entry)
    @checked
    def fetch(self, consumer: str, limit: int = limits.FETCH_ROWS_DEFAULT) -> list[Entry]:
        """What a consumer has not confirmed, oldest first: the same again until it confirms.

        >>> [entry.offset for entry in node.log.fetch("lake", limit=2)]
        [1, 2]
        """
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

        >>> node.log.batch("lake", limit=2).upto
        2
        """
        from holdfast.node.log import serve

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

        >>> node.log.add_consumer("reader")
        >>> node.log.confirm("reader", 2).frontier
        2
        """
        spans = None if ranges is None else list(ranges)
        confirmation = Confirmation(consumer=consumer, offset=offset, ranges=spans)
        from holdfast.node.log import serve

        return serve.confirm(self._engine, LOCAL, confirmation)

    def retire(self, consumer: str) -> None:
        """Forgets a reader: the log no longer keeps entries for it.

        >>> node.log.add_consumer("scratch")
        >>> node.log.retire("scratch")
        """
        from holdfast.node.log import serve

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
