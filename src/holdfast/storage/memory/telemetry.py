"""Telemetry in memory."""

from __future__ import annotations

from holdfast.rules.telemetry import TelemetryRow
from holdfast.storage.memory.undo import UndoTables


class MemoryTelemetry(UndoTables):
    """Rows by mesh, kind and key."""

    def telemetry_get(self, mesh: str, kind: str, key: str) -> TelemetryRow | None:
        return self._table("telemetry").get((mesh, kind, key))

    def telemetry_scan(
        self, mesh: str, kind: str | None, after: tuple[str, str], limit: int
    ) -> list[TelemetryRow]:
        rows = [
            row
            for row in self._rows("telemetry", mesh)
            if kind in (None, row.kind) and _place(row.kind, row.key) > _place(*after)
        ]
        return sorted(rows, key=lambda row: _place(row.kind, row.key))[:limit]

    def telemetry_count(self, mesh: str) -> int:
        return len(self._rows("telemetry", mesh))

    def telemetry_put(self, row: TelemetryRow) -> None:
        self._put("telemetry", (row.mesh, row.kind, row.key), row)

    def telemetry_drop(self, mesh: str, kind: str, key: str) -> bool:
        if self.telemetry_get(mesh, kind, key) is None:
            return False
        self._drop("telemetry", (mesh, kind, key))
        return True

    def telemetry_expire(self, now_ms: int, most: int) -> int:
        rows = [row for row in self._table("telemetry").values() if row.expires_at <= now_ms]
        rows = sorted(rows, key=lambda row: row.expires_at)[:most]
        for row in rows:
            self._drop("telemetry", (row.mesh, row.kind, row.key))
        return len(rows)


def _place(kind: str, key: str) -> tuple[bytes, bytes]:
    return kind.encode(), key.encode()
