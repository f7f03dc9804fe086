"""Makes a snapshot of a mesh at its broker, for nodes that join later.

The parts are made one after another from what this node holds (see `mesh_export`). Before a part is
sent, this node stores from which place on it was made, and its digest. So after a crash the broker
says which part is missing, and that part is made again from its place: no part is sent twice, and
what the broker has is not made again. The broker shows a snapshot to nobody before its last part is
there and the digest over all parts is right.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.node.broker_client.client import BrokerClient, Snapshot
from holdfast.node.core.engine import NodeEngine
from holdfast.node.snapshots.jobs import Progress, made_job, no_progress, upload_job
from holdfast.node.snapshots.mesh_export import START, MeshExport, Place
from holdfast.protocol.mesh_snapshot import (
    pack_part,
    part_digest,
    unpack_part,
    whole_digest,
)
from holdfast.rules.arrivals import objects_of, read_arrivals
from holdfast.rules.errors import BadValue, EpochMismatch, StoreBusy, UnknownObject
from holdfast.rules.limits import MESH_PART_BYTES
from holdfast.rules.rows import JobRow, MeshRow
from holdfast.storage.ports import Reader, Transaction


class _Upload(msgspec.Struct, frozen=True):
    """How far an upload has got. It is stored as the row of a job."""

    id: str
    epoch: int
    seq: int
    upto: int
    """The last offset of our log that the snapshot covers."""
    places: list[Place]
    """Where each part begins."""
    digests: list[str]
    end: Place | None = None
    """Where the part after the last one begins; None if that was the last."""
    rows: int = 0


def upload_snapshot(
    engine: NodeEngine, calls: BrokerClient, mesh: str, progress: Progress = no_progress
) -> Snapshot:
    """Makes a snapshot of a mesh at its broker, or goes on with one that was begun. It covers what
    the broker has accepted up to where this node has got.
    """
    try:
        return _upload(engine, calls, mesh, progress)
    except (BadValue, EpochMismatch, UnknownObject):
        # The upload that was begun is of an epoch that is over, or the broker has dropped it or has
        # other parts than we know of.
        engine.write("snapshot.up", lambda tx: tx.job_drop(upload_job(mesh)))
        return _upload(engine, calls, mesh, progress)


def _upload(engine: NodeEngine, calls: BrokerClient, mesh: str, progress: Progress) -> Snapshot:
    known, upload, number = _begin(engine, calls, mesh)
    while True:
        if number < len(upload.places):
            place: Place | None = upload.places[number]
        else:
            place = upload.end if upload.places else START
        if place is None:
            break
        upload, packed, rows = _make(engine, mesh, upload, number, place)
        if packed is not None:
            _bring_objects(engine, calls, mesh, packed)
            # Stored before the part is sent.
            _note(engine, mesh, known, upload)
            known = upload
            number = calls.snapshot_chunk(mesh, upload.id, number, rows, packed)
            progress("rows", upload.rows, None)
    digest = whole_digest([bytes.fromhex(text) for text in upload.digests])
    done = calls.snapshot_commit(mesh, upload.id, digest)

    def finish(tx: Transaction) -> None:
        tx.job_drop(upload_job(mesh))
        cursor = {"id": done.id, "epoch": upload.epoch, "seq": upload.seq}
        now = engine.ctx.now_ms()
        tx.job_put(JobRow(name=made_job(mesh), cursor=cursor, updated_at=now))

    engine.write("snapshot.up", finish)
    return done


def _begin(
    engine: NodeEngine, calls: BrokerClient, mesh: str
) -> tuple[_Upload | None, _Upload, int]:
    """The upload as it is stored, as it goes on now, and the number of the part that the broker
    wants next.
    """

    def read(tx: Reader) -> tuple[JobRow | None, MeshRow | None, int]:
        return tx.job_get(upload_job(mesh)), tx.mesh_get(mesh), tx.log_bounds()[1]

    job, row, head = engine.read("snapshot.up", read)
    assert row is not None
    known = None if job is None else msgspec.convert(job.cursor, _Upload)
    epoch, seq = (row.broker_epoch, row.broker_seq) if known is None else (known.epoch, known.seq)
    begun = calls.snapshot_begin(mesh, epoch, seq)
    if known is not None and known.id == begun.snapshot_id and begun.next <= len(known.places):
        return known, known, begun.next
    if begun.next:
        # The broker has parts that this home does not know, for instance after a restore.
        raise UnknownObject(f"the upload {begun.snapshot_id} was begun by another home")
    return known, _Upload(begun.snapshot_id, epoch, seq, head, [], []), 0


def _make(
    engine: NodeEngine, mesh: str, upload: _Upload, number: int, place: Place
) -> tuple[_Upload, bytes | None, int]:
    """Makes the part that begins at a place: the upload with it, its bytes (None if nothing is left
    to export), and the number of envelopes in it.
    """

    def read(tx: Reader) -> tuple[list[bytes], Place | None, int]:
        export = MeshExport(tx, mesh, upload.upto)
        row = tx.mesh_get(mesh)
        raws: list[bytes] = []
        size = 0
        following: Place | None = place
        while following is not None and size < MESH_PART_BYTES:
            more, following = export.piece(following)
            raws += more
            size += sum(map(len, more))
        return raws, following, 0 if row is None else row.forgotten_lamport

    raws, end, forgotten = engine.read("snapshot.up", read)
    packed = pack_part(mesh, forgotten, raws)
    if not raws and number:
        return msgspec.structs.replace(upload, end=end), None, 0
    places = [*upload.places[:number], place]
    digests = [*upload.digests[:number], part_digest(packed).hex()]
    rows = upload.rows + len(raws)
    made = msgspec.structs.replace(upload, places=places, digests=digests, end=end, rows=rows)
    return made, packed, len(raws)


def _bring_objects(engine: NodeEngine, calls: BrokerClient, mesh: str, packed: bytes) -> None:
    """Uploads the objects that a part names, before the part itself. Objects that are not here are
    left out.
    """
    for named in objects_of(read_arrivals(unpack_part(packed, mesh).raws)):
        sha = named.sha256
        if engine.blobs.exists(sha):
            calls.put_object(engine, mesh, sha)


def _note(engine: NodeEngine, mesh: str, before: _Upload | None, upload: _Upload) -> None:
    """Stores how far the upload has got; raises `StoreBusy` if another process has moved it."""
    cursor: dict[str, Any] = msgspec.to_builtins(upload)
    row = JobRow(name=upload_job(mesh), cursor=cursor, updated_at=engine.ctx.now_ms())

    def work(tx: Transaction) -> None:
        job = tx.job_get(upload_job(mesh))
        if (None if job is None else msgspec.convert(job.cursor, _Upload)) != before:
            # Its parts and ours would be mixed, and neither snapshot would be complete.
            raise StoreBusy(f"another process is making a snapshot of {mesh!r}")
        tx.job_put(row)

    engine.write("snapshot.up", work)


def is_kept(tx: Reader, mesh: str, epoch: int) -> bool:
    """Whether the broker surely has the last snapshot that this node made: it was made in this
    epoch, or `keep_snapshot` has been called in it. True if this node made none.
    """
    job = tx.job_get(made_job(mesh))
    return job is None or job.cursor.get("kept", job.cursor["epoch"]) == epoch


def keep_snapshot(
    engine: NodeEngine, calls: BrokerClient, mesh: str, progress: Progress = no_progress
) -> bool:
    """After a broker went back in time: makes the snapshot of this node again if the broker lost
    it, because its content was never sent in another way. Returns whether it was made again. The
    epoch is noted at the end, so that a run that was cut off is repeated.
    """
    if engine.read("snapshot.up", lambda tx: tx.job_get(made_job(mesh))) is None:
        return False
    if calls.snapshot(mesh) is None:
        upload_snapshot(engine, calls, mesh, progress)
        return True
    engine.write("snapshot.up", lambda tx: _note_kept(tx, engine, mesh))
    return False


def _note_kept(tx: Transaction, engine: NodeEngine, mesh: str) -> None:
    job, row = tx.job_get(made_job(mesh)), tx.mesh_get(mesh)
    if job is not None and row is not None:
        cursor = {**job.cursor, "kept": row.broker_epoch}
        tx.job_put(JobRow(name=made_job(mesh), cursor=cursor, updated_at=engine.ctx.now_ms()))
