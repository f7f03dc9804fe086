"""Vectors, tasks and the ledger in memory."""

from __future__ import annotations

import msgspec

from holdfast.rules.order import Version, order_key
from holdfast.rules.rows import ConflictRow, ModelRow, TaskEventRow, TaskRow, VectorRow, WarningRow
from holdfast.rules.tasks import TaskStatus
from holdfast.rules.vectors import Model, check_packed, distance
from holdfast.storage.memory.undo import UndoTables


class MemoryWork(UndoTables):
    """What is searched, worked on and disputed."""

    # --- vectors -----------------------------------------------------------------------------

    def vector_live(self, mesh: str, owner: str, key: str, model: str) -> VectorRow | None:
        found = self._vectors_of(mesh, owner, key, model)
        return next((row for _, row in found if row.live), None)

    def vector_newest(self, mesh: str, owner: str, key: str, model: str) -> Version | None:
        versions = [row.version for _, row in self._vectors_of(mesh, owner, key, model)]
        return max(versions, key=order_key, default=None)

    def vector_scan(
        self, mesh: str, model: str | None, after: int, limit: int, *, live_only: bool
    ) -> list[tuple[int, VectorRow]]:
        rows = [
            (number, row)
            for number, row in sorted(self._table("vector").items())
            if number > after
            and row.mesh == mesh
            and (model is None or row.model == model)
            and (row.live or not live_only)
        ]
        return rows[:limit]

    def vector_search(
        self, mesh: str, model: Model, packed: bytes, limit: int, *, exact: bool
    ) -> list[tuple[VectorRow, float]]:
        check_packed(packed, model.dim)
        fingerprint = model.fingerprint
        hits = [
            (distance(row.embedding, packed), number, row)
            for number, row in self._table("vector").items()
            if row.live and row.mesh == mesh and row.model == fingerprint
        ]
        hits.sort(key=lambda hit: hit[:2])
        return [(row, far) for far, _, row in hits[:limit]]

    def model_list(self) -> list[ModelRow]:
        return sorted(self._table("model").values(), key=lambda row: (row.created_at, row.id))

    def vector_add(self, row: VectorRow, model: Model) -> None:
        if row.model not in self._table("model"):
            registered = ModelRow(
                id=row.model,
                provider=model.provider,
                name=model.name,
                version=model.version,
                dim=model.dim,
                quantization=model.quantization,
                created_at=row.updated_at,
            )
            self._put("model", row.model, registered)
        self._put("vector", self._next("vector"), row)

    def vector_retire(self, mesh: str, owner: str, key: str, model: str) -> None:
        for number, row in self._vectors_of(mesh, owner, key, model):
            if row.live:
                self._put("vector", number, msgspec.structs.replace(row, live=False))

    def vector_bury(self, row: VectorRow) -> None:
        self._put("vector", self._next("vector"), row)

    def model_mark(
        self, model: str, *, deprecated_at: int | None = None, last_read_at: int | None = None
    ) -> None:
        row = self._table("model").get(model)
        if row is None:
            return
        marked = msgspec.structs.replace(
            row,
            deprecated_at=row.deprecated_at if deprecated_at is None else deprecated_at,
            last_read_at=max(row.last_read_at or 0, last_read_at or 0) or None,
        )
        self._put("model", model, marked)

    def model_drop(self, model: str) -> None:
        self._drop("model", model)

    def _vectors_of(
        self, mesh: str, owner: str, key: str, model: str
    ) -> list[tuple[int, VectorRow]]:
        return [
            (number, row)
            for number, row in self._table("vector").items()
            if (row.mesh, row.owner, row.key, row.model) == (mesh, owner, key, model)
        ]

    # --- tasks -------------------------------------------------------------------------------

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

    def task_events(self, mesh: str, task: str) -> list[TaskEventRow]:
        rows = [row for row in self._rows("task_event", mesh) if row.task == task]
        return sorted(rows, key=lambda row: order_key(row.version))

    def task_put(self, row: TaskRow) -> None:
        self._put("task", (row.mesh, row.task), row)

    def task_event_put(self, row: TaskEventRow) -> None:
        key = (row.mesh, row.task, row.version)
        before = self._table("task_event").get(key)
        if before is not None:
            row = msgspec.structs.replace(row, applied_at=before.applied_at)
        self._put("task_event", key, row)

    # --- the ledger --------------------------------------------------------------------------

    def conflict_get(self, number: int) -> ConflictRow | None:
        return self._table("conflict").get(number)

    def conflict_open(
        self, mesh: str, family: str, owner: str, entity: str, loser: str
    ) -> ConflictRow | None:
        wanted = (mesh, family, owner, entity, loser)
        for row in self._table("conflict").values():
            found = (row.mesh, row.family, row.owner, row.entity, row.loser.peer)
            if row.resolved_at is None and found == wanted:
                assert isinstance(row, ConflictRow)
                return row
        return None

    def conflict_list(
        self, mesh: str | None, *, open_only: bool, after: int, limit: int
    ) -> list[ConflictRow]:
        rows = [
            row
            for number, row in sorted(self._table("conflict").items())
            if number > after
            and (mesh is None or row.mesh == mesh)
            and not (open_only and row.resolved_at is not None)
        ]
        return rows[:limit]

    def conflict_add(self, row: ConflictRow) -> int:
        number = self._next("conflict")
        self._put("conflict", number, msgspec.structs.replace(row, number=number))
        return number

    def conflict_change(self, row: ConflictRow) -> None:
        self._put("conflict", row.number, row)

    def conflict_resolve(self, number: int, resolution: str, now_ms: int) -> None:
        row = self._table("conflict")[number]
        resolved = msgspec.structs.replace(row, resolved_at=now_ms, resolution=resolution)
        self._put("conflict", number, resolved)

    def warning_list(self, mesh: str | None) -> list[WarningRow]:
        return [
            row
            for _, row in sorted(self._table("warning").items())
            if mesh is None or row.mesh == mesh
        ]

    def warning_add(self, row: WarningRow) -> None:
        self._put("warning", self._next("warning"), row)

    def warnings_take(self, mesh: str | None) -> list[WarningRow]:
        taken = self.warning_list(mesh)
        for number, row in list(self._table("warning").items()):
            if mesh is None or row.mesh == mesh:
                self._drop("warning", number)
        return taken

    def _next(self, table: str) -> int:
        return max(self._table(table), default=0) + 1
