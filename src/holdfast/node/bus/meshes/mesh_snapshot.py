"""A snapshot of a mesh over the bus: what a peer has truncated, for one that lacks it.

The source tells, piece by piece, what its stream pages no longer hold: changes rebuilt from rows
whose entries are gone, and entries of the log that are in no stream or below its floor
(`node/snapshots/mesh_export.py`). It keeps nothing between two pieces: the receiver says with each
question where it is, in words of the source's own.

The receiver stores each part through the receive step, with how far it has got, so it goes on after
a break or a crash. With the last part, in one transaction, it notes as covered what the snapshot
stands for (`rules/bus/meshes/truncated.py`). Until then it claims nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from holdfast.node.bus.meshes.backfill import is_counted, snapshot_job
from holdfast.node.bus.meshes.grants import MeshGrants, MeshPeer
from holdfast.node.bus.meshes.mesh_receive import lane_of_peer
from holdfast.node.bus.meshes.mesh_serve import check_may_read, has_room_for
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.intake import Applied
from holdfast.node.core.receive import pieces, receive_arrivals
from holdfast.node.core.streams import PlacedInStreams
from holdfast.node.snapshots.mesh_export import START, MeshExport, Place, check_place
from holdfast.protocol.bus_mesh import MeshSnapshotPart, SnapshotAsked, SnapshotRefused
from holdfast.rules.arrivals import Arrivals, Named, header_of, objects_of, raw_of, read_arrivals
from holdfast.rules.bus.meshes.coverage import StreamName
from holdfast.rules.bus.meshes.streams import StreamRow, place_of
from holdfast.rules.bus.meshes.truncated import SnapshotChoice, StreamOffer, claimed
from holdfast.rules.envelope import UNCOUNTED
from holdfast.rules.errors import (
    BadAnswer,
    EntryDamaged,
    EpochChanged,
    ForgedOrigin,
    NotGranted,
    UnknownMesh,
)
from holdfast.rules.filters import MESSAGES
from holdfast.rules.frontier import Frontier
from holdfast.rules.limits import BUS_PAGE_BYTES, BUS_PAGE_ROWS, BUS_SNAPSHOT_PIECES
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import JobRow
from holdfast.storage.ports import Reader, Transaction

_SNAPSHOT_EPOCH: Final = 0
"""No stream counts in it: the place of what is refused of a snapshot."""


# --- the source ----------------------------------------------------------------------------------


class _Token(msgspec.Struct, frozen=True, array_like=True):
    """Where a receiver is, in words that only the source understands."""

    epoch: int
    """The source's epoch: its offsets mean something else in another."""
    upto: int
    place: Place


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Token).decode


def read_snapshot_parts(
    engine: NodeEngine, grants: MeshGrants, peer: MeshPeer, asked: SnapshotAsked
) -> list[MeshSnapshotPart]:
    """The next parts of a snapshot, the last of which says where the ones after it begin. Raises
    EpochChanged for a place of an earlier epoch.
    """

    def read(tx: Reader) -> tuple[list[bytes], bytes, int]:
        check_may_read(tx, grants, peer, asked.mesh)
        token = _token(tx, asked.place)
        export = MeshExport(tx, asked.mesh, token.upto)
        floors = {row.name: row.floor for row in tx.stream_list(asked.mesh)}
        origin = engine.ctx.peer if asked.own else None
        raws: list[bytes] = []
        size, place = 0, token.place
        for _ in range(BUS_SNAPSHOT_PIECES):
            found, following = export.piece(place)
            new = [raw for raw in found if _is_told(raw, floors, origin)]
            raws += new
            size += sum(map(len, new))
            if following is None:
                return raws, b"", _forgotten(tx, asked.mesh)
            place = following
            if size >= BUS_PAGE_BYTES:
                break
        return raws, _encode(msgspec.structs.replace(token, place=place)), 0

    raws, following, forgotten = engine.read("bus.snapshot", read)
    parts = _cut(raws)
    return [
        MeshSnapshotPart(
            asked.mesh, part, *((following, forgotten) if at == len(parts) else (None, 0))
        )
        for at, part in enumerate(parts, 1)
    ]


def answer_snapshot(
    engine: NodeEngine, grants: MeshGrants, peer: MeshPeer, asked: SnapshotAsked
) -> list[MeshSnapshotPart | SnapshotRefused]:
    """The same, or why not."""
    try:
        return [*read_snapshot_parts(engine, grants, peer, asked)]
    except (NotGranted, EntryDamaged, EpochChanged) as error:
        return [SnapshotRefused(asked.mesh, error.code)]


