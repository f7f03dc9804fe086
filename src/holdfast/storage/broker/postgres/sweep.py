"""Forgetting in time, and counting.

Every step of a sweep is one short transaction of at most `most` rows, so that `accept` does not
wait for it. Two brokers may sweep at once: each skips rows that the other has locked.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.rules.broker_rows import BrokerSwept, Mode
from holdfast.rules.limits import (
    BROKER_DEDUPE_GRACE_MS,
    CONSUMER_KEEP_MS_MAX,
    DAY_MS,
    POSTGRES_COUNT_ROWS_MAX,
)
from holdfast.storage.broker.accepted import mode_of
from holdfast.storage.broker.postgres.base import PostgresPart, touched
from holdfast.storage.broker.postgres.commits import SWEEP_COMMITS
from holdfast.storage.broker.postgres.consumers import NOTE_LOST, awaited_behind
from holdfast.storage.broker.postgres.queues import DELIVERED_TOO_OFTEN

# One that waits in a queue stays; a dead letter goes with its message.
_MESSAGES: Final = f"""
WITH doomed AS MATERIALIZED (
    SELECT mesh, seq, id FROM message p
    WHERE kind <> 'change' AND expires_at <= $1 AND NOT EXISTS (
        SELECT FROM queue q WHERE q.mesh = p.mesh AND q.seq = p.seq AND q.died_at IS NULL
    ) AND (expires_at <= $3 OR seq <= {awaited_behind("p.mesh")})
    ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
), letters AS (
    DELETE FROM queue q USING doomed d WHERE q.mesh = d.mesh AND q.seq = d.seq
), marked AS (
    UPDATE dedupe x SET history = FALSE FROM doomed d WHERE x.mesh = d.mesh AND x.id = d.id
        AND x.seq = d.seq
), {NOTE_LOST}
DELETE FROM message p USING doomed d WHERE p.mesh = d.mesh AND p.seq = d.seq
"""
_COVERED: Final = """
SELECT m.number, s.seq AS to_seq FROM mesh m
JOIN snapshot s ON s.mesh = m.number AND s.ready
WHERE s.seq >= m.first ORDER BY m.slug
"""
# From the oldest on, up to the first that is awaited.
_CHANGES: Final = f"""
WITH pen AS MATERIALIZED (
    SELECT number, first FROM mesh WHERE number = $1 FOR NO KEY UPDATE
), oldest AS MATERIALIZED (
    SELECT p.mesh, p.seq, p.id, p.expires_at FROM pen, message p
    WHERE p.mesh = $1 AND p.seq >= pen.first AND p.seq <= $2 AND p.kind = 'change'
    ORDER BY p.seq LIMIT $4
), doomed AS MATERIALIZED (
    -- Up to the last that is over: what a clock stored that was ahead goes with those after it.
    SELECT mesh, seq, id FROM oldest
    WHERE seq <= greatest(
        (SELECT max(seq) FROM oldest WHERE expires_at <= $3),
        (SELECT CASE WHEN p.expires_at <= $3 THEN p.seq END FROM message p
         WHERE p.mesh = $1 AND p.seq <= $2 AND p.kind = 'change' ORDER BY p.seq DESC LIMIT 1)
    ) AND seq < coalesce((
        SELECT min(seq) FROM oldest WHERE expires_at > $5 AND seq > {awaited_behind("$1")}
    ), $2 + 1)
), marked AS (
    UPDATE dedupe x SET history = FALSE FROM doomed d WHERE x.mesh = d.mesh AND x.id = d.id
        AND x.seq = d.seq
), moved AS (
    UPDATE mesh SET first = (SELECT max(seq) FROM doomed) + 1
    WHERE number = $1 AND EXISTS (SELECT FROM doomed)
), {NOTE_LOST}
DELETE FROM message p USING doomed d WHERE p.mesh = d.mesh AND p.seq = d.seq
"""
_CUT: Final = """
UPDATE queue q SET visible_at = $1 + d.visibility_ms FROM destination d
WHERE d.mesh = q.mesh AND d.kind = 'queue' AND d.ref = q.ref
    AND q.lease IS NOT NULL AND q.died_at IS NULL AND q.visible_at > $1 + d.visibility_ms
