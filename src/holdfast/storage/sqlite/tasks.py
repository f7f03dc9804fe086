"""Tasks as folded, and the turns they were folded from."""

from __future__ import annotations

from typing import Any

import apsw

from holdfast.rules.order import Version
from holdfast.rules.rows import TaskEventRow, TaskRow
from holdfast.rules.tasks import TaskStatus

_TASK = (
    "mesh, task, known, title, description, created_by, created_at, status, generation, "
    "holder_lamport, holder_peer, holder_id, claimed_at, ended_lamport, ended_peer, ended_id, "
    "ended_at, lamport, peer, id, offset, updated_at"
)
_EVENT = (
    "mesh, task, lamport, peer, id, kind, generation, event, event_time, applied_at, "
    "against_lamport, against_peer, against_id, title, description"
)
_PUT_TASK = (
    f"INSERT INTO task ({_TASK}) VALUES ({', '.join('?' * 22)}) "
    "ON CONFLICT (mesh, task) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _TASK.split(", ")[2:])
)
_PUT_EVENT = (
    f"INSERT INTO task_event ({_EVENT}) VALUES ({', '.join('?' * 15)}) "
    "ON CONFLICT (mesh, task, lamport, peer, id) DO UPDATE SET event = excluded.event, "
    "against_lamport = excluded.against_lamport, against_peer = excluded.against_peer, "
    "against_id = excluded.against_id"
)


def _version(lamport: Any, peer: Any, id: Any) -> Version | None:
    return None if lamport is None else Version(lamport, peer, id)


def _columns(version: Version | None) -> tuple[Any, Any, Any]:
    return (None, None, None) if version is None else (version.lamport, version.peer, version.id)


def _task(row: Any) -> TaskRow:
    return TaskRow(
        mesh=row[0],
        task=row[1],
        known=bool(row[2]),
        title=row[3],
        description=row[4],
        created_by=row[5],
        created_at=row[6],
        status=TaskStatus(row[7]),
        generation=row[8],
        holder=_version(*row[9:12]),
        claimed_at=row[12],
        ended=_version(*row[13:16]),
        ended_at=row[16],
        last=Version(*row[17:20]),
        offset=row[20],
        updated_at=row[21],
    )


def _event(row: Any) -> TaskEventRow:
    return TaskEventRow(
        mesh=row[0],
        task=row[1],
        version=Version(*row[2:5]),
        kind=row[5],
        generation=row[6],
        event=row[7],
        event_time=row[8],
        applied_at=row[9],
        against=_version(*row[10:13]),
        title=row[13],
        description=row[14],
    )


class TaskReads:
    _con: apsw.Connection

    def task_get(self, mesh: str, task: str) -> TaskRow | None:
        row = self._con.execute(
            f"SELECT {_TASK} FROM task WHERE mesh = ? AND task = ?", (mesh, task)
        ).get
        return None if row is None else _task(row)

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
        rows = self._con.execute(
            f"SELECT {_TASK} FROM task WHERE mesh = ?1 AND task > ?2 {chosen}"
            "ORDER BY task LIMIT ?3",
            (mesh, after, limit, *(() if status is None else (status.value,))),
        )
        return [_task(row) for row in rows]

    def task_events(self, mesh: str, task: str) -> list[TaskEventRow]:
        rows = self._con.execute(
            f"SELECT {_EVENT} FROM task_event WHERE mesh = ? AND task = ? "
            "ORDER BY lamport, peer, id",
            (mesh, task),
        )
        return [_event(row) for row in rows]


class TaskWrites(TaskReads):
    def task_put(self, row: TaskRow) -> None:
        self._con.execute(
            _PUT_TASK,
            (
                row.mesh,
                row.task,
                row.known,
                row.title,
                row.description,
                row.created_by,
                row.created_at,
                row.status.value,
                row.generation,
                *_columns(row.holder),
                row.claimed_at,
                *_columns(row.ended),
                row.ended_at,
                *row.last,
                row.offset,
                row.updated_at,
            ),
        )

    def task_event_put(self, row: TaskEventRow) -> None:
        self._con.execute(
            _PUT_EVENT,
            (
                row.mesh,
                row.task,
                *row.version,
                row.kind,
                row.generation,
                row.event,
                row.event_time,
                row.applied_at,
                *_columns(row.against),
                row.title,
                row.description,
            ),
        )
