"""Conflicts and failed writes, and how a person, an agent or a policy ends them.

An intent that clashed, or that failed for good, is on record with its envelope in the log. Whoever
settles it says which side stands: what is committed (then nothing is written), what the intent
wanted, or something of their own. Those two are written as a new intent, on the revisions that
stand now: if one of them has moved meanwhile, that is a new conflict, and nobody's write is lost.

A list of conflicts is this node's own, as its queue is: what settles one is a change of entities,
which all nodes see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.write_queue import queue_get, queue_list, queue_put
from holdfast.node.log.entity_history import conflict_sides
from holdfast.node.quorum.api import QuorumApi, StrongReceipt
from holdfast.node.quorum.documents import (
    QuorumConflictDocument,
    ReceiptDocument,
    SettleAsked,
    SettledConflict,
    WriteDocument,
)
from holdfast.node.quorum.entity_writes import change_entities
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import (
    AlreadyResolved,
    BadInput,
    StoreCorrupt,
    UnknownConflict,
    UnknownMessage,
)
from holdfast.rules.ids import id_text
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.quorum.intents import EntityChange, EntityOperation, decode_intent
from holdfast.rules.quorum.state_rows import WaitingConflict
from holdfast.rules.quorum.write_queue import QueuedWrite, WriteStatus, resolved
from holdfast.storage.ports import Reader, Transaction

_HINT = "see: holdfast writes list --mesh {mesh}"


# --- what is there ---------------------------------------------------------------------------


def write_page(
    tx: Reader, mesh: str, after: int, limit: int, statuses: Sequence[str] = ()
) -> tuple[list[WriteDocument], int | None]:
    """Writes with a number > after, and where to go on; None at the end."""
    found: list[WriteDocument] = []
    while len(found) < limit:
        rows = queue_list(tx, mesh, after, min(limit, CHUNK_ROWS))
        if not rows:
            return found, None
        for number, write in rows:
            after = number
            if not statuses or write.status.value in statuses:
                found.append(_document(tx, number, write))
                if len(found) == limit:
                    break
    return found, after


def write_of(tx: Reader, mesh: str, id: bytes) -> WriteDocument:
    write = queue_get(tx, mesh, id)
    if write is None:
        raise UnknownMessage(
            f"no write {id_text(id)} of {mesh!r} ever waited here", hint=_HINT.format(mesh=mesh)
        )
    row = tx.outbox_get(f"quorum:{mesh}", id)
    assert row is not None, "its write was made of it"
    return _document(tx, row.number, write)


def _document(tx: Reader, number: int, write: QueuedWrite) -> WriteDocument:
    entry = tx.log_find(write.id)
    op, entity = ("", "") if entry is None else (entry.op, entry.entity)
    return WriteDocument.of(number, write, op, entity)


def conflict_page(
    tx: Reader, mesh: str, after: int, limit: int, *, open_only: bool
) -> list[QuorumConflictDocument]:
    """Conflicts with a number > after, with both sides of each."""
    found = tx.waiting_conflicts(mesh, after, limit, open_only=open_only)
    return [_conflict_document(tx, one) for one in found]


def conflict_of(tx: Reader, mesh: str, number: int) -> QuorumConflictDocument:
    return _conflict_document(tx, _conflict(tx, mesh, number))


def _conflict(tx: Reader, mesh: str, number: int) -> WaitingConflict:
    found = tx.waiting_conflicts(mesh, number - 1, 1, open_only=False)
    if not found or found[0].number != number:
        raise UnknownConflict(
            f"commit {number} of {mesh!r} is no conflict",
            hint=f"see: holdfast writes conflicts --mesh {mesh}",
        )
    return found[0]


def _conflict_document(tx: Reader, waiting: WaitingConflict) -> QuorumConflictDocument:
    intent = _intent_of(tx, waiting)
    return QuorumConflictDocument.of(waiting, intent, conflict_sides(tx, waiting))


def _intent_of(tx: Reader, waiting: WaitingConflict) -> bytes:
    commits = tx.commit_range(waiting.mesh, waiting.number, 1)
    if not commits or commits[0].number != waiting.number:
        raise StoreCorrupt(f"there is no record of commit {waiting.number} of {waiting.mesh!r}")
    return commits[0].id


# --- settling it -----------------------------------------------------------------------------


class _Case(NamedTuple):
    """One intent that is to be settled."""

    intent: bytes
    wanted: tuple[EntityOperation, ...]
    """On the revisions that stand now."""
    number: int | None
    """Of the conflict that it made; None if it failed for another reason."""


async def settle_conflict(
    engine: NodeEngine, quorum: QuorumApi, mesh: str, number: int, asked: SettleAsked
) -> SettledConflict:
    """Ends a conflict. AlreadyResolved if somebody did before."""

    def look(tx: Reader) -> _Case:
        waiting = _conflict(tx, mesh, number)
        if waiting.resolved_at is not None:
            raise AlreadyResolved(f"conflict {number} was settled: {waiting.resolution}")
        return _case(tx, mesh, _intent_of(tx, waiting), number)

    return await _settle(engine, quorum, mesh, engine.read("conflict.get", look), asked)


async def settle_write(
    engine: NodeEngine, quorum: QuorumApi, mesh: str, id: bytes, asked: SettleAsked
) -> SettledConflict:
    """Ends a write of this node that failed. AlreadyResolved unless it waits for that."""

    def look(tx: Reader) -> _Case:
        write = queue_get(tx, mesh, id)
        if write is None:
            write_of(tx, mesh, id)  # says that it is not known
            raise AssertionError("it is not known")
        resolved(write, "asked")
        commit = tx.commit_of(mesh, id)
        number = None if commit is None else commit.number
        waits = number is not None and bool(
            [one for one in tx.waiting_conflicts(mesh, number - 1, 1) if one.number == number]
        )
        return _case(tx, mesh, id, number if waits else None)

    return await _settle(engine, quorum, mesh, engine.read("write.get", look), asked)


async def _settle(
    engine: NodeEngine, quorum: QuorumApi, mesh: str, case: _Case, asked: SettleAsked
) -> SettledConflict:
    receipt = await _written(engine, quorum, mesh, case, asked)
    by = asked.by or engine.ctx.peer
    resolution = f"{asked.take} by {by}" + (f": {asked.note}" if asked.note else "")
    if receipt is not None:
        resolution += f" ({receipt.state} as {receipt.id})"
    now = engine.ctx.now_ms()

    def note(tx: Transaction) -> None:
        if case.number is not None:
            tx.waiting_conflict_resolve(mesh, case.number, resolution, now)
        write = queue_get(tx, mesh, case.intent)
        if write is not None and write.status is WriteStatus.FAILED and not write.resolved_by:
            queue_put(tx, resolved(write, resolution))

    engine.write("conflict.settle", note)
    return SettledConflict(
        mesh=mesh,
        number=case.number or 0,
        resolution=resolution,
        receipt=None if receipt is None else ReceiptDocument.of(receipt),
    )


async def _written(
    engine: NodeEngine, quorum: QuorumApi, mesh: str, case: _Case, asked: SettleAsked
) -> StrongReceipt | None:
    asked.check()
    if asked.take == "committed":
        return None
    if asked.take == "intent":
        if not case.wanted:
            raise BadInput(
                "only changes of entities can be written again",
                hint="do it anew, and let what is committed stand here: --take committed",
            )
        return await change_entities(quorum, mesh, case.wanted)
    given = [one.operation for one in asked.operations]
    rebased = engine.read(
        "entity.bases", lambda tx: tuple(_rebased(tx, mesh, one) for one in given)
    )
    return await change_entities(quorum, mesh, rebased)


def _case(tx: Reader, mesh: str, intent: bytes, number: int | None) -> _Case:
    entry = tx.log_find(intent)
    if entry is None:
        return _Case(intent, (), number)
    body = decode_intent(decode_trusted(entry.raw))
    if not isinstance(body, EntityChange):
        return _Case(intent, (), number)
    # A fence or an epoch of then would only be refused again: whoever settles it knows better.
    wanted = (replace(one, base=None, guard=None, expected_epoch=None) for one in body.operations)
    return _Case(intent, tuple(_rebased(tx, mesh, one) for one in wanted), number)


def _rebased(tx: Reader, mesh: str, operation: EntityOperation) -> EntityOperation:
    """An operation on what stands now; one that names its base keeps it."""
    if operation.base is not None:
        return operation
    row = tx.entity_get(mesh, operation.type, operation.id)
    base = 0 if row is None else row.revision
    return replace(operation, base=base)
