"""Local writes of any family that come as documents, many at a time: from programs that do not use
the library, and from the pipeline's sink.

A document names its op and has the fields that the op takes. Any other field is refused: it is
likely a mistake, and to ignore it would lose what its author meant to write. Each document has its
id, so that a batch that is sent twice is written once.

The writes of a batch share commits; each succeeds or fails by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET

from holdfast.node.core import operations
from holdfast.node.core.change import Change, Receipt
from holdfast.node.core.context import NodeContext
from holdfast.node.core.loop_writer import LoopWriter
from holdfast.rules.errors import BadInput, HoldfastError, NotOurs, OverLimit
from holdfast.rules.limits import INLINE_BYTES_MAX
from holdfast.rules.names import named_peer
from holdfast.rules.vectors import Model, shown_dim
from holdfast.storage.ports import Transaction


class ModelName(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which embedding model made a vector."""

    provider: str
    name: str
    version: str = "unknown"
    dim: int | None = None
    """May be left out if there is an embedding, whose length it is."""
    quantization: str = "float32"
    """How it is kept: `float32`, `int8` or `binary`."""


class ChangeFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a write of any family may say."""

    op: str
    entity: str | None = None
    """The key, subject, path, stream or task that it changes; none for a task that is created."""
    owner: str | None = None
    """The owner of the memory, vector or file: this node, which writes only what is its own."""
    value: Any = UNSET
    tags: list[str] | None = None
    predicate: str | None = None
    object: Any = UNSET
    objects: list[str] | None = None
    """Hashes of objects that were stored before."""
    model: ModelName | None = None
    embedding: bytes | list[float] | None = None
    """Numbers, or base64: float32 in little-endian order, int8, or bits, as the model has them."""
    content: str | None = None
    metadata: Any = UNSET
    data: bytes | None = None
    """The content of a small file, as base64."""
    title: str | None = None
    description: str | None = None
    meta: dict[str, Any] | None = None
    expect: str | None = None
    """The stamp that must be there (`12@ana`), or `absent`; else the change is refused."""

    @property
    def key(self) -> str:
        """The entity, of an op that needs one."""
        assert self.entity is not None
        return self.entity


class ChangeDocument(ChangeFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A write of any family. Each op takes some of the fields and refuses the others."""

    id: str
    """A UUID of version 7. The same id with the same content is written once."""
    mesh: str


