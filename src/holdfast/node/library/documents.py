"""Local writes of any family that come as documents, many at a time: from programs that are not
written against the library, and from the pipeline's sink.

A document names its op and brings what that op takes, no more and no less: a field that an op has
no use for is likely a mistake, and ignoring it would lose what somebody meant to write. Each must
bring its id, so that a batch that was sent twice is written once.

Many are written together: each stands for itself, and they share commits.
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
from holdfast.rules.bodies import OWNED, family_of
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import BadInput, HoldfastError, IdReused, OverLimit
from holdfast.rules.ids import id_text
from holdfast.rules.limits import INLINE_BYTES_MAX
from holdfast.rules.names import check_peer
from holdfast.rules.vectors import FLOAT_BYTES, Model
from holdfast.storage.ports import Transaction


class ModelName(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which embedding model made a vector."""

    provider: str
    name: str
    version: str = "unknown"
    dim: int | None = None
    """May be left out where the embedding shows it."""
    quantization: str = "float32"


class ChangeDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A write of any family. Each op takes some of the fields and refuses the others."""

    op: str
    id: str
    """A UUID of version 7. The same id with the same content is written once."""
    mesh: str
    entity: str | None = None
    """The key, subject, path or task that it is about; none for a task that is created."""
    owner: str | None = None
    """Whose memory, vector or file it is; this node's own unless said otherwise."""
    value: Any = UNSET
    tags: list[str] | None = None
    predicate: str | None = None
    object: Any = UNSET
    objects: list[str] | None = None
    """Hashes of objects that were put before."""
    model: ModelName | None = None
    embedding: bytes | list[float] | None = None
    """Numbers, or float32 in little-endian order as base64."""
    content: str | None = None
    metadata: Any = UNSET
    data: bytes | None = None
    """The content of a small file, as base64."""
    title: str | None = None
    description: str | None = None
    meta: dict[str, Any] | None = None


def read_change(value: object) -> ChangeDocument:
    """A document, as it came from outside."""
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
"""Ready, or what is wrong with it."""


def prepare(ctx: NodeContext, asked: ChangeDocument) -> PreparedChange:
    """Checks and encodes a change; what needs the state is checked when it is carried out."""
    kind = _KINDS.get(asked.op)
    if kind is None:
        raise BadInput(
            f"there is no op {asked.op!r} to write", hint=f"use one of {', '.join(_KINDS)}"
        )
    given = {name for name in _FIELDS if getattr(asked, name) not in (None, UNSET)}
    # A null is a value as good as any other.
    given |= {name for name in _VALUES if getattr(asked, name) is not UNSET}
    if missing := kind.needs - given:
        raise BadInput(f"{asked.op} needs {_listed(missing)}")
    if surplus := given - kind.needs - kind.takes:
        raise BadInput(
            f"{asked.op} takes no {_listed(surplus)}", hint="leave out what it has no use for"
        )
    if asked.owner is not None:
        check_peer(asked.owner)
    change = kind.make(ctx, asked)
    return _Owned(change) if family_of(asked.op) in OWNED else change


class _Owned:
    """A change of a family with owners. The fingerprint of a change says nothing of its owner, so
    that the same id for another owner has to be looked for."""

    repeatable = True
    __slots__ = ("change",)

    def __init__(self, change: Change) -> None:
        self.change = change

    @property
    def op(self) -> str:
        return self.change.op

    def __call__(self, tx: Transaction) -> Receipt:
        receipt = self.change(tx)
        if receipt.duplicate:
            first = tx.log_find(receipt.raw_id)
            if first is not None and decode_trusted(first.raw).owner != self.change.owner:
                raise IdReused(f"id {id_text(receipt.raw_id)} was used before for another owner")
        return receipt


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


def _state_set(ctx: NodeContext, asked: ChangeDocument) -> Change:
    return operations.state_set(ctx, asked.mesh, _entity(asked), asked.value, asked.id, asked.meta)


def _state_delete(ctx: NodeContext, asked: ChangeDocument) -> Change:
    return operations.state_delete(ctx, asked.mesh, _entity(asked), asked.id)


