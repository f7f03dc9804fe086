"""A home as text: `export` writes everything as JSON lines (see `protocol.export_lines`).

The lines show one consistent state, read a page at a time. The export holds that state for as long
as it runs, and so long SQLite cannot reset the WAL: a slow receiver makes it grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from holdfast.node.core.ledger import with_winner
from holdfast.node.library.node import Node
from holdfast.protocol.export_lines import (
    AnyLine,
    AuditLine,
    BlobLine,
    CommittedLine,
    ConflictLine,
    ConsumerLine,
    EnvelopeFields,
    FactLine,
    FileLine,
    Header,
    LineWriter,
    LogLine,
    MemoryLine,
    MeshLine,
    ModelFields,
    ModelLine,
    Out,
    PeerLine,
    QuorumLine,
    Stamped,
    StateLine,
    TaskLine,
    TurnFields,
    VectorLine,
)
from holdfast.rules.bodies import Fact, decode_trusted_body
from holdfast.rules.canonical import on_one_line
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import BlobCorrupt, BlobMissing, UnknownMesh
from holdfast.rules.ids import id_text
from holdfast.rules.limits import CHUNK_ROWS, EXPORT_PART_BYTES
from holdfast.rules.order import Version
from holdfast.rules.rows import (
    Entry,
    MeshRow,
    ModelRow,
    TaskEventRow,
    TaskRow,
    VectorRow,
    VersionedRow,
)
from holdfast.rules.structs import copy_to
from holdfast.storage.files import backup_lock
from holdfast.storage.files.blobs import BlobStore
from holdfast.storage.files.home import HomePaths
from holdfast.storage.ports import Reader
from holdfast.storage.scans import (
    audit_rows,
    file_rows,
    log_entries,
    memory_rows,
    paged,
    state_rows,
    task_rows,
    vector_rows,
)

Progress = Callable[[int, int], None]
"""Called with the number of lines that are done, and with about how many there are."""


def export(
    node: Node,
    out: Out,
    *,
    meshes: Iterable[str] | None = None,
    log: bool = True,
    blobs: bool = True,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Writes all families, the ledger and the log; returns how many lines of each kind."""
    engine = node._engine
    with backup_lock.holding(HomePaths(node.home)), engine.store.read() as reader:
        chosen = _chosen(reader, meshes)
        writer = LineWriter(out)
        first, head = reader.log_bounds()
        epoch, now = reader.epoch(), engine.ctx.now_ms()
        writer.header(
            Header(peer=engine.ctx.peer, epoch=epoch, first=first, head=head, created_at=now)
        )
        live = sum(sum(reader.family_counts(mesh.slug).values()) for mesh in chosen)
        total = live + (head - first + 1 if log else 0)
        exported = _Export(reader, chosen, engine.blobs if blobs else None, log)
        for number, line in enumerate(exported.lines()):
            writer.line(line)
            if progress is not None and number % CHUNK_ROWS == 0:
                progress(min(number, total), total)
        writer.end()
    if progress is not None:
        progress(total, total)
    return writer.counts


def _chosen(reader: Reader, meshes: Iterable[str] | None) -> list[MeshRow]:
    rows = reader.mesh_list()
    if meshes is None:
        return rows
    wanted = set(meshes)
    unknown = wanted - {row.slug for row in rows}
    if unknown:
        raise UnknownMesh(f"there is no mesh {sorted(unknown)[0]!r}")
    return [row for row in rows if row.slug in wanted]


