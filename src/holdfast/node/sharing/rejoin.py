"""A mesh that this node has left may be joined again: what was written meanwhile goes both ways.

Who leaves a mesh keeps what is in it, as a mesh of its own under the same name. A mesh that was
never shared must not be joined to somebody else's by its name alone; one that was left is known by
the id that its broker gave it, and by the broker's key.

What the broker lacks is what this node wrote since, and what was given up when it left. It goes
into the outbox from the log, piece by piece, and the mesh is shared with the last piece: so nothing
that is written meanwhile falls between. If the log has lost some of it, joining is refused, and
says so.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.snapshots.mesh_export import GIVEN_UP, entries, is_exported, tables_of
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import AlreadyExists
from holdfast.rules.outbox import OutboxState, lane_of, outbox_row
from holdfast.rules.rows import Entry, JobRow, MeshRow
from holdfast.storage.ports import Reader, Transaction

_WAITING: Final = (OutboxState.PENDING, OutboxState.INFLIGHT)


class LeftMesh(msgspec.Struct, frozen=True, kw_only=True):
    """What a home remembers of a mesh that it has left. It is stored as the row of a job."""

    card: str
    server_id: str
    since: int
    """The first offset of the log at which something may stand that the broker lacks."""
    lamport: int
    """Of what this node wrote up to this stamp the broker has all."""


def note_left(tx: Transaction, row: MeshRow, now_ms: int) -> None:
    """Call it before what waits for the broker is given up."""
    if row.broker_card is None or row.server_id is None:
        return  # it was left before, and that was cut off
    since, lamport = tx.log_bounds()[1] + 1, row.lamport
    for waiting in tx.outbox_list(lane_of(row.slug), _WAITING, 0, 1):
        first = tx.log_get(waiting.offset)
        if first is not None:
            since, lamport = first.offset, first.lamport - 1
    left = LeftMesh(card=row.broker_card, server_id=row.server_id, since=since, lamport=lamport)
    _put(tx, row.slug, left, now_ms)


def left_mesh(tx: Reader, mesh: str) -> LeftMesh | None:
    """The mesh that this home left last under a name; None if it left none."""
    found = tx.job_get(_name(mesh))
    return None if found is None else msgspec.convert(found.cursor, LeftMesh)


def bring_next(tx: Transaction, engine: NodeEngine, row: MeshRow, left: LeftMesh) -> bool:
    """Puts the next piece of what the broker lacks into the outbox. True if it was the last one:
    the mesh is to be shared in the same transaction then.
    """
    check_whole(tx, engine, row, left)
    upto = tx.log_bounds()[1]
    page, following = entries(tx, row.slug, left.since, upto)
    for entry in page:
        if entry.origin == engine.ctx.peer and is_exported(tx, entry):
            _hand_in(tx, row.slug, entry, engine.ctx.now_ms())
    if following is None:
        tx.job_drop(_name(row.slug))
        return True
    after = msgspec.structs.replace(left, since=following)
    _put(tx, row.slug, after, engine.ctx.now_ms())
    return False


def check_whole(tx: Reader, engine: NodeEngine, row: MeshRow, left: LeftMesh) -> None:
    """Raises AlreadyExists if the log has lost something that the broker lacks."""
    if tx.log_bounds()[0] <= left.since:
        return
    lost = row.forgotten_lamport > left.lamport
    if lost or any(
        envelope.origin == engine.ctx.peer and envelope.lamport > left.lamport
        for envelope in map(decode_trusted, tables_of(tx, row.slug))
    ):
        raise AlreadyExists(
            f"what was written to {row.slug!r} since this node left it is no longer in the log, so "
            "the broker cannot get it",
            hint="join with another home (--home FOLDER), and bring it there: "
            f"holdfast export --mesh {row.slug} FILE; holdfast import FILE",
        )


def _hand_in(tx: Transaction, mesh: str, entry: Entry, now_ms: int) -> None:
    fresh = outbox_row(lane_of(mesh), decode_trusted(entry.raw), entry.offset, now_ms)
    known = tx.outbox_get(lane_of(mesh), entry.id)
    if known is None:
        tx.outbox_add([fresh])
    elif known.code == GIVEN_UP:
        tx.outbox_put(msgspec.structs.replace(fresh, number=known.number))


def _put(tx: Transaction, mesh: str, left: LeftMesh, now_ms: int) -> None:
    cursor = msgspec.to_builtins(left)
    tx.job_put(JobRow(name=_name(mesh), cursor=cursor, updated_at=now_ms))


def _name(mesh: str) -> str:
    return f"left:{mesh}"