def _memory_set(ctx: NodeContext, asked: ChangeDocument) -> Change:
    return operations.memory_set(
        ctx, asked.mesh, _entity(asked), asked.value, asked.tags or (), asked.id, asked.owner
    )


def _memory_forget(ctx: NodeContext, asked: ChangeDocument) -> Change:
    _require_own(ctx, asked)
    return operations.memory_forget(ctx, asked.mesh, _entity(asked), asked.id)


def _vector_store(ctx: NodeContext, asked: ChangeDocument) -> Change:
    embedding = asked.embedding
    assert embedding is not None
    shown = len(embedding) // FLOAT_BYTES if isinstance(embedding, bytes) else len(embedding)
    return operations.vector_store(
        ctx,
        asked.mesh,
        _entity(asked),
        embedding,
        _model(asked, shown),
        asked.content or "",
        None if asked.metadata is UNSET else asked.metadata,
        asked.id,
        asked.owner,
    )


def _vector_delete(ctx: NodeContext, asked: ChangeDocument) -> Change:
    model = _model(asked, None)
    return operations.vector_delete(ctx, asked.mesh, _entity(asked), model, asked.id, asked.owner)


def _file_share(ctx: NodeContext, asked: ChangeDocument) -> Change:
    data = asked.data
    assert data is not None
    if len(data) >= INLINE_BYTES_MAX:
        raise OverLimit(
            f"the file has {len(data)} bytes; here it may have {INLINE_BYTES_MAX - 1}",
            hint="share a larger one with the library, or with: holdfast file share",
        )
    digest = sha256(data).hexdigest()
    return operations.file_share(
        ctx, asked.mesh, _entity(asked), digest, len(data), data, asked.id, asked.owner
    )


def _file_delete(ctx: NodeContext, asked: ChangeDocument) -> Change:
    _require_own(ctx, asked)
    return operations.file_delete(ctx, asked.mesh, _entity(asked), asked.id)


def _task_create(ctx: NodeContext, asked: ChangeDocument) -> Change:
    return operations.task_create(
        ctx, asked.mesh, asked.title or "", asked.description or "", asked.id
    )


def _task_move(ctx: NodeContext, asked: ChangeDocument) -> Change:
    verb = asked.op.partition(".")[2]
    return operations.task_move(ctx, asked.mesh, verb, _entity(asked), asked.id)


def _fact_append(ctx: NodeContext, asked: ChangeDocument) -> Change:
    return operations.fact_append(
        ctx,
        asked.mesh,
        _entity(asked),
        asked.predicate or "",
        asked.object,
        asked.id,
        asked.meta,
        asked.objects or (),
    )


def _entity(asked: ChangeDocument) -> str:
    assert asked.entity is not None
    return asked.entity


def _model(asked: ChangeDocument, shown: int | None) -> Model:
    named = asked.model
    assert named is not None
    dim = shown if named.dim is None else named.dim
    if dim is None:
        raise BadInput(f"{asked.op} needs the dim of the model")
    return Model(
        provider=named.provider,
        name=named.name,
        version=named.version,
        dim=dim,
        quantization=named.quantization,
    )


def _require_own(ctx: NodeContext, asked: ChangeDocument) -> None:
    if asked.owner not in (None, ctx.peer):
        raise BadInput(f"{asked.op} is for what is this node's own, and {asked.owner!r} is not it")


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
    "state.set": _kind(_state_set, "entity value", "meta"),
    "state.delete": _kind(_state_delete, "entity"),
    "memory.set": _kind(_memory_set, "entity value", "tags owner"),
    "memory.forget": _kind(_memory_forget, "entity", "owner"),
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
}
WRITABLE: Final = tuple(_KINDS)
"""Every op that can be written."""
_VALUES: Final = ("value", "object", "metadata")
_FIELDS: Final = tuple(
    name for name in ChangeDocument.__struct_fields__ if name not in ("op", "id", "mesh", *_VALUES)
)
