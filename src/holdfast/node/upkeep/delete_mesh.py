"""Deleting a mesh in this home: all of its rows, and the blobs that nothing else names.

First it is said what the mesh owes to others. Then one transaction makes it a mesh that nobody
finds; from there on nothing writes to it, and what comes for it is dropped and counted. Its rows go
in many small transactions, between which others write. A crash at any point leaves a mesh that
nobody finds and that is half removed: calling this again, or the next sweep, goes on.

Other nodes keep what they have. A mesh that was deleted comes back by `mesh create` or `mesh join`
only, with its clock where it was: what this node writes then must not be older than what others
have of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.rules.errors import MeshDeleted, UnknownMesh
from holdfast.rules.frontier import Frontier
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.mesh_end import ENDS, MeshDebts, check_debts, end_note
from holdfast.rules.names import check_mesh
from holdfast.rules.outbox import OutboxState, lane_of, quorum_lane_of
from holdfast.rules.rows import BlobRow
from holdfast.storage.mesh_end_port import ErasePlace
from holdfast.storage.ports import Reader, Transaction

_WAITING = (OutboxState.PENDING, OutboxState.INFLIGHT, OutboxState.DEAD)
_FIRST = ErasePlace()


class DeletedMesh(msgspec.Struct, frozen=True, kw_only=True):
    """What deleting a mesh came to."""

    mesh: str
    rows: int
    """Rows of all tables, entries of the log among them."""
    blobs: int
    """Files of content that nothing else names."""
    resumed: bool
    """True if an earlier run had begun it."""


class DeletionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What deleting a mesh would remove, and what it owes to others."""

    mesh: str
    rows: dict[str, int]
    """Live rows by family."""
    entries: int
    """Entries of the log."""
    debts: MeshDebts


def plan_deletion(engine: NodeEngine, mesh: str) -> DeletionPlan:
    """Looks, and changes nothing."""
    engine.require_mesh(mesh)

    def look(tx: Reader) -> DeletionPlan:
        return DeletionPlan(
            mesh=mesh,
            rows=tx.family_counts(mesh),
            entries=tx.log_count_of(mesh),
            debts=_debts(tx, mesh, engine.ctx.peer),
        )

    return engine.read("mesh.delete", look)


def delete_mesh(
    engine: NodeEngine,
    mesh: str,
    *,
    owed_too: bool = False,
    on_rows: Callable[[int], object] = lambda rows: None,
) -> DeletedMesh:
    """Removes the mesh from this home. `MeshOwes` if it owes something to others, unless
    `owed_too`. `on_rows` is told how many rows are gone so far.
    """
    check_mesh(mesh)
    begun = engine.read("mesh.delete", partial(is_begun, mesh=mesh))
    if not begun:
        engine.write("mesh.delete", partial(_begin, engine=engine, mesh=mesh, owed_too=owed_too))
    rows = 0
    place: ErasePlace | None = _FIRST
    while place is not None:
        step = partial(_erase, engine=engine, mesh=mesh, place=place)
        gone, place = engine.write("mesh.delete", step)
        rows += gone
        on_rows(rows)
    blobs = _unlink_unnamed(engine)
    engine.write("mesh.delete", lambda tx: tx.mesh_end_done(mesh, engine.ctx.now_ms()))
    return DeletedMesh(mesh=mesh, rows=rows, blobs=blobs, resumed=begun)


def finish_deletions(engine: NodeEngine) -> int:
    """Goes on with what a crash has left half removed; returns how many meshes that were."""
    ended = engine.read("mesh.delete", lambda tx: tx.ended_meshes())
    left = [row.mesh for row in ended if row.ended_at is None]
    for mesh in left:
        delete_mesh(engine, mesh)
    return len(left)


def is_begun(tx: Reader, mesh: str) -> bool:
    """Whether an earlier run has begun to delete a mesh, and was cut off."""
    ended = tx.ended_mesh(mesh)
    if ended is not None and ended.ended_at is None:
        return True
    if tx.mesh_get(mesh) is not None:
        return False
    if ended is not None:
        raise MeshDeleted(f"the mesh {mesh!r} was deleted here before", mesh=mesh)
    raise UnknownMesh(f"there is no mesh {mesh!r}")


def _begin(tx: Transaction, engine: NodeEngine, mesh: str, *, owed_too: bool) -> None:
    if tx.mesh_get(mesh) is None:
        if is_begun(tx, mesh):  # another caller was faster
            return
        raise UnknownMesh(f"there is no mesh {mesh!r}")
    us = engine.ctx.peer
    check_debts(mesh, _debts(tx, mesh, us), us, owed_too=owed_too)
    now = engine.ctx.now_ms()
    last = tx.log_get(tx.log_bounds()[1])
    if last is not None and last.mesh == mesh:
        # The last entry keeps the count of the log, so it must be of something that stays.
        peer, id = engine.ctx.peer, engine.ctx.new_id()
        note = end_note(peer, id, now)
        tx.log_append(id, ENDS, "fact.append", "mesh", peer, 1, now, note)
    tx.mesh_end_begin(mesh, now)


def _debts(tx: Reader, mesh: str, peer: str) -> MeshDebts:
    row = tx.mesh_get(mesh)
    if row is None:
        raise UnknownMesh(f"there is no mesh {mesh!r}")
    bus, quorum = tx.bus_mesh_get(mesh), tx.quorum_get(mesh)
    counts = tx.outbox_counts()
    last = tx.log_last_of(mesh)
    late = [
        one.name
        for one in tx.consumer_list()
        if Frontier.decode(one.frontier).prefix < last
        and (not one.filter.meshes or mesh in one.filter.meshes)
    ]
    return MeshDebts(
        unsent=sum(counts.get((lane_of(mesh), state), 0) for state in _WAITING),
        writes=sum(counts.get((quorum_lane_of(mesh), state), 0) for state in _WAITING),
        readers=tuple(late),
        broker=row.broker_url or "",
        owns_at_broker=row.kind == "shared_owner",
        over_bus=bus is not None,
        owns_on_bus=bus is not None and not bus.capability,
        votes=quorum is not None and quorum.voter is not None,
    )


def _erase(
    tx: Transaction, engine: NodeEngine, mesh: str, place: ErasePlace
) -> tuple[int, ErasePlace | None]:
    return tx.mesh_erase(mesh, place, CHUNK_ROWS, engine.ctx.now_ms())


def _unlink_unnamed(engine: NodeEngine) -> int:
    """Removes the files that only rows of the mesh had named. While a backup copies them, they stay
    for the sweep.
    """
    removed = 0
    with engine.blobs_free() as free:
        while free and (gone := engine.write("mesh.delete", partial(_unlink, engine=engine))):
            removed += gone
    return removed


def _unlink(tx: Transaction, engine: NodeEngine) -> int:
    unnamed: list[BlobRow] = [
        blob for blob in tx.blob_released(CHUNK_ROWS) if blob.released_offset == 0
    ]
    for blob in unnamed:
        if not engine.is_kept(blob.sha256):
            engine.blobs.unlink(blob.sha256)
        tx.blob_drop(blob.sha256)
    return len(unnamed)
