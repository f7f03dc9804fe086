"""The library's families, for callers that wait: `mesh.memory`, `.state`, `.vectors`, `.files`,
`.tasks`, `.facts`, `.audit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, TypeVar

from holdfast.node.core import files, operations
from holdfast.node.core.change import Receipt
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.files import Content
from holdfast.node.core.views import FileInfo, Hit, LastKnown, Memory, StateEntry
from holdfast.node.library.last_known import last_known
from holdfast.node.library.verbs import turns, writes
from holdfast.node.log.audit_trail import AuditEntry, AuditVerdict, chains, read_place, verdicts
from holdfast.node.log.history import AsOf, memory_as_of, state_as_of
from holdfast.node.upkeep import reembed
from holdfast.rules.arguments import checked, checks_arguments
from holdfast.rules.audit_chain import AuditChainRow, AuditRow, check_stream
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.rows import FileRow, MemoryRow, ModelRow, StateRow, TaskEventRow, TaskRow
from holdfast.rules.tasks import TaskStatus
from holdfast.rules.vectors import Model
from holdfast.storage.audit_port import AuditPlace
from holdfast.storage.ports import Reader, Work

if TYPE_CHECKING:
    from holdfast.node.library.bus import NodeBus

# The families have a verb `list`, which hides the type of that name inside their classes.
Rows: TypeAlias = list

K = TypeVar("K")
R = TypeVar("R")


class _Family:
    def __init__(self, engine: NodeEngine, mesh: str) -> None:
        self._engine = engine
        self._mesh = mesh

    def _rows(
        self, scan: Callable[[Reader, K], Sequence[R]], place: Callable[[R], K], first: K
    ) -> Iterator[R]:
        """All rows, page by page: `scan` reads the page after a place, `place` tells where a row
        stands, and `first` is before all of them.
        """
        after = first

        def page(tx: Reader) -> Sequence[R]:
            nonlocal after
            rows = scan(tx, after)
            after = place(rows[-1]) if rows else after
            return rows

        return self._engine.pages(page)


@checks_arguments(but=("get", "entry"))
class State(_Family):
    """One value per key, shared by the whole mesh; the last writer wins."""

    @writes("state.set")
    def set(
        self,
        key: str,
        value: object,
        *,
        id: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Work[Receipt]:
        """Gives a key its value. The same `id` twice is one write."""
        return operations.state_set(self._engine.ctx, self._mesh, key, value, id, meta)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        entry = self.entry(key)
        return default if entry is None else entry.value

    def entry(self, key: str) -> StateEntry | None:
        """The value with who wrote it, and when."""
        return self._engine.read("state.get", operations.state_entry(self._mesh, key))

    @writes("state.delete")
    def delete(self, key: str, *, id: str | None = None) -> Work[Receipt]:
        """Removes a key for every member of the mesh."""
        return operations.state_delete(self._engine.ctx, self._mesh, key, id)

    def list(self, prefix: str = "") -> Iterator[StateEntry]:
        """The keys that begin with a prefix, in order."""

        def scan(tx: Reader, after: str) -> Sequence[StateRow]:
            return tx.state_scan(self._mesh, prefix, after, CHUNK_ROWS)

        for row in self._rows(scan, lambda row: row.key, ""):
            if not row.tombstone:
                yield StateEntry.of(row)

    def as_of(
        self,
        key: str | None = None,
        *,
        offset: int | None = None,
        lamport: int | None = None,
        at_ms: int | None = None,
    ) -> Rows[StateEntry]:
        """The state as it was at an offset of our log, a Lamport time or a wall-clock time."""
        point = AsOf(offset, lamport, at_ms)
        return state_as_of(self._engine.store, self._mesh, key, point, self._engine.ctx.now_ms())


@checks_arguments()
class Memories(_Family):
    """What each peer remembers, under its own name."""

    @writes("memory.set")
    def set(
        self, key: str, value: object, *, tags: Iterable[str] = (), id: str | None = None
    ) -> Work[Receipt]:
        """Remembers a value under a key, as this node's peer."""
        return operations.memory_set(self._engine.ctx, self._mesh, key, value, tags, id)

    def get(self, key: str, *, peer: str | None = None) -> Memory | None:
        """Our own memory, or that of one peer."""
        found = self.recall(key, scope="self" if peer is None else f"peer:{peer}")
        return found[0] if found else None

    def recall(self, key: str, *, scope: str = "self") -> Rows[Memory]:
        """By scope: `self`, `peer:<id>`, or `all`, newest first."""
        owner = operations.owner_of(self._engine.ctx, scope)
        return self._engine.read("memory.get", operations.memory_recall(self._mesh, key, owner))

    @writes("memory.forget")
    def forget(self, key: str, *, id: str | None = None) -> Work[Receipt]:
        """Removes our own memory under a key."""
        return operations.memory_forget(self._engine.ctx, self._mesh, key, id)

    def list(self, *, scope: str = "self") -> Iterator[Memory]:
        """All memories of a scope, by owner and key."""
        owner = operations.owner_of(self._engine.ctx, scope)

        def scan(tx: Reader, after: tuple[str, str]) -> Sequence[MemoryRow]:
            return tx.memory_scan(self._mesh, owner, after, CHUNK_ROWS)

        for row in self._rows(scan, lambda row: (row.owner, row.key), ("", "")):
            if not row.tombstone:
                yield Memory.of(row)

    def as_of(
        self,
        key: str | None = None,
        *,
        offset: int | None = None,
        lamport: int | None = None,
        at_ms: int | None = None,
    ) -> Rows[Memory]:
        """All peers' memories as they were."""
        point = AsOf(offset, lamport, at_ms)
        return memory_as_of(self._engine.store, self._mesh, key, point, self._engine.ctx.now_ms())


