"""The receiver's side of a pull: a batch from another node's log becomes entries of our own.

A batch is believed or refused as a whole before anything is written: a source that sends what was
not asked of it, or that speaks for somebody it may not speak for, is not an honest source. Within
an honest batch one bad envelope harms nobody: it is set aside with the reason, and the rest goes
on.

The cursor of the link moves in the transaction that stores what it covers. Whatever dies at
whatever moment, the same entries come again or do not, and none is skipped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Final, NamedTuple

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.intake import Intake
from holdfast.node.core.object_transfer import ObjectGone
from holdfast.protocol.log_wire import Batch
from holdfast.rules.arrivals import Arrival, Arrivals, Arrived, Named, objects_of, read_arrivals
from holdfast.rules.bodies import VectorStore
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    EpochChanged,
    ForgedOrigin,
    OverLimit,
    UnknownLink,
    UnknownZone,
    ZoneNotTrusted,
)
from holdfast.rules.filters import EVERYTHING
from holdfast.rules.limits import (
    CHUNK_ROWS,
    LINK_BATCH_BYTES,
    LINK_BATCH_ROWS,
    QUARANTINE_ROWS_MAX,
    REASON_CHARS_MAX,
)
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import LinkRow, QuarantineRow
from holdfast.storage.ports import Reader, Transaction

_OTHER_COST: Final = LINK_BATCH_ROWS // CHUNK_ROWS
"""What is folded into a table takes about so many times as long as a plain fact."""
_VECTOR_COST: Final = 2 * _OTHER_COST
"""Long vectors, which are put into a search index besides."""


class BatchReceived(msgspec.Struct, frozen=True):
    """What became of a batch."""

    link: LinkRow
    new: int = 0
    known: int = 0
    quarantined: int = 0


class DecodedBatch(NamedTuple):
    """A batch whose entries are read and checked, as far as that needs no store."""

    batch: Batch
    arrivals: Arrivals


class LinkReplaced(Exception):
    """The link that the batch was asked for was removed, and another has its name."""


def decode_batch(batch: Batch) -> DecodedBatch:
    """Reads the entries of a batch once for all that is done with it."""
    return DecodedBatch(batch, read_arrivals(batch.raws))


def objects_named(batch: Batch | DecodedBatch) -> list[Named]:
    """The objects that entries of a batch name, each once: they must be here before the batch is
    taken. What cannot be read names nothing; `receive_batch` says what is wrong with it.
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
    """Stores a batch and moves the link past it. A large one goes in several transactions, each
    with the cursor that it leads to.

    `asked` is the link as it was when the batch was asked for; another one under its name gets
    nothing of it (LinkReplaced). `absent` are the objects that the source does not have; that the
    others are still here is looked at again where no sweep can take them (ObjectGone).
    """
    engine.check_room()
    incoming = batch if isinstance(batch, DecodedBatch) else decode_batch(batch)
    row, via = engine.read("link.take", partial(_judge, engine, link, asked, incoming))
    taken = BatchReceived(row)
    for piece in _pieces(incoming, row):
        taken = engine.write("link.take", partial(_store, engine, piece, via, taken, absent))
    return taken


def start_over(engine: NodeEngine, link: str, epoch: int, first: int) -> LinkRow:
    """Reads the source's log again from its first offset, which is one of another epoch. What is
    known already is met as known.
    """
    if epoch < 1 or first < 1:
        raise BadInput(f"offset {first} of epoch {epoch} is no place in a log")
    return _move(engine, "link.start_over", link, lambda row: (epoch, first - 1))


def skip_to(engine: NodeEngine, link: str, first_available: int) -> LinkRow:
    """Goes on after what the source no longer has, as an operator decided. Never backwards."""
    if first_available < 1:
        raise BadInput(f"offset {first_available} is no place in a log")
    return _move(
        engine, "link.skip", link, lambda row: (row.epoch, max(row.cursor, first_available - 1))
    )