"""
_DEDUPE: Final = """
DELETE FROM dedupe WHERE (mesh, id) IN (
    -- Also ids that came under a shorter promise: nodes go by the number of days that holds now.
    SELECT mesh, id FROM dedupe WHERE NOT history AND expires_at <= $1 AND first_seen_at <= $3
    ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
"""
_RELEASE: Final = """
WITH late AS MATERIALIZED (
    SELECT q.mesh, q.seq, q.deliveries >= d.deliveries_max AS worn FROM queue q
    LEFT JOIN destination d ON d.mesh = q.mesh AND d.kind = 'queue' AND d.ref = q.ref
    WHERE q.lease IS NOT NULL AND q.visible_at <= $1
    ORDER BY q.visible_at LIMIT $2 FOR UPDATE OF q SKIP LOCKED
), freed AS (
    UPDATE queue q SET lease = NULL, holder = NULL,
        died_at = CASE WHEN late.worn THEN $1 END,
        reason = CASE WHEN late.worn THEN $3 ELSE q.reason END
    FROM late WHERE q.mesh = late.mesh AND q.seq = late.seq
    RETURNING q.mesh, q.died_at IS NOT NULL AS died
)
SELECT m.slug, count(*) FILTER (WHERE NOT died) AS released, count(*) FILTER (WHERE died) AS died
FROM freed JOIN mesh m ON m.number = freed.mesh GROUP BY m.slug
"""
_INVITES: Final = """
DELETE FROM invite WHERE digest IN (
    SELECT digest FROM invite WHERE expires_at <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED
)
"""
_IDLE: Final = (
    # The next piece or part takes the note away again.
    "UPDATE snapshot SET idle_since = $1 WHERE NOT ready AND idle_since IS NULL",
    "UPDATE object SET idle_since = $1 WHERE NOT whole AND idle_since IS NULL",
)
_ABANDONED: Final = (
    "DELETE FROM snapshot WHERE (mesh, id) IN (SELECT mesh, id FROM snapshot "
    "WHERE NOT ready AND idle_since <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)",
    "DELETE FROM object WHERE (mesh, sha256) IN (SELECT mesh, sha256 FROM object "
    "WHERE NOT whole AND idle_since <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)",
)
_COUNTS: Final = """
SELECT (SELECT count(*) FROM mesh) AS meshes,
    (SELECT count(*) FROM member WHERE removed_at IS NULL) AS members,
    {messages} AS messages, {dedupe} AS dedupe,
    (SELECT count(*) FROM queue WHERE died_at IS NULL AND lease IS NULL) AS ready,
    (SELECT count(*) FROM queue WHERE died_at IS NULL AND lease IS NOT NULL) AS taken,
    (SELECT count(*) FROM queue WHERE died_at IS NOT NULL) AS dead,
    (SELECT count(*) FROM object WHERE whole) AS objects,
    (SELECT count(*) FROM snapshot WHERE ready) AS snapshots
"""
_COUNT: Final = (
    "(SELECT CASE WHEN c.reltuples > {most} THEN c.reltuples::bigint "
    "ELSE (SELECT count(*) FROM {table}) END FROM pg_class c WHERE c.oid = '{table}'::regclass)"
)


class PostgresSweep(PostgresPart):
    async def server_ms(self) -> int | None:
        found: int = await self._connections.fetchval(
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        )
        return found

    async def cut_leases(self, now_ms: int) -> int:
        return await self._count(self._connections, _CUT, now_ms)

    async def sweep(self, now_ms: int, most: int, uncounted_ms: int = 0) -> BrokerSwept:
        return await self._swept(self._connections, now_ms, most, uncounted_ms)

    async def foresee_sweep(self, now_ms: int, most: int, uncounted_ms: int = 0) -> BrokerSwept:
        async def work(con: Any) -> BrokerSwept:
            undone = con.transaction()
            await undone.start()
            try:
                return await self._swept(con, now_ms, most, uncounted_ms)
            finally:
                await undone.rollback()

        return await self._connections.change(work)

    async def _swept(self, con: Any, now_ms: int, most: int, uncounted_ms: int) -> BrokerSwept:
        """`con` is the pool, where each statement is a transaction, or one connection."""
        old_ms = now_ms - uncounted_ms
        late = old_ms - CONSUMER_KEEP_MS_MAX
        messages = await self._count(con, _MESSAGES, old_ms, most, late)
        for mesh in await con.fetch(_COVERED):
            if messages < most:
                values = (mesh["number"], mesh["to_seq"], old_ms, most - messages, late)
                messages += await self._count(con, _CHANGES, *values)
        mode, days = await self.mode()
        dedupe = 0
        if mode != "permanent":
            kept = old_ms - BROKER_DEDUPE_GRACE_MS
            dedupe = await self._count(con, _DEDUPE, kept, most, kept - days * DAY_MS)
        released, died = await self._release(con, now_ms, most)
        invites = await self._count(con, _INVITES, now_ms, most)
        snapshots = await self._uploads(con, now_ms, most, uncounted_ms)
        commits = await self._count(con, SWEEP_COMMITS, old_ms, most)
        return BrokerSwept(
            dedupe=dedupe,
            messages=messages,
            released=released,
            died=died,
            invites=invites,
            snapshots=snapshots,
            commits=commits,
        )

    async def _count(self, con: Any, statement: str, *values: int) -> int:
        return touched(await con.execute(statement, *values))

    async def _release(self, con: Any, now_ms: int, most: int) -> tuple[int, int]:
        values, for_good = (now_ms, most, DELIVERED_TOO_OFTEN), con is self._connections
        rows = (
            await con.change(lambda one: one.fetch(_RELEASE, *values))
            if for_good
            else await con.fetch(_RELEASE, *values)
        )
        for row in rows:
            if row["released"] and for_good:
                self._news.grew(row["slug"], 0)
        return sum(row["released"] for row in rows), sum(row["died"] for row in rows)

    async def _uploads(self, con: Any, now_ms: int, most: int, uncounted_ms: int) -> int:
        before = now_ms - uncounted_ms - DAY_MS
        gone = [await self._count(con, one, before, most) for one in _ABANDONED]
        for statement in _IDLE:
            await self._count(con, statement, now_ms)
        return gone[0]

    async def counts(self) -> dict[str, int]:
        exact = {"most": POSTGRES_COUNT_ROWS_MAX}
        statement = _COUNTS.format(
            messages=_COUNT.format(table="message", **exact),
            dedupe=_COUNT.format(table="dedupe", **exact),
        )
        return dict(await self._connections.fetchrow(statement))

    async def mode(self) -> tuple[Mode, int]:
        noted: str | None = await self._connections.fetchval(
            "SELECT value FROM meta WHERE name = 'mode'"
        )
        return mode_of(*(noted.split() if noted is not None else (None, None)))

    async def set_mode(self, mode: Mode, days: int) -> None:
        await self._connections.execute(
            "INSERT INTO meta VALUES ('mode', $1) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            f"{mode} {days}",
        )

    async def claim(self, key: bytes, *, replace: bool = False) -> bytes:
        # One statement, so that of two brokers that start at once the later one sees the first.
        noted = await self._connections.fetchval(
            "INSERT INTO meta VALUES ('key', $1) ON CONFLICT (name) DO UPDATE "
            "SET value = CASE WHEN $2 THEN excluded.value ELSE meta.value END RETURNING value",
            *(key.hex(), replace),
        )
        return bytes.fromhex(noted)
