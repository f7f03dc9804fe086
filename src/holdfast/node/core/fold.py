"""The fold, from the log to the tables: what one envelope changes in the table of its family.

Own and foreign envelopes take the same path, so a table is always the fold of its log: replaying
the log into an empty store gives the same rows. What a merge discards goes to the conflict ledger
in the same transaction.

`current` is the version that the envelope meets. A local write looks it up before it is stamped,
because it becomes the base of the new envelope. It is passed on, so that it is looked up once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.node.core.context import NodeContext
from holdfast.node.core.fold_tasks import fold_task
from holdfast.rules.bodies import (
    NOTHING,
    OPS,
    Body,
    Fact,
    FileShare,
    MemorySet,
    StateSet,
    VectorDelete,
    VectorStore,
    encode_body,
    family_of,
)
from holdfast.rules.envelope import Envelope, decode_trusted
from holdfast.rules.merge import MergeVerdict, last_writer_wins, version_of
from holdfast.rules.order import Version, is_newer
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import BlobRow, ConflictRow, FileRow, MemoryRow, StateRow, VectorRow
from holdfast.storage.ports import Reader, Transaction


def current_version(tx: Reader, envelope_or_change: Any, body: Body) -> Version | None:
    """The version that a change of this mesh, op, owner and entity meets."""
    find = CURRENT.get(envelope_or_change.op)
    return None if find is None else find(tx, envelope_or_change, body)


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


def _judge(tx: Reader, envelope: Envelope, current: Version) -> MergeVerdict:
    incoming = version_of(envelope)
    current_base = None
    if not is_newer(incoming, current):
        # Only for an older envelope it matters what the writer of the current version had seen.
        entry = tx.log_find(current.id)
        current_base = None if entry is None else decode_trusted(entry.raw).base
    return last_writer_wins(incoming, envelope.base, current, current_base)


def _settle(
    tx: Transaction,
    ctx: NodeContext,
    envelope: Envelope,
    current: Version,
    replaced: Callable[[Transaction, Envelope], tuple[str, bytes]],
) -> bool:
    """Decides between an envelope and the version that it meets, and notes in the ledger what that
    discards. Returns whether the envelope is applied.
    """
    base = envelope.base
    if base is not None and base.lamport == current.lamport and base.peer == current.peer:
        return True  # the plain case: its writer saw what is here now
    verdict = _judge(tx, envelope, current)
    if verdict.discards:
        incoming = version_of(envelope)
        if verdict is MergeVerdict.LOSES:
            winner, loser = current, incoming
            loser_op, loser_body = envelope.op, envelope.body
        else:
            winner, loser = incoming, current
            loser_op, loser_body = replaced(tx, envelope)
        _note(
            tx,
            ConflictRow(
                mesh=envelope.mesh,
                family=family_of(envelope.op),
                owner=envelope.owner,
                entity=envelope.entity,
                reason="both were written without knowing of the other; the higher stamp wins",
                winner=winner,
                loser=loser,
                loser_op=loser_op,
                loser_body=loser_body,
                found_at=ctx.now_ms(),
            ),
        )
    return verdict.applies


def _note(tx: Transaction, row: ConflictRow) -> None:
    """Keeps one entry for all that a peer wrote without knowing of the others: its own later write
    replaced its earlier ones, so only the last can be missed.
    """
    waiting = tx.conflict_open(row.mesh, row.family, row.owner, row.entity, row.loser.peer)
    if waiting is None:
        tx.conflict_add(row)
    elif is_newer(row.loser, waiting.loser):
        tx.conflict_change(msgspec.structs.replace(row, number=waiting.number))


def _state_current(tx: Reader, change: Any, body: Body) -> Version | None:
    return tx.state_version(change.mesh, change.entity)


def _state_replaced(tx: Reader, envelope: Envelope) -> tuple[str, bytes]:
    row = tx.state_get(envelope.mesh, envelope.entity)
    assert row is not None
    if row.tombstone:
        return "state.delete", NOTHING
    return "state.set", encode_body(StateSet(row.value))


def _fold_state(
    tx: Transaction,
    ctx: NodeContext,
    envelope: Envelope,
    body: Body,
    offset: int,
    current: Version | None,
) -> Outcome:
    if current is not None and not _settle(tx, ctx, envelope, current, _state_replaced):
        return Outcome.SUPERSEDED
    tx.state_put(
        StateRow(
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
    )
    return Outcome.APPLIED


def _memory_current(tx: Reader, change: Any, body: Body) -> Version | None:
    row = tx.memory_get(change.mesh, change.owner, change.entity)
    return None if row is None else row.version


def _memory_replaced(tx: Reader, envelope: Envelope) -> tuple[str, bytes]:
    row = tx.memory_get(envelope.mesh, envelope.owner, envelope.entity)
    assert row is not None
    if row.tombstone:
        return "memory.forget", NOTHING
    return "memory.set", encode_body(MemorySet(row.value, row.tags))


def _fold_memory(
    tx: Transaction,
    ctx: NodeContext,
    envelope: Envelope,
    body: Body,
    offset: int,
    current: Version | None,
) -> Outcome:
    if current is not None and not _settle(tx, ctx, envelope, current, _memory_replaced):
        return Outcome.SUPERSEDED
    tx.memory_put(
        MemoryRow(
            mesh=envelope.mesh,
            owner=envelope.owner,
            key=envelope.entity,
            value=body.value if isinstance(body, MemorySet) else b"null",
            tags=body.tags if isinstance(body, MemorySet) else (),
            lamport=envelope.lamport,
            peer=envelope.origin,
            id=envelope.id,
            offset=offset,
            updated_at=envelope.created_at,
            tombstone=not isinstance(body, MemorySet),
        )
    )
    return Outcome.APPLIED


# --- files ---------------------------------------------------------------------------------------


def _file_current(tx: Reader, change: Any, body: Body) -> Version | None:
    row = tx.file_get(change.mesh, change.owner, change.entity)
    return None if row is None else row.version


def _file_replaced(tx: Reader, envelope: Envelope) -> tuple[str, bytes]:
    row = tx.file_get(envelope.mesh, envelope.owner, envelope.entity)
    assert row is not None
    if row.tombstone:
        return "file.delete", NOTHING
    return "file.share", encode_body(FileShare(bytes.fromhex(row.sha256), row.size, row.content))


def _fold_file(
    tx: Transaction,
    ctx: NodeContext,
    envelope: Envelope,
    body: Body,
    offset: int,
    current: Version | None,
) -> Outcome:
    before = tx.file_get(envelope.mesh, envelope.owner, envelope.entity)
    if current is not None and not _settle(tx, ctx, envelope, current, _file_replaced):
        return Outcome.SUPERSEDED
    share = body if isinstance(body, FileShare) else None
    row = FileRow(
        mesh=envelope.mesh,
        owner=envelope.owner,
        path=envelope.entity,
        sha256="" if share is None else share.sha256.hex(),
        size=0 if share is None else share.size,
        content=None if share is None else share.content,
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


# --- vectors -------------------------------------------------------------------------------------


def _vector_current(tx: Reader, change: Any, body: Body) -> Version | None:
    return tx.vector_newest(change.mesh, change.owner, change.entity, _model_id(body))


def _model_id(body: Body) -> str:
    if isinstance(body, VectorStore):
        return body.identity().fingerprint
    assert isinstance(body, VectorDelete)
    return body.model_id


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
    model = _model_id(body)
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


_Find = Callable[[Reader, Any, Body], Version | None]
_Fold = Callable[[Transaction, NodeContext, Envelope, Body, int, Version | None], Outcome]

_FAMILIES: Final[dict[str, tuple[_Find | None, _Fold]]] = {
    "state": (_state_current, _fold_state),
    "memory": (_memory_current, _fold_memory),
    "file": (_file_current, _fold_file),
    "vector": (_vector_current, _fold_vector),
    "task": (None, fold_task),
    "fact": (None, _fold_fact),
}
_BY_OP: Final = {op: _FAMILIES[family_of(op)] for op in OPS if family_of(op) in _FAMILIES}
CURRENT: Final = {op: find for op, (find, _) in _BY_OP.items() if find is not None}
FOLDS: Final = {op: apply for op, (_, apply) in _BY_OP.items()}
"""`CURRENT` and `FOLDS` are by op: local writes look them up directly, which saves a call."""
