"""The receiver's side of a mesh on the bus: a page of a stream becomes entries of our own.

A page is believed or refused as a whole. From its origin itself it is believed, and from another
peer only if that peer may relay. What the page holds must be what it says: entries of this mesh,
this origin and this epoch, under these numbers. Within an honest page one bad envelope harms no
other: it goes into the quarantine of the lane `bus:<peer>`, with the reason.

What is believed goes through the receive step of `node/core/receive.py`, and what the page covers
is noted in the same transaction. Where this node may relay to a broker, that step hands to it what
is new.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import NamedTuple

from holdfast.node.bus.meshes.backfill import is_counted
from holdfast.node.bus.meshes.grants import MeshGrants, MeshPeer
from holdfast.node.bus.meshes.mesh_serve import has_room_for
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.receive import pieces, receive_arrivals
from holdfast.rules.arrivals import Arrivals, Named, objects_of, raw_of, read_arrivals
from holdfast.rules.bus.meshes.coverage import StreamName
from holdfast.rules.bus.meshes.streams import StreamRow, place_of
from holdfast.rules.errors import BadAnswer, ForgedOrigin, NotGranted, UnknownMesh
from holdfast.rules.filters import MESSAGES
from holdfast.rules.leaf import leaf_of
from holdfast.rules.limits import BUS_EPOCHS_MAX
from holdfast.rules.reconcile import Outcome
from holdfast.storage.ports import Reader, Transaction


class DecodedMeshPage(NamedTuple):
    """A page whose entries are decoded and checked, as far as that needs no store."""

    name: StreamName
    start: int
    end: int
    base: int
    """Where the stream begins, as the peer told; 0 if it did not."""
    key: bytes
    seqs: list[int]
    arrivals: Arrivals


class MeshPageReceived(NamedTuple):
    """What became of a page."""

    row: StreamRow
    """The stream afterwards; its number is 0 if it is none that we count."""
    new: int
    known: int
    refused: int


def lane_of_peer(peer: str) -> str:
    """The lane in whose quarantine refused entries of a peer are."""
    return f"bus:{peer}"


def decode_mesh_page(
    name: StreamName,
    start: int,
    end: int,
    base: int,
    key: bytes,
    seqs: list[int],
    raws: list[bytes],
) -> DecodedMeshPage:
    """Decodes a page. Raises BadAnswer if it does not hold what it says."""
    arrivals = read_arrivals(raws)
    mesh, origin, epoch = name
    for seq, raw, arrival in zip(seqs, raws, arrivals, strict=True):
        if not isinstance(arrival, tuple) and arrival.envelope is None:
            continue  # unreadable: it goes into quarantine
        at = place_of(raw)
        if at.seq != seq or at.origin != origin or at.mesh != mesh or at.epoch != epoch:
            raise BadAnswer(
                f"a page of {mesh}, {origin}, epoch {epoch} has an entry of another place"
            )
        if at.op in MESSAGES:
            raise BadAnswer(f"a page of {mesh} has a message, and those are not for everybody")
    return DecodedMeshPage(name, start, end, base, key, seqs, arrivals)


def objects_of_page(
    engine: NodeEngine, grants: MeshGrants, peer: MeshPeer, page: DecodedMeshPage
) -> list[Named]:
    """The objects that the page names and that are not here. Raises if the peer may
    not bring the page: then nothing is fetched for it either.
    """
    engine.read("bus.take", lambda tx: check_may_bring(engine, grants, tx, peer, page.name))
    return [one for one in objects_of(page.arrivals) if not engine.blobs.exists(one.sha256)]


def receive_mesh_page(
    engine: NodeEngine,
    grants: MeshGrants,
    peer: MeshPeer,
    page: DecodedMeshPage,
    absent: Collection[str] | None,
) -> MeshPageReceived:
    """Stores a page and notes what it covers. A large one is stored in several transactions, each
    with what it covers. `ObjectGone` is raised if an object that the page names is gone again.
    """
    engine.check_room()
    new = known = refused = 0
    start = page.start
    for first, last in pieces(page.arrivals):
        end = page.end if last == len(page.arrivals) else page.seqs[last - 1] + 1
        piece = page._replace(
            start=start, end=end, seqs=page.seqs[first:last], arrivals=page.arrivals[first:last]
        )
        received = engine.write("bus.take", partial(_store, engine, grants, peer, piece, absent))
        new += received.new
        known += received.known
        refused += received.refused
        start = end
    return MeshPageReceived(received.row, new, known, refused)


def check_may_bring(
    engine: NodeEngine, grants: MeshGrants, tx: Reader, peer: MeshPeer, name: StreamName
) -> None:
    """Raises if a peer may not bring entries of a stream."""
    row = tx.mesh_get(name.mesh)
    if row is None or not row.on_bus or not is_counted(tx, name.mesh):
        raise UnknownMesh(f"the mesh {name.mesh!r} is not shared over the bus")
    if not grants.may_write(tx, peer, name.mesh):
        raise NotGranted(f"{peer.name} may not write to the mesh {name.mesh!r}")
    if name.origin != peer.name and not grants.may_relay(tx, peer, name.mesh):
        raise ForgedOrigin(
            f"{peer.name} brought entries of {name.origin!r} to {name.mesh!r}, but may not relay",
            hint="if it may, grant it relay in this mesh",
        )
    if tx.stream_get(name) is None and not has_room_for(tx, name):
        raise NotGranted(
            f"{peer.name} brought one stream too many of {name.origin!r} to {name.mesh!r}: a name "
            f"has at most {BUS_EPOCHS_MAX}"
        )


def _store(
    engine: NodeEngine,
    grants: MeshGrants,
    peer: MeshPeer,
    piece: DecodedMeshPage,
    absent: Collection[str] | None,
    tx: Transaction,
) -> MeshPageReceived:
    # Checked in each transaction: a grant may have been taken back since the page was asked for.
    check_may_bring(engine, grants, tx, peer, piece.name)
    zone = tx.zone_of_key(peer.key)
    received = receive_arrivals(
        engine,
        tx,
        piece.arrivals,
        lane=lane_of_peer(peer.name),
        epoch=piece.name.epoch,
        offsets=piece.seqs,
        absent=absent,
        via=0 if zone is None else zone.number,
        # Of this mesh and origin they all are; what is in our own name is looked at more closely.
        mesh=piece.name.mesh if piece.name.origin == engine.ctx.peer else None,
        counts=False,
    )
    if piece.name.origin == engine.ctx.peer and piece.name.epoch >= tx.epoch():
        # We count this stream ourselves: what we did not write is quarantined, and covers nothing.
        row = tx.stream_get(piece.name) or StreamRow(number=0, **piece.name._asdict())
        return MeshPageReceived(row, received.new, received.known, received.refused)
    placed = [
        (seq, one.offset, leaf_of(raw_of(arrival)))
        for seq, one, arrival in zip(piece.seqs, received.applied, piece.arrivals, strict=True)
        if one.offset and one.outcome is not Outcome.NOOP_ALREADY_APPLIED
    ]
    tx.stream_add(piece.name, placed)
    row = tx.stream_cover(piece.name, [(piece.start, piece.end)], base=piece.base, key=piece.key)
    return MeshPageReceived(row, received.new, received.known, received.refused)
