"""Named readers of the log, and the cursors of long work, in memory."""

from __future__ import annotations

from holdfast.rules.rows import ConsumerRow, JobRow
from holdfast.storage.memory.undo import UndoTables


class MemoryConsumers(UndoTables):
    """Consumers and jobs."""

    def consumer_get(self, name: str) -> ConsumerRow | None:
        return self._table("consumer").get(name)

    def consumer_list(self) -> list[ConsumerRow]:
        return sorted(self._table("consumer").values(), key=lambda row: row.name.encode())

    def consumer_put(self, row: ConsumerRow) -> None:
        self._put("consumer", row.name, row)

    def consumer_drop(self, name: str) -> None:
        self._drop("consumer", name)

    def job_get(self, name: str) -> JobRow | None:
        return self._table("job").get(name)

    def job_put(self, row: JobRow) -> None:
        self._put("job", row.name, row)

    def job_drop(self, name: str) -> None:
        self._drop("job", name)
