"""One more turn on a task: what changes in its history, without folding it as a whole.

The result is that of `holdfast.rules.tasks.fold` for the same set of turns, whatever the order in
which they arrived; a property test compares the two. The difference is the work. Each stored turn
has its *standing*: how the task stood after it. A turn that arrives late is judged by the standing
of the turn before it, and from there the fold is done again only until the standing of a stored
turn is what it was: all that follows is then as it was, too. So a late claim that loses costs one
turn, and a change of the holder costs the turns that it reaches.

Three things make the end of that walk less simple than it sounds:

- A turn may name a generation that begins after it. It takes no part in the fold at its own place
  and all its part where that generation begins: if it arrives late, the walk starts there.
- The walk passes turns that wait in this way. If their generation begins behind the end of the
  walk, nothing changes for them, and their verdict is that of the place where it begins.
- If the walk goes to the end of the history and a generation that had begun begins no more, the
  turns that waited for it before the start of the walk are judged at their own place again.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from holdfast.rules.limits import TASK_PAGE_ROWS
from holdfast.rules.order import Version, is_newer, order_key
from holdfast.rules.rows import TaskEventRow
from holdfast.rules.tasks import (
    Judged,
    Task,
    TaskEvent,
    TaskStanding,
    TaskStatus,
    Turn,
    fold_with_standings,
    names_later,
    step,
)


class TurnHistory(Protocol):
    """The stored turns of one task; lists are in stamp order."""

    def before(self, version: Version, *, or_at: bool = False) -> TaskEventRow | None:
        """The last turn before this version; `or_at` also finds the version itself."""

    def after(self, version: Version, limit: int) -> list[TaskEventRow]: ...
    def naming(self, first: int, last: int, before: Version) -> list[TaskEventRow]:
        """Claims and releases before this version that name one of these generations."""

    def opening(self, generation: int) -> TaskEventRow | None:
        """The turn after which the task had reached this generation, or a later one."""

    def first_create(self) -> TaskEventRow | None: ...
    def lacks_standings(self) -> bool:
        """Whether a turn was stored before turns had standings."""

    def all(self) -> list[TaskEventRow]: ...


class Verdict(msgspec.Struct, frozen=True):
    """What a turn comes to now, and its row as it is stored; None for the new turn."""

    judged: Judged
    standing: TaskStanding | None
    opened: int | None
    before: TaskEventRow | None

    @property
    def changed(self) -> bool:
        row, judged = self.before, self.judged
        return row is None or (row.event, row.against, row.standing, row.opened) != (
            judged.event.value,
            judged.against,
            self.standing,
            self.opened,
        )


class JoinedTurn(msgspec.Struct, frozen=True):
    """A task with one more turn."""

    task: Task
    verdicts: list[Verdict]
    """Those that are new or changed, in stamp order."""
    mine: Judged
    """That of the new turn."""


_NOTHING_YET: Final = TaskStanding()


def join(task: Task, last: Version | None, turn: Turn, history: TurnHistory) -> JoinedTurn | None:
    """The task with `turn`; None if it is in the history already.

    `task` is what the history makes, and `last` its newest turn; None if there is none.
    """
    newest = last is None or is_newer(turn.version, last)
    if newest:
        before = TaskStanding.of(task)
    else:
        found = history.before(turn.version, or_at=True)
        if found is not None and found.version == turn.version:
            return None
        if history.lacks_standings():
            return _join_whole(turn, history)
        before = _standing(found)
    if turn.kind == "create":
        return _join_create(task, turn, before, None if last is None else history.first_create())
    if newest and turn.kind != "release":
        after, mine = step(task, turn)
        return JoinedTurn(after, [Verdict(mine, TaskStanding.of(after), None, None)], mine)
    walk = _Walk(task, before, turn, history)
    if not newest and not walk.is_over(before):
        walk.run()
    return walk.result()


def _join_whole(turn: Turn, history: TurnHistory) -> JoinedTurn:
    """By the fold of all turns: for a history from before turns had standings, once."""
    rows = history.all()
    task, judged, standings = fold_with_standings([*(row.turn for row in rows), turn])
    known = {row.version: row for row in rows}
    reached, verdicts = 0, []
    for one, standing in zip(judged, standings, strict=True):
        opened = standing.generation if standing.generation > reached else None
        reached = standing.generation
        verdicts.append(Verdict(one, standing, opened, known.get(one.turn.version)))
    mine = next(one for one in judged if one.turn.version == turn.version)
    return JoinedTurn(task, [verdict for verdict in verdicts if verdict.changed], mine)


def _join_create(
    task: Task, turn: Turn, before: TaskStanding, first: TaskEventRow | None
) -> JoinedTurn:
    """A creation says what the task is called and changes nothing else."""
    if first is not None and is_newer(turn.version, first.version):
        mine = Judged(turn, TaskEvent.IGNORED)
        return JoinedTurn(task, [Verdict(mine, before, None, None)], mine)
    made, mine = step(Task(), turn)
    verdicts = [Verdict(mine, before, None, None)]
    if first is not None:
        second = Judged(first.turn, TaskEvent.IGNORED)
        verdicts.append(Verdict(second, first.standing, first.opened, first))
    return JoinedTurn(_with_standing(made, TaskStanding.of(task)), verdicts, mine)


class _Walk:
    """The fold from the new turn on, until the task stands as it stood before."""

    def __init__(self, old: Task, before: TaskStanding, turn: Turn, history: TurnHistory) -> None:
        self._old, self._turn, self._history = old, turn, history
        self._start = turn.version
        self._task = _with_standing(Task(), before)
        self._verdicts: dict[Version, Verdict] = {}
        self._as_before = False
        self._fold(turn, None)

    @property
    def _waits(self) -> bool:
        """Whether the new turn names a generation that has not begun at its place."""
        own = self._verdicts[self._turn.version].standing
        return own is not None and names_later(self._turn, own.generation)

    def is_over(self, before: TaskStanding) -> bool:
        """Whether the new turn changes nothing but itself."""
        if self._waits:
            self._as_before = self._turn.generation > self._old.generation
        else:
            self._as_before = TaskStanding.of(self._task) == before
        return self._as_before

    def run(self) -> None:
        """Goes on behind the new turn, or where the generation begins that it waits for."""
        if self._waits:
            opener = self._history.opening(self._turn.generation)
            assert opener is not None, "the task reached this generation by one of its turns"
            self._start = opener.version
            before = _standing(self._history.before(opener.version))
            self._task = _with_standing(Task(), before)
            if self._pass(opener):
                return
        at = self._start
        while rows := self._history.after(at, TASK_PAGE_ROWS):
            for row in rows:
                if self._pass(row):
                    return
            at = rows[-1].version
        self._wait_again()

    def result(self) -> JoinedTurn:
        verdicts = list(self._verdicts.values())
        if self._as_before:
            verdicts = [self._not_reached(verdict) for verdict in verdicts]
        changed = [verdict for verdict in verdicts if verdict.changed]
        changed.sort(key=lambda verdict: order_key(verdict.judged.turn.version))
        mine = self._verdicts[self._turn.version].judged
        end = self._old if self._as_before else self._task
        return JoinedTurn(_with_standing(self._old, TaskStanding.of(end)), changed, mine)

    def _pass(self, row: TaskEventRow) -> bool:
        """Folds a stored turn once more. Returns True if the task then stands as it stood."""
        self._fold(row.turn, row)
        self._as_before = row.standing == TaskStanding.of(self._task)
        return self._as_before

    def _fold(self, turn: Turn, row: TaskEventRow | None) -> None:
        """Takes the next turn, and those that waited for the generations that it opens."""
        reached = self._task.generation
        if turn.kind == "create":
            assert row is not None, "a new creation is joined without a walk"
            judged = Judged(turn, TaskEvent(row.event), row.against)
        else:
            self._task, judged = step(self._task, turn)
        opened = reached
        while self._task.status is TaskStatus.OPEN and self._task.generation > opened:
            opened = self._task.generation
            for waited in self._waiting(opened, turn.version):
                self._task, again = step(self._task, waited.judged.turn)
                self._verdicts[again.turn.version] = msgspec.structs.replace(waited, judged=again)
        standing = TaskStanding.of(self._task)
        new = standing.generation if standing.generation > reached else None
        self._verdicts[turn.version] = Verdict(judged, standing, new, row)

    def _waiting(self, generation: int, at: Version) -> list[Verdict]:
        """The turns before `at` that name the generation, as they are judged so far."""
        found = [
            self._verdicts.get(row.version) or _stored(row)
            for row in self._history.naming(generation, generation, at)
        ]
        own = self._verdicts.get(self._turn.version)
        if own is not None and self._turn.generation == generation and self._waits:
            found.append(own)
            found.sort(key=lambda verdict: order_key(verdict.judged.turn.version))
        return found

    def _wait_again(self) -> None:
        """Judges turns at their own place again whose generation begins no more."""
        first, last = self._task.generation + 1, self._old.generation
        if first <= last:
            for row in self._history.naming(first, last, self._start):
                _, judged = step(_with_standing(Task(), _standing(row)), row.turn)
                self._verdicts.setdefault(
                    row.version, msgspec.structs.replace(_stored(row), judged=judged)
                )

    def _not_reached(self, verdict: Verdict) -> Verdict:
        """A turn that waits for a generation behind the end of the walk keeps its event."""
        row, turn = verdict.before, verdict.judged.turn
        waits = names_later(turn, self._task.generation)
        if row is None or not waits or turn.generation > self._old.generation:
            return verdict
        return msgspec.structs.replace(verdict, judged=_stored(row).judged)


def _standing(row: TaskEventRow | None) -> TaskStanding:
    if row is None:
        return _NOTHING_YET
    assert row.standing is not None, "a history without standings is folded as a whole"
    return row.standing


def _stored(row: TaskEventRow) -> Verdict:
    judged = Judged(row.turn, TaskEvent(row.event), row.against)
    return Verdict(judged, row.standing, row.opened, row)


def _with_standing(task: Task, standing: TaskStanding) -> Task:
    return msgspec.structs.replace(
        task,
        status=standing.status,
        generation=standing.generation,
        holder=standing.holder,
        claimed_at=standing.claimed_at,
        ended=standing.ended,
        ended_at=standing.ended_at,
    )