def _token(tx: Reader, asked: bytes) -> _Token:
    if not asked:
        return _Token(tx.epoch(), tx.log_bounds()[1], START)
    try:
        token = _decode(asked)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadAnswer(f"a peer asked for a place of a snapshot that is none: {error}") from None
    if token.epoch != tx.epoch():
        raise EpochChanged("the log counts in another epoch since", epoch=tx.epoch())
    if not check_place(token.place):
        raise BadAnswer("a peer asked for a place of a snapshot that is none")
    return token


def _is_told(raw: bytes, floors: dict[StreamName, int], origin: str | None) -> bool:
    """Whether an envelope is in no page of a stream, and of the origin that was asked for."""
    place = place_of(raw)
    if origin is not None and place.origin != origin:
        return False
    if place.epoch == UNCOUNTED:
        return True
    return place.seq <= floors.get(StreamName(place.mesh, place.origin, place.epoch), 0)


def _forgotten(tx: Reader, mesh: str) -> int:
    row = tx.mesh_get(mesh)
    return 0 if row is None else row.forgotten_lamport


def _cut(raws: list[bytes]) -> list[list[bytes]]:
    """Envelopes in portions that fit into a frame each; at least one portion."""
    parts: list[list[bytes]] = [[]]
    size = 0
    for raw in raws:
        if parts[-1] and (size + len(raw) > BUS_PAGE_BYTES or len(parts[-1]) >= BUS_PAGE_ROWS):
            parts.append([])
            size = 0
        parts[-1].append(raw)
        size += len(raw)
    return parts


# --- the receiver --------------------------------------------------------------------------------


class SnapshotTaking(msgspec.Struct, frozen=True, kw_only=True):
    """How far a snapshot is taken. It is stored as the row of a job."""

    mesh: str
    peer: str
    """The key of the source, in hex."""
    own: bool
    """Only what the source wrote itself: it may not relay."""
    claims: list[tuple[str, int, int, str]]
    """Origin, epoch, floor and coverage of the streams that it stands for."""
    place: str = ""
    """What the source calls the place to go on from, in hex."""
    rows: int = 0
    new: int = 0

    def question(self) -> SnapshotAsked:
        return SnapshotAsked(self.mesh, self.own, bytes.fromhex(self.place))


class PartReceived(NamedTuple):
    """What became of a part."""

    taking: SnapshotTaking
    streams: list[StreamRow] | None
    """The streams as they are now, if that was the last part."""


def begin_snapshot(
    engine: NodeEngine, peer: MeshPeer, choice: SnapshotChoice, own: bool
) -> SnapshotTaking:
    """The snapshot that is to be taken, as far as it is taken already."""

    def read(tx: Reader) -> JobRow | None:
        return tx.job_get(snapshot_job(choice.mesh))

    job = engine.read("bus.snapshot", read)
    fresh = SnapshotTaking(
        mesh=choice.mesh,
        peer=peer.key.hex(),
        own=own,
        claims=[
            (name.origin, name.epoch, offer.floor, offer.covered.encode())
            for name, offer in choice.claims.items()
        ],
    )
    if job is None:
        return fresh
    # What it claims was true when it began, and still is.
    stored = msgspec.convert(job.cursor, SnapshotTaking)
    return stored if (stored.peer, stored.own) == (fresh.peer, own) else fresh


def give_up_snapshot(engine: NodeEngine, mesh: str) -> None:
    """The source does not know the place any more: the next one begins anew."""
    engine.write("bus.snapshot", lambda tx: tx.job_drop(snapshot_job(mesh)))


def decode_part(part: MeshSnapshotPart, peer: MeshPeer, taking: SnapshotTaking) -> Arrivals:
    """Raises BadAnswer if a part holds anything else than was asked for."""
    arrivals = read_arrivals(part.raws)
    for arrival in arrivals:
        header = header_of(arrival)
        if header is None:
            continue  # it cannot be decoded, and goes into quarantine later
        _, mesh, op, _, origin, *_ = header
        if mesh != taking.mesh or op in MESSAGES:
            raise BadAnswer(f"a snapshot of {taking.mesh!r} holds what does not belong to it")
        if taking.own and origin != peer.name:
            raise BadAnswer(f"{peer.name} was asked for what it wrote, and sent more")
    if part.place == bytes.fromhex(taking.place) and part.place:
        raise BadAnswer(f"the snapshot of {taking.mesh!r} does not go on")
    return arrivals


def objects_of_part(
    engine: NodeEngine,
    grants: MeshGrants,
    peer: MeshPeer,
    taking: SnapshotTaking,
    arrivals: Arrivals,
) -> list[Named]:
    """The objects that a part names and that are not here. Raises if the peer may not
    bring it.
    """
    engine.read("bus.snapshot", lambda tx: _check_may_bring(grants, tx, peer, taking))
    return [one for one in objects_of(arrivals) if not engine.blobs.exists(one.sha256)]


