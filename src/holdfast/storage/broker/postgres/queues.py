"""Queues: each message goes to one member at a time, until one has finished with it.

A call that takes messages locks their rows and skips rows that another call has locked, so two
calls never wait for each other and never get the same message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from holdfast.rules.broker_rows import DeadLetter, QueueCounts, TakenRow
from holdfast.rules.limits import TAKE_BYTES
from holdfast.storage.broker.postgres.base import PostgresPart, number_of
from holdfast.storage.broker.refusals import no_queue, no_settling

DELIVERED_TOO_OFTEN: Final = "delivered too often"

_FREE: Final = """
SELECT seq, deliveries, (
    SELECT octet_length(raw) FROM message p WHERE p.mesh = $1 AND p.seq = queue.seq
) AS size FROM queue
WHERE mesh = $1 AND ref = $2 AND died_at IS NULL AND visible_at <= $3
ORDER BY rank, seq LIMIT $4 FOR UPDATE SKIP LOCKED
"""
_DIE: Final = """
UPDATE queue SET died_at = $3, reason = $4, lease = NULL, holder = NULL
WHERE mesh = $1 AND seq = ANY ($2)
"""
_HAND_OUT: Final = """
WITH handed AS (
    UPDATE queue SET lease = t.lease, holder = $4, visible_at = $5, deliveries = deliveries + 1
    FROM unnest($2::bigint[], $3::bytea[]) AS t (seq, lease)
    WHERE queue.mesh = $1 AND queue.seq = t.seq
    RETURNING queue.seq, queue.rank, queue.lease, queue.deliveries
)
SELECT h.seq, h.lease, h.deliveries, p.broker_id, p.raw
FROM handed h JOIN message p ON p.mesh = $1 AND p.seq = h.seq ORDER BY h.rank, h.seq
"""
_SETTLE: Final = {
    "done": "DELETE FROM queue WHERE {mine} AND $5::text IS NOT NULL AND $6::bigint > 0",
    "again": "UPDATE queue SET lease = NULL, holder = NULL, visible_at = 0, reason = $5 "
    "WHERE {mine} AND $6::bigint > 0",
    "dead": "UPDATE queue SET lease = NULL, holder = NULL, died_at = $6, reason = $5 WHERE {mine}",
    "extend": "UPDATE queue SET visible_at = $6 + d.visibility_ms FROM destination d "
    "WHERE d.mesh = queue.mesh AND d.kind = 'queue' AND d.ref = queue.ref AND {mine} "
    "AND $5::text IS NOT NULL",
}
_MINE: Final = (
    "queue.mesh = $1 AND queue.ref = $2 AND queue.seq = $3 AND queue.lease = $4 "
    "AND queue.died_at IS NULL"
)


class PostgresQueues(PostgresPart):
    async def take(
        self, mesh: str, queue: str, holder: bytes, most: int, leases: Sequence[bytes], now_ms: int
    ) -> list[TakenRow]:
        most = min(most, len(leases))

        async def work(con: Any) -> list[TakenRow]:
            number = await number_of(con, mesh)
            settings = await con.fetchrow(
                "SELECT visibility_ms, deliveries_max FROM destination "
                "WHERE mesh = $1 AND kind = 'queue' AND ref = $2",
                *(number, queue),
            )
            if settings is None:
                raise no_queue(queue)
            seqs = await self._free(con, number, queue, most, settings["deliveries_max"], now_ms)
            until = now_ms + settings["visibility_ms"]
            rows = await con.fetch(_HAND_OUT, number, seqs, leases[: len(seqs)], holder, until)
            return [TakenRow(queue=queue, until=until, **row) for row in rows]

        return await self._connections.transact(work)

    async def _free(
        self, con: Any, number: int, queue: str, most: int, deliveries_max: int, now_ms: int
    ) -> list[int]:
        """The seqs of messages to hand out, by rank and age. Those that were delivered too often
        become dead letters on the way.
        """
        seqs: list[int] = []
        size = 0
        while len(seqs) < most:
            rows = await con.fetch(_FREE, number, queue, now_ms, most)
            rows = [row for row in rows if row["seq"] not in seqs]
            worn = [row["seq"] for row in rows if row["deliveries"] >= deliveries_max]
            if worn:
                await con.execute(_DIE, number, worn, now_ms, DELIVERED_TOO_OFTEN)
            for row in rows:
                if row["deliveries"] < deliveries_max:
                    size += row["size"] or 0
                    if seqs and size > TAKE_BYTES:
                        return seqs[:most]
                    seqs.append(row["seq"])
            if not worn:
                break
        return seqs[:most]

    async def settle(
        self, mesh: str, queue: str, seq: int, lease: bytes, how: str, reason: str, now_ms: int
    ) -> bool:
        if how not in _SETTLE:
            raise no_settling(how)
        statement = _SETTLE[how].format(mine=_MINE) + " RETURNING queue.seq"

        async def work(con: Any) -> bool:
            number = await number_of(con, mesh)
            found = await con.fetchval(statement, number, queue, seq, lease, reason, now_ms)
            return found is not None

        settled = await self._connections.transact(work)
        if settled and how == "again":
            self._news.grew(mesh, 0)
        return settled

    async def queue_counts(self, mesh: str) -> list[QueueCounts]:
        rows = await self._connections.fetch(
            "SELECT d.ref AS queue, "
            "count(q.seq) FILTER (WHERE died_at IS NULL AND lease IS NULL) AS ready, "
            "count(q.seq) FILTER (WHERE died_at IS NULL AND lease IS NOT NULL) AS taken, "
            "count(q.seq) FILTER (WHERE died_at IS NOT NULL) AS dead "
            "FROM mesh m JOIN destination d ON d.mesh = m.number AND d.kind = 'queue' "
            "LEFT JOIN queue q ON q.mesh = d.mesh AND q.ref = d.ref "
            "WHERE m.slug = $1 GROUP BY d.ref ORDER BY d.ref",
            mesh,
        )
        return [QueueCounts(**row) for row in rows]

    async def queue_meshes(self) -> list[str]:
        rows = await self._connections.fetch(
            "SELECT slug FROM mesh WHERE EXISTS (SELECT FROM destination "
            "WHERE mesh = number AND kind = 'queue') ORDER BY slug"
        )
        return [row["slug"] for row in rows]

    async def dead_letters(self, mesh: str, queue: str, limit: int) -> list[DeadLetter]:
        rows = await self._connections.fetch(
            "SELECT q.ref AS queue, q.seq, q.deliveries, q.reason, q.died_at, p.id "
            "FROM mesh m JOIN queue q ON q.mesh = m.number "
            "JOIN message p ON p.mesh = q.mesh AND p.seq = q.seq "
            "WHERE m.slug = $1 AND q.ref = $2 AND q.died_at IS NOT NULL "
            "ORDER BY q.seq LIMIT $3",
            *(mesh, queue, limit),
        )
        return [DeadLetter(**row) for row in rows]

    async def revive(self, mesh: str, queue: str, seq: int) -> bool:
        async def work(con: Any) -> bool:
            found = await con.fetchval(
                "UPDATE queue SET died_at = NULL, reason = '', deliveries = 0, visible_at = 0 "
                "WHERE mesh = $1 AND ref = $2 AND seq = $3 AND died_at IS NOT NULL RETURNING seq",
                *(await number_of(con, mesh), queue, seq),
            )
            return found is not None

        revived = await self._connections.transact(work)
        if revived:
            self._news.grew(mesh, 0)
        return revived
