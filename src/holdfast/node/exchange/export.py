"""A home as text, and text into a home.

`export` writes everything as JSON lines (see `exchange_lines`), from one consistent state, a page
in memory at a time. The state is held for as long as the export runs, and so long the WAL cannot be
reset: a slow receiver makes it grow.

What comes back, comes back in one of two ways:

- `import_` takes the rows as if somebody wrote them here now: each live row becomes a new local
  write with a stamp of its own. What was deleted there is not deleted here.
- `import_log` takes the envelopes as they are, with the stamps of their origins, through the same
  door as from any other way. So two homes exchange their logs by file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from holdfast.node.exchange.import_rows import (
    BadLine,
    ImportedLog,
    ImportReport,
    import_,
    import_log,
)
from holdfast.node.library.node import Node
from holdfast.protocol.export_lines import (
    AnyLine,
    BlobLine,
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
    StateLine,
    TaskLine,
    TurnFields,
    VectorLine,
)
from holdfast.rules.bodies import Fact, decode_trusted_body
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import BlobCorrupt, BlobMissing, UnknownMesh
from holdfast.rules.ids import id_text
from holdfast.rules.limits import CHUNK_ROWS, EXPORT_PART_BYTES
from holdfast.rules.order import Version
from holdfast.rules.rows import (
    Entry,
    FileRow,
    MemoryRow,
    MeshRow,
    ModelRow,
    StateRow,
    TaskEventRow,
    TaskRow,
    VectorRow,
    VersionedRow,
)
from holdfast.storage.files import backup_lock
from holdfast.storage.files.blobs import BlobStore
from holdfast.storage.files.home import HomePaths
from holdfast.storage.ports import Reader

__all__ = ["BadLine", "ImportReport", "ImportedLog", "export", "import_", "import_log"]

Progress = Callable[[int, int], None]
"""Told how many lines are done, of about how many."""
T = TypeVar("T")


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
        header = Header(
            peer=engine.ctx.peer,
            epoch=reader.epoch(),
            first=first,
            head=head,
            created_at=engine.ctx.now_ms(),
        )
        writer.header(header)
        live = sum(sum(reader.family_counts(mesh.slug).values()) for mesh in chosen)
        total = live + (head - first + 1 if log else 0)
        source = _Source(reader, chosen, engine.blobs if blobs else None, log)
        for number, (kind, line) in enumerate(source.lines()):
            writer.line(kind, line)
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


class _Source:
    """Everything that one state of a store holds, line by line."""

    def __init__(
        self, reader: Reader, meshes: list[MeshRow], blobs: BlobStore | None, log: bool
    ) -> None:
        self._reader, self._meshes, self._blobs, self._log = reader, meshes, blobs, log
        self._slugs = {mesh.slug for mesh in meshes}
        self._models = {row.id: row for row in reader.model_list()}
        self._written: set[bytes] = set()
        """Blobs whose content has been written: one copy serves all files that name it."""

    def lines(self) -> Iterator[tuple[str, AnyLine]]:
        for mesh in self._meshes:
            yield "mesh", _mesh_line(mesh)
        for model in self._models.values():
            yield "model", _model_line(model)
        for consumer in self._reader.consumer_list():
            line = ConsumerLine(name=consumer.name, frontier=consumer.frontier)
            yield "consumer", line
        for mesh in self._meshes:
            yield from self._of_mesh(mesh.slug)
        for entry in self._entries():
            if entry.op == "fact.append":
                fact = _fact_line(entry)
                for sha in fact.objects:
                    yield from self._parts(sha)
                yield "fact", fact
        if self._log:
            for entry in self._entries():
                yield "log", _log_line(entry)

    def _of_mesh(self, mesh: str) -> Iterator[tuple[str, AnyLine]]:
        reader = self._reader
        for peer in reader.peer_list(mesh):
            yield (
                "peer",
                PeerLine(
                    mesh=mesh,
                    peer=peer.peer,
                    last_seen_at=peer.last_seen_at,
                    last_lamport=peer.last_lamport,
                ),
            )
        for state in _pages(
            lambda at: reader.state_scan(mesh, "", at, CHUNK_ROWS), lambda row: row.key, ""
        ):
            yield "state", _state_line(state)
        for memory in _pages(
            lambda at: reader.memory_scan(mesh, None, at, CHUNK_ROWS),
            lambda row: (row.owner, row.key),
            ("", ""),
        ):
            yield "memory", _memory_line(memory)
        for _, vector in _pages(
            lambda at: reader.vector_scan(mesh, None, at, CHUNK_ROWS, live_only=False),
            lambda row: row[0],
            0,
        ):
            yield "vector", _vector_line(vector, self._models.get(vector.model))
        yield from self._files(mesh)
        for task in _pages(
            lambda at: reader.task_scan(mesh, None, at, CHUNK_ROWS), lambda row: row.task, ""
        ):
            yield "task", _task_line(task, reader.task_events(mesh, task.task))
        yield from self._conflicts(mesh)

    def _files(self, mesh: str) -> Iterator[tuple[str, AnyLine]]:
        for row in _pages(
            lambda at: self._reader.file_scan(mesh, None, at, CHUNK_ROWS),
            lambda row: (row.owner, row.path),
            ("", ""),
        ):
            if row.in_blob:
                yield from self._parts(row.sha256)
            yield "file", _file_line(row)

    def _parts(self, sha256: str) -> Iterator[tuple[str, AnyLine]]:
        sha = bytes.fromhex(sha256)
        if self._blobs is None or sha in self._written:
            return
        self._written.add(sha)
        try:
            size = self._blobs.size(sha256)
            stream = self._blobs.open(sha256)
        except (BlobMissing, BlobCorrupt):
            return  # a peer's file that has not arrived; if it is ours, doctor tells of it
        with stream:
            done, part, last = 0, 0, False
            while not last:  # at least once: nothing at all is content, too
                data = stream.read(EXPORT_PART_BYTES)
                done += len(data)
                last = done >= size or not data
                line = BlobLine(sha256=sha256, size=size, part=part, last=last, data=data)
                yield "blob", line
                part += 1

    def _conflicts(self, mesh: str) -> Iterator[tuple[str, AnyLine]]:
        for row in _pages(
            lambda at: self._reader.conflict_list(
                mesh, open_only=False, after=at, limit=CHUNK_ROWS
            ),
            lambda row: row.number,
            0,
        ):
            line = ConflictLine(
                number=row.number,
                mesh=row.mesh,
                family=row.family,
                owner=row.owner,
                entity=row.entity,
                reason=row.reason,
                winner=_named(row.winner),
                loser=_named(row.loser),
                loser_op=row.loser_op,
                loser_body=row.loser_body,
                found_at=row.found_at,
                resolution=row.resolution,
            )
            yield "conflict", line

    def _entries(self) -> Iterator[Entry]:
        first, head = self._reader.log_bounds()
        for entry in _pages(
            lambda at: self._reader.log_range(at + 1, head + 1, CHUNK_ROWS),
            lambda row: row.offset,
            first - 1,
        ):
            if entry.mesh in self._slugs:
                yield entry


def _pages(page: Callable[[Any], list[T]], key: Callable[[T], Any], at: Any) -> Iterator[T]:
    """All rows of a paged read: `page` after a place, `key` the place of a row."""
    while rows := page(at):
        yield from rows
        at = key(rows[-1])


def _named(version: Version) -> tuple[int, str, str]:
    return version.lamport, version.peer, id_text(version.id)


def _stamp(row: VersionedRow) -> dict[str, Any]:
    return {
        "mesh": row.mesh,
        "lamport": row.lamport,
        "peer": row.peer,
        "id": id_text(row.id),
        "updated_at": row.updated_at,
        "deleted": row.tombstone,
    }


def _mesh_line(row: MeshRow) -> MeshLine:
    return MeshLine(
        slug=row.slug,
        name=row.name,
        type=row.kind,
        created_at=row.created_at,
        lamport=row.lamport,
    )


def _state_line(row: StateRow) -> StateLine:
    return StateLine(key=row.key, value=msgspec.Raw(row.value), **_stamp(row))


def _memory_line(row: MemoryRow) -> MemoryLine:
    return MemoryLine(
        owner=row.owner,
        key=row.key,
        value=msgspec.Raw(row.value),
        tags=row.tags,
        **_stamp(row),
    )


def _model_line(row: ModelRow) -> ModelLine:
    return ModelLine(
        id=row.id,
        provider=row.provider,
        name=row.name,
        version=row.version,
        dim=row.dim,
        quantization=row.quantization,
        created_at=row.created_at,
        deprecated_at=row.deprecated_at,
    )


def _vector_line(row: VectorRow, model: ModelRow | None) -> VectorLine:
    fields = None
    if model is not None:
        fields = ModelFields(
            model.provider, model.name, model.version, model.dim, model.quantization
        )
    return VectorLine(
        owner=row.owner,
        key=row.key,
        model=fields,
        model_id=row.model,
        content=row.content,
        metadata=msgspec.Raw(row.metadata),
        embedding=row.embedding,
        **{**_stamp(row), "deleted": not row.live},
    )


def _file_line(row: FileRow) -> FileLine:
    return FileLine(
        owner=row.owner,
        path=row.path,
        sha256=row.sha256,
        size=row.size,
        content=row.content,
        **_stamp(row),
    )


def _task_line(row: TaskRow, events: list[TaskEventRow]) -> TaskLine:
    return TaskLine(
        mesh=row.mesh,
        task=row.task,
        title=row.title,
        description=row.description,
        status=row.status.value,
        created_by=row.created_by,
        created_at=row.created_at,
        claimed_by=row.claimed_by,
        ended_by=None if row.ended is None else row.ended.peer,
        generation=row.generation,
        turns=tuple(
            TurnFields(
                event.kind,
                event.event,
                event.generation,
                event.version.lamport,
                event.version.peer,
                id_text(event.version.id),
                event.event_time,
            )
            for event in events
        ),
    )


def _fact_line(entry: Entry) -> FactLine:
    envelope = decode_trusted(entry.raw)
    body = decode_trusted_body(envelope)
    assert isinstance(body, Fact), "fact.append has this body"
    return FactLine(
        mesh=entry.mesh,
        subject=entry.entity,
        predicate=body.predicate,
        object=msgspec.Raw(body.object),
        objects=tuple(digest.hex() for digest in body.objects),
        meta=msgspec.Raw(envelope.meta or b"null"),
        id=id_text(entry.id),
        lamport=entry.lamport,
        peer=entry.origin,
        created_at=envelope.created_at,
    )


def _log_line(entry: Entry) -> LogLine:
    envelope = decode_trusted(entry.raw)
    says = EnvelopeFields(
        id_text(entry.id),
        entry.mesh,
        entry.op,
        entry.entity,
        envelope.owner,
        entry.origin,
        envelope.epoch,
        envelope.seq,
        entry.lamport,
        envelope.created_at,
    )
    return LogLine(offset=entry.offset, recorded_at=entry.recorded_at, says=says, raw=entry.raw)