def receive_part(
    engine: NodeEngine,
    grants: MeshGrants,
    peer: MeshPeer,
    taking: SnapshotTaking,
    part: MeshSnapshotPart,
    arrivals: Arrivals,
    absent: Collection[str],
) -> PartReceived:
    """Stores a part, and with it how far the snapshot has got; with the last one, what it covers.
    `ObjectGone` is raised if an object that the part names is gone again.
    """
    engine.check_room()
    received = PartReceived(taking, None)
    for start, end in pieces(arrivals):
        last = part if end == len(arrivals) else None
        step = partial(
            _store, engine, grants, peer, received.taking, last, arrivals[start:end], absent
        )
        received = engine.write("bus.snapshot", step)
    return received


def _store(
    engine: NodeEngine,
    grants: MeshGrants,
    peer: MeshPeer,
    before: SnapshotTaking,
    part: MeshSnapshotPart | None,
    arrivals: Arrivals,
    absent: Collection[str],
    tx: Transaction,
) -> PartReceived:
    """Stores a piece; `part` is given with the last piece of a part."""
    _check_may_bring(grants, tx, peer, before)
    mesh, rows = before.mesh, before.rows
    received = receive_arrivals(
        engine,
        tx,
        arrivals,
        lane=lane_of_peer(peer.name),
        epoch=_SNAPSHOT_EPOCH,
        offsets=range(rows + 1, rows + 1 + len(arrivals)),
        absent=absent,
        via=0 if (zone := tx.zone_of_key(peer.key)) is None else zone.number,
        mesh=mesh,  # what is in our own name is looked at more closely
        counts=False,
    )
    _place(tx, arrivals, received.applied)
    taking = msgspec.structs.replace(
        before, rows=rows + len(arrivals), new=before.new + received.new
    )
    if part is None or part.place is None:
        return PartReceived(taking, None)
    if part.place:
        taking = msgspec.structs.replace(taking, place=part.place.hex())
        cursor = msgspec.to_builtins(taking)
        tx.job_put(JobRow(name=snapshot_job(mesh), cursor=cursor, updated_at=engine.ctx.now_ms()))
        return PartReceived(taking, None)
    if part.forgotten and not taking.own:
        # What we write must be newer than that, or the source would refuse it. This also refuses a
        # stamp that no clock can show.
        tx.tick_merged(mesh, part.forgotten, engine.ctx.now_ms())
        tx.forget_below(mesh, part.forgotten)
    return PartReceived(taking, _finish(tx, taking))


def _place(tx: Transaction, arrivals: Arrivals, applied: Sequence[Applied]) -> None:
    """Notes the numbers of entries that have some, as far as there is room for their streams."""
    places = PlacedInStreams()
    room: dict[StreamName, bool] = {}
    for arrival, one in zip(arrivals, applied, strict=True):
        if not one.offset or one.outcome is Outcome.NOOP_ALREADY_APPLIED:
            continue
        at = place_of(raw_of(arrival))
        name = StreamName(at.mesh, at.origin, at.epoch)
        if name not in room:
            room[name] = tx.stream_get(name) is not None or has_room_for(tx, name)
        if room[name]:
            places.add(raw_of(arrival), one.offset)
    places.write(tx)


def _finish(tx: Transaction, taking: SnapshotTaking) -> list[StreamRow]:
    """All of it is here: notes what it stands for. Its numbers have no entries here either, so this
    node tells others so by its own floor.
    """
    tx.job_drop(snapshot_job(taking.mesh))
    rows: list[StreamRow] = []
    for origin, epoch, floor, covered in taking.claims:
        name = StreamName(taking.mesh, origin, epoch)
        if tx.stream_get(name) is not None or has_room_for(tx, name):
            ranges = claimed(StreamOffer(Frontier.decode(covered), floor))
            if ranges:
                rows.append(tx.stream_cover(name, ranges, floor=ranges[-1][1] - 1))
    return rows


def _check_may_bring(
    grants: MeshGrants, tx: Reader, peer: MeshPeer, taking: SnapshotTaking
) -> None:
    """Looked at in each transaction: a grant may have been taken back since the part was sent."""
    row = tx.mesh_get(taking.mesh)
    if row is None or not row.on_bus or not is_counted(tx, taking.mesh):
        raise UnknownMesh(f"the mesh {taking.mesh!r} is not shared over the bus")
    if not grants.may_write(tx, peer, taking.mesh):
        raise NotGranted(f"{peer.name} may not write to the mesh {taking.mesh!r}")
    if not taking.own and not grants.may_relay(tx, peer, taking.mesh):
        raise ForgedOrigin(
            f"{peer.name} brought a snapshot of {taking.mesh!r}, but may not relay",
            hint="if it may, grant it relay in this mesh",
        )
