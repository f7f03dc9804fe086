"""Importing an export: its rows as new writes, or its log as it is.

`import_` writes each live row as this peer, with one tick of the clock per row. An imported value
is the newest from then on; the log and, where it applies, the conflict ledger keep the value
before. What was deleted there is not deleted here.

**Owners** of memory, vectors and files stay the same, and nobody writes in another's name. So what
another peer owns comes in as that peer wrote it, with its id and stamp, and through the intake: a
newer version that is here stays. A row that somebody else had written in its owner's name, as
earlier versions did when they imported, is not taken, and counted.

Tasks and facts are written only once, from however many exports they come: where the original is
here, or an earlier import wrote it, it stays as it is. An imported task gets an id that is derived
from the original's, because the original envelope may still arrive.

**Tasks** come as far as the rules allow: no peer can claim, release or complete in another's name.
New turns of this peer carry over titles, descriptions and ends; a claim only if this peer held it,
otherwise the task is open here. Who created, held and ended it, and when, stays in the file.

**Chunks.** The whole file is checked before the first write. Then a few hundred rows are written in
one transaction together with the number of the last line, so that an interrupted import goes on
where it stopped and writes nothing twice. A bad line raises with its number and nothing of its
chunk is written, unless the caller wants bad lines to be skipped and reported.

`import_log` takes the envelopes as they are, with the stamps of their origins, through the intake
that all envelopes from outside pass. So two homes can exchange their logs by file. What quorums
have committed comes after that, with its records (`import_commits.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from hashlib import sha256
from typing import Any, BinaryIO, Final

import msgspec

from holdfast.node.core import operations
from holdfast.node.core.change import Change
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.receive import Incoming
from holdfast.node.exchange.import_blobs import check_sha, put_blob
from holdfast.node.exchange.import_commits import import_commits
from holdfast.node.library.node import Node
from holdfast.protocol.export_lines import (
    AnyLine,
    AuditLine,
    BlobLine,
    Checked,
    FactLine,
    FileLine,
    LogLine,
    MemoryLine,
    MeshLine,
    NumberedLines,
    StateLine,
    TaskLine,
    VectorLine,
    check_file,
    decode_line,
)
from holdfast.rules import limits
from holdfast.rules.arrivals import read_arrivals
from holdfast.rules.audit_chain import AuditRow
from holdfast.rules.bodies import decode_value, encode_value
from holdfast.rules.errors import (
    BadId,
    BadInput,
    BadValue,
    Conflict,
    HoldfastError,
    NotAllowed,
    NotCommitted,
    NotFound,
    OverLimit,
    StoreBusy,
    TooOld,
)
from holdfast.rules.ids import id_text, id_time_ms, is_aside, parse_id, uuid7
from holdfast.rules.names import check_mesh, check_peer
from holdfast.rules.rebuild import rebuild_envelope, rebuild_event
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import FileRow, JobRow, MemoryRow, MeshRow, ModelRow, VectorRow
from holdfast.rules.structs import copy_to
from holdfast.rules.tasks import TaskStatus
from holdfast.rules.vectors import Model
from holdfast.storage.files import backup_lock
from holdfast.storage.files.home import HomePaths
from holdfast.storage.ports import Transaction

Progress = Callable[[int, int], None]
"""Called with the number of lines that are done, and with how many there are."""
Step = Callable[[Transaction], str]
"""Writes one row; returns the name under which it is counted."""

HERE: Final = "already_here"
NO_CONTENT: Final = "without_content"
DELETED: Final = "deleted"
NOT_IMPORTED: Final = "not_imported"
NOT_THEIRS: Final = "not_theirs"


class BadLine(msgspec.Struct, frozen=True):
    """A line that was skipped, and why."""

    line: int
    code: str
    message: str


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an import wrote, by kind.

    Besides the kinds: `already_here` (tasks, facts, and what other peers own), `not_theirs` (rows
    in the name of an owner who did not write them), `without_content` (files and facts whose
    content the export does not hold), `deleted` (rows that were deleted there), `not_imported` (the
    log, the ledger and other lines that are not rows).
    """

    counts: dict[str, int]
    bad: tuple[BadLine, ...] = ()
    resumed_after: int = 0
    """The line after which an interrupted import went on; 0 if it was not interrupted."""


