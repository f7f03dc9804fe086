"""What merges discarded, and the warnings that this node's peer has not seen yet, in memory."""

from __future__ import annotations

import msgspec

from holdfast.rules.order import Version
from holdfast.rules.rows import ConflictRow, WarningRow
from holdfast.storage.memory.undo import UndoTables


class MemoryLedger(UndoTables):
    """Conflicts and warnings."""

    def conflict_get(self, number: int) -> ConflictRow | None:
        return self._table("conflict").get(number)

    def conflicts_of(
        self, mesh: str, family: str, entity: str, loser: Version | None = None
    ) -> list[ConflictRow]:
        wanted = (mesh, family, entity)
        return [
            row
            for _, row in sorted(self._table("conflict").items())
            if (row.mesh, row.family, row.entity) == wanted and loser in (None, row.loser)
        ]

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

    def conflict_drop(self, number: int) -> None:
        self._drop("conflict", number)

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
