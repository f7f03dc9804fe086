"""Tasks as folded, and the turns they were folded from."""

from __future__ import annotations

from typing import Final

import apsw
import msgspec

from holdfast.rules.order import Version
from holdfast.rules.rows import TaskEventRow, TaskRow
from holdfast.rules.tasks import TaskStanding, TaskStatus
from holdfast.storage.sqlite.columns import FLAG, OWN_VERSION, VERSION, Codec, RowColumns

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
