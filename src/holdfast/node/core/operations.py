"""Every operation of the library, once, as work for a transaction or a reader.

The sync library, the async library and the HTTP API differ only in how they run these. Each
function makes the checks that need no state and returns the work; the work makes the others, in its
transaction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from holdfast.node.core.change import Change, Receipt
from holdfast.node.core.keyed_writes import Meta, Replacing, Required
from holdfast.node.core.keyed_writes import memory_forget as memory_forget
from holdfast.node.core.keyed_writes import memory_set as memory_set
from holdfast.node.core.keyed_writes import state_delete as state_delete
from holdfast.node.core.keyed_writes import state_set as state_set
from holdfast.node.core.runs.plain_changes import PlainChange
from holdfast.node.core.views import Hit, Memory, StateEntry
from holdfast.rules import limits, names
from holdfast.rules.audit_chain import (
    AuditChain,
    check_payload_size,
    check_stream,
    next_event,
)
from holdfast.rules.bodies import (
    AuditAppend,
    Fact,
    FileShare,
    Nothing,
    TaskCreate,
    TaskTurn,
    VectorDelete,
    VectorStore,
    check_objects,
    check_prose,
    encode_body,
    encode_value,
)
from holdfast.rules.errors import (
    BadInput,
    OverLimit,
    TaskEnded,
    TaskTaken,
    UnknownFile,
    UnknownKey,
    UnknownObject,
    UnknownTask,
)
from holdfast.rules.ids import aside_id, id_text
from holdfast.rules.message import MESSAGE
from holdfast.rules.outbox import gives_id_back, lane_of
from holdfast.rules.paths import named_path
from holdfast.rules.rows import (
    FileRow,
    TaskEventRow,
    TaskRow,
    VectorRow,
    WarningRow,
)
from holdfast.rules.tasks import TERMINAL, TaskStatus
from holdfast.rules.vectors import Model, pack

T = TypeVar("T")

if TYPE_CHECKING:
    from holdfast.node.core.context import NodeContext
    from holdfast.rules.rows import Entry, OutboxRow
    from holdfast.storage.ports import Reader, Transaction

    Read = Callable[[Reader], T]


_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")


# --- state ---------------------------------------------------------------------------------------


def state_entry(mesh: str, key: str) -> Read[StateEntry | None]:
    names.check_key(key)

    def read(tx: Reader) -> StateEntry | None:
        row = tx.state_get(mesh, key)
        return None if row is None or row.tombstone else StateEntry.of(row)

    return read


# --- memory --------------------------------------------------------------------------------------


def owner_of(ctx: NodeContext, scope: str) -> str | None:
    """The owner that a scope names; None if it names all owners."""
    return names.scope_owner(scope, ctx.peer)


def memory_recall(mesh: str, key: str, owner: str | None) -> Read[list[Memory]]:
    names.check_key(key)

    def read(tx: Reader) -> list[Memory]:
        if owner is None:
            return [Memory.of(row) for row in tx.memory_all(mesh, key)]
        row = tx.memory_get(mesh, owner, key)
        return [] if row is None or row.tombstone else [Memory.of(row)]

    return read


# --- vectors -------------------------------------------------------------------------------------


def vector_store(
    ctx: NodeContext,
    mesh: str,
    key: str,
    embedding: Any,
    model: Model,
    content: str = "",
    metadata: object = None,
    id: str | None = None,
) -> Change:
    names.check_key(key)
    check_prose(content, "content", limits.VECTOR_CONTENT_BYTES_MAX)
    body = VectorStore(
        model.provider,
        model.name,
        model.version,
        model.dim,
        model.quantization,
        pack(embedding, model.dim, model.quantization),
        content,
        encode_value(metadata),
    )
    return _VectorStoring(ctx, mesh, "vector.store", key, body, owner=ctx.peer, id=id)


class _VectorStoring(Change):
    """A vector. Whoever stores it under a model that is being left hears of it, once until read."""

    __slots__ = ()

    def carry_out(self, tx: Transaction) -> Receipt:
        receipt = super().carry_out(tx)
        assert isinstance(self.body, VectorStore)
        model = self.body.identity()
        if any(row.id == model.fingerprint and row.deprecated_at for row in tx.model_list()):
            told = WarningRow(
                mesh=self.mesh,
                type="vector_model_deprecated",
                entity=f"{model.provider}:{model.name}:{model.version}",
                by_peer=self.ctx.peer,
                at_lamport=receipt.stamp.lamport,
            )
            if not any(_same_warning(row, told) for row in tx.warning_list(self.mesh)):
                tx.warning_add(told)
        return receipt


def _same_warning(row: WarningRow, other: WarningRow) -> bool:
    return row.type == other.type and row.entity == other.entity


def vector_delete(
    ctx: NodeContext,
    mesh: str,
    key: str,
    model: Model,
    id: str | None = None,
) -> Change:
    names.check_key(key)

    def require(tx: Reader) -> None:
        require_vector(tx, mesh, ctx.peer, key, model)

    body = VectorDelete(model.fingerprint)
    return Required(require, ctx, mesh, "vector.delete", key, body, owner=ctx.peer, id=id)


def require_vector(tx: Reader, mesh: str, owner: str, key: str, model: Model) -> VectorRow:
    """The live vector of a peer; UnknownKey if there is none."""
    row = tx.vector_live(mesh, owner, key, model.fingerprint)
    if row is None:
        raise UnknownKey(f"{owner} has no vector {key!r} of this model in {mesh!r}")
    return row


def vector_search(
    mesh: str,
    query: Any,
    model: Model,
    limit: int = 10,
    exact: bool = False,
    owner: str | None = None,
) -> Read[list[Hit]]:
    if not 1 <= limit <= limits.SEARCH_LIMIT_MAX:
        raise OverLimit(f"limit {limit} is not between 1 and {limits.SEARCH_LIMIT_MAX}")
    packed = pack(query, model.dim, model.quantization)

    def read(tx: Reader) -> list[Hit]:
        found = tx.vector_search(mesh, model, packed, limit, exact=exact, owner=owner)
        return [Hit.of(row, distance) for row, distance in found]

    return read


# --- files ---------------------------------------------------------------------------------------


class BlobGone(Exception):
    """A sweep removed the blob before the transaction that names it: write it again."""


class FileSharing(Replacing):
    """A share. If its content is a blob, that must still be there in its transaction."""

    __slots__ = ()

    def make_ready(self, tx: Reader) -> None:
        assert isinstance(self.body, FileShare)
        if self.body.content is None and not self.ctx.blobs.exists(self.body.sha256.hex()):
            raise BlobGone
        super().make_ready(tx)


def file_share(
    ctx: NodeContext,
    mesh: str,
    path: str,
    sha256: str,
    size: int,
    content: bytes | None,
    id: str | None = None,
    created_at: int = 0,
) -> FileSharing:
    path = named_path(path)
    body = FileShare(bytes.fromhex(sha256), size, content)

    def find(tx: Reader) -> FileRow | None:
        return tx.file_get(mesh, ctx.peer, path)

    return FileSharing(find, ctx, mesh, "file.share", path, body, id=id, created_at=created_at)


def file_delete(ctx: NodeContext, mesh: str, path: str, id: str | None = None) -> Change:
    path = named_path(path)

    def require(tx: Reader) -> None:
        row = tx.file_get(mesh, ctx.peer, path)
        if row is None or row.tombstone:
            raise UnknownFile(f"{ctx.peer} shares no file {path!r} in {mesh!r}")

    return Required(require, ctx, mesh, "file.delete", path, Nothing(), owner=ctx.peer, id=id)


# --- tasks ---------------------------------------------------------------------------------------


class TaskMove(Change):
    """A turn on a task, if the state of the task allows it. Each run finds the generation anew."""

    __slots__ = ()

    def make_ready(self, tx: Reader) -> None:
        task = require_task(tx, self.mesh, self.entity)
        self.allow(task)
        if isinstance(self.body, TaskTurn):
            self.body = TaskTurn(task.generation)
            self.encoded = encode_body(self.body)

    def allow(self, task: TaskRow) -> None:
        """Raises unless this turn may be made on the task as it stands."""
        if task.status in TERMINAL:
            assert task.ended is not None
            raise TaskEnded(f"task {task.task} was {task.status} by {task.ended.peer}")
        mine = task.claimed_by == self.ctx.peer
        if self.op == "task.cancel" or mine:
            return
        if task.status is TaskStatus.CLAIMED:
            raise TaskTaken(
                f"task {task.task} is claimed by {task.claimed_by}",
                hint="choose another task, or wait until it is released",
            )
        if self.op != "task.claim":
            raise TaskTaken(
                f"task {task.task} is not claimed by {self.ctx.peer}",
                hint=f"claim it first: holdfast task claim {task.task}",
            )


def require_task(tx: Reader, mesh: str, task: str) -> TaskRow:
    row = tx.task_get(mesh, task)
    if row is None or not row.known:
        raise UnknownTask(f"there is no task {task!r} in {mesh!r}")
    return row


def task_create(
    ctx: NodeContext, mesh: str, title: str, description: str = "", id: str | None = None
) -> Change:
    check_prose(title, "title", limits.TITLE_BYTES_MAX, empty=False)
    check_prose(description, "description", limits.DESCRIPTION_BYTES_MAX)
    change = Change(ctx, mesh, "task.create", "-", TaskCreate(title, description), id=id)
    # The name of a task is the id of this change, so the fingerprint need not cover it.
    change.entity = id_text(change.id)
    return change


def task_move(ctx: NodeContext, mesh: str, verb: str, task: str, id: str | None = None) -> Change:
    names.check_key(task, "task")
    body = TaskTurn(0) if verb in ("claim", "release") else Nothing()
    return TaskMove(ctx, mesh, f"task.{verb}", task, body, id=id, asked=b"")


class ThenTask:
    """Carries out a change on a task and returns the task as it then stands."""

    repeatable = True
    __slots__ = ("change",)

    def __init__(self, change: Change) -> None:
        self.change = change

    def __call__(self, tx: Transaction) -> TaskRow:
        self.change(tx)
        return require_task(tx, self.change.mesh, self.change.entity)


def task_events(mesh: str, task: str) -> Read[list[TaskEventRow]]:
    def read(tx: Reader) -> list[TaskEventRow]:
        require_task(tx, mesh, task)
        return tx.task_events(mesh, task)

    return read


# --- facts ---------------------------------------------------------------------------------------


class FactNaming(Change):
    """A fact that names objects. They must be on this node in its transaction."""

    __slots__ = ()

    def make_ready(self, tx: Reader) -> None:
        assert isinstance(self.body, Fact)
        for digest in self.body.objects:
            if not self.ctx.blobs.exists(digest.hex()):
                raise UnknownObject(f"the object {digest.hex()} is not on this node")


def fact_append(
    ctx: NodeContext,
    mesh: str,
    subject: str,
    predicate: str,
    object: Any,
    id: str | None = None,
    meta: Meta = None,
    objects: Iterable[str] = (),
) -> Change:
    """`objects` are the hashes of the blobs that the fact names, in hex."""
    names.check_key(subject, "subject", limits.SUBJECT_BYTES_MAX)
    names.check_key(predicate, "predicate", limits.PREDICATE_BYTES_MAX)
    named = _digests(objects)
    body = Fact(predicate, encode_value(object), named)
    kind = FactNaming if named else PlainChange
    return kind(ctx, mesh, "fact.append", subject, body, id=id, meta=meta)


def _digests(objects: Iterable[str]) -> tuple[bytes, ...]:
    if not isinstance(objects, Iterable):
        raise BadInput(f"objects is {type(objects).__name__}, not a list of texts")
    if isinstance(objects, str):
        raise BadInput("objects is one text, not a list of texts", hint="write objects=['…']")
    listed = list(objects)
    if any(not isinstance(text, str) or not _SHA256.fullmatch(text) for text in listed):
        raise BadInput(
            "an object is named by something else than its hash",
            hint="use the 64 hex digits of its SHA-256",
        )
    found = tuple(dict.fromkeys(bytes.fromhex(text) for text in listed))
    check_objects(found)
    return found


# --- audit streams -------------------------------------------------------------------------------


class Event(Change):
    """An event of an audit stream. Its number and what binds it to the last one are known in its
    transaction.
    """

    __slots__ = ("_at", "_payload")

    def __init__(
        self, ctx: NodeContext, mesh: str, stream: str, payload: bytes, id: str | None
    ) -> None:
        self._at, self._payload = ctx.now_ms(), payload
        unplaced = AuditAppend(0, 0, 0, b"", b"", payload)
        super().__init__(ctx, mesh, "audit.append", stream, unplaced, id=id, asked=payload)

    def make_ready(self, tx: Reader) -> None:
        chain = AuditChain(self.mesh, self.entity, self.ctx.peer, self.ctx.epoch)
        known = tx.audit_chain_get(chain)
        last = None if known is None else tx.audit_get(chain, known.last)
        event = next_event(chain, last, id=self.id, at=self._at, payload=self._payload)
        self.body = AuditAppend(
            event.epoch, event.seq, event.at, event.previous, event.hash, event.payload
        )
        self.encoded = encode_body(self.body)


def audit_append(
    ctx: NodeContext, mesh: str, stream: str, payload: object, id: str | None = None
) -> Change:
    check_stream(stream)
    raw = encode_value(payload)
    check_payload_size(raw)
    return Event(ctx, mesh, stream, raw, id)


def check_status(status: TaskStatus | str) -> TaskStatus:
    try:
        return TaskStatus(status)
    except ValueError:
        raise BadInput(
            f"status {status!r} is not known", hint=f"use one of {', '.join(TaskStatus)}"
        ) from None


# --- ids that messages give back -----------------------------------------------------------------


def refused_send(
    tx: Reader, entry: Entry, peer: str, *, broker_has_another: bool
) -> OutboxRow | None:
    """The outbox row of an entry that is our own message and gives its id back; None if it keeps
    it.
    """
    if entry.op != MESSAGE or entry.origin != peer:
        return None
    row = tx.outbox_get(lane_of(entry.mesh), entry.id)
    if row is None or row.offset != entry.offset:
        return None
    return row if gives_id_back(row, broker_has_another=broker_has_another) else None


def set_aside(tx: Transaction, entry: Entry, row: OutboxRow) -> None:
    """Takes the id from our own message, in the log and in the outbox: another one gets it. Both
    keep the envelope as it is, under an id that is computed from it.
    """
    aside = aside_id(entry.raw)
    tx.log_set_aside(entry.offset, aside)
    tx.outbox_put(replace(row, id=aside))
