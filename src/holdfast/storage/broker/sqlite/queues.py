"""Queues: each message goes to one member at a time, until one has finished with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.rules.broker_rows import DeadLetter, QueueCounts, TakenRow
from holdfast.rules.limits import SEQ_MAX, TAKE_BYTES
from holdfast.storage.broker.refusals import no_queue, no_settling
from holdfast.storage.broker.sqlite.database import SEQ_BITS, BrokerDatabase
from holdfast.storage.sqlite.columns import RowColumns

_COUNTS: Final = RowColumns("destination", QueueCounts)
_LETTER: Final = RowColumns("queued", DeadLetter)
_RELEASE: Final = "state = 0, lease = NULL, holder = NULL, until = NULL"
_BURY: Final = "state = 2, lease = NULL, holder = NULL, until = NULL, reason = ?, died_at = ?"


class SqliteQueues(BrokerDatabase):
    async def take(
        self, mesh: str, queue: str, holder: bytes, most: int, leases: Sequence[bytes], now_ms: int
    ) -> list[TakenRow]:
        with self.writing() as con:
            number = self.number_of(mesh)
            visibility_ms, deliveries_max = self._queue(number, queue)
            con.execute(
                f"UPDATE queued SET {_RELEASE} "
                "WHERE mesh = ? AND queue = ? AND state = 1 AND until <= ?",
                (number, queue, now_ms),
            )
            base, until = number << SEQ_BITS, now_ms + visibility_ms
            rows, worn = self._free(number, queue, min(most, len(leases)), deliveries_max)
            con.executemany(
                f"UPDATE queued SET {_BURY} WHERE place = ?",
                [(f"delivered {deliveries_max} times", now_ms, place) for place in worn],
            )
            taken = [
                TakenRow(
                    queue=queue,
                    seq=place - base,
                    lease=lease,
                    deliveries=deliveries,
                    until=until,
                    broker_id=broker_id,
                    raw=raw,
                )
                for (place, deliveries, broker_id, raw), lease in zip(rows, leases, strict=False)
            ]
            con.executemany(
                "UPDATE queued SET state = 1, deliveries = ?, lease = ?, holder = ?, until = ? "
                "WHERE place = ?",
                [(one.deliveries, one.lease, holder, until, base + one.seq) for one in taken],
            )
        return taken

    def _free(
        self, number: int, queue: str, most: int, deliveries_max: int
    ) -> tuple[list[tuple[int, int, bytes, bytes]], list[int]]:
        """The messages to hand out, by rank and age, and the worn-out ones on the way."""
        found = self.connection.execute(
            "SELECT place, deliveries, broker_id, raw FROM queued JOIN message USING (place) "
            "WHERE mesh = ? AND queue = ? AND state = 0 ORDER BY queued.rank, place",
            (number, queue),
        )
        rows: list[tuple[int, int, bytes, bytes]] = []
        worn: list[int] = []
        size = 0
        for place, deliveries, broker_id, raw in found:
            if deliveries >= deliveries_max:
                worn.append(place)
                continue
            size += len(raw)
            if len(rows) >= most or (rows and size > TAKE_BYTES):
                break
            rows.append((place, deliveries + 1, broker_id, raw))
        found.close(True)
        return rows, worn

    async def settle(
        self, mesh: str, queue: str, seq: int, lease: bytes, how: str, reason: str, now_ms: int
    ) -> bool:
        with self.writing() as con:
            number = self.number_of(mesh)
            if not 0 < seq <= SEQ_MAX:
                return False  # it would be the place of another mesh
            where = "place = ? AND queue = ? AND state = 1 AND lease = ?"
            which = ((number << SEQ_BITS) + seq, queue, lease)
            if how == "done":
                con.execute(f"DELETE FROM queued WHERE {where}", which)
            elif how == "again":
                con.execute(f"UPDATE queued SET {_RELEASE} WHERE {where}", which)
                self.news(mesh, 0)
            elif how == "dead":
                con.execute(f"UPDATE queued SET {_BURY} WHERE {where}", (reason, now_ms, *which))
            elif how == "extend":
                visibility_ms, _ = self._queue(number, queue)
                until = now_ms + visibility_ms
                con.execute(f"UPDATE queued SET until = ? WHERE {where}", (until, *which))
            else:
                raise no_settling(how)
            return con.changes() > 0

    def _queue(self, number: int, queue: str) -> tuple[int, int]:
        row = self.connection.execute(
            "SELECT visibility_ms, deliveries_max FROM destination "
            "WHERE mesh = ? AND kind = 'queue' AND ref = ?",
            (number, queue),
        ).get
        if row is None:
            raise no_queue(queue)
        return row[0], row[1]

    async def queue_counts(self, mesh: str) -> list[QueueCounts]:
        with self.reading() as con:
            rows = con.execute(
                "SELECT ref, count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1), "
                "count(*) FILTER (WHERE state = 2) FROM destination AS d "
                "LEFT JOIN queued AS q ON q.mesh = d.mesh AND q.queue = d.ref "
                "WHERE d.mesh = ? AND d.kind = 'queue' GROUP BY ref ORDER BY ref",
                (self.number_of(mesh),),
            )
            return _COUNTS.rows(rows)

    async def queue_meshes(self) -> list[str]:
        with self.reading() as con:
            rows = con.execute(
                "SELECT slug FROM mesh WHERE EXISTS (SELECT 1 FROM destination "
                "WHERE mesh = number AND kind = 'queue') ORDER BY slug"
            )
            return [slug for (slug,) in rows]

    async def dead_letters(self, mesh: str, queue: str, limit: int) -> list[DeadLetter]:
        with self.reading() as con:
            number = self.number_of(mesh)
            rows = con.execute(
                "SELECT queue, place - ?, deliveries, reason, died_at, id "
                "FROM queued JOIN message USING (place) "
                "WHERE mesh = ? AND queue = ? AND state = 2 ORDER BY place LIMIT ?",
                (number << SEQ_BITS, number, queue, limit),
            )
            return _LETTER.rows(rows)

    async def revive(self, mesh: str, queue: str, seq: int) -> bool:
        with self.writing() as con:
            number = self.number_of(mesh)
            if not 0 < seq <= SEQ_MAX:
                return False  # it would be the place of another mesh
            con.execute(
                "UPDATE queued SET state = 0, deliveries = 0, reason = '', died_at = NULL "
                "WHERE place = ? AND queue = ? AND state = 2",
                ((number << SEQ_BITS) + seq, queue),
            )
            self.news(mesh, 0)
            return con.changes() > 0
