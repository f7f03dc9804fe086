"""Pausing a shared mesh, and letting it go on.

While a mesh is paused nothing of it is sent; what others send still comes in. An operator pauses
it, or the node does so itself where a lane halts at an item that the broker refused too often. An
operator who resumes it wants what failed to be tried again, so its attempts count from the
beginning.
"""

from __future__ import annotations

from functools import partial

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.rules.errors import NotShared, UnknownMesh
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.outbox import OutboxState, after_retry, lane_of
from holdfast.rules.rows import MeshRow
from holdfast.storage.ports import Transaction


class Resumed(msgspec.Struct, frozen=True):
    """A mesh that goes on."""

    mesh: str
    was_paused: bool
    retried: int
    """Items that were refused before and are tried again at once."""


def pause(engine: NodeEngine, mesh: str) -> MeshRow:
    return engine.write("sync.pause", partial(_set_paused, engine, mesh, True))


def resume(engine: NodeEngine, mesh: str) -> Resumed:
    """Lets one mesh go on. Items that wait for a later try go at once; dead ones stay dead."""
    before = engine.require_mesh(mesh)
    retried = after = 0
    while True:
        count, last = engine.write("sync.resume", partial(_retry, lane_of(mesh), after))
        retried += count
        if last is None:
            break
        after = last
    engine.write("sync.resume", partial(_set_paused, engine, mesh, False))
    return Resumed(mesh, before.sync_paused, retried)


def resume_all(engine: NodeEngine) -> list[Resumed]:
    """Every mesh that is paused."""
    rows = engine.read("mesh.list", lambda tx: tx.mesh_list())
    return [resume(engine, row.slug) for row in rows if row.shared and row.sync_paused]


def _set_paused(engine: NodeEngine, mesh: str, paused: bool, tx: Transaction) -> MeshRow:
    row = tx.mesh_get(mesh)
    if row is None:
        raise UnknownMesh(f"there is no mesh {mesh!r}")
    if not row.shared:
        raise NotShared(f"{mesh!r} is not shared, so nothing of it is sent")
    now = engine.ctx.now_ms()
    changed = msgspec.structs.replace(row, sync_paused=paused, updated_at=now)
    tx.mesh_change(changed)
    return changed


def _retry(lane: str, after: int, tx: Transaction) -> tuple[int, int | None]:
    rows = tx.outbox_list(lane, (OutboxState.PENDING,), after, CHUNK_ROWS)
    refused = [row for row in rows if row.attempts]
    for row in refused:
        tx.outbox_put(after_retry(row))
    return len(refused), rows[-1].number if len(rows) == CHUNK_ROWS else None
