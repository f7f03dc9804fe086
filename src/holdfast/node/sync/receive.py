"""What a broker brings: pages of envelopes become entries of our log, and move the cursor.

The broker has checked who may say what: every origin of the mesh is believed, but our own. An
envelope in our name that we do not know is one that we lost in a restore, or somebody else's. A bad
envelope harms nobody: it is set aside with the reason, and the rest goes on.

They bear no zone in our log: a link of another node, member or not, is given them as it is given
our own.

Entries, inbox, quarantine, what stood where, and the cursor: all of it is one transaction. Whatever
dies at whatever moment, the same page comes again or does not, and nothing is skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.intake import Applied, Intake, objection
from holdfast.node.core.object_transfer import ObjectGone
from holdfast.node.sync.mesh_state import MeshState
from holdfast.protocol.frames import Entries
from holdfast.rules.arrivals import Arrival, Arrivals, Arrived, objects_of, read_arrivals
from holdfast.rules.bodies import VectorStore
from holdfast.rules.broker_rows import FeedRow
from holdfast.rules.broker_sync import Cursor
from holdfast.rules.errors import (
    BadAnswer,
    HoldfastError,
    OverLimit,
    UnknownMesh,
)
from holdfast.rules.limits import (
    CHUNK_ROWS,
    LINK_BATCH_BYTES,
    LINK_BATCH_ROWS,
    QUARANTINE_ROWS_MAX,
    REASON_CHARS_MAX,
)
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import QuarantineRow
from holdfast.storage.ports import Transaction

_OTHER_COST: Final = LINK_BATCH_ROWS // CHUNK_ROWS
_VECTOR_COST: Final = 2 * _OTHER_COST


class DecodedPage(NamedTuple):
    """A page whose envelopes are read and checked, as far as that needs no store."""

    entries: Entries
    arrivals: Arrivals


class PageReceived(NamedTuple):
    """What became of a page."""

    cursor: Cursor
    new: int
    known: int
    refused: int


class CursorMoved(Exception):
    """The cursor in the store is not where the page begins: ask again from there."""

    def __init__(self, cursor: Cursor) -> None:
        super().__init__(str(cursor))
        self.cursor = cursor


def decode_page(entries: Entries) -> DecodedPage:
    """Reads a page once for all that is done with it. Raises if it is not one."""
    seqs = [row.seq for row in entries.rows]
    inside = all(entries.after < seq <= entries.to for seq in seqs)
    if not inside or any(b <= a for a, b in pairwise(seqs)):
        raise BadAnswer(f"the broker sent a page of {entries.mesh!r} that is out of order")
    return DecodedPage(entries, read_arrivals(row.raw for row in entries.rows))


def objects_wanted(engine: NodeEngine, incoming: DecodedPage) -> list[str]:
    """Objects that the page names and that are not here."""
    return [o.sha256 for o in objects_of(incoming.arrivals) if not engine.blobs.exists(o.sha256)]


def pieces(incoming: DecodedPage) -> Iterator[DecodedPage]:
    """The same as pages that are small enough to be stored within the time of a transaction."""
    entries, arrivals = incoming
    start, after = 0, entries.after
    while True:
        end = _fill(incoming, start)
        to = entries.to if end == len(arrivals) else entries.rows[end - 1].seq
        piece = msgspec.structs.replace(entries, after=after, to=to, rows=entries.rows[start:end])
        yield DecodedPage(piece, arrivals[start:end])
        if end == len(arrivals):
            return
        start, after = end, to


def _fill(incoming: DecodedPage, start: int) -> int:
    cost = size = 0
    for end in range(start, len(incoming.arrivals)):
        if cost >= LINK_BATCH_ROWS or size >= LINK_BATCH_BYTES:
            return end
        cost += _cost(incoming.arrivals[end])
        size += len(incoming.entries.rows[end].raw)
    return len(incoming.arrivals)


def _cost(arrival: Arrived | Arrival) -> int:
    if isinstance(arrival, tuple):
        return 1
    return _VECTOR_COST if isinstance(arrival.body, VectorStore) else _OTHER_COST


def receive_page(
    engine: NodeEngine,
    mesh: MeshState,
    incoming: DecodedPage,
    absent: Collection[str] | None = None,
) -> PageReceived:
    """Stores one page and moves the cursor to its end, in one transaction. Moved if the cursor is
    elsewhere. `absent` are objects that the broker does not have; that the others are still here is
    looked at where no sweep can take them (ObjectGone).
    """
    return engine.write("sync.take", partial(_store, engine, mesh, incoming, absent))


def receive_urgent(engine: NodeEngine, mesh: MeshState, rows: Sequence[FeedRow]) -> int:
    """Urgent messages ahead of their turn: into the inbox, and the cursor stays. What is refused
    comes again with its page, and is set aside then. Says how many were new.
    """
    arrivals = read_arrivals(row.raw for row in rows)

    def work(tx: Transaction) -> int:
        applied, _ = _apply(engine, mesh, rows, arrivals, tx)
        return sum(one.outcome is not Outcome.NOOP_ALREADY_APPLIED for one in applied)

    return engine.write("sync.express", work)


def _store(
    engine: NodeEngine,
    mesh: MeshState,
    incoming: DecodedPage,
    absent: Collection[str] | None,
    tx: Transaction,
) -> PageReceived:
    entries, arrivals = incoming
    row = tx.mesh_get(mesh.slug)
    if row is None:
        raise UnknownMesh(f"there is no mesh {mesh.slug!r} any more")
    cursor = Cursor(row.broker_epoch, row.broker_seq)
    if cursor.epoch != entries.epoch or cursor.seq < entries.after:
        raise CursorMoved(cursor)
    fresh = [at for at, found in enumerate(entries.rows) if found.seq > cursor.seq]
    rows = [entries.rows[at] for at in fresh]
    arrivals = [arrivals[at] for at in fresh]
    if absent is not None:
        for named in objects_of(arrivals):
            if named.sha256 not in absent and not engine.blobs.exists(named.sha256):
                raise ObjectGone
    applied, places = _apply(engine, mesh, rows, arrivals, tx)
    refused = [
        (found, one.error)
        for found, one in zip(places, applied, strict=True)
        if one.error is not None
    ]
    _set_aside(engine, mesh, entries.epoch, refused, tx)
    heard = [
        (found.seq, one.offset)
        for found, one in zip(places, applied, strict=True)
        if one.offset  # 0: known, but no longer in our log
    ]
    tx.broker_positions_add(mesh.slug, entries.epoch, heard)
    moved = Cursor(entries.epoch, max(cursor.seq, entries.to))
    now = engine.ctx.now_ms()
    tx.mesh_change(msgspec.structs.replace(row, broker_seq=moved.seq, last_sync_at=now))
    known = [one.outcome for one in applied].count(Outcome.NOOP_ALREADY_APPLIED)
    return PageReceived(moved, len(applied) - known - len(refused), known, len(refused))


def _apply(
    engine: NodeEngine,
    mesh: MeshState,
    rows: Sequence[FeedRow],
    arrivals: Arrivals,
    tx: Transaction,
) -> tuple[list[Applied], list[FeedRow]]:
    """What became of each, with the row that it came in: first those that are refused out of
    hand.
    """
    out: list[Applied] = []
    out_rows: list[FeedRow] = []
    good: Arrivals = []
    good_rows: list[FeedRow] = []
    for row, arrival in zip(rows, arrivals, strict=True):
        error = objection(engine, mesh.slug, arrival, tx)
        if error is None:
            good.append(arrival)
            good_rows.append(row)
        else:
            out.append(Applied(None, None, error=error))
            out_rows.append(row)
    delivered = {row.raw: row.broker_id for row in good_rows}
    applied = Intake.of(engine.ctx, good, delivered=delivered)(tx) if good else []
    return out + applied, out_rows + good_rows


def _set_aside(
    engine: NodeEngine,
    mesh: MeshState,
    epoch: int,
    refused: Sequence[tuple[FeedRow, HoldfastError]],
    tx: Transaction,
) -> None:
    if not refused:
        return
    if tx.quarantine_count(mesh.lane) + len(refused) > QUARANTINE_ROWS_MAX:
        raise OverLimit(
            f"{QUARANTINE_ROWS_MAX} envelopes of the mesh {mesh.slug!r} were set aside already",
            hint=f"look at them: holdfast link quarantine {mesh.lane}",
        )
    now = engine.ctx.now_ms()
    for row, error in refused:
        tx.quarantine_add(
            QuarantineRow(
                link=mesh.lane,
                epoch=epoch,
                offset=row.seq,
                code=error.code,
                message=error.message[:REASON_CHARS_MAX],
                raw=row.raw,
                found_at=now,
            )
        )
