"""Named readers of the log, and the cursors of long work."""

from __future__ import annotations

import apsw

from holdfast.rules.rows import ConsumerRow, JobRow
from holdfast.storage.sqlite.columns import DOCUMENT, FILTER, RowColumns

_CONSUMER = RowColumns("consumer", ConsumerRow, filter=FILTER)
_JOB = RowColumns("job", JobRow, cursor=DOCUMENT)


class ConsumerReads:
    _con: apsw.Connection

    def consumer_get(self, name: str) -> ConsumerRow | None:
        return _CONSUMER.find(self._con, "WHERE name = ?", (name,))

    def consumer_list(self) -> list[ConsumerRow]:
        return _CONSUMER.select(self._con, "ORDER BY name")

    def job_get(self, name: str) -> JobRow | None:
        return _JOB.find(self._con, "WHERE name = ?", (name,))


class ConsumerWrites(ConsumerReads):
    def consumer_put(self, row: ConsumerRow) -> None:
        self._con.execute(_CONSUMER.upsert("name", keep=("created_at",)), _CONSUMER.values(row))

    def consumer_drop(self, name: str) -> None:
        self._con.execute("DELETE FROM consumer WHERE name = ?", (name,))

    def job_put(self, row: JobRow) -> None:
        self._con.execute(_JOB.upsert("name"), _JOB.values(row))

    def job_drop(self, name: str) -> None:
        self._con.execute("DELETE FROM job WHERE name = ?", (name,))
