"""The source's side of a mesh on the bus: what this node tells peers of its streams, and sends.

What a peer may read is looked up with each page. A peer of a mesh is a consumer of the log, named
`bus:<peer>`: what it lacks is not truncated, until it has been away for too long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from holdfast.node.bus.meshes.backfill import counted_meshes, is_counted
from holdfast.node.bus.meshes.grants import MeshGrants, MeshPeer
from holdfast.node.core.engine import NodeEngine
from holdfast.rules.bus.meshes.coverage import NOTHING, StreamName, lacking, without
from holdfast.rules.bus.meshes.streams import BlockDigest, StreamPage, StreamRow
from holdfast.rules.errors import NotGranted
from holdfast.rules.frontier import Frontier, Range
from holdfast.rules.limits import (
    BUS_COMPARE_BLOCK,
    BUS_COMPARE_BLOCKS,
    BUS_EPOCHS_MAX,
    BUS_PAGE_BYTES,
    BUS_PAGE_ROWS,
    BUS_PEER_LAG_MAX,
    BUS_PEER_RETIRE_MS,
    BUS_STREAMS_MAX,
    LAMPORT_MAX,
    SEEN_MS,
)
from holdfast.rules.rows import ConsumerRow
from holdfast.storage.ports import Reader, Transaction

_LACKS_MAX: Final = 64
"""Ranges of a stream that are looked at to find what a peer still needs; the lowest come first."""


class PageServed(NamedTuple):
    """A piece of a range, with the entries that are here."""

    start: int
    end: int
    page: StreamPage


def shared_with(engine: NodeEngine, grants: MeshGrants, peer: MeshPeer) -> list[str]:
    """The meshes that this node shares with a peer over the bus now."""
    return engine.read(
        "bus.meshes",
        lambda tx: [mesh for mesh in counted_meshes(tx) if grants.may_read(tx, peer, mesh)],
    )


def streams_of(engine: NodeEngine) -> list[StreamRow]:
    """All streams of the meshes that are shared over the bus."""
    return engine.read(
        "bus.streams",
        lambda tx: [row for mesh in counted_meshes(tx) for row in tx.stream_list(mesh)],
    )


def read_stream_page(
    engine: NodeEngine, grants: MeshGrants, peer: MeshPeer, name: StreamName, wanted: Range
) -> PageServed | None:
    """The first page of a range that a peer asked for; None if nothing of it is covered here."""

    def read(tx: Reader) -> PageServed | None:
        check_may_read(tx, grants, peer, name.mesh)
        row = tx.stream_get(name)
        if row is None:
            return None
        holes = without([(max(wanted[0], row.floor + 1), wanted[1])], row.covered)
        start, end = max(wanted[0], row.floor + 1), wanted[1]
        if holes and holes[0][0] == start:  # nothing is claimed that is not covered
            return None
        if holes:
            end = holes[0][0]
        if start >= end:
            return None
        page = tx.stream_page(row.number, start, end, BUS_PAGE_ROWS, BUS_PAGE_BYTES)
        return PageServed(start, page.upto + 1, page)

    return engine.read("bus.page", read)


def blocks_for(
    engine: NodeEngine, grants: MeshGrants, peer: MeshPeer, name: StreamName, first: int
) -> list[BlockDigest]:
    """The digests of the next blocks of a stream, for a peer that may read it."""
    engine.read("bus.compare", lambda tx: check_may_read(tx, grants, peer, name.mesh))
    return own_blocks(engine, name, first)


def leaves_for(
    engine: NodeEngine, grants: MeshGrants, peer: MeshPeer, name: StreamName, block: int
) -> list[tuple[int, bytes]]:
    """Number and leaf hash of each entry of a block, for a peer that may read it."""
    engine.read("bus.compare", lambda tx: check_may_read(tx, grants, peer, name.mesh))
    return own_leaves(engine, name, block)


def check_may_read(tx: Reader, grants: MeshGrants, peer: MeshPeer, mesh: str) -> None:
    """Raises NotGranted if a peer may not read a mesh over the bus."""
    row = tx.mesh_get(mesh)
    if row is None or not row.on_bus or not is_counted(tx, mesh):
        raise NotGranted(f"the mesh {mesh!r} is not shared over the bus")
    if not grants.may_read(tx, peer, mesh):
        raise NotGranted(f"{peer.name} may not read the mesh {mesh!r}")


# --- what the log keeps for a peer ---------------------------------------------------------------


def consumer_of(peer: str) -> str:
    return f"bus:{peer}"


def hold_for(
    engine: NodeEngine,
    peer: MeshPeer,
    meshes: Sequence[str],
    stored: Mapping[StreamName, Frontier],
    folded: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Moves the place of a peer in the log to before the first entry that it has not stored, and
    notes that it was heard of. `folded` says up to which commit it has what quorums decided, of
    meshes where it has said so.
    """
    now = engine.ctx.now_ms()

    def place(tx: Reader) -> int:
        lowest = [
            found
            for mesh in meshes
            for row in tx.stream_list(mesh)
            if (
                lacks := lacking(stored.get(row.name, NOTHING), row.covered, row.floor)[:_LACKS_MAX]
            )
            and (found := tx.stream_lowest(row.number, lacks)) is not None
        ]
        for mesh, number in folded.items():
            # An intent may have waited in the log, so the lowest is not always the next one.
            lowest += [row.offset for row in tx.commit_range(mesh, number + 1, _LACKS_MAX)]
        first, last = tx.log_bounds()
        return max(min(lowest, default=last + 1), first) - 1

    def read(tx: Reader) -> bool:
        row = tx.consumer_get(consumer_of(peer.name))
        if row is None:
            return True
        return row.frontier != str(place(tx)) or not 0 <= now - row.seen_at < SEEN_MS

    def work(tx: Transaction) -> None:
        row = tx.consumer_get(consumer_of(peer.name)) or ConsumerRow(
            name=consumer_of(peer.name),
            frontier="0",
            created_at=now,
            seen_at=now,
            retire_ms=BUS_PEER_RETIRE_MS,
            retire_lag=BUS_PEER_LAG_MAX,
            zone="" if tx.zone_of_key(peer.key) is None else peer.name,
        )
        frontier = Frontier(place(tx)).encode()
        tx.consumer_put(msgspec.structs.replace(row, frontier=frontier, seen_at=now))

    if engine.read("bus.hold", read):
        engine.write("bus.hold", work)


