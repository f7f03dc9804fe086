"""Switches the sharing of a mesh over the bus on and off.

A mesh that is shared keeps what this node has of each stream beside the log. From the moment it is
switched on, every append does so in its own transaction. What was in the log before is counted
afterwards, a chunk per transaction; the job says how far that got, so it goes on after a crash, and
a second run changes nothing. Only then do peers hear of the mesh.

Switching it off keeps what was counted: it stays true, and the next time only goes over it again.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.streams import PlacedInStreams
from holdfast.rules.bus.meshes.coverage import StreamName
from holdfast.rules.errors import UnknownMesh
from holdfast.rules.filters import Filter
from holdfast.rules.limits import LINK_BATCH_BYTES, LINK_BATCH_ROWS
from holdfast.rules.names import check_mesh
from holdfast.rules.rows import JobRow, MeshRow
from holdfast.storage.ports import Reader, Transaction

_DONE: Final = {"done": True}


def job_of(mesh: str) -> str:
    return f"bus.streams:{mesh}"


def snapshot_job(mesh: str) -> str:
    """A snapshot that is being taken over the bus."""
    return f"bus-snapshot:{mesh}"


def switch_on(engine: NodeEngine, mesh: str) -> None:
    """From now on appends to this mesh are counted; `count_next` counts what was there before."""
    check_mesh(mesh)

    def work(tx: Transaction) -> None:
        row = _require(tx, mesh)
        if row.on_bus and tx.job_get(job_of(mesh)) is not None:
            return
        now = engine.ctx.now_ms()
        tx.mesh_change(msgspec.structs.replace(row, on_bus=True, updated_at=now))
        first, last = tx.log_bounds()
        cursor = {"next": first, "last": last}
        tx.job_put(JobRow(name=job_of(mesh), cursor=cursor, updated_at=now))

    engine.write("bus.share", work)


def switch_off(engine: NodeEngine, mesh: str) -> None:
    """Peers hear no more of this mesh over the bus, and nothing is taken of it from there."""
    check_mesh(mesh)

    def work(tx: Transaction) -> None:
        row = _require(tx, mesh)
        if row.on_bus:
            now = engine.ctx.now_ms()
            tx.mesh_change(msgspec.structs.replace(row, on_bus=False, updated_at=now))
            tx.job_drop(job_of(mesh))
            tx.job_drop(snapshot_job(mesh))

    engine.write("bus.share", work)


def count_next(engine: NodeEngine, mesh: str) -> bool:
    """Counts the next chunk of the log. Returns whether there is more to count."""
    return engine.write("bus.count", partial(_count, engine, mesh))


def is_counted(tx: Reader, mesh: str) -> bool:
    """Whether everything of a mesh that is in the log is counted, so that peers may hear of it."""
    job = tx.job_get(job_of(mesh))
    # A repair keeps jobs and drops streams; there is at least our own one.
    return job is not None and job.cursor == _DONE and bool(tx.stream_list(mesh))


def counted_meshes(tx: Reader) -> list[str]:
    """The meshes that are shared over the bus and counted."""
    return [row.slug for row in tx.mesh_list() if row.on_bus and is_counted(tx, row.slug)]


def uncounted_meshes(tx: Reader) -> list[str]:
    """The meshes that are shared over the bus and not counted yet."""
    return [row.slug for row in tx.mesh_list() if row.on_bus and not is_counted(tx, row.slug)]


def _require(tx: Reader, mesh: str) -> MeshRow:
    row = tx.mesh_get(mesh)
    if row is None:
        raise UnknownMesh(f"there is no mesh {mesh!r}")
    return row


def _count(engine: NodeEngine, mesh: str, tx: Transaction) -> bool:
    job, row = tx.job_get(job_of(mesh)), _require(tx, mesh)
    if not row.on_bus or is_counted(tx, mesh):
        return False
    first, last = tx.log_bounds()
    begun = job is not None and job.cursor != _DONE
    cursor: dict[str, Any] = job.cursor if job and begun else {"next": first, "last": last}
    start = max(cursor["next"], first)
    page = tx.log_page(
        start, cursor["last"] + 1, LINK_BATCH_ROWS, LINK_BATCH_BYTES, Filter(meshes=(mesh,))
    )
    places = PlacedInStreams()
    for offset, raw in zip(page.offsets, page.raws, strict=True):
        places.add(raw, offset)
    places.write(tx)
    more: bool = page.upto < cursor["last"]
    if more:
        after: dict[str, Any] = {"next": page.upto + 1, "last": cursor["last"]}
    else:
        after = _DONE
        _settle_own(engine, row, tx)
    tx.job_put(JobRow(name=job_of(mesh), cursor=after, updated_at=engine.ctx.now_ms()))
    return more


def settle_epoch(engine: NodeEngine) -> None:
    """Notes where our own numbers of the present epoch begin, where that is not noted yet: after a
    restore they count on.
    """
    us, epoch = engine.ctx.peer, engine.ctx.epoch

    def unsettled(tx: Reader) -> list[MeshRow]:
        rows = [_require(tx, mesh) for mesh in counted_meshes(tx)]
        return [row for row in rows if tx.stream_get(StreamName(row.slug, us, epoch)) is None]

    def work(tx: Transaction) -> None:
        for row in unsettled(tx):
            _settle_own(engine, row, tx)

    if engine.read("bus.streams", unsettled):
        engine.write("bus.count", work)


def _settle_own(engine: NodeEngine, row: MeshRow, tx: Transaction) -> None:
    """We alone know where our own numbers begin: before the first that we still have, there is
    nothing to be had of us.
    """
    us, epoch = engine.ctx.peer, engine.ctx.epoch
    # Without an entry yet: every number of ours up to the present one is of an earlier epoch.
    if tx.stream_get(StreamName(row.slug, us, epoch)) is None:
        tx.stream_cover(StreamName(row.slug, us, epoch), (), base=row.seq)
    for stream in tx.stream_list(row.slug):
        ranges = stream.covered.ranges
        if stream.origin == us and not stream.covered.prefix and ranges:
            tx.stream_cover(stream.name, (), base=ranges[0][0] - 1)