class BatchDocument(ChangeFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of a batch. Each op takes some of the fields and refuses the others."""

    id: str | None = None
    """A UUID of version 7, the name of a task that is created; made if it is not given."""
    mesh: str | None = None
    """May be left out; another mesh than that of the batch is refused."""


def read_change(value: object) -> ChangeDocument:
    """Converts decoded JSON into a document; `BadInput` if it does not fit."""
    try:
        return msgspec.convert(value, ChangeDocument)
    except msgspec.ValidationError as error:
        raise BadInput(f"the change does not fit: {error}") from None


class PreparedChange(Protocol):
    """A change that is ready to be carried out."""

    @property
    def op(self) -> str: ...
    def __call__(self, tx: Transaction, /) -> Receipt: ...


Prepared = PreparedChange | HoldfastError
"""A change, or the error that refuses it."""


def prepare(ctx: NodeContext, doc: ChangeDocument) -> PreparedChange:
    """Checks and encodes a change. Checks that need the state are made in its transaction."""
    kind = _KINDS.get(doc.op)
    if kind is None:
        raise BadInput(
            f"there is no op {doc.op!r} to write", hint=f"use one of {', '.join(_KINDS)}"
        )
    given = {name for name in _FIELDS if getattr(doc, name) not in (None, UNSET)}
    # A null is a value as good as any other.
    given |= {name for name in _VALUES if getattr(doc, name) is not UNSET}
    if missing := kind.needs - given:
        raise BadInput(f"{doc.op} needs {_listed(missing)}")
    if surplus := given - kind.needs - kind.takes:
        raise BadInput(
            f"{doc.op} takes no {_listed(surplus)}", hint="leave out what it has no use for"
        )
    if doc.owner is not None and named_peer(doc.owner) != ctx.peer:
        raise NotOurs(
            f"{doc.op} is for what is this node's own, and {doc.owner!r} is not it",
            hint="write it at the node of its owner",
        )
    return kind.make(ctx, doc)


# --- writing many ------------------------------------------------------------------------------


async def write_all(
    writer: LoopWriter, prepared: Iterable[Prepared]
) -> list[Receipt | HoldfastError]:
    """Writes all that is ready, and returns what became of each, in their order."""
    # All are handed over before the first is waited for, so that they share commits.
    under_way = [
        one if isinstance(one, HoldfastError) else writer.write(one.op, one) for one in prepared
    ]
    return [await _outcome(one) for one in under_way]


async def _outcome(one: asyncio.Future[Receipt] | HoldfastError) -> Receipt | HoldfastError:
    if isinstance(one, HoldfastError):
        return one
    try:
        return await one
    except HoldfastError as error:
        return error


# --- one of each kind --------------------------------------------------------------------------


def _state_set(ctx: NodeContext, doc: ChangeDocument) -> Change:
    return operations.state_set(ctx, doc.mesh, doc.key, doc.value, doc.id, doc.meta, doc.expect)


def _state_delete(ctx: NodeContext, doc: ChangeDocument) -> Change:
    return operations.state_delete(ctx, doc.mesh, doc.key, doc.id, doc.expect)


def _memory_set(ctx: NodeContext, doc: ChangeDocument) -> Change:
    return operations.memory_set(
        ctx, doc.mesh, doc.key, doc.value, doc.tags or (), doc.id, doc.expect
    )


def _memory_forget(ctx: NodeContext, doc: ChangeDocument) -> Change:
    return operations.memory_forget(ctx, doc.mesh, doc.key, doc.id, doc.expect)


def _vector_store(ctx: NodeContext, doc: ChangeDocument) -> Change:
    embedding = doc.embedding
    assert embedding is not None
    assert doc.model is not None
    shown = shown_dim(embedding, doc.model.quantization)
    model, content = _model(doc, shown), doc.content or ""
    metadata = None if doc.metadata is UNSET else doc.metadata
    return operations.vector_store(
        ctx, doc.mesh, doc.key, embedding, model, content, metadata, doc.id
    )


def _vector_delete(ctx: NodeContext, doc: ChangeDocument) -> Change:
    model = _model(doc, None)
    return operations.vector_delete(ctx, doc.mesh, doc.key, model, doc.id)


def _file_share(ctx: NodeContext, doc: ChangeDocument) -> Change:
    data = doc.data
    assert data is not None
    if len(data) >= INLINE_BYTES_MAX:
        raise OverLimit(
            f"the file has {len(data)} bytes; here it may have {INLINE_BYTES_MAX - 1}",
            hint="share a larger one with the library, or with: holdfast file share",
        )
    digest = sha256(data).hexdigest()
    return operations.file_share(ctx, doc.mesh, doc.key, digest, len(data), data, doc.id)


def _file_delete(ctx: NodeContext, doc: ChangeDocument) -> Change:
    return operations.file_delete(ctx, doc.mesh, doc.key, doc.id)


def _task_create(ctx: NodeContext, doc: ChangeDocument) -> Change:
    return operations.task_create(ctx, doc.mesh, doc.title or "", doc.description or "", doc.id)


def _task_move(ctx: NodeContext, doc: ChangeDocument) -> Change:
    verb = doc.op.partition(".")[2]
    return operations.task_move(ctx, doc.mesh, verb, doc.key, doc.id)


def _fact_append(ctx: NodeContext, doc: ChangeDocument) -> Change:
    predicate, objects = doc.predicate or "", doc.objects or ()
    return operations.fact_append(
        ctx, doc.mesh, doc.key, predicate, doc.object, doc.id, doc.meta, objects
    )


def _audit_append(ctx: NodeContext, doc: ChangeDocument) -> Change:
    return operations.audit_append(ctx, doc.mesh, doc.key, doc.value, doc.id)


def _model(doc: ChangeDocument, shown: int | None) -> Model:
    named = doc.model
    assert named is not None
    dim = shown if named.dim is None else named.dim
    if dim is None:
        raise BadInput(f"{doc.op} needs the dim of the model")
    return Model(
        provider=named.provider,
        name=named.name,
        version=named.version,
        dim=dim,
        quantization=named.quantization,
    )


def _listed(names: Iterable[str]) -> str:
    return " and ".join(sorted(names))


@dataclass(frozen=True)
class _Kind:
    make: Callable[[NodeContext, ChangeDocument], Change]
    needs: frozenset[str]
    takes: frozenset[str] = frozenset()


def _kind(
    make: Callable[[NodeContext, ChangeDocument], Change], needs: str, takes: str = ""
) -> _Kind:
    return _Kind(make, frozenset(needs.split()), frozenset(takes.split()))


_KINDS: Final = {
    "state.set": _kind(_state_set, "entity value", "meta expect"),
    "state.delete": _kind(_state_delete, "entity", "expect"),
    "memory.set": _kind(_memory_set, "entity value", "tags owner expect"),
    "memory.forget": _kind(_memory_forget, "entity", "owner expect"),
    "vector.store": _kind(_vector_store, "entity model embedding", "content metadata owner"),
    "vector.delete": _kind(_vector_delete, "entity model", "owner"),
    "file.share": _kind(_file_share, "entity data", "owner"),
    "file.delete": _kind(_file_delete, "entity", "owner"),
    "task.create": _kind(_task_create, "title", "description"),
    "task.claim": _kind(_task_move, "entity"),
    "task.release": _kind(_task_move, "entity"),
    "task.complete": _kind(_task_move, "entity"),
    "task.cancel": _kind(_task_move, "entity"),
    "fact.append": _kind(_fact_append, "entity predicate object", "objects meta"),
    "audit.append": _kind(_audit_append, "entity value"),
}
WRITABLE: Final = tuple(_KINDS)
"""Every op that can be written."""
_VALUES: Final = ("value", "object", "metadata")
_FIELDS: Final = tuple(
    name for name in ChangeDocument.__struct_fields__ if name not in ("op", "id", "mesh", *_VALUES)
)