def _move(
    engine: NodeEngine, name: str, link: str, place: Callable[[LinkRow], tuple[int, int]]
) -> LinkRow:
    def work(tx: Transaction) -> LinkRow:
        row = _require_link(tx, link)
        epoch, cursor = place(row)
        moved = msgspec.structs.replace(
            row, epoch=epoch, cursor=cursor, moved_at=engine.ctx.now_ms()
        )
        tx.link_put(moved)
        return moved

    return engine.write(name, work)


def _require_link(tx: Reader, name: str) -> LinkRow:
    row = tx.link_get(name)
    if row is None:
        raise UnknownLink(f"there is no link {name!r}")
    return row


def _require_same(tx: Reader, asked: LinkRow) -> LinkRow:
    row = _require_link(tx, asked.name)
    if (row.zone, row.filter, row.added_at) != (asked.zone, asked.filter, asked.added_at):
        raise LinkReplaced
    return row


# --- is the source honest? -----------------------------------------------------------------------


def _judge(
    engine: NodeEngine, link: str, asked: LinkRow | None, incoming: DecodedBatch, tx: Reader
) -> tuple[LinkRow, int]:
    """Refuses a batch that no honest source sends. Returns the link and the number of its zone."""
    batch, arrivals = incoming
    row = _require_link(tx, link) if asked is None else _require_same(tx, asked)
    zone = tx.zone_get(row.zone)
    if zone is None:
        raise UnknownZone(f"link {link!r} leads to zone {row.zone!r}, which is not known here")
    if zone.blocked_at is not None:
        raise ZoneNotTrusted(f"zone {zone.name!r} is blocked", hint="see: holdfast peer list")
    _check_place(row, batch.epoch, batch.start, batch.first)
    said = _said(arrivals)
    _check_origins(engine.ctx.peer, row, said, tx)
    _check_asked_for(row, said)
    return row, zone.number


def _said(arrivals: Arrivals) -> list[Arrived]:
    """What each arrival says of itself. One that cannot be read says nothing, and is set aside."""
    said = [one for one in arrivals if isinstance(one, tuple)]
    if len(said) < len(arrivals):
        others = [one.envelope for one in arrivals if isinstance(one, Arrival)]
        read = [e for e in others if e is not None]
        said += [(e.id, e.mesh, e.op, e.entity, e.origin, e.lamport, b"") for e in read]
    return said


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


def _check_origins(us: str, row: LinkRow, said: list[Arrived], tx: Reader) -> None:
    """A source speaks for itself and for whom it may carry, and never for us."""
    allowed = row.filter.origins
    origins = {one[4] for one in said}
    for origin in sorted(origins):
        if allowed and origin not in allowed:
            raise ForgedOrigin(f"link {row.name!r} brought an entry of {origin!r}, as it may not")
    if us not in origins:
        return
    for one in said:
        if one[4] == us and tx.log_find(one[0]) is None and tx.forgotten(one[0]) is None:
            raise ForgedOrigin(
                f"link {row.name!r} brought an entry in our own name that we do not have",
                hint="somebody makes up entries; or this node was restored and lost some of its "
                "own, which only a newer backup brings back",
            )


def _check_asked_for(row: LinkRow, said: list[Arrived]) -> None:
    asked = msgspec.structs.replace(row.filter, origins=(), beyond="")
    if asked == EVERYTHING:
        return
    for _, mesh, op, entity, origin, _, _ in said:
        if not asked.passes(mesh, op, entity, origin, ""):
            raise BadAnswer(
                f"link {row.name!r} brought {op} {entity!r} of mesh {mesh!r}, as was not asked for",
                hint="the source does not keep to the filter; nothing was taken",
            )


# --- into our log --------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """As much of a batch as one transaction takes."""

    epoch: int
    first: int
    start: int
    upto: int
    offsets: list[int]
    arrivals: Arrivals


