"""Takes a snapshot of the source of a link that has truncated what the link wants next.

Part by part, each through the receive step, with how far it has got, so that it goes on after a
break or a crash. The cursor moves with the last part of the last mesh, and not before: until then
nothing is claimed. What the source still holds in its log is read as ever afterwards.

If the source has begun to count in another epoch meanwhile, the snapshot begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Final, NamedTuple

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.object_transfer import ObjectGone, PieceSize, Pulled, pull_objects
from holdfast.node.core.receive import pieces, receive_arrivals
from holdfast.node.links import receive
from holdfast.node.links.source import LinkSource
from holdfast.protocol.link_snapshot import LinkSnapshotPart, SnapshotPartAsked
from holdfast.rules.arrivals import Arrivals, kinds_of, objects_of, read_arrivals
from holdfast.rules.errors import (
    BadAnswer,
    EpochChanged,
    NotFound,
    Truncated,
    UnknownConsumer,
    UnknownZone,
    ZoneNotTrusted,
)
from holdfast.rules.filters import MESSAGES
from holdfast.rules.links import consumer_name
from holdfast.rules.rows import JobRow, LinkRow
from holdfast.storage.ports import Reader, Transaction

_SNAPSHOT_EPOCH: Final = 0
"""No log counts in it: the place of what is refused of a snapshot."""


class _Taking(msgspec.Struct, frozen=True):
    """How far a snapshot is taken. It is stored as the row of a job."""

    added_at: int
    """Of the link: another one of its name begins anew."""
    epoch: int
    meshes: list[str]
    """Those that are not in yet; the first of them is being taken."""
    partial: bool
    first: int = 0
    """Where the link goes on in the source's log; 0 until the source has said so."""
    place: str = ""
    """Where the next part begins, in hex."""
    rows: int = 0
    new: int = 0


class LinkSnapshotTaken(NamedTuple):
    """What a snapshot has brought."""

    link: LinkRow
    rows: int
    new: int


OnPart = Callable[[int, int], None]
"""Called after each part: how many changes have come, and how many of them were new."""


def snapshot_job(link: str) -> str:
    return f"link-snapshot:{link}"


def want_snapshot(engine: NodeEngine, row: LinkRow, epoch: int) -> None:
    """Notes that a new link wants what its source has forgotten before it was added: all that there
    is, for it owes nothing. It is noted before the link begins, so that no crash loses it.
    """
    wanted = _Taking(row.added_at, epoch, list(row.filter.meshes), partial=True)
    job = JobRow(
        name=snapshot_job(row.name),
        cursor=msgspec.to_builtins(wanted),
        updated_at=engine.ctx.now_ms(),
    )
    engine.write("link.snapshot", lambda tx: tx.job_put(job))


def wanted_snapshot(engine: NodeEngine, row: LinkRow) -> bool | None:
    """Whether a snapshot of this link is begun that takes what there is (True), or only if that is
    all (False); None if none is begun.
    """
    job = engine.read("link.snapshot", lambda tx: tx.job_get(snapshot_job(row.name)))
    stored = None if job is None else msgspec.convert(job.cursor, _Taking)
    if stored is None or (stored.added_at, stored.epoch) != (row.added_at, row.epoch):
        return None
    return stored.partial


def give_up_snapshot(engine: NodeEngine, row: LinkRow) -> None:
    engine.write("link.snapshot", lambda tx: tx.job_drop(snapshot_job(row.name)))


def take_snapshot(
    engine: NodeEngine,
    source: LinkSource,
    row: LinkRow,
    *,
    partial_too: bool = False,
    on_part: OnPart = lambda rows, new: None,
    pulled: Callable[[Pulled], None] = lambda pulled: None,
    ended: Callable[[], bool] = lambda: False,
    size: PieceSize | None = None,
) -> LinkSnapshotTaken | None:
    """Takes the snapshot, or goes on with one, and moves the cursor to its end. Returns None if it
    ended before that. Raises Truncated if none can be had that makes up for what is gone; with
    `partial_too` it takes what there is.
    """
    taking = _begin(engine, row, partial_too)
    while True:
        asked = _question(engine, row, taking)
        try:
            part = source.snapshot_part(asked)
        except EpochChanged:
            give_up_snapshot(engine, row)
            raise
        except (NotFound, UnknownConsumer) as error:
            raise Truncated(
                f"{row.zone} no longer holds what comes next, and gives no snapshot: "
                f"{error.message}",
                first_available=row.cursor + 1,
            ) from error
        arrivals = _checked(engine, row, taking, part)
        names = [named.sha256 for named in objects_of(arrivals)]
        absent = pull_objects(engine, source, names, pulled, ended, size)
        if ended():
            return None
        try:
            taking, moved = _store(engine, row, taking, part, arrivals, absent)
        except ObjectGone:
            continue  # a sweep was faster: the part comes again
        on_part(taking.rows, taking.new)
        if moved is not None:
            return LinkSnapshotTaken(moved, taking.rows, taking.new)


