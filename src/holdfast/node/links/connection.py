"""One connection of a link, from the first word to the first error.

    fetcher    register ─► fetch ─► fetch ─► …            the link's own thread
                             │
    reader                   └─► read and check            a thread as long as the connection
                                      │
    applier                           └─► objects ─► take   another one

While one batch is stored, the next is taken apart and the one after it is asked for, and no more:
memory stays bounded by a handful of batches, and the disk, the processor and the line are in use at
the same time. A fetch confirms what is stored by then. For the source that is a durable write,
which the answer waits for: so while there is more at once, only one fetch in some does. When the
fetch that is under way waits for news, it is too early for that, so the applier confirms by a call
of its own, once nothing more comes for a moment.

Whatever goes wrong in one thread ends all of them, and the first error is the one that is raised.
The next connection begins at the stored cursor, so nothing that was read ahead has to be
remembered.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.object_transfer import ObjectGone, pull_objects
from holdfast.node.links import receive
from holdfast.node.links.appetite import Appetite
from holdfast.node.links.commits import has_strong, take_commits
from holdfast.node.links.same_log import LOOK, begins_as_read, is_same_log
from holdfast.node.links.snapshot import (
    give_up_snapshot,
    take_snapshot,
    want_snapshot,
    wanted_snapshot,
)
from holdfast.node.links.source import LinkSource, Reach, registration_of
from holdfast.node.links.status import LinkStatusTracker
from holdfast.protocol.log_wire import Batch, BatchCut, Confirmation, Fetch
from holdfast.rules.errors import (
    BadAnswer,
    EpochChanged,
    HoldfastError,
    OverLimit,
    Truncated,
    UnknownConsumer,
    Unreachable,
)
from holdfast.rules.limits import (
    BACKOFF_MS_MIN,
    LINK_CONFIRM_BATCHES,
    LINK_CONFIRM_MS,
    LONG_POLL_MS_DEFAULT,
    QUARANTINE_ROWS_MAX,
)
from holdfast.rules.links import (
    LinkPlan,
    LinkState,
    after_quarantine,
    consumer_name,
    start_of,
    without_snapshot,
)
from holdfast.rules.rows import LinkRow
from holdfast.service.supervisor import PlannedFailure

log = logging.getLogger("holdfast")

_BEGINNING_TRIES = 3


class LinkConnection:
    """One connection. `run` works in the caller's thread; `end` may come from any."""

    def __init__(
        self,
        engine: NodeEngine,
        row: LinkRow,
        reach: Reach,
        tracker: LinkStatusTracker,
        new_epoch: int | None = None,
        appetite: Appetite | None = None,
        *,
        snapshot: bool = False,
    ) -> None:
        """`new_epoch`: the last connection ended because the source counts in this epoch now;
        `snapshot`: because it no longer holds what comes next.
        """
        self._snapshot = snapshot
        self._appetite = appetite or Appetite()
        self._engine = engine
        self._row = row
        self._reach = reach
        self._tracker = tracker
        self._new_epoch = new_epoch
        self._consumer = consumer_name(engine.ctx.peer, row.name)
        self._turn = threading.Condition()
        self._source: LinkSource | None = None
        self._fetched: Batch | None = None
        self._next: receive.DecodedBatch | None = None
        self._asking = False
        self._stored = row.cursor
        self._confirmed = 0
        self._over = False
        self._failure: Exception | None = None

    def run(self) -> None:
        """Pulls until `end`, or raises the first error."""
        try:
            with self._failing():
                source = self._open()
                row = self._connect(source)
                begun = wanted_snapshot(self._engine, row)
                if self._snapshot or begun is not None:
                    row = self._take_snapshot(source, row, begun is True)
                with self._turn:
                    self._row, self._stored = row, row.cursor
                take_commits(self._engine, source, row)
                self._pull(source)
        finally:
            self.end()
            if self._source is not None:
                self._source.close()
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Ends the connection now, whatever it waits for."""
        with self._turn:
            self._over = True
            source = self._source
            self._turn.notify_all()
        if source is not None:
            source.abort()

    def _open(self) -> LinkSource:
        source = self._reach(self._row)
        with self._turn:
            self._source = source
            over = self._over
        if over:
            source.abort()
        return source

    def _pull(self, source: LinkSource) -> None:
        name = self._row.name
        threads = [
            threading.Thread(target=self._read_on, name=f"holdfast-read-{name}", daemon=True),
            threading.Thread(
                target=self._apply_on, args=(source,), name=f"holdfast-take-{name}", daemon=True
            ),
        ]
        for thread in threads:
            thread.start()
        try:
            with self._failing():
                self._fetch_on(source)
        finally:
            self.end()
            for thread in threads:
                thread.join()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Notes the first error and ends the run; after the end there are no errors, only calls
        that were cut short.
        """
        try:
            yield
        except Exception as error:
            with self._turn:
                if not self._over and self._failure is None:
                    self._failure = error
            self.end()

    # --- where to begin ----------------------------------------------------------------------

    def _connect(self, source: LinkSource) -> LinkRow:
        row = self._row
        self._check_quarantine()
        if row.epoch == 0:
            # A reader of that name may be left from an earlier link, and stand past its beginning.
            with suppress(UnknownConsumer):
                source.retire(self._consumer)
        end = source.register(registration_of(row, self._engine.ctx.peer))
        if end is not None and row.epoch:
            self._tracker.heard(end)
        if row.epoch == 0 or self._new_epoch not in (None, row.epoch):
            return self._begin(source)
        if not self._is_same_log(source, row):
            log.warning(
                "link %s: the log of %s is not the one that was read up to offset %d, and counts "
                "in the same epoch %d; it is read from its beginning",
                row.name,
                row.zone,
                row.cursor,
                row.epoch,
            )
            return self._begin(source)
        return row

    def _is_same_log(self, source: LinkSource, row: LinkRow) -> bool:
        with self._hungry(LOOK):
            return is_same_log(self._engine, source, row, self._consumer, self._appetite.rows)

    @contextmanager
    def _hungry(self, asked: int) -> Iterator[None]:
        """A line that breaks in here carries less than the entries that were asked for."""
        try:
            yield
        except BatchCut as cut:
            self._appetite.broke(asked)
            raise self._named(cut) from cut
        except Unreachable:
            self._appetite.broke(asked)
            raise

    def _named(self, cut: BatchCut) -> HoldfastError:
        """The error of a line that broke; it names an entry that alone is too large for it."""
        where = ""
        if cut.entry is not None:
            offset, size = cut.entry
            where = f"; it broke in the middle of entry {offset} of {self._row.zone}, "
            where += f"which has {size} bytes"
        return Unreachable(f"{cut.error.message}{where}")

    def _begin(self, source: LinkSource) -> LinkRow:
        """Puts the cursor at the beginning of a log that was not read yet, or not in this epoch."""
        row = self._row
        first_batch = self._beginning(source)
        epoch, first = first_batch.epoch, first_batch.first
        start = start_of(row.epoch, row.cursor, epoch, first)
        if row.epoch and first > 1 and not begins_as_read(self._engine, row, first_batch):
            start = None
        if start is not None and start > 1 and row.epoch == 0:
            want_snapshot(self._engine, row, epoch)
        begun = receive.start_over(self._engine, row.name, epoch, start or 1)
        self._tracker.show(begun)
        if start is None:
            raise Truncated(
                f"the log of {row.zone} begins at {first} in epoch {epoch}, and what came before "
                "was never read",
                first_available=first,
                hint=f"go on without it: holdfast link resume {row.name} --skip-missing",
            )
        if start > 1 and row.epoch == 0:
            log.warning(
                "link %s begins at offset %d: %s no longer holds what came before, but "
                "tells what its tables still show",
                row.name,
                start,
                row.zone,
            )
        return begun

    def _beginning(self, source: LinkSource) -> Batch:
        first = 1
        for _ in range(_BEGINNING_TRIES):
            limit = min(LOOK, self._appetite.rows)
            ask = Fetch(consumer=self._consumer, limit=limit, start=first, epoch=self._new_epoch)
            try:
                with self._hungry(limit):
                    return source.fetch(ask)
            except Truncated as cut:
                first = cut.first_available
        raise BadAnswer(f"the log of {self._row.zone} begins at another place each time")

    def _take_snapshot(self, source: LinkSource, row: LinkRow, partial: bool) -> LinkRow:
        """Makes up for what the source has truncated. Where that cannot be done, a person has to
        decide; but a new link, which owes nothing, takes what there is (`partial`).
        """
        if not partial:
            log.warning(
                "link %s: %s no longer holds what comes after offset %d; a snapshot is taken",
                row.name,
                row.zone,
                row.cursor,
            )
        try:
            taken = take_snapshot(
                self._engine,
                source,
                row,
                partial_too=partial,
                on_part=self._tracker.snapshot,
                pulled=self._tracker.pulled,
                ended=self._is_over,
                size=self._appetite.pieces,
            )
        except Truncated as error:
            give_up_snapshot(self._engine, row)
            if partial:  # a source of an earlier version gives none
                return row
            error.hint = f"go on without it: holdfast link resume {row.name} --skip-missing"
            raise PlannedFailure(error, without_snapshot()) from error
        except receive.LinkReplaced:
            self.end()
            return row
        if taken is None:
            return row
        self._tracker.show(taken.link)
        return taken.link

    # --- the fetcher -------------------------------------------------------------------------

    def _fetch_on(self, source: LinkSource) -> None:
        row = self._row
        position = row.cursor + 1
        patience_ms = 0  # the first answer says at once how we stand
        silent = LINK_CONFIRM_BATCHES
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._over or self._fetched is None)
                if self._over:
                    return
                confirm = 0
                if silent >= LINK_CONFIRM_BATCHES:
                    # Sent even where it is nothing new: so the source knows that we are there.
                    confirm, silent = self._stored, 0
                    self._confirmed = confirm
                self._asking = True
            asked_at = monotonic()
            batch = self._fetch(
                source,
                Fetch(
                    consumer=self._consumer,
                    limit=self._appetite.rows,
                    wait_ms=patience_ms,
                    start=position,
                    confirm=confirm or None,
                    epoch=row.epoch,
                ),
            )
            _check_answer(batch, row, position)
            if batch.upto >= position:
                self._tracker.arrived(batch)
            with self._turn:
                self._asking = False
                if batch.upto >= position:
                    self._fetched = batch
                    self._turn.notify_all()
            if batch.upto < position:
                self._nothing_new(batch)
                if patience_ms:
                    self._hold_back(asked_at)
            patience_ms = LONG_POLL_MS_DEFAULT
            silent = silent + 1 if batch.upto < batch.head else LINK_CONFIRM_BATCHES
            position = batch.upto + 1

    def _fetch(self, source: LinkSource, ask: Fetch) -> Batch:
        """A batch, or what came whole of one before the line broke. If that is nothing, less is
        asked for at once, over a new line: this ends at one entry, twice.
        """
        while True:
            try:
                with self._hungry(ask.limit):
                    batch = source.fetch(ask)
                break
            except Unreachable as error:
                cut = error.__cause__
                if not isinstance(cut, BatchCut) or (cut.batch is None and ask.limit == 1):
                    raise
                log.info("link %s: %s; what came is kept", self._row.name, cut.error.message)
                if cut.batch is not None:
                    return cut.batch
                ask = msgspec.structs.replace(ask, limit=self._appetite.rows, wait_ms=0)
        if len(batch.raws) >= ask.limit or batch.upto < batch.head:
            self._appetite.came()  # it was as much as was asked for
        return batch

    def _nothing_new(self, batch: Batch) -> None:
        with self._turn:
            all_stored = self._stored >= batch.upto
        if all_stored:
            self._tracker.nothing_new(batch)

    def _hold_back(self, asked_at: float) -> None:
        """Waits a moment: a source that is ending answers at once, and is not asked as fast."""
        early = BACKOFF_MS_MIN / 1000 - (monotonic() - asked_at)
        with self._turn:
            if early > 0:
                self._turn.wait_for(lambda: self._over, early)

    # --- the reader --------------------------------------------------------------------------

    def _read_on(self) -> None:
        with self._failing():
            while (batch := self._await_fetched()) is not None:
                incoming = receive.decode_batch(batch)
                with self._turn:
                    self._next = incoming
                    self._turn.notify_all()

    def _await_fetched(self) -> Batch | None:
        """The batch to read next, once the one before it is being stored; None at the end."""
        with self._turn:
            self._turn.wait_for(
                lambda: self._over or (self._fetched is not None and self._next is None)
            )
            if self._over:
                return None
            batch, self._fetched = self._fetched, None
            self._turn.notify_all()
            return batch

    # --- the applier -------------------------------------------------------------------------

    def _apply_on(self, source: LinkSource) -> None:
        with self._failing():
            while (incoming := self._await_batch(source)) is not None:
                self._apply(source, incoming)

    def _await_batch(self, source: LinkSource) -> receive.DecodedBatch | None:
        """The next batch, or None at the end. What is stored is confirmed meanwhile."""
        while True:
            with self._turn:
                behind = self._stored > self._confirmed
                moment = LINK_CONFIRM_MS / 1000 if behind else None
                self._turn.wait_for(lambda: self._over or self._next is not None, moment)
                if self._over:
                    return None
                if self._next is not None:
                    incoming, self._next = self._next, None
                    self._turn.notify_all()
                    return incoming
                if not self._asking or self._stored <= self._confirmed:
                    continue
                confirm = self._confirmed = self._stored
            source.confirm(
                Confirmation(consumer=self._consumer, offset=confirm, epoch=self._row.epoch)
            )

    def _apply(self, source: LinkSource, incoming: receive.DecodedBatch) -> None:
        taken = None
        while taken is None:
            if self._is_over():
                return
            taken = self._take(source, incoming)
        if has_strong(incoming.arrivals) or len(incoming.arrivals) < _span(incoming.batch):
            take_commits(self._engine, source, self._row)
        # Before it is confirmed: what a source knows, people see.
        self._tracker.taken(incoming.batch, taken)
        with self._turn:
            self._stored = taken.link.cursor
        if taken.quarantined:
            self._check_quarantine()

    def _take(
        self, source: LinkSource, incoming: receive.DecodedBatch
    ) -> receive.BatchReceived | None:
        """Stores a batch; None if it has to be tried again, or the connection is over."""
        wanted = [named.sha256 for named in receive.objects_named(incoming)]
        pieces = self._appetite.pieces
        absent = pull_objects(
            self._engine, source, wanted, self._tracker.pulled, self._is_over, pieces
        )
        if self._is_over():
            return None
        row = self._row
        try:
            return receive.receive_batch(self._engine, row.name, incoming, asked=row, absent=absent)
        except ObjectGone:
            return None  # a sweep was faster
        except receive.LinkReplaced:
            self.end()  # what follows is the new link's affair
            return None
        except OverLimit as error:
            self._check_quarantine()
            # Not full yet, and without room for this batch: a person has to look, too.
            raise PlannedFailure(error, LinkPlan(LinkState.QUARANTINE_FULL, None)) from error

    def _check_quarantine(self) -> None:
        name = self._row.name
        count = self._engine.read("link.quarantine", lambda tx: tx.quarantine_count(name))
        self._tracker.recount(count)
        plan = after_quarantine(count)
        if plan is not None:
            full = OverLimit(
                f"link {name} has set {count} envelopes aside; the most is {QUARANTINE_ROWS_MAX}",
                hint=f"look at them: holdfast link quarantine {name}; then try them again: "
                f"holdfast link retry {name}, or give them up: holdfast link drop {name} --all",
            )
            raise PlannedFailure(full, plan)

    def _is_over(self) -> bool:
        return self._over


def _span(batch: Batch) -> int:
    """How many entries the source has looked at: what the filter left out may be a commit."""
    return batch.upto - batch.start + 1


def _check_answer(batch: Batch, row: LinkRow, position: int) -> None:
    if batch.epoch != row.epoch:
        raise EpochChanged(f"the log of {row.zone} counts in a new epoch", epoch=batch.epoch)
    if batch.start != position:
        raise BadAnswer(f"{row.zone} was asked from {position} on and answered from {batch.start}")
