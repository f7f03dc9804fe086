"""Named readers of the log, and the cursors of long work."""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from holdfast.rules.filters import Filter
from holdfast.rules.rows import ConsumerRow, JobRow

_CONSUMER = "name, frontier, created_at, seen_at, retire_ms, retire_lag, zone, filter"
_cursor = msgspec.json.Decoder(dict[str, Any])
_filter = msgspec.json.Decoder(Filter)


def _consumer(row: Any) -> ConsumerRow:
    return ConsumerRow(
        name=row[0],
        frontier=row[1],
        created_at=row[2],
        seen_at=row[3],
        retire_ms=row[4],
        retire_lag=row[5],
        zone=row[6],
        filter=_filter.decode(row[7]),
    )


class ConsumerReads:
    _con: apsw.Connection

    def consumer_get(self, name: str) -> ConsumerRow | None:
        row = self._con.execute(f"SELECT {_CONSUMER} FROM consumer WHERE name = ?", (name,)).get
        return None if row is None else _consumer(row)

    def consumer_list(self) -> list[ConsumerRow]:
        rows = self._con.execute(f"SELECT {_CONSUMER} FROM consumer ORDER BY name")
        return [_consumer(row) for row in rows]

    def job_get(self, name: str) -> JobRow | None:
        row = self._con.execute(
            "SELECT name, cursor, updated_at FROM job WHERE name = ?", (name,)
        ).get
        if row is None:
            return None
        return JobRow(name=row[0], cursor=_cursor.decode(row[1]), updated_at=row[2])


class ConsumerWrites(ConsumerReads):
    def consumer_put(self, row: ConsumerRow) -> None:
        self._con.execute(
            f"INSERT INTO consumer ({_CONSUMER}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (name) DO UPDATE SET frontier = excluded.frontier, "
            "seen_at = excluded.seen_at, retire_ms = excluded.retire_ms, "
            "retire_lag = excluded.retire_lag, zone = excluded.zone, filter = excluded.filter",
            (
                row.name,
                row.frontier,
                row.created_at,
                row.seen_at,
                row.retire_ms,
                row.retire_lag,
                row.zone,
                msgspec.json.encode(row.filter).decode(),
            ),
        )

    def consumer_drop(self, name: str) -> None:
        self._con.execute("DELETE FROM consumer WHERE name = ?", (name,))

    def job_put(self, row: JobRow) -> None:
        self._con.execute(
            "INSERT INTO job (name, cursor, updated_at) VALUES (?, ?, ?) ON CONFLICT (name) "
            "DO UPDATE SET cursor = excluded.cursor, updated_at = excluded.updated_at",
            (row.name, msgspec.json.encode(row.cursor).decode(), row.updated_at),
        )

    def job_drop(self, name: str) -> None:
        self._con.execute("DELETE FROM job WHERE name = ?", (name,))
