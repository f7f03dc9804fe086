"""The conflict ledger: what merges discarded, and how to get it back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.node.core import operations
from holdfast.node.core.change import Change, Receipt, known_receipt
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.ledger import with_winner
from holdfast.rules.bodies import Body, FileShare, MemorySet, decode_loose, decode_value
from holdfast.rules.errors import AlreadyResolved, BlobMissing, NotOurs, UnknownConflict
from holdfast.rules.ids import id_text
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.rows import ConflictRow
from holdfast.storage.ports import Reader, Transaction


def list_all(
    engine: NodeEngine, mesh: str | None, *, open_only: bool, after: int = 0
) -> Iterator[ConflictRow]:
    behind = after

    def page(tx: Reader) -> Sequence[ConflictRow]:
        nonlocal behind
        rows = tx.conflict_list(mesh, open_only=open_only, after=behind, limit=CHUNK_ROWS)
        behind = rows[-1].number if rows else behind
        return [with_winner(tx, row) for row in rows]

    return engine.pages(page)


def get(engine: NodeEngine, number: int) -> ConflictRow:
    return engine.read("conflict.get", lambda tx: with_winner(tx, _require(tx, number)))


def restore(engine: NodeEngine, number: int, id: str | None) -> Receipt:
    """The loser as a new write: it gets a new stamp, so it wins, and the ledger says so."""
    row = get(engine, number)
    change = _rewrite(engine, row, id)

    def work(tx: Transaction) -> Receipt:
        if id is not None and (known := known_receipt(tx, change.id, change.fingerprint, row.mesh)):
            return known
        found = _require(tx, number)
        if found.resolved_at is not None:
            raise AlreadyResolved(f"conflict {number} was resolved before: {found.resolution}")
        # First, because the write may see the version that is restored: what waits would then go.
        tx.conflict_resolve(number, f"restored as {id_text(change.id)}", engine.ctx.now_ms())
        return change(tx)

    try:
        return engine.write("conflict.restore", work)
    except operations.BlobGone:
        raise BlobMissing(
            f"the content of the discarded version of {row.entity!r} is no longer on the disk"
        ) from None


def dismiss(engine: NodeEngine, number: int) -> None:
    def work(tx: Transaction) -> None:
        if _require(tx, number).resolved_at is None:
            tx.conflict_resolve(number, "dismissed", engine.ctx.now_ms())

    engine.write("conflict.dismiss", work)


def _rewrite(engine: NodeEngine, row: ConflictRow, id: str | None) -> Change:
    if row.family == "task":
        # Not the old turn but a new attempt: the task may have moved on since.
        return operations.task_move(
            engine.ctx, row.mesh, row.loser_op.partition(".")[2], row.entity, id
        )
    if row.owner and row.owner != engine.ctx.peer:
        raise NotOurs(
            f"{row.entity!r} is {row.owner}'s, and only {row.owner} can write it again",
            hint=f"restore it at the node of {row.owner}, or: holdfast conflict dismiss",
        )
    body: Body = decode_loose(row.loser_op, row.loser_body)
    # In their transactions both look at when what they replace was first made; a share looks for
    # its blob, which a sweep may remove until then.
    if isinstance(body, FileShare):
        content = (body.sha256.hex(), body.size, body.content)
        return operations.file_share(engine.ctx, row.mesh, row.entity, *content, id)
    if isinstance(body, MemorySet):
        value = decode_value(body.value)
        return operations.memory_set(engine.ctx, row.mesh, row.entity, value, body.tags, id)
    return Change(engine.ctx, row.mesh, row.loser_op, row.entity, body, owner=row.owner, id=id)


def _require(tx: Reader, number: int) -> ConflictRow:
    row = tx.conflict_get(number)
    if row is None:
        raise UnknownConflict(f"there is no conflict {number}")
    return row