class _Export:
    """Everything that one state of a store holds, as lines."""

    def __init__(
        self, reader: Reader, meshes: list[MeshRow], blobs: BlobStore | None, log: bool
    ) -> None:
        self._reader, self._meshes, self._blobs, self._log = reader, meshes, blobs, log
        self._slugs = {mesh.slug for mesh in meshes}
        self._models = {row.id: row for row in reader.model_list()}
        self._written: set[bytes] = set()
        """Blobs whose content has been written: one copy serves all files that name it."""

    def lines(self) -> Iterator[AnyLine]:
        for mesh in self._meshes:
            yield copy_to(MeshLine, mesh, type=mesh.kind)
        for model in self._models.values():
            yield copy_to(ModelLine, model)
        for consumer in self._reader.consumer_list():
            yield copy_to(ConsumerLine, consumer)
        for mesh in self._meshes:
            yield from self._of_mesh(mesh.slug)
        for entry in self._entries():
            if entry.op == "fact.append":
                fact = _fact_line(entry)
                for sha in fact.objects:
                    yield from self._parts(sha)
                yield fact
        if self._log:
            for row in self._reader.quorum_list():
                if row.mesh in self._slugs:
                    yield copy_to(QuorumLine, row, group=row.tag)
                    yield from self._commits(row.mesh)
            for entry in self._entries():
                yield _log_line(entry)

    def _of_mesh(self, mesh: str) -> Iterator[AnyLine]:
        reader = self._reader
        for peer in reader.peer_list(mesh):
            yield copy_to(PeerLine, peer)
        for state in state_rows(reader, mesh):
            yield _stamped(StateLine, state, value=_json(state.value))
        for memory in memory_rows(reader, mesh):
            yield _stamped(MemoryLine, memory, value=_json(memory.value))
        for vector in vector_rows(reader, mesh):
            yield _vector_line(vector, self._models.get(vector.model))
        for file in file_rows(reader, mesh):
            if file.in_blob:
                yield from self._parts(file.sha256)
            yield _stamped(FileLine, file)
        for task in task_rows(reader, mesh):
            yield _task_line(task, reader.task_events(mesh, task.task))
        for event in audit_rows(reader, mesh):
            yield copy_to(AuditLine, event, id=id_text(event.id), payload=_json(event.payload))
        for row in paged(
            lambda at: reader.conflict_list(mesh, open_only=False, after=at, limit=CHUNK_ROWS),
            lambda row: row.number,
            0,
        ):
            shown = with_winner(reader, row)
            yield copy_to(ConflictLine, shown, winner=_text(shown.winner), loser=_text(row.loser))

    def _commits(self, mesh: str) -> Iterator[CommittedLine]:
        for row in paged(
            lambda after: self._reader.commit_range(mesh, after + 1, CHUNK_ROWS),
            lambda row: row.number,
            0,
        ):
            entry = self._reader.log_get(row.offset)
            if entry is not None:  # its record stays when the log is truncated
                yield CommittedLine(mesh=mesh, number=row.number, record=row.record, raw=entry.raw)

    def _parts(self, sha256: str) -> Iterator[BlobLine]:
        sha = bytes.fromhex(sha256)
        if self._blobs is None or sha in self._written:
            return
        self._written.add(sha)
        try:
            size = self._blobs.size(sha256)
            stream = self._blobs.open(sha256)
        except (BlobMissing, BlobCorrupt):
            return  # a peer's file that has not arrived; if it is ours, doctor reports it
        with stream:
            done, part, last = 0, 0, False
            while not last:  # at least once: an empty blob has one empty part
                data = stream.read(EXPORT_PART_BYTES)
                done += len(data)
                last = done >= size or not data
                yield BlobLine(sha256=sha256, size=size, part=part, last=last, data=data)
                part += 1

    def _entries(self) -> Iterator[Entry]:
        first, head = self._reader.log_bounds()
        for entry in log_entries(self._reader, first, head + 1):
            if entry.mesh in self._slugs:
                yield entry


L = TypeVar("L", bound=Stamped)


def _stamped(kind: type[L], row: VersionedRow, **given: Any) -> L:
    return copy_to(kind, row, **{"id": id_text(row.id), "deleted": row.tombstone, **given})


def _json(raw: bytes) -> msgspec.Raw:
    """A value in a line: what earlier code took from others may have line breaks of its own."""
    return msgspec.Raw(on_one_line(raw))


def _text(version: Version) -> tuple[int, str, str]:
    return version.lamport, version.peer, id_text(version.id)


def _vector_line(row: VectorRow, model: ModelRow | None) -> VectorLine:
    return _stamped(
        VectorLine,
        row,
        model=None if model is None else copy_to(ModelFields, model),
        model_id=row.model,
        metadata=_json(row.metadata),
        deleted=not row.live,
    )


def _task_line(row: TaskRow, events: list[TaskEventRow]) -> TaskLine:
    return copy_to(
        TaskLine,
        row,
        status=row.status.value,
        ended_by=None if row.ended is None else row.ended.peer,
        turns=tuple(
            copy_to(
                TurnFields,
                event,
                lamport=event.version.lamport,
                peer=event.version.peer,
                id=id_text(event.version.id),
                at=event.event_time,
            )
            for event in events
        ),
    )


def _fact_line(entry: Entry) -> FactLine:
    envelope = decode_trusted(entry.raw)
    body = decode_trusted_body(envelope)
    assert isinstance(body, Fact), "fact.append has this body"
    return copy_to(
        FactLine,
        entry,
        subject=entry.entity,
        predicate=body.predicate,
        object=_json(body.object),
        objects=tuple(digest.hex() for digest in body.objects),
        meta=_json(envelope.meta or b"null"),
        id=id_text(entry.id),
        peer=entry.origin,
        created_at=envelope.created_at,
    )


def _log_line(entry: Entry) -> LogLine:
    fields = copy_to(EnvelopeFields, decode_trusted(entry.raw), id=id_text(entry.id))
    return copy_to(LogLine, entry, says=fields)