def note_trouble(engine: NodeEngine, name: StreamName, trouble: str) -> None:
    """Keeps what a person has to look at beside the stream."""
    engine.write("bus.trouble", partial(_trouble, name, trouble))


def _trouble(name: StreamName, trouble: str, tx: Transaction) -> None:
    if tx.stream_get(name) is not None or has_room_for(tx, name):
        tx.stream_cover(name, ())
        tx.stream_trouble(name, trouble)


def has_room_for(tx: Reader, name: StreamName) -> bool:
    """Whether one stream more of this origin may be counted."""
    return (
        tx.stream_count(name.mesh, name.origin) < BUS_EPOCHS_MAX
        and tx.stream_count(name.mesh) < BUS_STREAMS_MAX
    )


# --- comparing -----------------------------------------------------------------------------------


def own_blocks(engine: NodeEngine, name: StreamName, first: int) -> list[BlockDigest]:
    """The digests of our own next blocks."""

    def read(tx: Reader) -> list[BlockDigest]:
        row = tx.stream_get(name)
        return [] if row is None else tx.stream_blocks(row.number, first, BUS_COMPARE_BLOCKS)

    return engine.read("bus.compare", read)


def next_block(engine: NodeEngine, name: StreamName, first: int) -> int | None:
    """The first of our own blocks with an entry, from a block on."""

    def read(tx: Reader) -> int | None:
        row = tx.stream_get(name)
        if row is None:
            return None
        page = tx.stream_page(row.number, first * BUS_COMPARE_BLOCK, LAMPORT_MAX, 1, 1)
        return page.seqs[0] // BUS_COMPARE_BLOCK if page.seqs else None

    return engine.read("bus.compare", read)


def own_leaves(engine: NodeEngine, name: StreamName, block: int) -> list[tuple[int, bytes]]:
    """Number and leaf hash of each of our own entries of a block."""

    def read(tx: Reader) -> list[tuple[int, bytes]]:
        row = tx.stream_get(name)
        start = block * BUS_COMPARE_BLOCK
        end = start + BUS_COMPARE_BLOCK
        return [] if row is None else tx.stream_leaves(row.number, start, end)

    return engine.read("bus.compare", read)
