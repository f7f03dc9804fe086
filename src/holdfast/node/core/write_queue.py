"""Strong writes that wait for the quorum of their mesh: the lane `quorum:<mesh>` of the one outbox.

The envelope of a write that found no quorum stands in the log, where its row of the outbox points;
it is folded into nothing until it is committed. `rules/quorum/write_queue.py` says what becomes of
a row. When its intent is committed, the fold ends it (`commit.py`).
"""

from __future__ import annotations

from holdfast.node.core.context import NodeContext
from holdfast.rules.envelope import Envelope, encode
from holdfast.rules.errors import UnknownMessage
from holdfast.rules.ids import id_text
from holdfast.rules.outbox import OutboxState, outbox_row, quorum_lane_of
from holdfast.rules.quorum.intents import decode_intent
from holdfast.rules.quorum.state_rows import QueueNote, counts_of, queued_write, with_write
from holdfast.rules.quorum.write_queue import (
    QueuedWrite,
    WriteCounts,
    WriteFailure,
    next_created_at,
    queued,
)
from holdfast.rules.rows import OutboxRow
from holdfast.storage.ports import Reader, Transaction


def queue_add(
    tx: Transaction,
    ctx: NodeContext,
    envelope: Envelope,
    failure: WriteFailure,
    target: str = "",
) -> QueuedWrite:
    """Keeps a write of this node whose first try failed: it waits, or has failed for good. What is
    no intent is refused. A write that is queued already stays as it is.
    """
    decode_intent(envelope)
    known = queue_get(tx, envelope.mesh, envelope.id)
    if known is not None:
        return known
    lane, now = quorum_lane_of(envelope.mesh), ctx.now_ms()
    e = envelope
    offset = tx.log_append(e.id, e.mesh, e.op, e.entity, e.origin, e.lamport, now, encode(e))
    at = next_created_at(tx.queue_newest(), now)
    tx.outbox_add((outbox_row(lane, envelope, offset, at),))
    row = tx.outbox_get(lane, envelope.id)
    assert row is not None, "it has just been added"
    write = QueuedWrite(id=e.id, mesh=e.mesh, target=target, created_at=at)
    return queue_put(tx, queued(write, failure, now))


def queue_get(reader: Reader, mesh: str, id: bytes) -> QueuedWrite | None:
    row = reader.outbox_get(quorum_lane_of(mesh), id)
    return None if row is None else _write(reader, row)


def queue_list(reader: Reader, mesh: str, after: int, limit: int) -> list[tuple[int, QueuedWrite]]:
    """Writes of a mesh with a number > after, and their numbers: in the order in which they were
    queued, which is the one of (created_at, id) but for ids of one moment.
    """
    rows = reader.outbox_list(quorum_lane_of(mesh), (), after, limit)
    return [(row.number, _write(reader, row)) for row in rows]


def queue_waiting(
    reader: Reader, mesh: str, after: int, limit: int
) -> list[tuple[int, QueuedWrite]]:
    """Writes of a mesh that are pending, with a number > after, and their numbers."""
    rows = reader.outbox_list(quorum_lane_of(mesh), (OutboxState.PENDING,), after, limit)
    return [(row.number, _write(reader, row)) for row in rows]


def queue_counts(reader: Reader, mesh: str) -> WriteCounts:
    return counts_of(reader.queue_counts(quorum_lane_of(mesh)))


def queue_put(tx: Transaction, write: QueuedWrite) -> QueuedWrite:
    """Stores a write that has changed, and returns it."""
    row = tx.outbox_get(quorum_lane_of(write.mesh), write.id)
    if row is None:
        raise UnknownMessage(f"no write {id_text(write.id)} waits for the quorum of {write.mesh!r}")
    changed, note = with_write(row, write)
    tx.outbox_put(changed)
    tx.queue_note_put(note)
    return write


def _write(reader: Reader, row: OutboxRow) -> QueuedWrite:
    return queued_write(row, reader.queue_note(row.number) or QueueNote(number=row.number))
