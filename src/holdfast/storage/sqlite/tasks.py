"""Tasks as folded, and the turns they were folded from."""

from __future__ import annotations

from typing import Any, Final

import apsw
import msgspec

from holdfast.rules.id_prefix import IdSpan
from holdfast.rules.ids import id_text
from holdfast.rules.order import Version
from holdfast.rules.retention import is_forgotten_task
from holdfast.rules.rows import TaskEventRow, TaskRow
from holdfast.rules.tasks import TaskStanding, TaskStatus
from holdfast.storage.sqlite.columns import FLAG, OWN_VERSION, VERSION, Codec, RowColumns
from holdfast.storage.task_port import ForgottenTask

_STATUS = Codec(None, TaskStatus)
_TASK = RowColumns(
    "task", TaskRow, known=FLAG, status=_STATUS, holder=VERSION, ended=VERSION, last=OWN_VERSION
)
_READ_STANDING: Final = msgspec.msgpack.Decoder(TaskStanding).decode
_STANDING = Codec(
    lambda standing: None if standing is None else msgspec.msgpack.encode(standing),
    lambda stored: None if stored is None else _READ_STANDING(stored),
)
_EVENT = RowColumns(
    "task_event", TaskEventRow, version=OWN_VERSION, against=VERSION, standing=_STANDING
)
_PUT_TASK = _TASK.upsert("mesh, task")
_PUT_EVENT = (
    f"{_EVENT.insert} "
    "ON CONFLICT (mesh, task, lamport, peer, id) DO UPDATE SET event = excluded.event, "
    "against_lamport = excluded.against_lamport, against_peer = excluded.against_peer, "
    "against_id = excluded.against_id, standing = excluded.standing, opened = excluded.opened, "
    "place = excluded.place"
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

    def task_ids_within(self, mesh: str, span: IdSpan, limit: int) -> list[str]:
        # The dashes of an id always stand at the same places, so its text has the order of its
        # bytes.
        sql = (
            "SELECT task FROM task WHERE mesh = ? AND task BETWEEN ? AND ? AND known = 1 "
            "ORDER BY task LIMIT ?"
        )
        ends = (id_text(span.first), id_text(span.last))
        return [task for (task,) in self._con.execute(sql, (mesh, *ends, limit))]

    def task_events(self, mesh: str, task: str) -> list[TaskEventRow]:
        return _EVENT.select(
            self._con, "WHERE mesh = ? AND task = ? ORDER BY place, lamport, peer, id", (mesh, task)
        )

    def task_held(self, mesh: str, peer: str, limit: int) -> list[TaskRow]:
        return _TASK.select(
            self._con,
            "INDEXED BY task_held WHERE mesh = ? AND holder_peer = ? AND status = 'claimed' "
            "ORDER BY task LIMIT ?",
            (mesh, peer, limit),
        )

    def task_event_before(
        self, mesh: str, task: str, version: Version, *, or_at: bool = False
    ) -> TaskEventRow | None:
        return _EVENT.find(
            self._con,
            "WHERE mesh = ? AND task = ? "
            f"AND (lamport, peer, id) {'<=' if or_at else '<'} (?, ?, ?) "
            "ORDER BY lamport DESC, peer DESC, id DESC LIMIT 1",
            (mesh, task, *version),
        )

    def task_events_after(
        self, mesh: str, task: str, version: Version, limit: int
    ) -> list[TaskEventRow]:
        return _EVENT.select(
            self._con,
            "WHERE mesh = ? AND task = ? AND (lamport, peer, id) > (?, ?, ?) "
            "ORDER BY lamport, peer, id LIMIT ?",
            (mesh, task, *version, limit),
        )

    def task_events_naming(
        self, mesh: str, task: str, first: int, last: int, before: Version
    ) -> list[TaskEventRow]:
        # Of one generation the index gives only those before the version.
        wanted = "generation = ?3" if first == last else "generation BETWEEN ?3 AND ?4"
        return _EVENT.select(
            self._con,
            "INDEXED BY task_event_named WHERE mesh = ?1 AND task = ?2 "
            f"AND {wanted} AND kind IN ('claim', 'release') "
            "AND (lamport, peer, id) < (?5, ?6, ?7) ORDER BY lamport, peer, id",
            (mesh, task, first, last, *before),
        )

    def task_event_opening(self, mesh: str, task: str, generation: int) -> TaskEventRow | None:
        return _EVENT.find(
            self._con,
            "INDEXED BY task_event_opened WHERE mesh = ? AND task = ? AND opened >= ? "
            "ORDER BY opened LIMIT 1",
            (mesh, task, generation),
        )

    def task_event_create(self, mesh: str, task: str) -> TaskEventRow | None:
        return _EVENT.find(
            self._con,
            "INDEXED BY task_event_create WHERE mesh = ? AND task = ? AND kind = 'create' "
            "ORDER BY lamport, peer, id LIMIT 1",
            (mesh, task),
        )

    def task_forgotten(self, mesh: str, task: str) -> bool:
        buried = self._con.execute(
            "SELECT EXISTS (SELECT 1 FROM buried_task WHERE mesh = ? AND task = ?)", (mesh, task)
        ).get
        floor = self._con.execute("SELECT task_floor FROM mesh WHERE slug = ?", (mesh,)).get
        return is_forgotten_task(task, buried=bool(buried), floor=str(floor or ""))

    def task_lacks_standings(self, mesh: str, task: str) -> bool:
        found = self._con.execute(
            "SELECT 1 FROM task_event INDEXED BY task_event_without_standing "
            "WHERE mesh = ? AND task = ? AND standing IS NULL LIMIT 1",
            (mesh, task),
        ).get
        return found is not None


class TaskWrites(TaskReads):
    def task_put(self, row: TaskRow) -> None:
        self._con.execute(_PUT_TASK, _TASK.values(row))

    def task_event_put(self, row: TaskEventRow) -> None:
        self._con.execute(_PUT_EVENT, _EVENT.values(row))

    def tasks_forget(
        self, mesh: str, below_offset: int, most: int, names_max: int
    ) -> list[ForgottenTask]:
        found: list[Any] = self._con.execute(
            "SELECT task, lamport, offset, (SELECT count(*) FROM task_event AS turn "
            "WHERE turn.mesh = task.mesh AND turn.task = task.task) "
            "FROM task INDEXED BY task_ended WHERE mesh = ? AND offset < ? "
            "AND status IN ('completed', 'cancelled') ORDER BY offset LIMIT ?",
            (mesh, below_offset, most),
        ).fetchall()
        removed: list[ForgottenTask] = []
        rows = 0
        for task, lamport, offset, turns in found:
            if removed and rows + turns >= most:
                break
            rows += turns + 1
            removed.append(ForgottenTask(lamport, offset))
            for table in ("task_event", "task"):
                self._con.execute(f"DELETE FROM {table} WHERE mesh = ? AND task = ?", (mesh, task))
            self._con.execute(
                "INSERT INTO buried_task (mesh, task) VALUES (?, ?) ON CONFLICT DO NOTHING",
                (mesh, task),
            )
        if removed:
            self._bound_names(mesh, names_max)
        return removed

    def _bound_names(self, mesh: str, most: int) -> None:
        count: Any = self._con.execute(
            "SELECT count(*) FROM buried_task WHERE mesh = ?", (mesh,)
        ).get
        gone: list[Any] = self._con.execute(
            "DELETE FROM buried_task WHERE mesh = ?1 AND task IN (SELECT task FROM buried_task "
            "WHERE mesh = ?1 AND substr(task, 15, 1) = '7' ORDER BY task LIMIT ?2) RETURNING task",
            (mesh, max(0, count - most)),
        ).fetchall()
        if gone:
            self._con.execute(
                "UPDATE mesh SET task_floor = max(task_floor, ?) WHERE slug = ?",
                (max(task for (task,) in gone), mesh),
            )
