"""What a broker brings: pages of envelopes become entries of our log, and move the cursor.

The broker has checked who may write what, so every origin of the mesh is believed except our own.
An envelope in our name that we do not know is one that we lost in a restore, or is forged
(`objection` in `node/core/intake.py` decides). A bad envelope harms no other: it goes into
quarantine with the reason.

In our log these entries bear no zone, so that links of other nodes get them like our own.

A page goes through the receive step of `node/core/receive.py`. Where each entry stands at the
broker, and the cursor, are stored in the same transaction. After a crash the same page comes again
or does not, and nothing is skipped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import msgspec

from holdfast.node.core import receive
from holdfast.node.core.engine import NodeEngine
from holdfast.node.sync.mesh_state import MeshState
from holdfast.protocol.frames import Entries
from holdfast.rules.arrivals import Arrivals, objects_of, read_arrivals
from holdfast.rules.broker_rows import FeedRow
from holdfast.rules.broker_sync import Cursor
from holdfast.rules.errors import BadAnswer, UnknownMesh
from holdfast.rules.reconcile import Outcome
from holdfast.storage.ports import Transaction


class DecodedPage(NamedTuple):
    """A page whose envelopes are decoded and checked, as far as that needs no store."""

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
    """Decodes a page, once for everything that is done with it. Raises `BadAnswer` if its rows are
    out of order.
    """
    seqs = [row.seq for row in entries.rows]
    inside = all(entries.after < seq <= entries.to for seq in seqs)
    if not inside or any(b <= a for a, b in pairwise(seqs)):
        raise BadAnswer(f"the broker sent a page of {entries.mesh!r} that is out of order")
    return DecodedPage(entries, read_arrivals(row.raw for row in entries.rows))


def objects_wanted(engine: NodeEngine, incoming: DecodedPage) -> list[str]:
    """The hashes of the objects that the page names and that are not here."""
    return [o.sha256 for o in objects_of(incoming.arrivals) if not engine.blobs.exists(o.sha256)]


def pieces(incoming: DecodedPage) -> Iterator[DecodedPage]:
    """Cuts a page into pages that are small enough for one transaction each."""
    entries, arrivals = incoming
    after = entries.after
    for start, end in receive.pieces(arrivals):
        to = entries.to if end == len(arrivals) else entries.rows[end - 1].seq
        piece = msgspec.structs.replace(entries, after=after, to=to, rows=entries.rows[start:end])
        yield DecodedPage(piece, arrivals[start:end])
        after = to


def receive_page(
    engine: NodeEngine,
    mesh: MeshState,
    incoming: DecodedPage,
    absent: Collection[str] | None = None,
) -> PageReceived:
    """Stores one page and moves the cursor to its end, in one transaction. Raises `CursorMoved` if
    the cursor is elsewhere. `absent` are objects that the broker does not have; `ObjectGone` is
    raised if one of the others is gone.
    """
    return engine.write("sync.take", partial(_store, engine, mesh, incoming, absent))


def receive_urgent(engine: NodeEngine, mesh: MeshState, rows: Sequence[FeedRow]) -> int:
    """Puts urgent messages into the inbox ahead of their turn; the cursor stays. A refused one
    comes again with its page and is quarantined then. Returns how many were new.
    """
    arrivals = read_arrivals(row.raw for row in rows)

    def work(tx: Transaction) -> int:
        applied = receive.apply_arrivals(
            engine, tx, arrivals, mesh=mesh.slug, delivered=_broker_ids(rows)
        )
        return sum(one.outcome not in (None, Outcome.NOOP_ALREADY_APPLIED) for one in applied)

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
    seqs = [found.seq for found in entries.rows]
    known = bisect_right(seqs, cursor.seq)
    received = receive.receive_arrivals(
        engine,
        tx,
        arrivals[known:],
        lane=mesh.lane,
        epoch=entries.epoch,
        offsets=seqs[known:],
        absent=absent,
        mesh=mesh.slug,
        delivered=_broker_ids(entries.rows[known:]),
    )
    positions = [
        (seq, one.offset)
        for seq, one in zip(seqs[known:], received.applied, strict=True)
        if one.offset  # 0: known, but no longer in our log
    ]
    tx.broker_positions_add(mesh.slug, entries.epoch, positions)
    now = engine.ctx.now_ms()
    # What came another way, and waited to be handed in here, need not go: the broker has it.
    arrived = [
        (one.raw_id, found.broker_id, entries.epoch, found.seq)
        for one, found in zip(received.applied, entries.rows[known:], strict=True)
        if one.raw_id is not None and one.outcome is Outcome.NOOP_ALREADY_APPLIED
    ]
    if arrived:
        tx.outbox_arrived(mesh.lane, arrived, now)
    moved = Cursor(entries.epoch, max(cursor.seq, entries.to))
    tx.mesh_change(msgspec.structs.replace(row, broker_seq=moved.seq, last_sync_at=now))
    return PageReceived(moved, received.new, received.known, received.refused)


def _broker_ids(rows: Sequence[FeedRow]) -> dict[bytes, bytes]:
    """The id that the broker gave to each envelope, by the bytes of the envelope."""
    return {row.raw: row.broker_id for row in rows}
