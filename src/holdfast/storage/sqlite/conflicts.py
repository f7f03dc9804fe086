"""What merges discarded, and what this node's peer must still be told."""

from __future__ import annotations

from typing import Any

import apsw

from holdfast.rules.order import Version
from holdfast.rules.rows import ConflictRow, WarningRow

_CONFLICT = (
    "number, mesh, family, owner, entity, reason, winner_lamport, winner_peer, winner_id, "
    "loser_lamport, loser_peer, loser_id, loser_op, loser_body, found_at, resolved_at, resolution"
)
_WARNING = "mesh, type, entity, by_peer, at_lamport"


def _conflict(row: Any) -> ConflictRow:
    return ConflictRow(
        number=row[0],
        mesh=row[1],
        family=row[2],
        owner=row[3],
        entity=row[4],
        reason=row[5],
        winner=Version(*row[6:9]),
        loser=Version(*row[9:12]),
        loser_op=row[12],
        loser_body=row[13],
        found_at=row[14],
        resolved_at=row[15],
        resolution=row[16],
    )


def _warning(row: Any) -> WarningRow:
    return WarningRow(mesh=row[0], type=row[1], entity=row[2], by_peer=row[3], at_lamport=row[4])


class LedgerReads:
    _con: apsw.Connection

    def conflict_get(self, number: int) -> ConflictRow | None:
        row = self._con.execute(f"SELECT {_CONFLICT} FROM conflict WHERE number = ?", (number,)).get
        return None if row is None else _conflict(row)

    def conflict_open(
        self, mesh: str, family: str, owner: str, entity: str, loser: str
    ) -> ConflictRow | None:
        row = self._con.execute(
            f"SELECT {_CONFLICT} FROM conflict WHERE mesh = ? AND entity = ? AND family = ? "
            "AND owner = ? AND loser_peer = ? AND resolved_at IS NULL LIMIT 1",
            (mesh, entity, family, owner, loser),
        ).get
        return None if row is None else _conflict(row)

    def conflict_list(
        self, mesh: str | None, *, open_only: bool, after: int, limit: int
    ) -> list[ConflictRow]:
        rows = self._con.execute(
            f"SELECT {_CONFLICT} FROM conflict WHERE number > ?1 AND (?2 IS NULL OR mesh = ?2) "
            f"{'AND resolved_at IS NULL ' if open_only else ''}ORDER BY number LIMIT ?3",
            (after, mesh, limit),
        )
        return [_conflict(row) for row in rows]

    def warning_list(self, mesh: str | None) -> list[WarningRow]:
        rows = self._con.execute(
            f"SELECT {_WARNING} FROM warning WHERE ?1 IS NULL OR mesh = ?1 ORDER BY number", (mesh,)
        )
        return [_warning(row) for row in rows]


class LedgerWrites(LedgerReads):
    def conflict_add(self, row: ConflictRow) -> int:
        self._con.execute(
            f"INSERT INTO conflict ({_CONFLICT}) "
            "VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                row.mesh,
                row.family,
                row.owner,
                row.entity,
                row.reason,
                *row.winner,
                *row.loser,
                row.loser_op,
                row.loser_body,
                row.found_at,
                row.resolved_at,
                row.resolution,
            ),
        )
        return self._con.last_insert_rowid()

    def conflict_change(self, row: ConflictRow) -> None:
        self._con.execute(
            "UPDATE conflict SET reason = ?, winner_lamport = ?, winner_peer = ?, winner_id = ?, "
            "loser_lamport = ?, loser_peer = ?, loser_id = ?, loser_op = ?, loser_body = ?, "
            "found_at = ? WHERE number = ?",
            (
                row.reason,
                *row.winner,
                *row.loser,
                row.loser_op,
                row.loser_body,
                row.found_at,
                row.number,
            ),
        )

    def conflict_resolve(self, number: int, resolution: str, now_ms: int) -> None:
        self._con.execute(
            "UPDATE conflict SET resolved_at = ?, resolution = ? WHERE number = ?",
            (now_ms, resolution, number),
        )

    def warning_add(self, row: WarningRow) -> None:
        self._con.execute(
            f"INSERT INTO warning ({_WARNING}) VALUES (?, ?, ?, ?, ?)",
            (row.mesh, row.type, row.entity, row.by_peer, row.at_lamport),
        )

    def warnings_take(self, mesh: str | None) -> list[WarningRow]:
        waiting = self.warning_list(mesh)
        self._con.execute("DELETE FROM warning WHERE ?1 IS NULL OR mesh = ?1", (mesh,))
        return waiting
