"""The fold of tasks: from turns (create, claim, release …) to the task and its history.

A turn that is newer than all others is one step further. A turn that belongs further back folds the
task again from all its turns. So does a release: it may open a generation that later turns have
named already. When that changes the verdict on a turn, the new verdict is stored, a lost turn goes
to the conflict ledger, and a peer whose claim was superseded is warned on its next call.
"""

from __future__ import annotations

import msgspec

from holdfast.node.core.context import NodeContext
from holdfast.rules import tasks
from holdfast.rules.bodies import NOTHING, Body, TaskCreate, TaskTurn
from holdfast.rules.envelope import Envelope
from holdfast.rules.merge import version_of
from holdfast.rules.order import Version, is_newer
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import ConflictRow, TaskEventRow, TaskRow, WarningRow
from holdfast.storage.ports import Transaction


def fold_task(
    tx: Transaction,
    ctx: NodeContext,
    envelope: Envelope,
    body: Body,
    offset: int,
    current: Version | None,
) -> Outcome:
    """`current` is not used: a turn meets the task as a whole."""
    turn = _turn(envelope, body)
    row = tx.task_get(envelope.mesh, envelope.entity)
    newest = row is None or is_newer(turn.version, row.last)
    if row is None or (newest and turn.kind != "release"):
        task, judged = tasks.step(tasks.Task() if row is None else task_of(row), turn)
        known: list[TaskEventRow] = []
        history = [judged]
        last, updated_at = turn.version, envelope.created_at
    else:
        known = tx.task_events(envelope.mesh, envelope.entity)
        if any(event.version == turn.version for event in known):
            # It was folded before, and its id was forgotten since.
            return Outcome.NOOP_ALREADY_APPLIED
        task, history = tasks.fold([*(_turn_of(event) for event in known), turn])
        if newest:
            last, updated_at = turn.version, envelope.created_at
        else:
            last, updated_at = row.last, row.updated_at
    _keep_events(tx, ctx, envelope, known, history)
    tx.task_put(_task_row(envelope, task, last, offset, updated_at))
    mine = next(judged for judged in history if judged.turn.version == turn.version)
    return Outcome.SUPERSEDED if mine.event in tasks.DISCARDED else Outcome.APPLIED


def _turn(envelope: Envelope, body: Body) -> tasks.Turn:
    kind = envelope.op.partition(".")[2]
    if isinstance(body, TaskCreate):
        return tasks.Turn(
            version_of(envelope),
            kind,
            event_time=envelope.created_at,
            title=body.title,
            description=body.description,
        )
    generation = body.generation if isinstance(body, TaskTurn) else 0
    return tasks.Turn(version_of(envelope), kind, generation, envelope.created_at)


def _turn_of(event: TaskEventRow) -> tasks.Turn:
    return tasks.Turn(
        event.version,
        event.kind,
        event.generation,
        event.event_time,
        event.title,
        event.description,
    )


def task_of(row: TaskRow) -> tasks.Task:
    """The state of the fold, from the row that keeps it."""
    return tasks.Task(
        known=row.known,
        title=row.title,
        description=row.description,
        created_by=row.created_by,
        created_at=row.created_at,
        status=row.status,
        generation=row.generation,
        holder=row.holder,
        claimed_at=row.claimed_at,
        ended=row.ended,
        ended_at=row.ended_at,
    )


def _task_row(
    envelope: Envelope, task: tasks.Task, last: Version, offset: int, updated_at: int
) -> TaskRow:
    return TaskRow(
        mesh=envelope.mesh,
        task=envelope.entity,
        known=task.known,
        title=task.title,
        description=task.description,
        created_by=task.created_by,
        created_at=task.created_at,
        status=task.status,
        generation=task.generation,
        holder=task.holder,
        claimed_at=task.claimed_at,
        ended=task.ended,
        ended_at=task.ended_at,
        last=last,
        offset=offset,
        updated_at=updated_at,
    )


def _keep_events(
    tx: Transaction,
    ctx: NodeContext,
    envelope: Envelope,
    known: list[TaskEventRow],
    history: list[tasks.Judged],
) -> None:
    """Stores new and changed verdicts, and notes every turn that is lost now and was not before."""
    was = {event.version: event for event in known}
    for judged in history:
        before = was.get(judged.turn.version)
        if before is not None and (before.event, before.against) == (judged.event, judged.against):
            continue
        turn = judged.turn
        tx.task_event_put(
            TaskEventRow(
                mesh=envelope.mesh,
                task=envelope.entity,
                version=turn.version,
                kind=turn.kind,
                generation=turn.generation,
                event=judged.event.value,
                event_time=turn.event_time,
                applied_at=ctx.now_ms(),
                against=judged.against,
                title=turn.title,
                description=turn.description,
            )
        )
        # Without `against` it is a claim of a generation that has not begun here: it may still win.
        lost = judged.event in tasks.DISCARDED and judged.against is not None
        was_lost = (
            before is not None and before.event in tasks.DISCARDED and before.against is not None
        )
        if lost or was_lost:
            # A renewed claim is lost together with the first one; the warning is about the first.
            held = before is not None and before.event == tasks.TaskEvent.CLAIMED
            _note_lost(tx, ctx, envelope, judged, lost=lost, held=held and not was_lost)


def _note_lost(
    tx: Transaction,
    ctx: NodeContext,
    envelope: Envelope,
    judged: tasks.Judged,
    *,
    lost: bool,
    held: bool,
) -> None:
    """Keeps one entry in the ledger for a turn that is lost, and none for one that is so no more.
    An entry that a person has resolved stays as it is.
    """
    turn, against = judged.turn, judged.against
    rows = tx.conflicts_of(envelope.mesh, "task", envelope.entity)
    there = next((row for row in rows if row.loser.id == turn.version.id), None)
    if not lost:
        if there is not None and there.resolved_at is None:
            tx.conflict_drop(there.number)
        return
    assert against is not None, "a turn loses against another"
    ended = judged.event is tasks.TaskEvent.REJECTED_TERMINAL
    entry = ConflictRow(
        mesh=envelope.mesh,
        family="task",
        owner="",
        entity=envelope.entity,
        reason="the task had ended" if ended else "the first claim of a generation wins",
        winner=against,
        loser=turn.version,
        loser_op=f"task.{turn.kind}",
        loser_body=NOTHING,
        found_at=ctx.now_ms(),
    )
    if there is None:
        tx.conflict_add(entry)
    elif there.resolved_at is None:
        tx.conflict_change(
            msgspec.structs.replace(entry, number=there.number, found_at=there.found_at)
        )
    if held and turn.kind == "claim" and turn.version.peer == ctx.peer:
        tx.warning_add(
            WarningRow(
                mesh=envelope.mesh,
                type="task_claim_superseded",
                entity=envelope.entity,
                by_peer=against.peer,
                at_lamport=against.lamport,
            )
        )
