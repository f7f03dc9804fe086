"""Tasks as folded, and the turns they were folded from, in memory."""

from __future__ import annotations

import msgspec

from holdfast.rules.id_prefix import IdSpan
from holdfast.rules.ids import id_text
from holdfast.rules.order import Version, order_key
from holdfast.rules.retention import is_forgotten_task
from holdfast.rules.rows import TaskEventRow, TaskRow
from holdfast.rules.tasks import TaskStatus
from holdfast.storage.memory.undo import UndoTables
from holdfast.storage.task_port import ForgottenTask


class MemoryTasks(UndoTables):
    """Tasks and their turns."""

    def task_get(self, mesh: str, task: str) -> TaskRow | None:
        return self._table("task").get((mesh, task))

    def task_scan(
        self,
        mesh: str,
        status: TaskStatus | None,
        after: str,
        limit: int,
        *,
        known_only: bool = True,
    ) -> list[TaskRow]:
        rows = [
            row
            for row in self._rows("task", mesh)
            if (row.known or not known_only)
            and row.task > after
            and (status is None or row.status is status)
        ]
        return sorted(rows, key=lambda row: row.task.encode())[:limit]

    def task_ids_within(self, mesh: str, span: IdSpan, limit: int) -> list[str]:
        first, last = id_text(span.first), id_text(span.last)
        rows = (row for row in self._rows("task", mesh) if row.known and first <= row.task <= last)
        return sorted(row.task for row in rows)[:limit]

    def task_events(self, mesh: str, task: str) -> list[TaskEventRow]:
        rows = [row for row in self._rows("task_event", mesh) if row.task == task]
        return sorted(rows, key=lambda row: (row.place, order_key(row.version)))

    def task_held(self, mesh: str, peer: str, limit: int) -> list[TaskRow]:
        rows = [
            row
            for row in self._rows("task", mesh)
            if row.status is TaskStatus.CLAIMED and row.holder and row.holder.peer == peer
        ]
        return sorted(rows, key=lambda row: row.task.encode())[:limit]

    def task_event_before(
        self, mesh: str, task: str, version: Version, *, or_at: bool = False
    ) -> TaskEventRow | None:
        end = order_key(version)
        rows = [
            row
            for row in self.task_events(mesh, task)
            if order_key(row.version) < end or (or_at and row.version == version)
        ]
        return rows[-1] if rows else None

    def task_events_after(
        self, mesh: str, task: str, version: Version, limit: int
    ) -> list[TaskEventRow]:
        rows = self.task_events(mesh, task)
        return [row for row in rows if order_key(row.version) > order_key(version)][:limit]

    def task_events_naming(
        self, mesh: str, task: str, first: int, last: int, before: Version
    ) -> list[TaskEventRow]:
        return [
            row
            for row in self.task_events(mesh, task)
            if row.kind in ("claim", "release")
            and first <= row.generation <= last
            and order_key(row.version) < order_key(before)
        ]

    def task_event_opening(self, mesh: str, task: str, generation: int) -> TaskEventRow | None:
        rows = self.task_events(mesh, task)
        opening = (row for row in rows if row.opened is not None and row.opened >= generation)
        return next(opening, None)

    def task_event_create(self, mesh: str, task: str) -> TaskEventRow | None:
        return next((row for row in self.task_events(mesh, task) if row.kind == "create"), None)

    def task_forgotten(self, mesh: str, task: str) -> bool:
        buried = (mesh, task) in self._table("buried_task")
        floor = self._table("task_floor").get((mesh,), "")
        return is_forgotten_task(task, buried=buried, floor=floor)

    def task_lacks_standings(self, mesh: str, task: str) -> bool:
        return any(row.standing is None for row in self.task_events(mesh, task))

    def task_put(self, row: TaskRow) -> None:
        self._put("task", (row.mesh, row.task), row)

    def task_event_put(self, row: TaskEventRow) -> None:
        key = (row.mesh, row.task, row.version)
        before = self._table("task_event").get(key)
        if before is not None:
            row = msgspec.structs.replace(row, applied_at=before.applied_at)
        self._put("task_event", key, row)

    def tasks_forget(
        self, mesh: str, below_offset: int, most: int, names_max: int
    ) -> list[ForgottenTask]:
        ended = [
            row
            for row in self._rows("task", mesh)
            if row.status in (TaskStatus.COMPLETED, TaskStatus.CANCELLED)
            and row.offset < below_offset
        ]
        removed: list[ForgottenTask] = []
        rows = 0
        for row in sorted(ended, key=lambda row: row.offset):
            turns = self.task_events(mesh, row.task)
            if removed and rows + len(turns) >= most:
                break
            rows += len(turns) + 1
            removed.append(ForgottenTask(row.last.lamport, row.offset))
            for turn in turns:
                self._drop("task_event", (mesh, row.task, turn.version))
            self._drop("task", (mesh, row.task))
            self._put("buried_task", (mesh, row.task), None)
        names = sorted(task for of, task in self._table("buried_task") if of == mesh)
        timed = [task for task in names if task[14:15] == "7"]
        for task in timed[: max(0, len(names) - names_max)]:
            self._drop("buried_task", (mesh, task))
            self._put("task_floor", (mesh,), max(task, self._table("task_floor").get((mesh,), "")))
        return removed
