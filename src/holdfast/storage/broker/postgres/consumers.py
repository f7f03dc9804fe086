"""The whole log of a mesh, and its named readers.

A reader gets everything, for every member. What has expired leaves holes in the seqs. Those that
were there before the reader came are not its concern; those that come afterwards, before it has
confirmed what stood there, are noted with it as lost, by the statement that removes them.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.rules.broker_rows import BrokerConsumer, LogPage, LogRow
from holdfast.rules.limits import SEQ_MAX
from holdfast.storage.broker.postgres.base import PostgresPart, columns, touched
from holdfast.storage.broker.refusals import (
    check_confirmed,
    check_new_consumer,
    no_consumer,
    no_mesh,
)

_STANDS: Final = "SELECT number, epoch, seq AS last, first FROM mesh WHERE slug = $1"
# One statement, so that all of a page is of one moment.
_PAGE: Final = f"""
WITH here AS ({_STANDS}), page AS (
    SELECT seq, id, broker_id, raw, row_number() OVER by_seq AS place,
        sum(octet_length(raw)) OVER by_seq AS bytes
    FROM (
        SELECT p.seq, p.id, p.broker_id, p.raw FROM here, message p
        WHERE p.mesh = here.number AND p.seq > $2 AND p.seq <= $3 ORDER BY p.seq LIMIT $4
    ) found
    WINDOW by_seq AS (ORDER BY seq ROWS UNBOUNDED PRECEDING)
)
SELECT here.epoch, here.last, here.first, page.seq, page.id, page.broker_id, page.raw,
    (SELECT count(*) FROM page) AS found
FROM here LEFT JOIN page ON page.bytes <= $5 OR page.place = 1
ORDER BY page.seq
"""
_COLUMNS: Final = columns(BrokerConsumer)
_ONE: Final = "mesh = $1 AND key = $2 AND name = $3"
_ADD: Final = f"""
INSERT INTO consumer AS c (mesh, key, name, seq, added_at, seen_at) VALUES ($1, $2, $3, $4, $5, $5)
ON CONFLICT (mesh, key, name) DO UPDATE SET seen_at = excluded.seen_at
RETURNING {columns(BrokerConsumer, "c.")}
"""
_CONFIRM: Final = f"""
UPDATE consumer SET seq = greatest(seq, $4), seen_at = $5 WHERE {_ONE} RETURNING {_COLUMNS}
"""
_SETTLE: Final = f"""
UPDATE consumer SET lost = 0, lost_first = 0, lost_last = 0
WHERE {_ONE} AND lost_last <= $4 RETURNING {_COLUMNS}
"""

NOTE_LOST: Final = """lost AS (
    UPDATE consumer c SET
        lost_first = CASE c.lost WHEN 0 THEN x.low ELSE least(c.lost_first, x.low) END,
        lost_last = greatest(c.lost_last, x.high), lost = c.lost + x.rows
    FROM (
        SELECT k.mesh, k.key, k.name, min(d.seq) AS low, max(d.seq) AS high, count(*) AS rows
        FROM consumer k JOIN doomed d ON d.mesh = k.mesh AND d.seq > k.seq GROUP BY 1, 2, 3
    ) x
    WHERE c.mesh = x.mesh AND c.key = x.key AND c.name = x.name
)"""
"""A part of the statement that removes `doomed`: notes with every reader what it had not confirmed.
"""


def awaited_behind(mesh: str) -> str:
    """SQL: the lowest seq that a reader of a mesh has confirmed; SEQ_MAX if it has no reader."""
    return (
        "coalesce((SELECT min(c.seq) FROM consumer c JOIN member b ON b.mesh = c.mesh "
        "AND b.key = c.key AND b.removed_at IS NULL AND 'audit' = ANY (b.grants) "
        f"WHERE c.mesh = {mesh}), {SEQ_MAX})"
    )


class PostgresConsumers(PostgresPart):
    async def log_page(
        self, mesh: str, after: int, upto: int, limit: int, bytes_max: int
    ) -> LogPage:
        span = (min(after, SEQ_MAX), min(upto, SEQ_MAX))
        # One more than is given: so it is known whether the page ends at its last row.
        values = (mesh, *span, limit + 1, bytes_max)
        rows = await self._connections.fetch(_PAGE, *values)
        if not rows:
            raise no_mesh(mesh)
        shown = [
            LogRow(row["seq"], row["id"], row["broker_id"], row["raw"])
            for row in rows[:limit]
            if row["seq"] is not None
        ]
        last, to = rows[0]["last"], max(after, min(upto, rows[0]["last"]))
        if len(shown) < rows[0]["found"]:
            to = shown[-1].seq
        return LogPage(epoch=rows[0]["epoch"], first=rows[0]["first"], last=last, to=to, rows=shown)

    async def consumer_add(
        self, mesh: str, key: bytes, name: str, after: int, known: int, now_ms: int
    ) -> BrokerConsumer:
        async def work(con: Any) -> BrokerConsumer:
            here = await _stands(con, mesh)
            who = (here["number"], key, name)
            there = await con.fetchval(f"SELECT 1 FROM consumer WHERE {_ONE}", *who)
            if there is None:
                check_new_consumer(mesh, after, here["first"], here["last"])
            row = await con.fetchrow(_ADD, *who, after, now_ms)
            return await _settled(con, who, known, row)

        return await self._connections.transact(work)

    async def consumer_confirm(
        self, mesh: str, key: bytes, name: str, epoch: int, seq: int, now_ms: int
    ) -> BrokerConsumer:
        async def work(con: Any) -> BrokerConsumer:
            here = await _stands(con, mesh)
            who = (here["number"], key, name)
            if await con.fetchval(f"SELECT 1 FROM consumer WHERE {_ONE}", *who) is None:
                raise no_consumer(mesh, name)
            check_confirmed(mesh, epoch, seq, current=here["epoch"], last=here["last"])
            row = await con.fetchrow(_CONFIRM, *who, seq, now_ms)
            if row is None:
                raise no_consumer(mesh, name)
            return await _settled(con, who, seq, row)

        return await self._connections.transact(work)

    async def consumer_list(self, mesh: str) -> list[BrokerConsumer]:
        async def work(con: Any) -> list[BrokerConsumer]:
            number = (await _stands(con, mesh))["number"]
            rows = await con.fetch(
                f"SELECT {_COLUMNS} FROM consumer WHERE mesh = $1 ORDER BY name, key", number
            )
            return [BrokerConsumer(**row) for row in rows]

        return await self._connections.read(work)

    async def consumer_drop(self, mesh: str, key: bytes, name: str) -> bool:
        async def work(con: Any) -> bool:
            number = (await _stands(con, mesh))["number"]
            return (
                touched(await con.execute(f"DELETE FROM consumer WHERE {_ONE}", number, key, name))
                > 0
            )

        return await self._connections.transact(work)


async def _stands(con: Any, mesh: str) -> Any:
    row = await con.fetchrow(_STANDS, mesh)
    if row is None:
        raise no_mesh(mesh)
    return row


async def _settled(con: Any, who: tuple[int, bytes, str], known: int, row: Any) -> BrokerConsumer:
    """The reader, after what it has lost up to a seq that it knows of is forgotten."""
    return BrokerConsumer(**(await con.fetchrow(_SETTLE, *who, known) or row))
