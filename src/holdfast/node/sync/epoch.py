"""Taking up the place where a broker says that a mesh stands.

A broker that was restored from an older copy counts in a new epoch, from the last seq that it still
had. All that this node knows to have stood above goes back into the outbox, so that it is pushed
again; the broker knows by the ids what it has. Only then does the cursor move. Work that is cut
short in between is done again from its beginning, and finds most of it done.

Where nobody can say what the broker forgot, messages that are older than it remembers ids stay out:
it could have had them, and would take them for new ones.
"""

from __future__ import annotations

import logging
from functools import partial

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.snapshots.upload import is_kept
from holdfast.node.sync.mesh_state import MeshState
from holdfast.protocol.frames import MeshPosition
from holdfast.rules.broker_sync import Cursor, LostAtBroker, Move, check_place, epoch_moved
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import NotAMember, UnknownMesh
from holdfast.rules.ids import id_text, id_time_ms
from holdfast.rules.limits import CHUNK_ROWS, HOUR_MS
from holdfast.rules.message import MESSAGE
from holdfast.rules.outbox import OutboxState, after_retry, outbox_row
from holdfast.rules.rows import JobRow, MeshRow
from holdfast.storage.ports import Reader, Transaction

log = logging.getLogger("holdfast")

_JOB = "sync:"


def take_up(engine: NodeEngine, mesh: MeshState, place: MeshPosition, max_age_hours: int) -> bool:
    """Brings the cursor to a place. True if it was moved, or stands for the first time. A message
    that may be at the broker is sent again up to `max_age_hours`.
    """
    _check_same(mesh, place)
    row, held = engine.read("sync.place", partial(_require_with_epochs, mesh.slug))
    mesh.cursor = Cursor(row.broker_epoch, row.broker_seq)
    bases = place.epochs or ((place.epoch, place.base),)
    check_place(mesh.cursor, place.epoch, bases, place.seq)
    mesh.grants = frozenset(place.grants)
    mesh.last = place.seq
    move = epoch_moved(mesh.cursor, place.epoch, bases, place.seq, held)
    if move is None:
        # Who was cut off after the last move may not have come to it.
        mesh.went_back = not _is_kept(engine, mesh)
        return False
    if move.lost:
        log.warning(
            "the broker of %s counts in epoch %d, from seq %d on: what it forgot is sent again",
            mesh.slug,
            place.epoch,
            place.base,
        )
    mesh.ahead = place.epoch
    if move.lost:
        # A thread that stores an answer of the epoch before is done with it after this.
        engine.write("sync.epoch", lambda tx: None)
    for lost in move.lost:
        put_back(engine, mesh, lost, max_age_hours)
    engine.write("sync.epoch", partial(_move, engine, mesh.slug, move))
    mesh.cursor = move.cursor
    mesh.went_back = not _is_kept(engine, mesh)
    mesh.own = mesh.own or move.own
    return True


def _is_kept(engine: NodeEngine, mesh: MeshState) -> bool:
    return engine.read("sync.place", lambda tx: is_kept(tx, mesh.slug, mesh.cursor.epoch))


def _check_same(mesh: MeshState, place: MeshPosition) -> None:
    if place.server_id != mesh.server_id:
        raise NotAMember(
            f"the mesh {mesh.slug!r} at the broker is another one than the one that was shared",
            hint="it was removed and made anew there; export this one, then join or publish again",
        )


def _require(slug: str, tx: Reader) -> MeshRow:
    row = tx.mesh_get(slug)
    if row is None:
        raise UnknownMesh(f"there is no mesh {slug!r} any more")
    return row


def _require_with_epochs(slug: str, tx: Reader) -> tuple[MeshRow, list[int]]:
    return _require(slug, tx), tx.broker_positions_epochs(slug)


def _move(engine: NodeEngine, slug: str, move: Move, tx: Transaction) -> None:
    row = _require(slug, tx)
    epoch, seq = move.cursor
    now = engine.ctx.now_ms()
    tx.mesh_change(msgspec.structs.replace(row, broker_epoch=epoch, broker_seq=seq, updated_at=now))


# --- what the broker forgot ----------------------------------------------------------------------


def put_back(engine: NodeEngine, mesh: MeshState, lost: LostAtBroker, max_age_hours: int) -> int:
    """Puts everything that is known to have stood there into the outbox again; returns how much.
    Without the grant to relay only what is ours: the others bring their own.
    """
    after, total = lost.above, 0
    oldest_ms = 0 if lost.certain else engine.ctx.now_ms() - max_age_hours * HOUR_MS
    while found := engine.read("sync.heard", partial(_positions, mesh.slug, lost, after)):
        offsets = [offset for _, offset in found]
        total += engine.write("sync.put_back", partial(_put_back, engine, mesh, offsets, oldest_ms))
        after = found[-1][0]
    return total


def _positions(slug: str, lost: LostAtBroker, after: int, tx: Reader) -> list[tuple[int, int]]:
    found = tx.broker_positions_above(slug, lost.epoch, lost.above, after, CHUNK_ROWS)
    return [(seq, offset) for seq, offset in found if lost.upto is None or seq <= lost.upto]


def _put_back(
    engine: NodeEngine, mesh: MeshState, offsets: list[int], oldest_ms: int, tx: Transaction
) -> int:
    """Puts entries into the outbox again: every change, and messages from `oldest_ms` on. A node
    that gets a change twice knows it by its id.
    """
    now = engine.ctx.now_ms()
    relays = "relay" in mesh.grants
    count = 0
    for offset in offsets:
        entry = tx.log_get(offset)
        if entry is None or entry.mesh != mesh.slug:
            continue  # truncated since: the broker's snapshot, or nobody, has it
        if entry.origin != engine.ctx.peer and not relays:
            continue
        made_at = id_time_ms(entry.id) or entry.recorded_at
        if entry.op == MESSAGE and min(entry.recorded_at, made_at) < oldest_ms:
            if entry.origin == engine.ctx.peer:
                log.warning(
                    "message %s to %s is not sent again: nobody can tell whether the broker has "
                    "lost it, or had it and forgot its id in time",
                    id_text(entry.id),
                    mesh.slug,
                )
            continue
        known = tx.outbox_get(mesh.lane, entry.id)
        if known is None:
            row = outbox_row(mesh.lane, decode_trusted(entry.raw), offset, now)
            count += tx.outbox_add((row,))
        elif known.state == OutboxState.DONE:
            tx.outbox_put(
                # Its age begins anew: what a broker forgot, it does not know by its id either.
                msgspec.structs.replace(after_retry(known), created_at=now)
            )
            count += 1
    return count


# --- our own past --------------------------------------------------------------------------------


def lost_own(engine: NodeEngine, slug: str) -> bool:
    """May we have handed in what we no longer know? So it is in an epoch of our log in which this
    mesh has not been read to its end yet: the first one, or one that a restore began.
    """

    def read(tx: Reader) -> bool:
        job = tx.job_get(_JOB + slug)
        return job is None or job.cursor.get("log_epoch") != tx.epoch()

    return engine.read("sync.own", read)


def found_own(engine: NodeEngine, slug: str) -> None:
    """Notes that the mesh was read to its end, with what we pushed ourselves."""
    now = engine.ctx.now_ms()

    def work(tx: Transaction) -> None:
        tx.job_put(JobRow(name=_JOB + slug, cursor={"log_epoch": tx.epoch()}, updated_at=now))

    engine.write("sync.own", work)
