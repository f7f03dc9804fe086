"""A mesh's snapshot at its broker: made here for those who come later, or taken from there.

**Up.** The parts are made one after another from what this node holds (see `mesh_telling`). Before
a part is sent, it is written down from which place on it was made and what it hashes to. So after a
crash the broker says which part is missing, and it is made again from its place: no part is sent
twice, and what the broker has is not made again. The broker shows nothing of it before the last
part is there and the digest over all of them is right.

**Down.** Each part goes through the one door, a chunk per transaction, and how many parts are in is
written down with the last chunk of each. The cursor of the mesh moves when all are in and the
digest is that of the maker. A part that comes twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from holdfast.node.broker_client.client import BrokerClient, Snapshot
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.intake import Applied, Intake
from holdfast.node.core.object_transfer import pull_objects
from holdfast.node.snapshots.mesh_export import START, MeshExport, Place
from holdfast.protocol.mesh_snapshot import (
    MeshPart,
    pack_part,
    part_digest,
    unpack_part,
    whole_digest,
)
from holdfast.rules.arrivals import Arrivals, objects_of, read_arrivals
from holdfast.rules.bodies import family_of
from holdfast.rules.errors import (
    BadAnswer,
    BadValue,
    EpochMismatch,
    HoldfastError,
    StoreBusy,
    UnknownObject,
)
from holdfast.rules.limits import (
    CHUNK_ROWS,
    INTAKE_BATCH_BYTES,
    MESH_PART_BYTES,
    QUARANTINE_ROWS_MAX,
    REASON_CHARS_MAX,
)
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import JobRow, MeshRow, QuarantineRow
from holdfast.storage.ports import Reader, Transaction

Progress = Callable[[str, int, int | None], None]
"""Told what is being done, how much of it is done, and of how much if that is known."""


def no_progress(what: str, done: int, total: int | None) -> None:
    """For whoever does not look."""


class _Making(msgspec.Struct, frozen=True):
    """How far an upload has got."""

    id: str
    epoch: int
    seq: int
    upto: int
    places: list[Place]
    """From where each part is made."""
    digests: list[str]
    end: Place | None = None
    """Where the part after the last one begins; None at the end."""
    rows: int = 0


# --- up ------------------------------------------------------------------------------------------


def upload_snapshot(
    engine: NodeEngine, calls: BrokerClient, mesh: str, progress: Progress = no_progress
) -> Snapshot:
    """Makes a snapshot of a mesh at its broker, or goes on with one that was begun. It covers what
    the broker has accepted up to where this node has got.
    """
    try:
        return _upload(engine, calls, mesh, progress)
    except (BadValue, EpochMismatch, UnknownObject):
        # What was begun belongs to an epoch that is over, or the broker has thrown it away, or has
        # other parts than we think.
        engine.write("snapshot.up", lambda tx: tx.job_drop(_up(mesh)))
        return _upload(engine, calls, mesh, progress)


def _upload(engine: NodeEngine, calls: BrokerClient, mesh: str, progress: Progress) -> Snapshot:
    known, making, number = _begin(engine, calls, mesh)
    while True:
        if number < len(making.places):
            place: Place | None = making.places[number]
        else:
            place = making.end if making.places else START
        if place is None:
            break
        making, packed, rows = _make(engine, mesh, making, number, place)
        if packed is not None:
            _bring_objects(engine, calls, mesh, packed)
            # Written down before it is sent.
            _note(engine, mesh, known, making)
            known = making
            number = calls.snapshot_chunk(mesh, making.id, number, rows, packed)
            progress("rows", making.rows, None)
    digest = whole_digest([bytes.fromhex(text) for text in making.digests])
    done = calls.snapshot_commit(mesh, making.id, digest)

    def finish(tx: Transaction) -> None:
        tx.job_drop(_up(mesh))
        cursor = {"id": done.id, "epoch": making.epoch, "seq": making.seq}
        now = engine.ctx.now_ms()
        tx.job_put(JobRow(name=_made(mesh), cursor=cursor, updated_at=now))

    engine.write("snapshot.up", finish)
    return done


def _begin(
    engine: NodeEngine, calls: BrokerClient, mesh: str
) -> tuple[_Making | None, _Making, int]:
    """What is written down, what is being made, and the number of the part that the broker lacks
    next.
    """

    def read(tx: Reader) -> tuple[JobRow | None, MeshRow | None, int]:
        return tx.job_get(_up(mesh)), tx.mesh_get(mesh), tx.log_bounds()[1]

    job, row, head = engine.read("snapshot.up", read)
    assert row is not None
    known = None if job is None else msgspec.convert(job.cursor, _Making)
    epoch, seq = (row.broker_epoch, row.broker_seq) if known is None else (known.epoch, known.seq)
    begun = calls.snapshot_begin(mesh, epoch, seq)
    if known is not None and known.id == begun.snapshot_id and begun.next <= len(known.places):
        return known, known, begun.next
    if begun.next:
        # Parts that this home knows nothing of: it was restored, or lost its note of them.
        raise UnknownObject(f"the upload {begun.snapshot_id} was begun by another home")
    return known, _Making(begun.snapshot_id, epoch, seq, head, [], []), 0


def _make(
    engine: NodeEngine, mesh: str, making: _Making, number: int, place: Place
) -> tuple[_Making, bytes | None, int]:
    """The part from a place on; None if nothing is left to tell."""

    def read(tx: Reader) -> tuple[list[bytes], Place | None, int]:
        export = MeshExport(tx, mesh, making.upto)
        row = tx.mesh_get(mesh)
        raws: list[bytes] = []
        size, at = 0, place
        following: Place | None = place
        while following is not None and size < MESH_PART_BYTES:
            at = following
            more, following = export.piece(at)
            raws += more
            size += sum(map(len, more))
        return raws, following, 0 if row is None else row.forgotten_lamport

    raws, end, forgotten = engine.read("snapshot.up", read)
    packed = pack_part(mesh, forgotten, raws)
    if not raws and number:
        return msgspec.structs.replace(making, end=end), None, 0
    places = [*making.places[:number], place]
    digests = [*making.digests[:number], part_digest(packed).hex()]
    rows = making.rows + len(raws)
    made = msgspec.structs.replace(making, places=places, digests=digests, end=end, rows=rows)
    return made, packed, len(raws)


def _bring_objects(engine: NodeEngine, calls: BrokerClient, mesh: str, packed: bytes) -> None:
    """Content travels before what names it; what is not here stays where it is."""
    for named in objects_of(read_arrivals(unpack_part(packed, mesh).raws)):
        sha = named.sha256
        if engine.blobs.exists(sha):
            calls.put_object(engine, mesh, sha)


def _note(engine: NodeEngine, mesh: str, before: _Making | None, making: _Making) -> None:
    cursor: dict[str, Any] = msgspec.to_builtins(making)
    row = JobRow(name=_up(mesh), cursor=cursor, updated_at=engine.ctx.now_ms())

    def work(tx: Transaction) -> None:
        job = tx.job_get(_up(mesh))
        if (None if job is None else msgspec.convert(job.cursor, _Making)) != before:
            # Their parts would be mixed with ours, and neither would be whole.
            raise StoreBusy(f"another process is making a snapshot of {mesh!r}")
        tx.job_put(row)

    engine.write("snapshot.up", work)


def made_here(tx: Reader, mesh: str) -> str | None:
    """The id of the last snapshot of a mesh that this node has made."""
    job = tx.job_get(_made(mesh))
    return None if job is None else str(job.cursor["id"])


def is_kept(tx: Reader, mesh: str, epoch: int) -> bool:
    """Whether nothing has to be done about the last snapshot that this node has made: it was made
    in this epoch, or looked after since.
    """
    job = tx.job_get(_made(mesh))
    return job is None or job.cursor.get("kept", job.cursor["epoch"]) == epoch


def keep_snapshot(
    engine: NodeEngine, calls: BrokerClient, mesh: str, progress: Progress = no_progress
) -> bool:
    """After a broker went back in time: makes the snapshot again that this node had made, if the
    broker has none any more. What it held was never sent in another way. That it was looked after
    is written down: who is cut off before does it another time.
    """
    made = engine.read("snapshot.up", lambda tx: made_here(tx, mesh))
    if made is None:
        return False
    if calls.snapshot(mesh) is None:
        upload_snapshot(engine, calls, mesh, progress)
        return True
    engine.write("snapshot.up", lambda tx: _note_kept(tx, engine, mesh))
    return False


def _note_kept(tx: Transaction, engine: NodeEngine, mesh: str) -> None:
    job, row = tx.job_get(_made(mesh)), tx.mesh_get(mesh)
    if job is not None and row is not None:
        cursor = {**job.cursor, "kept": row.broker_epoch}
        tx.job_put(JobRow(name=_made(mesh), cursor=cursor, updated_at=engine.ctx.now_ms()))


# --- down ----------------------------------------------------------------------------------------


class SnapshotTaken(msgspec.Struct, frozen=True):
    """What a snapshot brought."""

    id: str
    epoch: int
    seq: int
    rows: int
    new: int
    quarantined: int


class _Taking(msgspec.Struct, frozen=True):
    id: str
    digests: list[str]
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
    """Takes in the mesh's snapshot and moves its cursor; None if the broker has none, or if `ended`
    said so before it was done.

    A snapshot holds changes and no messages. So the cursor moves only to where single changes are
    gone: the messages behind that are still to come, and changes that come again are known. Before
    the place (epoch, seq) where this node `joined` there were none for it.
    """
    there = calls.snapshot(mesh)
    if there is None:
        return None
    job = engine.read("snapshot.down", lambda tx: tx.job_get(_down(mesh)))
    taking = _Taking(there.id, []) if job is None else msgspec.convert(job.cursor, _Taking)
    if taking.id != there.id:
        taking = _Taking(there.id, [])  # a newer one has taken its place
    for number in range(len(taking.digests), there.parts):
        if ended():
            return None
        packed = calls.snapshot_part(mesh, there.id, number)
        part = unpack_part(packed, mesh)
        arrivals = _checked(part)
        names = [named.sha256 for named in objects_of(arrivals)]
        pull_objects(engine, calls.objects(mesh), names, lambda _: None, ended)
        if ended():
            return None
        taking = _take_part(engine, mesh, taking, part, arrivals, part_digest(packed))
        progress("rows", taking.rows, there.rows)
    if whole_digest([bytes.fromhex(text) for text in taking.digests]) != there.digest:
        engine.write("snapshot.down", lambda tx: tx.job_drop(_down(mesh)))
        raise BadAnswer(
            f"the snapshot of {mesh!r} is not what its maker uploaded",
            hint="nothing is lost: it is taken again from the start",
        )
    now = calls.standing(mesh)
    epoch, seq = now.epoch, now.seq_now(there.epoch, there.seq)
    seq = min(seq, max(now.first - 1, now.seq_now(*joined)))
    engine.write("snapshot.down", lambda tx: _arrive(tx, engine, mesh, epoch, seq))
    return SnapshotTaken(there.id, epoch, seq, taking.rows, taking.new, taking.quarantined)


def _checked(part: MeshPart) -> Arrivals:
    """Changes of this mesh and nothing else: a snapshot is no way into another one."""
    arrivals = read_arrivals(part.raws)
    for one in arrivals:
        if isinstance(one, tuple):
            mesh, op = one[1], one[2]
        elif one.envelope is not None:
            mesh, op = one.envelope.mesh, one.envelope.op
        else:
            continue  # cannot be read: it is set aside with the reason
        if mesh != part.mesh or family_of(op) == "message":
            raise BadAnswer(f"the snapshot of {part.mesh!r} holds what does not belong to it")
    return arrivals


def _take_part(
    engine: NodeEngine,
    mesh: str,
    taking: _Taking,
    part: MeshPart,
    arrivals: Arrivals,
    digest: bytes,
) -> _Taking:
    chunks = list(_chunks(arrivals, part.raws))
    after = taking
    for number, (some, raws) in enumerate(chunks):
        last = number == len(chunks) - 1
        before = after

        def work(
            tx: Transaction,
            some: Arrivals = some,
            raws: Sequence[bytes] = raws,
            before: _Taking = before,
            last: bool = last,
        ) -> _Taking:
            applied = Intake.of(engine.ctx, some)(tx)
            aside = _set_aside(tx, engine, mesh, applied, raws)
            counted = _Taking(
                before.id,
                [*before.digests, digest.hex()] if last else before.digests,
                before.rows + len(some),
                before.new + sum(one.outcome in _NEW for one in applied),
                before.quarantined + aside,
            )
            if last:
                if part.forgotten:
                    # What we write must be newer than that, or its maker would refuse it. Also
                    # refuses a stamp that no clock can show.
                    tx.tick_merged(mesh, part.forgotten)
                tx.forget_below(mesh, part.forgotten)
                cursor = msgspec.to_builtins(counted)
                now = engine.ctx.now_ms()
                tx.job_put(JobRow(name=_down(mesh), cursor=cursor, updated_at=now))
            return counted

        after = engine.write("intake", work)
    return after


def _chunks(arrivals: Arrivals, raws: list[bytes]) -> list[tuple[Arrivals, list[bytes]]]:
    """So many at a time, and fewer where they are large; an empty part is one chunk."""
    found: list[tuple[Arrivals, list[bytes]]] = [([], [])]
    size = 0
    for arrival, raw in zip(arrivals, raws, strict=True):
        if len(found[-1][0]) == CHUNK_ROWS or size >= INTAKE_BATCH_BYTES:
            found.append(([], []))
            size = 0
        found[-1][0].append(arrival)
        found[-1][1].append(raw)
        size += len(raw)
    return found


def _set_aside(
    tx: Transaction, engine: NodeEngine, mesh: str, applied: list[Applied], raws: Sequence[bytes]
) -> int:
    """What is refused is kept with the reason, as with everything that a broker brings."""
    link, now = f"broker:{mesh}", engine.ctx.now_ms()
    refused = [(one.error, raw) for one, raw in zip(applied, raws, strict=True) if one.error]
    room = QUARANTINE_ROWS_MAX - tx.quarantine_count(link) if refused else 0
    for error, raw in refused[: max(0, room)]:
        assert isinstance(error, HoldfastError)
        message = error.message[:REASON_CHARS_MAX]
        row = QuarantineRow(
            link=link, epoch=0, offset=0, code=error.code, message=message, raw=raw, found_at=now
        )
        tx.quarantine_add(row)
    return len(refused)


def _arrive(tx: Transaction, engine: NodeEngine, mesh: str, epoch: int, seq: int) -> None:
    """The cursor moves on, never back: what came by the feed meanwhile stays confirmed. Into a new
    epoch it is moved by the sync alone, which then brings again what the broker has forgotten.
    """
    tx.job_drop(_down(mesh))
    row = tx.mesh_get(mesh)
    assert row is not None
    if row.broker_epoch == epoch and row.broker_seq < seq:
        now = engine.ctx.now_ms()
        tx.mesh_change(msgspec.structs.replace(row, broker_seq=seq, updated_at=now))


def is_taking(tx: Reader, mesh: str) -> bool:
    """Whether a snapshot is only partly in."""
    return tx.job_get(_down(mesh)) is not None


_NEW: Final = (Outcome.APPLIED, Outcome.SUPERSEDED)
_PREFIX: Final = "mesh-snapshot"


def jobs_of(mesh: str) -> tuple[str, ...]:
    return _up(mesh), _down(mesh), _made(mesh)


def _up(mesh: str) -> str:
    return f"{_PREFIX}-up:{mesh}"


def _down(mesh: str) -> str:
    return f"{_PREFIX}-down:{mesh}"


def _made(mesh: str) -> str:
    return f"{_PREFIX}-made:{mesh}"