class ImportedLog(msgspec.Struct, frozen=True, kw_only=True):
    """The envelopes of an exported log by outcome of their intake, and the refused ones."""

    counts: dict[str, int]
    refused: tuple[BadLine, ...] = ()


def import_(
    node: Node,
    source: BinaryIO,
    *,
    mesh_map: Mapping[str, str] | None = None,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """Writes the rows of an export here. `mesh_map` renames meshes; missing meshes are created."""
    checked = _checked(source)
    renamed = {old: check_mesh(new) for old, new in (mesh_map or {}).items()}
    with backup_lock.holding(HomePaths(node.home)):
        return _Import(node._engine, checked, renamed, skip_bad).run(source, progress)


def import_log(node: Node, source: BinaryIO, *, progress: Progress | None = None) -> ImportedLog:
    """Takes in the envelopes of an export as they are; missing meshes are created."""
    checked = _checked(source)
    counts: dict[str, int] = {}
    refused: list[BadLine] = []
    batch: list[tuple[int, bytes]] = []

    def take() -> None:
        for (number, _), applied in zip(batch, node.apply(raw for _, raw in batch), strict=True):
            name = "refused" if applied.outcome is None else applied.outcome.value
            if isinstance(applied.error, NotCommitted):
                continue  # it comes again with its record, or counts for nobody
            counts[name] = counts.get(name, 0) + 1
            if applied.error is not None and len(refused) < limits.IMPORT_BAD_LINES_MAX:
                refused.append(BadLine(number, applied.error.code, applied.error.message))
        batch.clear()

    with backup_lock.holding(HomePaths(node.home)):
        lines = NumberedLines(source, checked)
        for number, raw in lines:
            line = _decoded(number, raw)
            if isinstance(line, MeshLine):
                node._engine.write("import", partial(_ensure_mesh, engine=node._engine, line=line))
            elif isinstance(line, BlobLine):
                put_blob(node._engine, number, line, lines)
            elif isinstance(line, LogLine):
                if _was_set_aside(line):
                    # A send that was refused and gave its id back: the id may be another's by now.
                    counts["set_aside"] = counts.get("set_aside", 0) + 1
                    continue
                batch.append((number, line.raw))
                if len(batch) == limits.CHUNK_ROWS:
                    take()
                    _tell(progress, number, checked)
        take()
        found = import_commits(node._engine, NumberedLines(source, checked))
        counts |= found.counts
        refused += [BadLine(*one) for one in found.refused]
    return ImportedLog(counts=counts, refused=tuple(refused))


def _created_at(line: MemoryLine | FileLine) -> int:
    """An imported value is a new version of what was made there."""
    at = line.created_at or line.updated_at
    if not 0 <= at < limits.SOURCE_TIME_MS_MAX:
        raise BadValue(f"it was first made {at} ms after 1970, as no clock can say")
    return at


def _was_set_aside(line: LogLine) -> bool:
    try:
        return is_aside(bytes.fromhex(line.says.id.replace("-", "")))
    except ValueError:
        return False  # what the line says of its entry is for people


class _Import:
    """One import in progress."""

    def __init__(
        self, engine: NodeEngine, checked: Checked, mesh_map: dict[str, str], skip_bad: bool
    ) -> None:
        self._engine, self._checked, self._skip_bad = engine, checked, skip_bad
        self._mesh_map = mesh_map
        self._job = f"import:{checked.digest}"
        self._line = 0
        """The last line whose row is written."""
        self._counts: dict[str, int] = {}
        self._passed: dict[str, int] = {}
        """Lines since then that write nothing, by the name under which they are counted."""
        self._bad: list[BadLine] = []

    def run(self, source: BinaryIO, progress: Progress | None) -> ImportReport:
        self._take_up()
        resumed_after = self._line
        lines = NumberedLines(source, self._checked)
        chunk: list[tuple[int, Step]] = []
        for number, raw in lines:
            if number <= resumed_after:
                continue
            try:
                step = self._read(number, raw, lines)
            except BadInput as error:
                self._note_bad(_at_line(number, error), number)
                continue
            if step is not None:
                chunk.append((number, step))
            if len(chunk) == limits.CHUNK_ROWS:
                self._write(chunk)
                chunk = []
                _tell(progress, number, self._checked)
        self._write(chunk, last=True)
        _tell(progress, self._checked.lines + 1, self._checked)
        return ImportReport(counts=self._counts, bad=tuple(self._bad), resumed_after=resumed_after)

    def _take_up(self) -> None:
        job = self._engine.read("import", lambda tx: tx.job_get(self._job))
        if job is None:
            return
        if job.cursor["mesh_map"] != self._mesh_map:
            raise BadValue(
                f"this file was half imported with other mesh names: {job.cursor['mesh_map']}",
                hint="finish that import with the same names first",
            )
        self._line = job.cursor["line"]
        self._counts = dict(job.cursor["counts"])

    # --- one chunk ---------------------------------------------------------------------------

    def _write(self, chunk: list[tuple[int, Step]], *, last: bool = False) -> None:
        """Writes a chunk; a row that the store refuses is left out if bad lines may be skipped."""
        while True:
            counts = dict(self._counts)
            for name, count in self._passed.items():
                counts[name] = counts.get(name, 0) + count
            try:
                self._engine.write("import", partial(self._carry_out, chunk, counts, last))
            except _Refused as refused:
                self._note_bad(_at_line(refused.line, refused.error), refused.line)
                chunk = [(number, step) for number, step in chunk if number != refused.line]
                continue
            self._counts = counts
            self._passed.clear()
            self._line = chunk[-1][0] if chunk else self._line
            return

    def _carry_out(
        self, chunk: list[tuple[int, Step]], counts: dict[str, int], last: bool, tx: Transaction
    ) -> None:
        job = tx.job_get(self._job)
        if (0 if job is None else job.cursor["line"]) != self._line:
            raise StoreBusy(
                "the same file is being imported by another process",
                hint="let it finish; an import that was interrupted goes on where it stopped",
            )
        for number, step in chunk:
            try:
                name = step(tx)
            except (BadInput, NotFound, NotAllowed, Conflict, TooOld) as error:
                raise _Refused(number, error) from error
            counts[name] = counts.get(name, 0) + 1
        if last:
            tx.job_drop(self._job)
        elif chunk:
            cursor = {"line": chunk[-1][0], "counts": counts, "mesh_map": self._mesh_map}
            now_ms = self._engine.ctx.now_ms()
            tx.job_put(JobRow(name=self._job, cursor=cursor, updated_at=now_ms))

    def _note_bad(self, error: HoldfastError, number: int) -> None:
        if not self._skip_bad:
            raise error
        if len(self._bad) == limits.IMPORT_BAD_LINES_MAX:
            raise OverLimit(f"more than {limits.IMPORT_BAD_LINES_MAX} lines are bad") from error
        self._bad.append(BadLine(number, error.code, error.message))

    # --- one line ----------------------------------------------------------------------------

    def _read(self, number: int, raw: bytes, lines: NumberedLines) -> Step | None:
        """Checks a line and returns its write; None for a line that needs no transaction."""
        line = decode_line(raw)
        if isinstance(line, BlobLine):
            put_blob(self._engine, number, line, lines)
            return None
        if isinstance(line, MeshLine):
            renamed = msgspec.structs.replace(line, slug=self._mesh(line.slug))
            check_mesh(renamed.slug)
            return partial(_ensure_mesh, engine=self._engine, line=renamed)
        if isinstance(line, StateLine | MemoryLine | VectorLine | FileLine) and line.deleted:
            self._pass(DELETED)
            return None
        if isinstance(line, StateLine):
            value = _value(line.value)
            change = operations.state_set(self._engine.ctx, self._mesh(line.mesh), line.key, value)
            return _changed("state", change)
        if isinstance(line, MemoryLine):
            return self._memory(line)
        if isinstance(line, VectorLine):
            return self._vector(line)
        if isinstance(line, FileLine):
            return self._file(line)
        if isinstance(line, TaskLine):
            return partial(_put_task, self._engine, self._mesh(line.mesh), line)
        if isinstance(line, FactLine):
            return self._fact(line)
        if isinstance(line, AuditLine):
            return self._event(line)
        self._pass(NOT_IMPORTED)
        return None

    def _pass(self, name: str) -> None:
        self._passed[name] = self._passed.get(name, 0) + 1

    def _mesh(self, slug: str) -> str:
        return self._mesh_map.get(slug, slug)

    def _memory(self, line: MemoryLine) -> Step | None:
        value = _value(line.value)
        if not self._is_ours(line.owner):
            return self._theirs("memory", line, MemoryRow, value=encode_value(value))
        ctx, mesh = self._engine.ctx, self._mesh(line.mesh)
        at = _created_at(line)
        change = operations.memory_set(ctx, mesh, line.key, value, line.tags, created_at=at)
        return _changed("memory", change)

    def _is_ours(self, owner: str) -> bool:
        return check_peer(owner) == self._engine.ctx.peer

    def _theirs(
        self,
        name: str,
        line: MemoryLine | VectorLine | FileLine,
        kind: type[MemoryRow | VectorRow | FileRow],
        made_by: ModelRow | None = None,
        **fields: Any,
    ) -> Step | None:
        """A row of another owner, as that owner wrote it."""
        if line.peer != line.owner:
            self._pass(NOT_THEIRS)
            return None
        mesh, id = self._mesh(line.mesh), parse_id(line.id)
        if mesh != line.mesh:
            # In another mesh it is another change, but the same one whoever imports it.
            id = parse_id(_derived(line.owner, mesh, id))
        row = copy_to(kind, line, mesh=mesh, id=id, offset=0, tombstone=False, **fields)
        return self._arrived(name, id, rebuild_envelope(row, None, made_by))

    def _arrived(self, name: str, id: bytes, raw: bytes) -> Step:
        """What somebody else wrote comes in by the door."""
        intake = Incoming(self._engine.ctx, read_arrivals((raw,)))

        def step(tx: Transaction) -> str:
            if tx.log_find(id) is not None or tx.forgotten(id) is not None:
                return HERE
            (applied,) = intake(tx)
            if applied.error is not None:
                raise applied.error
            return name if applied.outcome is Outcome.APPLIED else HERE

        return step

    def _vector(self, line: VectorLine) -> Step | None:
        if line.model is None:
            raise BadValue(f"the vector {line.key!r} does not say which model made it")
        model = Model(
            provider=line.model.provider,
            name=line.model.name,
            version=line.model.version,
            dim=line.model.dim,
            quantization=line.model.quantization,
        )
        metadata = _value(line.metadata)
        if not self._is_ours(line.owner):
            described = copy_to(ModelRow, line.model, id=model.fingerprint, created_at=0)
            more = {"model": model.fingerprint, "metadata": encode_value(metadata)}
            return self._theirs("vector", line, VectorRow, described, **more)
        ctx, mesh = self._engine.ctx, self._mesh(line.mesh)
        return _changed(
            "vector",
            operations.vector_store(
                ctx, mesh, line.key, line.embedding, model, line.content, metadata
            ),
        )

    def _file(self, line: FileLine) -> Step | None:
        content = line.content
        if content is not None and (sha256(content).hexdigest(), len(content)) != (
            line.sha256,
            line.size,
        ):
            raise BadValue(f"the content of {line.path!r} is not what its hash says")
        if (line.size < limits.INLINE_BYTES_MAX) != (content is not None):
            raise BadValue(f"the content of {line.path!r} does not fit its size")
        ctx, mesh = self._engine.ctx, self._mesh(line.mesh)
        check_sha(line.sha256)
        write: Callable[[Transaction], object] | None
        if self._is_ours(line.owner):
            what = (line.path, line.sha256, line.size, content)
            write = operations.file_share(ctx, mesh, *what, created_at=_created_at(line))
        else:
            write = self._theirs("file", line, FileRow)
        if write is None:
            return None

        def step(tx: Transaction) -> str:
            if content is None and not ctx.blobs.exists(line.sha256):
                return NO_CONTENT
            return HERE if write(tx) == HERE else "file"

        return step

    def _fact(self, line: FactLine) -> Step:
        original = parse_id(line.id)
        mesh = self._mesh(line.mesh)
        change = operations.fact_append(
            self._engine.ctx,
            mesh,
            line.subject,
            line.predicate,
            _value(line.object),
            id=_derived(self._engine.ctx.peer, mesh, original),
            meta=_value(line.meta),
            objects=line.objects,
        )

        def step(tx: Transaction) -> str:
            if tx.log_find(original) is not None or tx.forgotten(original) is not None:
                return HERE
            if not all(self._engine.blobs.exists(sha) for sha in map(str.lower, line.objects)):
                return NO_CONTENT
            return HERE if change(tx).duplicate else "fact"

        return step

    def _event(self, line: AuditLine) -> Step | None:
        """An event as its origin chained it. Under another mesh it would be another chain."""
        if self._mesh(line.mesh) != line.mesh:
            self._pass(NOT_THEIRS)
            return None
        id = parse_id(line.id)
        row = copy_to(AuditRow, line, id=id, payload=bytes(line.payload), offset=0)
        return self._arrived("audit", id, rebuild_event(row))


class _Refused(Exception):
    """The store refused a row; its chunk is undone."""

    def __init__(self, line: int, error: HoldfastError) -> None:
        super().__init__(line)
        self.line, self.error = line, error


def _changed(name: str, change: Change) -> Step:
    def step(tx: Transaction) -> str:
        change(tx)
        return name

    return step


def _ensure_mesh(tx: Transaction, *, engine: NodeEngine, line: MeshLine) -> str:
    if tx.mesh_get(line.slug) is not None:
        return HERE
    now = engine.ctx.now_ms()
    tx.mesh_add(MeshRow(slug=line.slug, name=line.name, created_at=now, updated_at=now))
    return "mesh"


def _put_task(engine: NodeEngine, mesh: str, line: TaskLine, tx: Transaction) -> str:
    """Creates the task under an id of this peer, and moves it towards the status that it had."""
    there = tx.task_get(mesh, line.task)
    if there is not None and there.known:
        return HERE
    status = operations.check_status(line.status)
    id = _derived(engine.ctx.peer, mesh, _task_id(line))
    created = operations.task_create(engine.ctx, mesh, line.title, line.description, id)(tx)
    for verb in _turns(status, line.claimed_by == engine.ctx.peer):
        row = operations.require_task(tx, mesh, id)
        if _still_possible(row.status, row.claimed_by == engine.ctx.peer, verb):
            operations.task_move(engine.ctx, mesh, verb, id)(tx)
    return HERE if created.duplicate else "task"


def _task_id(line: TaskLine) -> bytes:
    """The id of a task. Earlier versions took tasks of other names from others: such a task gets an
    id that follows from its name.
    """
    try:
        return parse_id(line.task)
    except BadId:
        at_ms = min(max(line.created_at, 0), limits.SOURCE_TIME_MS_MAX - 1)
        return uuid7(at_ms, sha256(line.task.encode()).digest()[:10])


def _turns(status: TaskStatus, ours: bool) -> Iterable[str]:
    if status is TaskStatus.COMPLETED:
        return ("claim", "complete")
    if status is TaskStatus.CANCELLED:
        return ("cancel",)
    return ("claim",) if status is TaskStatus.CLAIMED and ours else ()


def _still_possible(status: TaskStatus, ours: bool, verb: str) -> bool:
    """A task that an earlier import brought may have moved on since."""
    if verb == "claim":
        return status is TaskStatus.OPEN
    if verb == "complete":
        return status is TaskStatus.CLAIMED and ours
    return status in (TaskStatus.OPEN, TaskStatus.CLAIMED)


def _derived(peer: str, mesh: str, original: bytes) -> str:
    """An id that is the same for the same original here, and another one at any other peer."""
    seed = b"\0".join((b"holdfast import", peer.encode(), mesh.encode(), original))
    return id_text(uuid7(id_time_ms(original), sha256(seed).digest()[:10]))


def _value(raw: msgspec.Raw) -> Any:
    return decode_value(bytes(raw))


# --- errors and progress -------------------------------------------------------------------------


def _checked(source: BinaryIO) -> Checked:
    if not source.seekable():
        raise BadValue(
            "an import is read twice, and this source can be read once only",
            hint="write it to a file first",
        )
    source.seek(0)
    return check_file(source)


def _decoded(number: int, raw: bytes) -> AnyLine:
    try:
        return decode_line(raw)
    except BadInput as error:
        raise _at_line(number, error) from error


def _at_line(number: int, error: HoldfastError) -> HoldfastError:
    """The same error with the number of the line in its message."""
    return type(error)(f"line {number}: {error.message}", hint=error.hint)


def _tell(progress: Progress | None, number: int, checked: Checked) -> None:
    if progress is not None:
        progress(number - 1, checked.lines)
