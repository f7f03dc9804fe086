"""Named readers of the log, and the cursors of long work."""

from __future__ import annotations

import apsw

from holdfast.rules.rows import ConsumerRow, JobRow
from holdfast.storage.sqlite.columns import DOCUMENT, FILTER, RowColumns

_CONSUMER = RowColumns(ConsumerRow, filter=FILTER)
_JOB = RowColumns(JobRow, cursor=DOCUMENT)


class ConsumerReads:
    _con: apsw.Connection

    def consumer_get(self, name: str) -> ConsumerRow | None:
        row = self._con.execute(f"SELECT {_CONSUMER.sql} FROM consumer WHERE name = ?", (name,)).get
        return _CONSUMER.one(row)

    def consumer_list(self) -> list[ConsumerRow]:
        rows = self._con.execute(f"SELECT {_CONSUMER.sql} FROM consumer ORDER BY name")
        return _CONSUMER.rows(rows)

    def job_get(self, name: str) -> JobRow | None:
        row = self._con.execute(f"SELECT {_JOB.sql} FROM job WHERE name = ?", (name,)).get
        return _JOB.one(row)


class ConsumerWrites(ConsumerReads):
    def consumer_put(self, row: ConsumerRow) -> None:
        self._con.execute(
            _CONSUMER.upsert("consumer", "name", keep=("created_at",)), _CONSUMER.values(row)
        )

    def consumer_drop(self, name: str) -> None:
        self._con.execute("DELETE FROM consumer WHERE name = ?", (name,))

    def job_put(self, row: JobRow) -> None:
        self._con.execute(_JOB.upsert("job", "name"), _JOB.values(row))

    def job_drop(self, name: str) -> None:
        self._con.execute("DELETE FROM job WHERE name = ?", (name,))