def _begin(engine: NodeEngine, row: LinkRow, partial_too: bool) -> _Taking:
    job = engine.read("link.snapshot", lambda tx: tx.job_get(snapshot_job(row.name)))
    stored = None if job is None else msgspec.convert(job.cursor, _Taking)
    fresh = _Taking(row.added_at, row.epoch, list(row.filter.meshes), partial_too)
    # With another decision, another link or another log it is another snapshot.
    if stored is not None and (stored.added_at, stored.epoch, stored.partial) == (
        fresh.added_at,
        fresh.epoch,
        fresh.partial,
    ):
        return stored
    return fresh


def _question(engine: NodeEngine, row: LinkRow, taking: _Taking) -> SnapshotPartAsked:
    return SnapshotPartAsked(
        consumer=consumer_name(engine.ctx.peer, row.name),
        mesh=taking.meshes[0],
        epoch=row.epoch,
        cursor=row.cursor,
        place=bytes.fromhex(taking.place),
        partial=taking.partial,
    )


def _checked(engine: NodeEngine, row: LinkRow, taking: _Taking, part: LinkSnapshotPart) -> Arrivals:
    """Refuses a part that no honest source sends, as a whole."""
    if part.epoch != row.epoch:
        raise EpochChanged(f"the log of {row.zone} counts in a new epoch", epoch=part.epoch)
    if part.place and part.place == bytes.fromhex(taking.place):
        raise BadAnswer(f"the snapshot of {row.zone} does not go on")
    arrivals = read_arrivals(part.raws)
    for mesh, op, _ in kinds_of(arrivals):
        if mesh != taking.meshes[0] or op in MESSAGES:
            raise BadAnswer(f"a snapshot of {taking.meshes[0]!r} holds what does not belong to it")
    receive.check_filter(row, arrivals)
    engine.read(
        "link.snapshot", lambda tx: receive.check_origins(engine.ctx.peer, row, arrivals, tx)
    )
    return arrivals


# --- into our log --------------------------------------------------------------------------------


def _store(
    engine: NodeEngine,
    row: LinkRow,
    taking: _Taking,
    part: LinkSnapshotPart,
    arrivals: Arrivals,
    absent: Collection[str],
) -> tuple[_Taking, LinkRow | None]:
    """Stores a part; with the last piece of it how far the snapshot is, or the end of it: then the
    link with its cursor moved.
    """
    engine.check_room()
    moved: LinkRow | None = None
    for start, end in pieces(arrivals):
        last = part if end == len(arrivals) else None
        step = partial(_store_piece, engine, row, taking, last, arrivals[start:end], absent)
        taking, moved = engine.write("link.snapshot", step)
    return taking, moved


def _store_piece(
    engine: NodeEngine,
    row: LinkRow,
    before: _Taking,
    part: LinkSnapshotPart | None,
    arrivals: Arrivals,
    absent: Collection[str],
    tx: Transaction,
) -> tuple[_Taking, LinkRow | None]:
    now = receive.require_same(tx, row)
    received = receive_arrivals(
        engine,
        tx,
        arrivals,
        lane=row.name,
        epoch=_SNAPSHOT_EPOCH,
        offsets=range(before.rows + 1, before.rows + 1 + len(arrivals)),
        absent=absent,
        via=_via(tx, row),
    )
    taking = msgspec.structs.replace(
        before, rows=before.rows + len(arrivals), new=before.new + received.new
    )
    if part is None:
        return taking, None
    first = part.first if not taking.first else min(taking.first, part.first)
    meshes = taking.meshes if part.place else taking.meshes[1:]
    taking = msgspec.structs.replace(taking, first=first, meshes=meshes, place=part.place.hex())
    if meshes:
        cursor = msgspec.to_builtins(taking)
        job = JobRow(name=snapshot_job(row.name), cursor=cursor, updated_at=engine.ctx.now_ms())
        tx.job_put(job)
        return taking, None
    tx.job_drop(snapshot_job(row.name))
    if now.epoch != taking.epoch:  # a person has begun anew meanwhile: nothing is claimed
        return taking, now
    moved = msgspec.structs.replace(
        now, cursor=max(now.cursor, first - 1), moved_at=engine.ctx.now_ms()
    )
    tx.link_put(moved)
    return taking, moved


def _via(tx: Reader, row: LinkRow) -> int:
    zone = tx.zone_get(row.zone)
    if zone is None:
        raise UnknownZone(f"link {row.name!r} leads to zone {row.zone!r}, which is not known here")
    if zone.blocked_at is not None:
        raise ZoneNotTrusted(f"zone {zone.name!r} is blocked", hint="see: holdfast peer list")
    return zone.number
