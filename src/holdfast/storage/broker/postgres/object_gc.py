"""Whole objects that nothing names any more: noted, and removed when the note is old.

The note is `idle_since`, which an object that is whole has for no other reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.storage.broker.postgres.base import number_of, touched
from holdfast.storage.broker.postgres.objects import PostgresObjects


class PostgresObjectGc(PostgresObjects):
    async def object_asked(self, mesh: str, sha256: str) -> int | None:
        size = await self.object_size(mesh, sha256)
        if size is not None:
            await self._connections.transact(
                lambda con: con.execute(
                    "UPDATE object SET idle_since = NULL WHERE whole AND idle_since IS NOT NULL "
                    "AND mesh = (SELECT number FROM mesh WHERE slug = $1) AND sha256 = $2",
                    *(mesh, sha256),
                )
            )
        return size

    async def objects_after(self, mesh: str, sha256: str, limit: int) -> list[str]:
        async def work(con: Any) -> list[str]:
            of = await number_of(con, mesh)
            rows = await con.fetch(
                "SELECT sha256 FROM object WHERE mesh = $1 AND sha256 > $2 AND whole "
                "ORDER BY sha256 LIMIT $3",
                *(of, sha256, limit),
            )
            return [row["sha256"] for row in rows]

        return await self._connections.read(work)

    async def objects_settle(
        self, mesh: str, named: Sequence[str], unnamed: Sequence[str], now_ms: int, before_ms: int
    ) -> int:
        async def work(con: Any) -> int:
            of = await number_of(con, mesh)
            await con.execute(
                "UPDATE object SET idle_since = NULL WHERE mesh = $1 AND sha256 = ANY($2) "
                "AND whole AND idle_since IS NOT NULL",
                *(of, list(named)),
            )
            gone = await con.execute(
                "DELETE FROM object WHERE mesh = $1 AND sha256 = ANY($2) AND whole "
                "AND idle_since <= $3",
                *(of, list(unnamed), before_ms),
            )
            await con.execute(
                "UPDATE object SET idle_since = $3 WHERE mesh = $1 AND sha256 = ANY($2) "
                "AND whole AND idle_since IS NULL",
                *(of, list(unnamed), now_ms),
            )
            return touched(gone)

        return await self._connections.transact(work)
