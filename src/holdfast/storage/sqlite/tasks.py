"""Tasks as folded, and the turns they were folded from."""

from __future__ import annotations

import apsw

from holdfast.rules.rows import TaskEventRow, TaskRow
from holdfast.rules.tasks import TaskStatus
from holdfast.storage.sqlite.columns import FLAG, OWN_VERSION, VERSION, Codec, RowColumns

_STATUS = Codec(None, TaskStatus)
_TASK = RowColumns(
    "task", TaskRow, known=FLAG, status=_STATUS, holder=VERSION, ended=VERSION, last=OWN_VERSION
)
_EVENT = RowColumns("task_event", TaskEventRow, version=OWN_VERSION, against=VERSION)
_PUT_TASK = _TASK.upsert("mesh, task")
_PUT_EVENT = (
    f"{_EVENT.insert} "
    "ON CONFLICT (mesh, task, lamport, peer, id) DO UPDATE SET event = excluded.event, "
    "against_lamport = excluded.against_lamport, against_peer = excluded.against_peer, "
    "against_id = excluded.against_id"
)


class TaskReads:
    _con: apsw.Connection

    def task_get(self, mesh: str, task: str) -> TaskRow | None:
        return _TASK.find(self._con, "WHERE mesh = ? AND task = ?", (mesh, task))

    def task_scan(
        self,
        mesh: str,
        status: TaskStatus | None,
        after: str,
        limit: int,
        *,
        known_only: bool = True,
    ) -> list[TaskRow]:
        chosen = "AND known = 1 " if known_only else ""
        chosen += "" if status is None else "AND status = ?4 "
        return _TASK.select(
            self._con,
            f"WHERE mesh = ?1 AND task > ?2 {chosen}ORDER BY task LIMIT ?3",
            (mesh, after, limit, *(() if status is None else (status.value,))),
        )

    def task_events(self, mesh: str, task: str) -> list[TaskEventRow]:
        return _EVENT.select(
            self._con, "WHERE mesh = ? AND task = ? ORDER BY lamport, peer, id", (mesh, task)
        )


class TaskWrites(TaskReads):
    def task_put(self, row: TaskRow) -> None:
        self._con.execute(_PUT_TASK, _TASK.values(row))

    def task_event_put(self, row: TaskEventRow) -> None:
        self._con.execute(_PUT_EVENT, _EVENT.values(row))
