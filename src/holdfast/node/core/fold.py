"""The fold, from the log to the tables: what one envelope changes in the table of its family.

Own and foreign envelopes take the same path, so a table is always the fold of its log: replaying
the log into an empty store gives the same rows. What a merge discards goes to the conflict ledger
in the same transaction.

`current` is the version that the envelope meets. A local write looks it up before it is stamped,
because it becomes the base of the new envelope. It is passed on, so that it is looked up once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from holdfast.node.core import ledger
from holdfast.rules.bodies import (
    OPS,
    AuditAppend,
    Body,
    Fact,
    FileShare,
    MemorySet,
    StateSet,
    VectorDelete,
    VectorStore,
    family_of,
)
from holdfast.rules.order import Version, is_newer, version_of
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import BlobRow, FileRow, MemoryRow, StateRow, VectorRow, VersionedRow

if TYPE_CHECKING:
    from holdfast.node.core.context import NodeContext
    from holdfast.rules.audit_chain import AuditRow
    from holdfast.rules.envelope import Envelope
    from holdfast.storage.ports import Reader, Transaction


def current_version(tx: Reader, envelope_or_change: Any, body: Body) -> Version | None:
    """The version that a change of this mesh, op, owner and entity meets."""
    find = CURRENT.get(envelope_or_change.op)
    return None if find is None else find(tx, envelope_or_change, body)


def is_live(tx: Reader, envelope: Envelope, body: Body) -> bool:
    """Whether the version that an envelope meets is a live row, not a deletion."""
    mesh, owner, entity = envelope.mesh, envelope.owner, envelope.entity
    model = model_of(body)
    if model is not None:
        return tx.vector_live(mesh, owner, entity, model) is not None
    row: VersionedRow | None
    if family_of(envelope.op) == "state":
        row = tx.state_get(mesh, entity)
    elif family_of(envelope.op) == "memory":
        row = tx.memory_get(mesh, owner, entity)
    else:
        row = tx.file_get(mesh, owner, entity)
    return row is not None and not row.tombstone


def fold(
    tx: Transaction,
    ctx: NodeContext,
    envelope: Envelope,
    body: Body | None,
    offset: int,
    current: Version | None,
) -> Outcome:
    """Applies an envelope that has just been appended to the log at `offset`."""
    apply = FOLDS.get(envelope.op)
    if apply is None or body is None:
        # An op of a newer version: the log keeps it, no table does.
        return Outcome.APPLIED
    return apply(tx, ctx, envelope, body, offset, current)


# --- the last writer wins ------------------------------------------------------------------------


def _state_current(tx: Reader, change: Any, body: Body) -> Version | None:
    return tx.state_version(change.mesh, change.entity)


def _fold_state(
    tx: Transaction,
    ctx: NodeContext,
    envelope: Envelope,
    body: Body,
    offset: int,
    current: Version | None,
) -> Outcome:
    if current is not None and not ledger.settle(tx, ctx, envelope, current):
        return Outcome.SUPERSEDED
    tx.state_put(state_row_of(envelope, body, offset))
    if current is None:
        ledger.first(tx, envelope)
    return Outcome.APPLIED


def state_row_of(envelope: Envelope, body: Body, offset: int) -> StateRow:
    """What an envelope at this offset makes of its key: a value, or a deletion."""
    return StateRow(
        mesh=envelope.mesh,
        key=envelope.entity,
        value=body.value if isinstance(body, StateSet) else b"null",
        lamport=envelope.lamport,
        peer=envelope.origin,
        id=envelope.id,
        offset=offset,
        updated_at=envelope.created_at,
        tombstone=not isinstance(body, StateSet),
    )


def _memory_current(tx: Reader, change: Any, body: Body) -> Version | None:
    row = tx.memory_get(change.mesh, change.owner, change.entity)
    return None if row is None else row.version


def _fold_memory(
    tx: Transaction,
    ctx: NodeContext,
    envelope: Envelope,
    body: Body,
    offset: int,
    current: Version | None,
) -> Outcome:
    if current is not None and not is_newer(version_of(envelope), current):
        return Outcome.SUPERSEDED
    e = envelope
    at = version_of(e), offset, e.created_at
    tx.memory_put(memory_row_of(e.mesh, e.owner, e.entity, body, *at))
    return Outcome.APPLIED


def memory_row_of(
    mesh: str, owner: str, key: str, body: Body, version: Version, offset: int, updated_at: int
) -> MemoryRow:
    """The row of a version with this body: a memory, or that it was forgotten."""
    of = body if isinstance(body, MemorySet) else None
    return MemoryRow(
        mesh=mesh,
        owner=owner,
        key=key,
        value=b"null" if of is None else of.value,
        tags=() if of is None else of.tags,
        created_at=0 if of is None else of.created_at,
        lamport=version.lamport,
        peer=version.peer,
        id=version.id,
        offset=offset,
        updated_at=updated_at,
        tombstone=of is None,
    )


# --- files ---------------------------------------------------------------------------------------


def _file_current(tx: Reader, change: Any, body: Body) -> Version | None:
    row = tx.file_get(change.mesh, change.owner, change.entity)
    return None if row is None else row.version


def _fold_file(
    tx: Transaction,
    ctx: NodeContext,
    envelope: Envelope,
    body: Body,
    offset: int,
    current: Version | None,
) -> Outcome:
    before = tx.file_get(envelope.mesh, envelope.owner, envelope.entity)
    if current is not None and not is_newer(version_of(envelope), current):
        return Outcome.SUPERSEDED
    share = body if isinstance(body, FileShare) else None
    row = FileRow(
        mesh=envelope.mesh,
        owner=envelope.owner,
        path=envelope.entity,
        sha256="" if share is None else share.sha256.hex(),
        size=0 if share is None else share.size,
        content=None if share is None else share.content,
        created_at=0 if share is None else share.created_at,
        lamport=envelope.lamport,
        peer=envelope.origin,
        id=envelope.id,
        offset=offset,
        updated_at=envelope.created_at,
        tombstone=share is None,
    )
    tx.file_put(row)
    if row.in_blob:
        _hold_blob(tx, ctx, row.sha256, row.size)
    if before is not None and before.in_blob and tx.blob_refs(before.sha256) == 0:
        known = tx.blob_get(before.sha256)
        assert known is not None, "a live row named a blob that was not registered"
        tx.blob_put(
            msgspec.structs.replace(known, released_at=ctx.now_ms(), released_offset=offset)
        )
    return Outcome.APPLIED


def _hold_blob(tx: Transaction, ctx: NodeContext, sha256: str, size: int) -> None:
    """Registers a blob that a row names. One whose file was to be removed is kept."""
    known = tx.blob_get(sha256)
    if known is None or known.released_at is not None:
        tx.blob_put(BlobRow(sha256=sha256, size=size, created_at=ctx.now_ms()))


# --- facts ---------------------------------------------------------------------------------------


def _fold_fact(
    tx: Transaction,
    ctx: NodeContext,
    envelope: Envelope,
    body: Body,
    offset: int,
    current: Version | None,
) -> Outcome:
    """A fact has no table besides the log. The objects that it names are kept as long as it is."""
    assert isinstance(body, Fact)
    if body.objects:
        named = [digest.hex() for digest in body.objects]
        for sha256 in named:
            # Unlike a file, a fact does not tell their sizes.
            here = ctx.blobs.exists(sha256)
            _hold_blob(tx, ctx, sha256, ctx.blobs.size(sha256) if here else 0)
        tx.fact_objects_put(offset, named)
    return Outcome.APPLIED


# --- audit streams -------------------------------------------------------------------------------


def refuse_forked_event(tx: Reader, event: AuditRow) -> None:
    """Raises AuditForked unless an event fits to what its chain has here."""
    # Here, as for tasks: a write of one key should not load what other families need.
    from holdfast.rules.audit_chain import Neighbours, refuse_fork

    chain = event.chain
    places = (event.seq, event.seq - 1, event.seq + 1)
    refuse_fork(event, Neighbours(*(tx.audit_get(chain, seq) for seq in places)))


def _fold_event(
    tx: Transaction,
    ctx: NodeContext,
    envelope: Envelope,
    body: Body,
    offset: int,
    current: Version | None,
) -> Outcome:
    """Adds an event to its chain. One that is there comes again because its id was forgotten."""
    assert isinstance(body, AuditAppend)
    added = tx.audit_add(body.event(envelope, offset))
    return Outcome.APPLIED if added else Outcome.NOOP_ALREADY_APPLIED


# --- vectors -------------------------------------------------------------------------------------


def _vector_current(tx: Reader, change: Any, body: Body) -> Version | None:
    model = model_of(body)
    assert model is not None
    return tx.vector_newest(change.mesh, change.owner, change.entity, model)


def model_of(body: Body) -> str | None:
    """The fingerprint of the model that a vector is about; None for other families."""
    if isinstance(body, VectorStore):
        return body.identity().fingerprint
    return body.model_id if isinstance(body, VectorDelete) else None


def _fold_vector(
    tx: Transaction,
    ctx: NodeContext,
    envelope: Envelope,
    body: Body,
    offset: int,
    current: Version | None,
) -> Outcome:
    """Adds a row for every store and every delete. The newest row decides which one is live, or
    that none is.
    """
    newest = current is None or is_newer(version_of(envelope), current)
    model = model_of(body)
    assert model is not None
    if newest:
        tx.vector_retire(envelope.mesh, envelope.owner, envelope.entity, model)
    store = body if isinstance(body, VectorStore) else None
    row = VectorRow(
        mesh=envelope.mesh,
        owner=envelope.owner,
        key=envelope.entity,
        model=model,
        content="" if store is None else store.content,
        metadata=b"null" if store is None else store.metadata,
        embedding=b"" if store is None else store.embedding,
        lamport=envelope.lamport,
        peer=envelope.origin,
        id=envelope.id,
        offset=offset,
        updated_at=envelope.created_at,
        tombstone=store is None,
        live=newest and store is not None,
    )
    if store is None:
        tx.vector_bury(row)
    else:
        tx.vector_add(row, store.identity())
    return Outcome.APPLIED if newest else Outcome.SUPERSEDED


def _fold_task(
    tx: Transaction,
    ctx: NodeContext,
    envelope: Envelope,
    body: Body,
    offset: int,
    current: Version | None,
) -> Outcome:
    # Here, because a write of one key should not load what the turns of tasks need.
    from holdfast.node.core.fold_tasks import fold_task

    return fold_task(tx, ctx, envelope, body, offset, current)


_Find: TypeAlias = "Callable[[Reader, Any, Body], Version | None]"
_Fold: TypeAlias = (
    "Callable[[Transaction, NodeContext, Envelope, Body, int, Version | None], Outcome]"
)

_FAMILIES: Final[dict[str, tuple[_Find | None, _Fold]]] = {
    "state": (_state_current, _fold_state),
    "memory": (_memory_current, _fold_memory),
    "file": (_file_current, _fold_file),
    "vector": (_vector_current, _fold_vector),
    "task": (None, _fold_task),
    "fact": (None, _fold_fact),
    "audit": (None, _fold_event),
}
_BY_OP: Final = {op: _FAMILIES[family_of(op)] for op in OPS if family_of(op) in _FAMILIES}
CURRENT: Final = {op: find for op, (find, _) in _BY_OP.items() if find is not None}
FOLDS: Final = {op: apply for op, (_, apply) in _BY_OP.items()}
"""`CURRENT` and `FOLDS` are by op: local writes look them up directly, which saves a call."""