def _pieces(incoming: DecodedBatch, row: LinkRow) -> Iterator[_Piece]:
    """What lies beyond the cursor, in the order of the source."""
    batch, arrivals = incoming
    at = bisect_right(batch.offsets, row.cursor)
    start = batch.start
    if at == len(arrivals) and (batch.upto > row.cursor or not row.epoch):
        # Nothing for us, and that is news too: the filter has passed over it.
        yield _Piece(batch.epoch, batch.first, start, batch.upto, [], [])
    while at < len(arrivals):
        end = _fill(incoming, at)
        upto = batch.upto if end == len(arrivals) else batch.offsets[end - 1]
        yield _Piece(batch.epoch, batch.first, start, upto, batch.offsets[at:end], arrivals[at:end])
        at, start = end, upto + 1


def _fill(incoming: DecodedBatch, at: int) -> int:
    """Where a transaction that begins at `at` ends, so that it is done within its time."""
    arrivals, raws = incoming.arrivals, incoming.batch.raws
    end = min(at + LINK_BATCH_ROWS, len(arrivals))
    plain = set(map(type, arrivals[at:end])) == {tuple}
    if plain and sum(map(len, raws[at:end])) <= LINK_BATCH_BYTES:
        return end
    cost = size = 0
    for end in range(at, len(arrivals)):
        if cost >= LINK_BATCH_ROWS or size >= LINK_BATCH_BYTES:
            return end
        cost += _cost(arrivals[end])
        size += len(raws[end])
    return len(arrivals)


def _cost(arrival: Arrived | Arrival) -> int:
    if isinstance(arrival, tuple):
        return 1
    return _VECTOR_COST if isinstance(arrival.body, VectorStore) else _OTHER_COST


def _store(
    engine: NodeEngine,
    piece: _Piece,
    via: int,
    before: BatchReceived,
    absent: Collection[str] | None,
    tx: Transaction,
) -> BatchReceived:
    # All of this again, because somebody may have changed or moved it since.
    row = _require_same(tx, before.link)
    link = row.name
    _check_place(row, piece.epoch, piece.start, piece.first)
    skipped = bisect_right(piece.offsets, row.cursor)
    arrivals, offsets = piece.arrivals[skipped:], piece.offsets[skipped:]
    _check_objects(engine, arrivals, absent)
    applied = Intake.of(engine.ctx, arrivals, via)(tx)
    now = engine.ctx.now_ms()
    refused = [
        QuarantineRow(
            link=link,
            epoch=piece.epoch,
            offset=offset,
            code=result.error.code,
            message=result.error.message[:REASON_CHARS_MAX],
            raw=arrival[-1] if isinstance(arrival, tuple) else arrival.raw,
            found_at=now,
        )
        for offset, arrival, result in zip(offsets, arrivals, applied, strict=True)
        if result.error is not None
    ]
    _set_aside(tx, link, refused)
    known = [one.outcome for one in applied].count(Outcome.NOOP_ALREADY_APPLIED)
    moved = msgspec.structs.replace(
        row, epoch=piece.epoch, cursor=max(row.cursor, piece.upto), moved_at=now
    )
    tx.link_put(moved)
    return BatchReceived(
        moved,
        before.new + len(applied) - known - len(refused),
        before.known + known,
        before.quarantined + len(refused),
    )


def _check_objects(engine: NodeEngine, arrivals: Arrivals, absent: Collection[str] | None) -> None:
    """In the transaction: a sweep removes files in one, too."""
    if absent is None:
        return
    for named in objects_of(arrivals):
        if named.sha256 not in absent and not engine.blobs.exists(named.sha256):
            raise ObjectGone


def _set_aside(tx: Transaction, link: str, refused: list[QuarantineRow]) -> None:
    if not refused:
        return
    if tx.quarantine_count(link) >= QUARANTINE_ROWS_MAX:
        raise OverLimit(
            f"link {link!r} has set {QUARANTINE_ROWS_MAX} envelopes aside already",
            hint=f"look at them first: holdfast link quarantine {link}",
        )
    for row in refused:
        tx.quarantine_add(row)
