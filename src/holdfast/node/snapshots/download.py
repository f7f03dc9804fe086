"""Takes in the snapshot of a mesh that its broker holds.

Each part goes through the receive step of `node/core/receive.py`, piece by piece. With the last
piece of a part this node stores how many parts are in, so that an interrupted download goes on with
the part that was not complete; the pieces of it that come twice change nothing. When all parts are
in and the digest is that of the maker, the cursor of the mesh moves.

Envelopes that are refused are quarantined under the lane of the mesh, in epoch 0, which no feed
counts in. Their offset is their number within the snapshot, from 1 on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import msgspec

from holdfast.node.broker_client.client import BrokerClient, Snapshot
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.object_transfer import ObjectGone, pull_objects
from holdfast.node.core.receive import pieces, receive_arrivals
from holdfast.node.snapshots.jobs import Progress, download_job, no_progress
from holdfast.protocol.mesh_snapshot import MeshPart, part_digest, unpack_part, whole_digest
from holdfast.rules.arrivals import Arrivals, header_of, objects_of, read_arrivals
from holdfast.rules.bodies import family_of
from holdfast.rules.errors import BadAnswer
from holdfast.rules.outbox import lane_of
from holdfast.rules.rows import JobRow
from holdfast.storage.ports import Transaction


class SnapshotTaken(msgspec.Struct, frozen=True):
    """What a snapshot brought."""

    id: str
    epoch: int
    seq: int
    rows: int
    new: int
    quarantined: int


class _Download(msgspec.Struct, frozen=True):
    """How far a download has got. It is stored as the row of a job."""

    id: str
    digests: list[str]
    """One for each part that is in."""
    rows: int = 0
    new: int = 0
    quarantined: int = 0


def take_snapshot(
    engine: NodeEngine,
    calls: BrokerClient,
    mesh: str,
    progress: Progress = no_progress,
    ended: Callable[[], bool] = lambda: False,
    joined: tuple[int, int] = (0, 0),
) -> SnapshotTaken | None:
    """Takes in the mesh's snapshot and moves its cursor. Returns None if the broker has none, or if
    `ended` returned True before it was done.

    A snapshot holds changes and no messages. So the cursor moves only to where the broker no longer
    has single changes: the messages after that are still to come, and changes that come again are
    known. Before the place (epoch, seq) where this node `joined` there were no messages for it.
    """
    there = calls.snapshot(mesh)
    if there is None:
        return None
    download = _begin(engine, mesh, there)
    for number in range(len(download.digests), there.parts):
        taken = None
        while taken is None:
            if ended():
                return None
            taken = _take_part(engine, calls, mesh, download, number, ended)
        download = taken
        progress("rows", download.rows, there.rows)
    if whole_digest([bytes.fromhex(text) for text in download.digests]) != there.digest:
        engine.write("snapshot.down", lambda tx: tx.job_drop(download_job(mesh)))
        raise BadAnswer(
            f"the snapshot of {mesh!r} is not what its maker uploaded",
            hint="nothing is lost: it is taken again from the start",
        )
    now = calls.standing(mesh)
    epoch, seq = now.epoch, now.seq_now(there.epoch, there.seq)
    seq = min(seq, max(now.first - 1, now.seq_now(*joined)))
    engine.write("snapshot.down", lambda tx: _finish(tx, engine, mesh, epoch, seq))
    return SnapshotTaken(there.id, epoch, seq, download.rows, download.new, download.quarantined)


def _begin(engine: NodeEngine, mesh: str, there: Snapshot) -> _Download:
    """The download of this snapshot as far as it has got."""
    job = engine.read("snapshot.down", lambda tx: tx.job_get(download_job(mesh)))
    stored = None if job is None else msgspec.convert(job.cursor, _Download)
    # The broker may have a newer snapshot than the one that was begun.
    return stored if stored is not None and stored.id == there.id else _Download(there.id, [])


def _take_part(
    engine: NodeEngine,
    calls: BrokerClient,
    mesh: str,
    download: _Download,
    number: int,
    ended: Callable[[], bool],
) -> _Download | None:
    """Fetches one part with its objects and stores it. Returns None if that has to be tried again,
    or if it ended.
    """
    packed = calls.snapshot_part(mesh, download.id, number)
    part = unpack_part(packed, mesh)
    arrivals = _checked(part)
    names = [named.sha256 for named in objects_of(arrivals)]
    absent = pull_objects(engine, calls.objects(mesh), names, lambda _: None, ended)
    if ended():
        return None
    digest = part_digest(packed).hex()
    try:
        for start, end in pieces(arrivals):
            last = digest if end == len(arrivals) else None
            step = partial(_store, engine, part, arrivals[start:end], download, absent, last)
            download = engine.write("intake", step)
    except ObjectGone:
        return None  # a sweep removed an object before the entry that names it was stored
    return download


def _checked(part: MeshPart) -> Arrivals:
    """Refuses a part that holds anything else than changes of its mesh: a snapshot is no way into
    another mesh.
    """
    arrivals = read_arrivals(part.raws)
    for arrival in arrivals:
        header = header_of(arrival)
        if header is None:
            continue  # it cannot be decoded, and goes into quarantine later
        _, mesh, op, *_ = header
        if mesh != part.mesh or family_of(op) == "message":
            raise BadAnswer(f"the snapshot of {part.mesh!r} holds what does not belong to it")
    return arrivals


def _store(
    engine: NodeEngine,
    part: MeshPart,
    arrivals: Arrivals,
    before: _Download,
    absent: Collection[str],
    digest: str | None,
    tx: Transaction,
) -> _Download:
    """Stores one piece of a part. `digest` is that of the part, given with its last piece."""
    received = receive_arrivals(
        engine,
        tx,
        arrivals,
        lane=lane_of(part.mesh),
        epoch=0,
        offsets=range(before.rows + 1, before.rows + 1 + len(arrivals)),
        absent=absent,
    )
    download = _Download(
        before.id,
        before.digests if digest is None else [*before.digests, digest],
        before.rows + len(arrivals),
        before.new + received.new,
        before.quarantined + received.refused,
    )
    if digest is not None:
        if part.forgotten:
            # What we write must be newer than that, or the maker of the snapshot would refuse it.
            # This also refuses a stamp that no clock can show.
            tx.tick_merged(part.mesh, part.forgotten, engine.ctx.now_ms())
        tx.forget_below(part.mesh, part.forgotten)
        cursor = msgspec.to_builtins(download)
        now = engine.ctx.now_ms()
        tx.job_put(JobRow(name=download_job(part.mesh), cursor=cursor, updated_at=now))
    return download


def _finish(tx: Transaction, engine: NodeEngine, mesh: str, epoch: int, seq: int) -> None:
    """Moves the cursor forward; it never moves back, since what came by the feed meanwhile is
    confirmed. Only the sync moves it into a new epoch, and then brings again what the broker has
    forgotten.
    """
    tx.job_drop(download_job(mesh))
    row = tx.mesh_get(mesh)
    assert row is not None
    if row.broker_epoch == epoch and row.broker_seq < seq:
        now = engine.ctx.now_ms()
        tx.mesh_change(msgspec.structs.replace(row, broker_seq=seq, updated_at=now))
