"""Turns of tasks in a mesh with voters: the same verbs, decided by the quorum.

Whether a turn is allowed is asked of this home's store first, so that most refusals cost nothing. A
refusal is not believed before a majority has confirmed that the store is up to date. What is
committed decides in the end: a claim that came second is `TaskTaken`, whatever the store said.

A turn that found no quorum waits in the queue. Its caller gets `WriteQueued`: it does not hold the
task, and may hold it later.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.node.core.change import Change, known_receipt
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.operations import TaskMove, require_task
from holdfast.node.library.quorum_reach import Reach
from holdfast.node.quorum.api import QuorumApi, ReadDemand, StrongReceipt
from holdfast.rules.bodies import TaskTurn, encode_body
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import Conflict, NotFresh, TaskTaken, UnknownTask, WriteQueued
from holdfast.rules.ids import id_text
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import TaskRow
from holdfast.storage.ports import Reader


async def strong_turn(engine: NodeEngine, api: QuorumApi, change: Change) -> TaskRow:
    """Brings a turn into the order, and returns the task as it then stands."""
    if not engine.read("task.known", lambda tx: _was_before_voters(tx, change)):
        body = change.encoded
        if isinstance(change, TaskMove) and not engine.read("task.known", _is_decided(change)):
            body = await _allowed(engine, api, change)
        receipt = await api.intend(
            change.mesh, change.op, change.entity, body, id=id_text(change.id)
        )
        _settle(engine, change, receipt)
    return engine.read("task.get", lambda tx: require_task(tx, change.mesh, change.entity))


async def ask_turn(engine: NodeEngine, reach: Reach, change: Change) -> TaskRow:
    """The same, by whoever holds the quorums of the home."""
    return await strong_turn(engine, await reach(), change)


def _was_before_voters(tx: Reader, change: Change) -> bool:
    """The same turn was made when the mesh had no voters. IdReused if the id is another's."""
    entry = tx.log_find(change.id) if change.given else None
    if entry is None or decode_trusted(entry.raw).write_class == "strong":
        return False
    return known_receipt(tx, change.id, change.fingerprint, change.mesh) is not None


def _is_decided(change: Change) -> Callable[[Reader], bool]:
    return lambda tx: change.given and bool(tx.intents_known(change.mesh, [change.id]))


async def _allowed(engine: NodeEngine, api: QuorumApi, change: TaskMove) -> bytes:
    """The body of a turn that the state of its task allows."""

    def look(tx: Reader) -> bytes:
        row = require_task(tx, change.mesh, change.entity)
        change.allow(row)
        turns = isinstance(change.body, TaskTurn)
        return encode_body(TaskTurn(row.generation)) if turns else change.encoded

    try:
        return engine.read("task.get", look)
    except (Conflict, UnknownTask) as refusal:
        try:
            await api.confirm(change.mesh, ReadDemand())
        except NotFresh:
            raise refusal from None  # nothing was written, and nothing better is known
        return engine.read("task.get", look)


def _settle(engine: NodeEngine, change: Change, receipt: StrongReceipt) -> None:
    """Raises unless the turn took effect."""
    if receipt.state == "queued":
        raise WriteQueued(
            f"{change.op} {change.entity} waits for a quorum as {receipt.id}: {receipt.detail}"
        )
    if receipt.outcome is not Outcome.SUPERSEDED:
        return
    row = engine.read("task.get", lambda tx: require_task(tx, change.mesh, change.entity))
    if isinstance(change, TaskMove):
        change.allow(row)
    raise TaskTaken(
        f"task {row.task} moved on before the quorum decided: it is {row.status}",
        hint="look at it again, then decide with a new id",
    )
