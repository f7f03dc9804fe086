"""Telemetry: rows of this node that no log knows. Triggers count them for each mesh."""

from __future__ import annotations

from typing import Final

import apsw

from holdfast.rules.telemetry import TelemetryRow
from holdfast.storage.sqlite.columns import TEXT, RowColumns

_ROW: Final = RowColumns("telemetry", TelemetryRow, value=TEXT)
_PUT: Final = _ROW.upsert("mesh, kind, key")
_ONE: Final = "WHERE mesh = ? AND kind = ? AND key = ?"


class TelemetryReads:
    _con: apsw.Connection

    def telemetry_get(self, mesh: str, kind: str, key: str) -> TelemetryRow | None:
        return _ROW.find(self._con, _ONE, (mesh, kind, key))

    def telemetry_scan(
        self, mesh: str, kind: str | None, after: tuple[str, str], limit: int
    ) -> list[TelemetryRow]:
        if kind is None:
            where, given = "(kind, key) > (?2, ?3)", (mesh, *after, limit)
        elif after[0].encode() > kind.encode():
            return []
        else:
            where = "kind = ?2 AND key > ?3"
            given = (mesh, kind, after[1] if after[0] == kind else "", limit)
        return _ROW.select(
            self._con, f"WHERE mesh = ?1 AND {where} ORDER BY kind, key LIMIT ?4", given
        )

    def telemetry_count(self, mesh: str) -> int:
        found = self._con.execute("SELECT rows FROM telemetry_count WHERE mesh = ?", (mesh,)).get
        return 0 if found is None else int(found)


class TelemetryWrites(TelemetryReads):
    def telemetry_put(self, row: TelemetryRow) -> None:
        self._con.execute(_PUT, _ROW.values(row))

    def telemetry_drop(self, mesh: str, kind: str, key: str) -> bool:
        self._con.execute(f"DELETE FROM telemetry {_ONE}", (mesh, kind, key))
        return self._con.changes() > 0

    def telemetry_expire(self, now_ms: int, most: int) -> int:
        self._con.execute(
            "DELETE FROM telemetry WHERE (mesh, kind, key) IN (SELECT mesh, kind, key "
            "FROM telemetry INDEXED BY telemetry_end WHERE expires_at <= ? "
            "ORDER BY expires_at LIMIT ?)",
            (now_ms, most),
        )
        return self._con.changes()
