"""What merges discarded, and the warnings that this node's peer has not seen yet."""

from __future__ import annotations

import apsw

from holdfast.rules.order import Version
from holdfast.rules.rows import ConflictRow, WarningRow
from holdfast.storage.sqlite.columns import VERSION, RowColumns

_CONFLICT = RowColumns("conflict", ConflictRow, winner=VERSION, loser=VERSION)
_NEW = RowColumns("conflict", ConflictRow, without=("number",), winner=VERSION, loser=VERSION)
_CHANGED = RowColumns(
    "conflict",
    ConflictRow,
    without=(
        *("number", "mesh", "family", "owner", "entity"),
        *("resolved_at", "resolution"),
    ),
    winner=VERSION,
    loser=VERSION,
)
_WARNING = RowColumns("warning", WarningRow)


class LedgerReads:
    _con: apsw.Connection
    _once: apsw.Cursor

    def conflict_get(self, number: int) -> ConflictRow | None:
        return _CONFLICT.find(self._con, "WHERE number = ?", (number,))

    def conflicts_of(
        self, mesh: str, family: str, entity: str, loser: Version | None = None
    ) -> list[ConflictRow]:
        # Nearly always there are none, and this runs for many a write.
        known = "SELECT 1 FROM conflict WHERE mesh = ? AND entity = ? LIMIT 1"
        if self._once.execute(known, (mesh, entity)).fetchone() is None:
            return []
        if loser is not None:
            return _CONFLICT.select(
                self._con,
                "WHERE mesh = ? AND entity = ? AND loser_lamport = ? AND loser_peer = ? "
                "AND loser_id = ? AND family = ? ORDER BY number",
                (mesh, entity, *loser, family),
            )
        return _CONFLICT.select(
            self._con,
            "WHERE mesh = ? AND entity = ? AND family = ? ORDER BY number",
            (mesh, entity, family),
        )

    def conflict_list(
        self, mesh: str | None, *, open_only: bool, after: int, limit: int
    ) -> list[ConflictRow]:
        return _CONFLICT.select(
            self._con,
            f"WHERE number > ?1 AND (?2 IS NULL OR mesh = ?2) "
            f"{'AND resolved_at IS NULL ' if open_only else ''}ORDER BY number LIMIT ?3",
            (after, mesh, limit),
        )

    def warning_list(self, mesh: str | None) -> list[WarningRow]:
        return _WARNING.select(self._con, "WHERE ?1 IS NULL OR mesh = ?1 ORDER BY number", (mesh,))


class LedgerWrites(LedgerReads):
    def conflict_add(self, row: ConflictRow) -> int:
        self._con.execute(_NEW.insert, _NEW.values(row))
        return self._con.last_insert_rowid()

    def conflict_change(self, row: ConflictRow) -> None:
        self._con.execute(
            f"{_CHANGED.update} WHERE number = ?", (*_CHANGED.values(row), row.number)
        )

    def conflict_drop(self, number: int) -> None:
        self._con.execute("DELETE FROM conflict WHERE number = ?", (number,))

    def conflict_resolve(self, number: int, resolution: str, now_ms: int) -> None:
        self._con.execute(
            "UPDATE conflict SET resolved_at = ?, resolution = ? WHERE number = ?",
            (now_ms, resolution, number),
        )

    def warning_add(self, row: WarningRow) -> None:
        self._con.execute(_WARNING.insert, _WARNING.values(row))

    def warnings_take(self, mesh: str | None) -> list[WarningRow]:
        waiting = self.warning_list(mesh)
        self._con.execute("DELETE FROM warning WHERE ?1 IS NULL OR mesh = ?1", (mesh,))
        return waiting
