"""What quorums have committed, by mesh and number.

Whoever adds holds the row of the mesh: of two members that bring the same page, the second finds
it known.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.protocol.commit_page import CheckedPage, CommitLine
from holdfast.protocol.quorum_snapshot import SnapshotHeader
from holdfast.rules.broker_rows import BrokerOrder
from holdfast.storage.broker.commit_order import check_brought, check_state
from holdfast.storage.broker.postgres.base import PostgresPart, columns, number_of

_ORDER: Final = columns(BrokerOrder)
_PUT: Final = (
    f"INSERT INTO commit_order (mesh, {_ORDER}) "
    "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (mesh) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in BrokerOrder.__struct_fields__)
)
_LINES: Final = """
SELECT record, raw FROM (
    SELECT number, record, raw, sum(octet_length(record) + octet_length(raw)) OVER (
        ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before
    FROM (
        SELECT number, record, raw FROM commit_line WHERE mesh = $1 AND number >= $2
        ORDER BY number LIMIT $3
    ) held
) page WHERE before IS NULL OR before < $4 ORDER BY number
"""
SWEEP_COMMITS: Final = """
WITH covered AS (
    SELECT o.mesh, (
        SELECT max(number) FROM (
            SELECT number, expires_at FROM commit_line l
            WHERE l.mesh = o.mesh AND l.number BETWEEN o.first AND o.state_number
            ORDER BY number LIMIT $2
        ) held WHERE expires_at <= $1
    ) AS over
    FROM commit_order o WHERE o.first <= o.state_number
), moved AS (
    UPDATE commit_order o SET first = covered.over + 1
    FROM covered WHERE o.mesh = covered.mesh AND covered.over IS NOT NULL
    RETURNING o.mesh, covered.over
)
DELETE FROM commit_line l USING moved WHERE l.mesh = moved.mesh AND l.number <= moved.over
"""
"""Removes commits that a state covers and whose time is over, from the first on."""


class PostgresCommits(PostgresPart):
    async def commit_order(self, mesh: str) -> BrokerOrder | None:
        async def work(con: Any) -> BrokerOrder | None:
            return await _order(con, await number_of(con, mesh))

        return await self._connections.transact(work)

    async def commits_add(
        self, mesh: str, page: CheckedPage, expires_at: int
    ) -> BrokerOrder | None:
        async def work(con: Any) -> tuple[BrokerOrder | None, int]:
            at = await number_of(con, mesh, lock=True)
            held = await con.fetch(
                "SELECT number, record FROM commit_line "
                "WHERE mesh = $1 AND number BETWEEN $2 AND $3",
                *(at, page.first, page.first + len(page.lines) - 1),
            )
            known = {row["number"]: row["record"] for row in held}
            order, new = check_brought(await _order(con, at), page, known)
            if order is not None and new:
                await con.executemany(
                    "INSERT INTO commit_line VALUES ($1, $2, $3, $4, $5)",
                    [(at, one.record.number, expires_at, one.record_bytes, one.raw) for one in new],
                )
                await _put(con, at, order)
            return order, len(new)

        order, new = await self._connections.transact(work)
        if new:
            self._news.grew(mesh, 0)
        return order

    async def commit_lines(
        self, mesh: str, first: int, limit: int, bytes_max: int
    ) -> list[CommitLine]:
        async def work(con: Any) -> list[CommitLine]:
            at = await number_of(con, mesh)
            found = await con.fetch(_LINES, at, first, limit, bytes_max)
            return [CommitLine(row["record"], row["raw"]) for row in found]

        return await self._connections.transact(work)

    async def commit_state(
        self, mesh: str, header: SnapshotHeader, engine: str, sha256: str, size: int
    ) -> BrokerOrder | None:
        async def work(con: Any) -> tuple[BrokerOrder | None, bool]:
            at = await number_of(con, mesh, lock=True)
            before = await _order(con, at)
            order = check_state(before, header, engine, sha256, size)
            if order is None:
                return before, False
            await _put(con, at, order)
            await con.execute(
                "DELETE FROM commit_line WHERE mesh = $1 AND number < $2", at, order.first
            )
            return order, True

        order, moved = await self._connections.transact(work)
        if moved:
            self._news.grew(mesh, 0)
        return order


async def _order(con: Any, at: int) -> BrokerOrder | None:
    row = await con.fetchrow(f"SELECT {_ORDER} FROM commit_order WHERE mesh = $1", at)
    return None if row is None else BrokerOrder(**row)


async def _put(con: Any, at: int, order: BrokerOrder) -> None:
    await con.execute(_PUT, at, *msgspec.structs.astuple(order))