@checks_arguments()
class Vectors(_Family):
    """Embeddings with their content, searched by nearness within one model."""

    @writes("vector.store")
    @checked
    def store(
        self,
        key: str,
        embedding: Any,
        *,
        model: Model,
        content: str = "",
        metadata: object = None,
        id: str | None = None,
    ) -> Work[Receipt]:
        """Stores an embedding under a key, in place of an older one of the same model."""
        return operations.vector_store(
            self._engine.ctx, self._mesh, key, embedding, model, content, metadata, id
        )

    def search(
        self, query: Any, *, model: Model, limit: int = 10, exact: bool = False
    ) -> Rows[Hit]:
        """The nearest live vectors of this mesh; empty for a model that nobody has used."""
        read = operations.vector_search(self._mesh, query, model, limit, exact)
        hits = self._engine.read("vector.search", read)
        reembed.note_read(self._engine, model)
        return hits

    @writes("vector.delete")
    @checked
    def delete(self, key: str, *, model: Model, id: str | None = None) -> Work[Receipt]:
        """Removes our own embedding under a key."""
        return operations.vector_delete(self._engine.ctx, self._mesh, key, model, id)

    def models(self) -> Rows[ModelRow]:
        """Every model that vectors were stored with, oldest first."""
        return self._engine.read("vector.models", lambda tx: tx.model_list())

    def reembed(
        self,
        old: Model,
        new: Model,
        embed: Callable[[list[str]], Sequence[Any]],
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Moves this peer's vectors to another model, in chunks; safe to stop and start again."""
        return reembed.reembed(self._engine, self._mesh, old, new, embed, progress)


@checks_arguments()
class Files(_Family):
    """Files that a peer shares, by path; large ones are kept as content-addressed blobs."""

    def share(self, path: str, content: Content, *, id: str | None = None) -> Receipt:
        """Shares content under a path, in place of what this peer has shared there before."""
        return files.share_file(self._engine, self._mesh, path, content, id)

    def read(self, path: str, *, peer: str | None = None) -> bytes:
        """The verified content of our own file, or of that of one peer."""
        return files.read_file(self._engine, self._mesh, path, peer)

    def open(self, path: str, *, peer: str | None = None) -> BinaryIO:
        """A stream of verified content, for what should not be in memory at once."""
        return files.open_file(self._engine, self._mesh, path, peer)

    def last_known(self, path: str, *, peer: str | None = None) -> LastKnown:
        """The content if it is here, else that of the newest older version that is."""
        return last_known(self._engine, self._mesh, path, peer)

    def info(self, path: str, *, peer: str | None = None) -> FileInfo:
        """Size, hash and time of a file, and whether its content is on this machine."""
        row = files.find_file(self._engine, self._mesh, path, peer)
        return files.file_info(self._engine, row)

    @writes("file.delete")
    def delete(self, path: str, *, id: str | None = None) -> Work[Receipt]:
        """Removes our own file; the content goes when nothing names it any more."""
        return operations.file_delete(self._engine.ctx, self._mesh, path, id)

    def list(self, *, peer: str | None = None) -> Iterator[FileInfo]:
        """Files of one peer, or of all."""

        def scan(tx: Reader, after: tuple[str, str]) -> Sequence[FileRow]:
            return tx.file_scan(self._mesh, peer, after, CHUNK_ROWS)

        for row in self._rows(scan, lambda row: (row.owner, row.path), ("", "")):
            if not row.tombstone:
                yield files.file_info(self._engine, row)


@checks_arguments()
class Tasks(_Family):
    """Work that one peer at a time takes on. In a mesh with voters the quorum decides who does."""

    def __init__(
        self, engine: NodeEngine, mesh: str, bus: Callable[[], NodeBus] | None = None
    ) -> None:
        super().__init__(engine, mesh)
        self._bus = bus
        self._has_voters = False

    @turns("task.create")
    def create(
        self, title: str, *, description: str = "", id: str | None = None
    ) -> operations.ThenTask:
        """Adds a task that is open."""
        change = operations.task_create(self._engine.ctx, self._mesh, title, description, id)
        return operations.ThenTask(change)

    @turns("task.claim")
    def claim(self, task: str, *, id: str | None = None) -> operations.ThenTask:
        """Takes a task on; TaskTaken if another peer has it."""
        return self._move("claim", task, id)

    @turns("task.release")
    def release(self, task: str, *, id: str | None = None) -> operations.ThenTask:
        """Gives a task back, so that another peer may take it on."""
        return self._move("release", task, id)

    @turns("task.complete")
    def complete(self, task: str, *, id: str | None = None) -> operations.ThenTask:
        """Ends a task that this peer has taken on."""
        return self._move("complete", task, id)

    @turns("task.cancel")
    def cancel(self, task: str, *, id: str | None = None) -> operations.ThenTask:
        """Ends a task without its work being done."""
        return self._move("cancel", task, id)

    def get(self, task: str) -> TaskRow:
        """A task by its id; UnknownTask if there is none."""
        return self._engine.read(
            "task.get", lambda tx: operations.require_task(tx, self._mesh, task)
        )

    def list(self, *, status: TaskStatus | str | None = None) -> Iterator[TaskRow]:
        """All tasks, or those of one status, by id."""
        chosen = None if status is None else operations.check_status(status)

        def scan(tx: Reader, after: str) -> Sequence[TaskRow]:
            return tx.task_scan(self._mesh, chosen, after, CHUNK_ROWS)

        yield from self._rows(scan, lambda row: row.task, "")

    def events(self, task: str) -> Rows[TaskEventRow]:
        """Every turn on the task in stamp order, with what it came to."""
        return self._engine.read("task.events", operations.task_events(self._mesh, task))

    def _move(self, verb: str, task: str, id: str | None) -> operations.ThenTask:
        change = operations.task_move(self._engine.ctx, self._mesh, verb, task, id)
        return operations.ThenTask(change)


@checks_arguments()
class AuditTrail(_Family):
    """Named streams of events that are only added. Each origin's events are a chain of hashes."""

    @writes("audit.append")
    def append(self, stream: str, payload: Any, *, id: str | None = None) -> Work[Receipt]:
        """Adds an event to a stream (`activityLog`, `runAuditEvents`, or any name)."""
        return operations.audit_append(self._engine.ctx, self._mesh, stream, payload, id)

    def list(
        self, stream: str, *, origin: str | None = None, after: str = ""
    ) -> Iterator[AuditEntry]:
        """The events of a stream, those of each origin in its order. `after` is a place as
        `place_of` writes it: only what follows it.
        """
        check_stream(stream)

        def scan(tx: Reader, behind: AuditPlace) -> Sequence[AuditRow]:
            return tx.audit_scan(self._mesh, stream, origin, behind, CHUNK_ROWS)

        rows = self._rows(
            scan,
            lambda row: (row.stream, row.origin, row.epoch, row.seq),
            (stream, *read_place(after)),
        )
        return map(AuditEntry.of, rows)

    def streams(self) -> Rows[AuditChainRow]:
        """Every chain that this node has something of: stream, origin, how far, how many."""
        return self._engine.read("audit.streams", lambda tx: [*chains(tx, self._mesh)])

    def verify(self, stream: str | None = None) -> Rows[AuditVerdict]:
        """Reads every event again, and says of each chain whether it is whole: what is missing,
        what does not fit, and which forks were refused.
        """
        return self._engine.read("audit.verify", lambda tx: [*verdicts(tx, self._mesh, stream)])


@checks_arguments()
class Facts(_Family):
    """What is so: subject, predicate, object. Appended once by id, never changed."""

    @writes("fact.append")
    def append(
        self,
        subject: str,
        predicate: str,
        object: Any,
        *,
        id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        objects: Iterable[str] = (),
    ) -> Work[Receipt]:
        """`objects` are hashes of content that was put here before (`Node.receive_blob`): it is
        kept for as long as the fact.
        """
        return operations.fact_append(
            self._engine.ctx, self._mesh, subject, predicate, object, id, meta, objects
        )
