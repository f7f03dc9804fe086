"""The receive step: how a batch from elsewhere becomes part of this node.

Links, broker sync and snapshots of a mesh get their batches in different ways, and each remembers
in its own way how far it has got. Everything else is the same for all three:

1. `pieces` cuts a batch so that each piece is stored within the time of one transaction.
2. In the transaction of a piece, `receive_arrivals` makes sure that the objects are still here,
   hands the envelopes to the intake, puts those that it refuses into the quarantine, and hands on
   to a broker what this node may relay (`relaying.py`).
3. In the same transaction the caller moves its cursor.

So a crash leaves a piece and its cursor, or neither. Nothing is ever dropped but what is for a mesh
that was deleted here, or a message of a peer that is blocked, and that is counted. Every other
envelope ends in the log, or was there before, or is in the quarantine with the reason. A strong
one, which no record came with, is passed over: it comes again beside its record, in the order of
its quorum (`committed_intake.py`), and until then nobody knows whether it counts. When the
quarantine has no room for all that a piece would add, the piece is refused as a whole and the
cursor stays. It comes again when a person has made room.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Final, NamedTuple

from holdfast.node.core.context import NodeContext
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.intake import Applied, AppliedFacts, Intake, objection
from holdfast.node.core.object_transfer import require_objects
from holdfast.node.core.relaying import hand_on
from holdfast.rules.arrivals import Arrival, Arrivals, Arrived, raw_of, read_arrivals
from holdfast.rules.bodies import VectorStore
from holdfast.rules.errors import (
    BadInput,
    HoldfastError,
    MeshDeleted,
    NotCommitted,
    OverLimit,
    SenderBlocked,
)
from holdfast.rules.fact_columns import FactColumns
from holdfast.rules.limits import (
    CHUNK_ROWS,
    LINK_BATCH_BYTES,
    LINK_BATCH_ROWS,
    QUARANTINE_ROWS_MAX,
    REASON_CHARS_MAX,
)
from holdfast.rules.outbox import is_lane
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import QuarantineRow
from holdfast.storage.ports import Reader, Transaction

Dropped = MeshDeleted | SenderBlocked
"""What is neither kept nor put aside; it was counted."""
_FOLD_COST: Final = LINK_BATCH_ROWS // CHUNK_ROWS
"""An envelope that is folded into a table takes about this many times as long as a plain fact."""
_VECTOR_COST: Final = 2 * _FOLD_COST
"""A vector goes into a search index besides."""


class ReceivedPiece(NamedTuple):
    """What became of a piece."""

    applied: Sequence[Applied]
    """One for each arrival, in their order."""
    new: int
    known: int
    refused: int
    """How many of them are in the quarantine now."""
    awaited: int = 0
    """How many come again with the record of their commit."""
    dropped: int = 0
    """How many were for a mesh that was deleted here, or from a peer that is blocked."""


# --- pieces --------------------------------------------------------------------------------------


def pieces(arrivals: Arrivals, start: int = 0) -> Iterator[tuple[int, int]]:
    """Where each piece of a batch begins and ends, from `start` on. Nothing to store is one empty
    piece: the cursor moves all the same.
    """
    while True:
        end = _end_of_piece(arrivals, start)
        yield start, end
        if end == len(arrivals):
            return
        start = end


def _end_of_piece(arrivals: Arrivals, start: int) -> int:
    end = min(start + LINK_BATCH_ROWS, len(arrivals))
    # Nearly always these are plain facts only.
    size = _size_of_facts(arrivals[start:end])
    if size is not None and size <= LINK_BATCH_BYTES:
        return end
    cost = size = 0
    for end in range(start, len(arrivals)):
        if cost >= LINK_BATCH_ROWS or size >= LINK_BATCH_BYTES:
            return end
        cost += _cost(arrivals[end])
        size += len(raw_of(arrivals[end]))
    return len(arrivals)


def _size_of_facts(arrivals: Arrivals) -> int | None:
    """The bytes of arrivals that are plain facts all of them, else None."""
    if isinstance(arrivals, FactColumns):
        return sum(arrivals.sizes())
    if all(map(isinstance, arrivals, repeat(tuple))):
        return sum(map(len, map(raw_of, arrivals)))
    return None


def _cost(arrival: Arrived | Arrival) -> int:
    if isinstance(arrival, tuple):
        return 1
    return _VECTOR_COST if isinstance(arrival.body, VectorStore) else _FOLD_COST


class Incoming:
    """Arrivals that no place of a reader goes with: called with a transaction, it applies them,
    hands them on as far as this node may, and returns what became of each.
    """

    def __init__(self, ctx: NodeContext, arrivals: Arrivals, via: int = 0) -> None:
        self._ctx, self._arrivals = ctx, arrivals
        self._intake = Intake.of(ctx, arrivals, via)

    def __call__(self, tx: Transaction) -> Sequence[Applied]:
        applied = self._intake(tx)
        hand_on(self._ctx, tx, self._arrivals, applied)
        return applied


def incoming(ctx: NodeContext, envelopes: Iterable[bytes]) -> Iterator[Incoming]:
    """Decodes a stream of envelopes into batches, each small enough for one transaction."""
    if not isinstance(envelopes, Iterable):
        raise BadInput(f"envelopes is {type(envelopes).__name__}, not a list of bytes")
    for raws in _batches(envelopes):
        arrivals = read_arrivals(raws)
        for start, end in pieces(arrivals):
            yield Incoming(ctx, arrivals[start:end])


def _batches(envelopes: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for raw in envelopes:
        if not isinstance(raw, bytes | bytearray | memoryview):
            raise BadInput(f"an envelope is {type(raw).__name__}, not bytes")
        batch.append(raw)
        size += len(raw)
        if len(batch) == LINK_BATCH_ROWS or size >= LINK_BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# --- in the transaction --------------------------------------------------------------------------


def receive_arrivals(
    engine: NodeEngine,
    tx: Transaction,
    arrivals: Arrivals,
    *,
    lane: str,
    epoch: int,
    offsets: Sequence[int],
    absent: Collection[str] | None = None,
    via: int = 0,
    mesh: str | None = None,
    delivered: Mapping[bytes, bytes] | None = None,
    counts: bool = True,
) -> ReceivedPiece:
    """Stores a piece; the caller moves the cursor of its lane afterwards, in the same transaction.

    `lane`, `epoch` and `offsets` say where each arrival stands at its source: the place under which
    a refused one is quarantined. `absent` are objects that the source does not have; if another one
    that the piece names is gone, `ObjectGone` is raised. None: objects are not looked at. The rest
    is as for `apply_arrivals`.
    """
    require_objects(engine, arrivals, absent)
    applied = apply_arrivals(
        engine, tx, arrivals, via=via, mesh=mesh, delivered=delivered, counts=counts
    )
    if isinstance(applied, AppliedFacts):  # nearly always, and each of them is new
        _hand_on(engine, tx, lane, arrivals, applied)
        return ReceivedPiece(applied, len(applied), 0, 0)
    refused = [
        QuarantineRow(
            link=lane,
            epoch=epoch,
            offset=offset,
            code=result.error.code,
            message=result.error.message[:REASON_CHARS_MAX],
            raw=raw_of(arrival),
            found_at=engine.ctx.now_ms(),
        )
        for offset, arrival, result in zip(offsets, arrivals, applied, strict=True)
        if result.error is not None and not isinstance(result.error, NotCommitted | Dropped)
    ]
    if refused:
        _quarantine(tx, lane, epoch, refused)
    _hand_on(engine, tx, lane, arrivals, applied)
    known = [result.outcome for result in applied].count(Outcome.NOOP_ALREADY_APPLIED)
    awaited = sum(isinstance(result.error, NotCommitted) for result in applied)
    dropped = sum(isinstance(result.error, Dropped) for result in applied)
    new = len(applied) - known - len(refused) - awaited - dropped
    return ReceivedPiece(applied, new, known, len(refused), awaited, dropped)


def _hand_on(
    engine: NodeEngine,
    tx: Transaction,
    lane: str,
    arrivals: Arrivals,
    applied: Sequence[Applied],
) -> None:
    if not is_lane(lane):  # those are a broker's own
        hand_on(engine.ctx, tx, arrivals, applied)


def apply_arrivals(
    engine: NodeEngine,
    tx: Transaction,
    arrivals: Arrivals,
    *,
    via: int = 0,
    mesh: str | None = None,
    delivered: Mapping[bytes, bytes] | None = None,
    counts: bool = True,
) -> Sequence[Applied]:
    """Hands arrivals to the intake and returns what became of each, in their order.

    `via`, `delivered` and `counts` are as for `Intake`. `mesh` is given for what a broker brought
    for that mesh: `objection` then refuses what the broker cannot vouch for.
    """
    refused: dict[int, HoldfastError] = {}
    if mesh is not None:
        for at, arrival in enumerate(arrivals):
            error = objection(engine, mesh, arrival, tx)
            if error is not None:
                refused[at] = error
    if not refused:
        return Intake.of(engine.ctx, arrivals, via, delivered, counts=counts)(tx)
    good = [arrival for at, arrival in enumerate(arrivals) if at not in refused]
    applied = iter(Intake.of(engine.ctx, good, via, delivered, counts=counts)(tx))
    return [
        Applied(None, None, error=refused[at]) if at in refused else next(applied)
        for at in range(len(arrivals))
    ]


# --- quarantine ----------------------------------------------------------------------------------


def _quarantine(tx: Transaction, lane: str, epoch: int, refused: list[QuarantineRow]) -> None:
    """Adds the rows that are not there yet: all of them, or none and `OverLimit`."""
    fresh = _not_quarantined(tx, lane, epoch, refused)
    count = tx.quarantine_count(lane)
    if fresh and count + len(fresh) > QUARANTINE_ROWS_MAX:
        raise OverLimit(
            f"{lane} has {count} envelopes in quarantine, and {len(fresh)} more do not fit: the "
            f"most is {QUARANTINE_ROWS_MAX}",
            hint=f"look at them: holdfast link quarantine {lane}; then try them again: "
            f"holdfast link retry {lane}, or give them up: holdfast link drop {lane} --all",
        )
    for row in fresh:
        tx.quarantine_add(row)


def _not_quarantined(
    tx: Reader, lane: str, epoch: int, refused: list[QuarantineRow]
) -> list[QuarantineRow]:
    """Those rows whose bytes are not in quarantine under the same place."""
    wanted = {(row.offset, len(row.raw)) for row in refused}
    there: set[tuple[int, bytes]] = set()
    for number, offset, size in tx.quarantine_places(lane, epoch):
        if (offset, size) in wanted:
            row = tx.quarantine_get(number)
            assert row is not None
            there.add((offset, row.raw))
    return [row for row in refused if (row.offset, row.raw) not in there]
