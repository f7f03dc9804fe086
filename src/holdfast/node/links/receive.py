"""The receiver's side of a link: a batch from another node's log becomes entries of our own.

A batch is believed or refused as a whole before anything is written: a source that sends what was
not requested, or entries of an origin that it may not carry, is not honest. Within an honest batch
one bad envelope harms no other: it goes into quarantine with the reason.

What is believed goes through the receive step of `node/core/receive.py`, and the cursor of the link
moves in the same transaction. After a crash the same entries come again or do not, and none is
skipped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import NamedTuple

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.receive import pieces, receive_arrivals
from holdfast.protocol.log_wire import Batch
from holdfast.rules.arrivals import (
    Arrivals,
    Named,
    headers_of,
    kinds_of,
    objects_of,
    read_arrivals,
)
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    EpochChanged,
    ForgedOrigin,
    UnknownLink,
    UnknownZone,
    ZoneNotTrusted,
)
from holdfast.rules.filters import EVERYTHING
from holdfast.rules.rows import LinkRow
from holdfast.storage.ports import Reader, Transaction


class BatchReceived(msgspec.Struct, frozen=True):
    """What became of a batch."""

    link: LinkRow
    """The link with its cursor behind the batch."""
    new: int = 0
    known: int = 0
    quarantined: int = 0


class DecodedBatch(NamedTuple):
    """A batch whose entries are decoded and checked, as far as that needs no store."""

    batch: Batch
    arrivals: Arrivals


class LinkReplaced(Exception):
    """The link that requested the batch was removed, and another link has its name."""


def decode_batch(batch: Batch) -> DecodedBatch:
    """Decodes the entries of a batch, once for everything that is done with it."""
    return DecodedBatch(batch, read_arrivals(batch.raws))


def objects_named(batch: Batch | DecodedBatch) -> list[Named]:
    """The objects that the entries of a batch name, each once: they must be here before
    `receive_batch` is called. An entry that cannot be decoded names nothing.
    """
    incoming = batch if isinstance(batch, DecodedBatch) else decode_batch(batch)
    return objects_of(incoming.arrivals)


def receive_batch(
    engine: NodeEngine,
    link: str,
    batch: Batch | DecodedBatch,
    *,
    asked: LinkRow | None = None,
    absent: Collection[str] | None = None,
) -> BatchReceived:
    """Stores a batch and moves the cursor of the link past it. A large batch is stored in several
    transactions, each with the cursor that it leads to.

    `asked` is the link as it was when the batch was requested: if another link has its name by now,
    `LinkReplaced` is raised. `absent` are the objects that the source does not have; `ObjectGone`
    is raised if one of the others is gone.
    """
    engine.check_room()
    incoming = batch if isinstance(batch, DecodedBatch) else decode_batch(batch)
    row, via = engine.read("link.take", partial(_judge, engine, link, asked, incoming))
    received = BatchReceived(row)
    for piece in _pieces(incoming, row):
        received = engine.write("link.take", partial(_store, engine, piece, via, received, absent))
    return received


def start_over(engine: NodeEngine, link: str, epoch: int, first: int) -> LinkRow:
    """Moves the cursor to the beginning of a log that counts in another epoch. Entries that are
    known already are found to be known when they come.
    """
    if epoch < 1 or first < 1:
        raise BadInput(f"offset {first} of epoch {epoch} is no place in a log")
    return _move(engine, "link.start_over", link, lambda row: (epoch, first - 1))


def skip_to(engine: NodeEngine, link: str, first_available: int) -> LinkRow:
    """Moves the cursor past entries that the source no longer has, because a person decided so.
    The cursor never moves backwards.
    """
    if first_available < 1:
        raise BadInput(f"offset {first_available} is no place in a log")
    return _move(
        engine, "link.skip", link, lambda row: (row.epoch, max(row.cursor, first_available - 1))
    )


def _move(
    engine: NodeEngine, name: str, link: str, place: Callable[[LinkRow], tuple[int, int]]
) -> LinkRow:
    def work(tx: Transaction) -> LinkRow:
        row = require_link(tx, link)
        epoch, cursor = place(row)
        moved = msgspec.structs.replace(
            row, epoch=epoch, cursor=cursor, moved_at=engine.ctx.now_ms()
        )
        tx.link_put(moved)
        return moved

    return engine.write(name, work)


def require_link(tx: Reader, name: str) -> LinkRow:
    row = tx.link_get(name)
    if row is None:
        raise UnknownLink(f"there is no link {name!r}")
    return row


def require_same(tx: Reader, asked: LinkRow) -> LinkRow:
    row = require_link(tx, asked.name)
    if (row.zone, row.filter, row.added_at) != (asked.zone, asked.filter, asked.added_at):
        raise LinkReplaced
    return row


# --- is the source honest? -----------------------------------------------------------------------


def _judge(
    engine: NodeEngine, link: str, asked: LinkRow | None, incoming: DecodedBatch, tx: Reader
) -> tuple[LinkRow, int]:
    """Refuses a batch that no honest source sends. Returns the link and the number of its zone."""
    batch, arrivals = incoming
    row = require_link(tx, link) if asked is None else require_same(tx, asked)
    zone = tx.zone_get(row.zone)
    if zone is None:
        raise UnknownZone(f"link {link!r} leads to zone {row.zone!r}, which is not known here")
    if zone.blocked_at is not None:
        raise ZoneNotTrusted(f"zone {zone.name!r} is blocked", hint="see: holdfast peer list")
    _check_place(row, batch.epoch, batch.start, batch.first)
    check_origins(engine.ctx.peer, row, arrivals, tx)
    check_filter(row, arrivals)
    return row, zone.number


def _check_place(row: LinkRow, epoch: int, start: int, first: int) -> None:
    if row.epoch not in (0, epoch):
        raise EpochChanged(
            f"link {row.name!r} reads epoch {row.epoch}, and the batch is of epoch {epoch}",
            epoch=epoch,
        )
    # A link that has never read has missed nothing of what was gone before.
    expected = row.cursor + 1 if row.epoch else max(row.cursor + 1, first)
    if start > expected:
        raise BadAnswer(
            f"the batch begins at offset {start}, and link {row.name!r} waits for {expected}",
            hint="the source left entries out; nothing was taken",
        )


def check_origins(us: str, row: LinkRow, arrivals: Arrivals, tx: Reader) -> None:
    """A source brings its own entries and those of origins that it may carry. Entries of ours must
    be known here. What cannot be decoded names no origin, and goes into quarantine later.
    """
    allowed = row.filter.origins
    origins = {origin for _, _, origin in kinds_of(arrivals)}
    for origin in sorted(origins):
        if allowed and origin not in allowed:
            raise ForgedOrigin(f"link {row.name!r} brought an entry of {origin!r}, as it may not")
    if us not in origins:
        return
    for id, mesh, _, _, origin, _, raw in headers_of(arrivals):
        if origin == us and tx.log_find(id) is None and tx.forgotten(id) is None:
            if _went_with_its_mesh(tx, mesh, raw):
                continue
            raise ForgedOrigin(
                f"link {row.name!r} brought an entry in our own name that we do not have",
                hint="somebody makes up entries; or this node was restored and lost some of its "
                "own, which only a newer backup brings back",
            )


def _went_with_its_mesh(tx: Reader, mesh: str, raw: bytes) -> bool:
    ended, envelope = tx.ended_mesh(mesh), decode_trusted(raw)
    return ended is not None and ended.was_ours(envelope.epoch, envelope.seq)


def check_filter(row: LinkRow, arrivals: Arrivals) -> None:
    """A source sends nothing that the filter of the link leaves out."""
    requested = msgspec.structs.replace(row.filter, origins=(), beyond="")
    if requested == EVERYTHING:
        return
    if not requested.subjects and all(
        requested.passes(mesh, op, "", origin, "") for mesh, op, origin in kinds_of(arrivals)
    ):
        return  # nearly always, and without a look at each
    for _, mesh, op, entity, origin, _, _ in headers_of(arrivals):
        if not requested.passes(mesh, op, entity, origin, ""):
            raise BadAnswer(
                f"link {row.name!r} brought {op} {entity!r} of mesh {mesh!r}, as was not asked for",
                hint="the source does not keep to the filter; nothing was taken",
            )


# --- into our log --------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """The part of a batch that one transaction stores."""

    epoch: int
    first: int
    start: int
    upto: int
    offsets: list[int]
    arrivals: Arrivals


def _pieces(incoming: DecodedBatch, row: LinkRow) -> Iterator[_Piece]:
    """The entries beyond the cursor, in the order of the source."""
    batch, arrivals = incoming
    first_new = bisect_right(batch.offsets, row.cursor)
    if first_new == len(arrivals) and row.epoch and batch.upto <= row.cursor:
        return
    begin = batch.start
    for start, end in pieces(arrivals, first_new):
        # Behind the last entry lies only what the filter has left out.
        upto = batch.upto if end == len(arrivals) else batch.offsets[end - 1]
        offsets = batch.offsets[start:end]
        yield _Piece(batch.epoch, batch.first, begin, upto, offsets, arrivals[start:end])
        begin = upto + 1


def _store(
    engine: NodeEngine,
    piece: _Piece,
    via: int,
    before: BatchReceived,
    absent: Collection[str] | None,
    tx: Transaction,
) -> BatchReceived:
    # Checked again: since `_judge` the link may have been changed or moved.
    row = require_same(tx, before.link)
    _check_place(row, piece.epoch, piece.start, piece.first)
    known = bisect_right(piece.offsets, row.cursor)
    received = receive_arrivals(
        engine,
        tx,
        piece.arrivals[known:],
        lane=row.name,
        epoch=piece.epoch,
        offsets=piece.offsets[known:],
        absent=absent,
        via=via,
    )
    moved = msgspec.structs.replace(
        row,
        epoch=piece.epoch,
        cursor=max(row.cursor, piece.upto),
        moved_at=engine.ctx.now_ms(),
    )
    tx.link_put(moved)
    return BatchReceived(
        moved,
        before.new + received.new,
        before.known + received.known,
        before.quarantined + received.refused,
    )
