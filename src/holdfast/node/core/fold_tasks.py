"""The fold of tasks: from turns (create, claim, release …) to the task and its history.

`holdfast.rules.task_join` says what one more turn changes. Here the new verdicts are stored, a lost
turn goes to the conflict ledger, and a peer whose claim was superseded is warned on its next call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from holdfast.rules import tasks
from holdfast.rules.bodies import NOTHING, Body, TaskCreate, TaskTurn
from holdfast.rules.envelope import Envelope
from holdfast.rules.order import Version, is_newer, version_of
from holdfast.rules.quorum.task_turns import fold_both
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import ConflictRow, TaskEventRow, TaskRow, WarningRow
from holdfast.rules.task_join import Verdict, join

if TYPE_CHECKING:
    from holdfast.node.core.context import NodeContext
    from holdfast.storage.ports import Reader, Transaction


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
    if row is None and tx.task_forgotten(envelope.mesh, envelope.entity):
        return Outcome.SUPERSEDED  # a log that is folded again may hold what is forgotten
    task, last = (tasks.Task(), None) if row is None else (task_of(row), row.last)
    joined = join(task, last, turn, _StoredTurns(tx, envelope.mesh, envelope.entity))
    if joined is None:
        # It was folded before, and its id was forgotten since.
        return Outcome.NOOP_ALREADY_APPLIED
    updated_at = envelope.created_at
    if row is None or is_newer(turn.version, row.last):
        last = turn.version
    else:
        last, updated_at = row.last, row.updated_at
    _keep_events(tx, ctx, envelope, joined.verdicts)
    tx.task_put(_task_row(envelope, joined.task, last, offset, updated_at))
    return Outcome.SUPERSEDED if joined.mine.event in tasks.DISCARDED else Outcome.APPLIED


class _StoredTurns:
    """The turns of one task, as the store has them."""

    def __init__(self, tx: Transaction, mesh: str, task: str) -> None:
        self._tx, self._key = tx, (mesh, task)

    def before(self, version: Version, *, or_at: bool = False) -> TaskEventRow | None:
        return self._tx.task_event_before(*self._key, version, or_at=or_at)

    def after(self, version: Version, limit: int) -> list[TaskEventRow]:
        return self._tx.task_events_after(*self._key, version, limit)

    def naming(self, first: int, last: int, before: Version) -> list[TaskEventRow]:
        return self._tx.task_events_naming(*self._key, first, last, before)

    def opening(self, generation: int) -> TaskEventRow | None:
        return self._tx.task_event_opening(*self._key, generation)

    def first_create(self) -> TaskEventRow | None:
        return self._tx.task_event_create(*self._key)

    def lacks_standings(self) -> bool:
        return self._tx.task_lacks_standings(*self._key)

    def all(self) -> list[TaskEventRow]:
        return self._tx.task_events(*self._key)


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


def task_of_events(events: Iterable[TaskEventRow]) -> tasks.Task:
    """What the stored turns of a task make of it. Once a quorum has committed one, those that
    stamps decided count no more: it begins with what was created or adopted, and goes on in commit
    order.
    """
    turns = list(events)
    stamped = (event.turn for event in turns if not event.place)
    task, _ = fold_both(stamped, [event.turn for event in turns if event.place])
    return task


def is_adopted(tx: Reader, row: TaskRow) -> bool:
    """Whether a task is in the order of its quorum: its last turn has a place there."""
    last = tx.task_event_before(row.mesh, row.task, row.last, or_at=True)
    return last is not None and last.version == row.last and last.place > 0


def note_replaced(
    tx: Transaction, ctx: NodeContext, row: TaskRow, task: tasks.Task, by: Version
) -> None:
    """A task stood otherwise on this node than the quorum has adopted it: that is kept for people,
    and whoever held it here is warned. `by` is who adopted it.
    """
    tx.conflict_add(
        ConflictRow(
            mesh=row.mesh,
            family="task",
            owner="",
            entity=row.task,
            reason="the quorum has adopted the task as another node had it",
            winner=by,
            loser=row.last,
            loser_op=f"task.{row.status}",
            loser_body=NOTHING,
            found_at=ctx.now_ms(),
        )
    )
    holder = row.holder if row.status is tasks.TaskStatus.CLAIMED else None
    if holder is not None and holder.peer == ctx.peer and task.holder != holder:
        tx.warning_add(
            WarningRow(
                mesh=row.mesh,
                type="task_claim_superseded",
                entity=row.task,
                by_peer=by.peer,
                at_lamport=by.lamport,
            )
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
    tx: Transaction, ctx: NodeContext, envelope: Envelope, verdicts: list[Verdict]
) -> None:
    """Stores new and changed verdicts, and notes every turn that is lost now and was not before."""
    for verdict in verdicts:
        judged, before = verdict.judged, verdict.before
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
                standing=verdict.standing,
                opened=verdict.opened,
            )
        )
        if before is not None and (before.event, before.against) == (judged.event, judged.against):
            continue  # only how the task stands after it is new
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
    rows = tx.conflicts_of(envelope.mesh, "task", envelope.entity, turn.version)
    there = rows[0] if rows else None
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
