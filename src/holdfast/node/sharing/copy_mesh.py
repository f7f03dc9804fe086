"""A personal mesh again under another name, for a broker where its own name is taken.

What the mesh shows, and what was deleted in it, is copied with its stamps and origins
(`rules/copied.py`), in small transactions, from one state of it. The mesh itself stays as it is.
How far it has got stands in a job until the copy is published, so that a run that was cut off goes
on, and a mesh that only happens to have the name is never taken for a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.receive import incoming
from holdfast.node.snapshots.jobs import Progress, no_progress
from holdfast.node.snapshots.mesh_export import START, MeshExport, Place
from holdfast.rules.audit_chain import AuditRow
from holdfast.rules.bodies import family_of
from holdfast.rules.copied import copied, copied_event
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import AlreadyExists, Conflict
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.names import check_mesh
from holdfast.rules.rebuild import rebuild_event
from holdfast.rules.rows import JobRow, MeshRow
from holdfast.storage.audit_port import AuditPlace
from holdfast.storage.ports import Reader, Transaction


class _Copy(msgspec.Struct, frozen=True, kw_only=True):
    """How far a copy has come, as it stands in the jobs."""

    of: str
    upto: int
    """The end of the log as it began."""
    place: Place | None = msgspec.field(default_factory=lambda: list(START))
    """None: everything is copied."""
    rows: int = 0


def check_copy(tx: Reader, mesh: str, new: str) -> None:
    """Raises unless `new` may be, or is already, a copy of the mesh."""
    check_mesh(new)
    if tx.quorum_get(mesh) is not None:
        raise Conflict(
            f"voters decide for {mesh!r}, and what they have decided cannot be copied",
            hint="publish it at a broker where its name is free",
        )
    if tx.mesh_get(new) is None or is_copy(tx, mesh, new):
        return
    raise AlreadyExists(
        f"this home has another mesh {new!r}", hint="give the copy a name that is free here too"
    )


def is_copy(tx: Reader, mesh: str, new: str) -> bool:
    """Whether `new` is the copy of a mesh, which is not published yet."""
    job = _job_of(tx, new)
    return job is not None and job.of == mesh


def copy_mesh(engine: NodeEngine, mesh: str, new: str, progress: Progress = no_progress) -> None:
    """Makes the copy, or goes on with it."""
    job = engine.write("mesh.copy", partial(_begin, engine=engine, mesh=mesh, new=new))
    while job.place is not None:
        raws, place = engine.read("mesh.copy", partial(_piece, job))
        _take(engine, (copied(raw, new) for raw in raws if _is_copied(raw)))
        job = msgspec.structs.replace(job, place=place, rows=job.rows + len(raws))
        engine.write("mesh.copy", partial(_note, engine=engine, new=new, job=job))
        progress("changes copied", job.rows, None)
    _take(engine, _events(engine, mesh, new))
    engine.write("mesh.copy", partial(_forget, engine=engine, mesh=mesh, new=new))


def end_copy(tx: Transaction, new: str) -> None:
    """It is published: from here on it is a mesh as any other."""
    for job in jobs_of(new):
        tx.job_drop(job)


def jobs_of(mesh: str) -> tuple[str, ...]:
    return (f"copy:{mesh}",)


def _job_of(tx: Reader, new: str) -> _Copy | None:
    (name,) = jobs_of(new)
    job = tx.job_get(name)
    return None if job is None else msgspec.convert(job.cursor, _Copy)


def _begin(tx: Transaction, engine: NodeEngine, mesh: str, new: str) -> _Copy:
    check_copy(tx, mesh, new)
    begun = _job_of(tx, new)
    if begun is not None and tx.mesh_get(new) is not None:
        return begun
    row, now = tx.mesh_get(mesh), engine.ctx.now_ms()
    assert row is not None, "it was there just now"
    title = new if row.name == mesh else row.name
    tx.mesh_add(MeshRow(slug=new, name=title, created_at=now, updated_at=now))
    job = _Copy(of=mesh, upto=tx.log_bounds()[1])
    _note(tx, engine, new, job)
    return job


def _note(tx: Transaction, engine: NodeEngine, new: str, job: _Copy) -> None:
    (name,) = jobs_of(new)
    tx.job_put(JobRow(name=name, cursor=msgspec.to_builtins(job), updated_at=engine.ctx.now_ms()))


def _piece(job: _Copy, tx: Reader) -> tuple[list[bytes], Place | None]:
    assert job.place is not None
    return MeshExport(tx, job.of, job.upto).piece(job.place)


def _is_copied(raw: bytes) -> bool:
    return family_of(decode_trusted(raw).op) != "audit"


def _events(engine: NodeEngine, mesh: str, new: str) -> Iterator[bytes]:
    """Audit events, chain by chain: each hash needs the one before it."""
    place: AuditPlace = ("", "", 0, 0)
    before: AuditRow | None = None
    while rows := engine.read("mesh.copy", partial(_scan, mesh, place)):
        for row in rows:
            before = copied_event(row, before, new)
            yield rebuild_event(before)
        last = rows[-1]
        place = (last.stream, last.origin, last.epoch, last.seq)


def _scan(mesh: str, after: AuditPlace, tx: Reader) -> list[AuditRow]:
    return tx.audit_scan(mesh, None, None, after, CHUNK_ROWS)


def _take(engine: NodeEngine, raws: Iterator[bytes]) -> None:
    for piece in incoming(engine.ctx, raws):
        for applied in engine.write("intake", piece):
            if applied.error is not None:
                raise applied.error


def _forget(tx: Transaction, engine: NodeEngine, mesh: str, new: str) -> None:
    """What was deleted and forgotten does not come back by the copy either, and what is written to
    the copy is newer than all that was ever written to the original.
    """
    row = tx.mesh_get(mesh)
    if row is None:
        return
    tx.clock_raise(new, row.lamport)
    if row.forgotten_lamport:
        tx.tick_merged(new, row.forgotten_lamport, engine.ctx.now_ms())
        tx.forget_below(new, row.forgotten_lamport)
