"""Whole objects that nothing names any more: noted, and removed when the note is old.

The note is `idle_since`, which an object that is whole has for no other reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.storage.broker.sqlite.objects import SqliteObjects


class SqliteObjectGc(SqliteObjects):
    async def object_asked(self, mesh: str, sha256: str) -> int | None:
        size = await self.object_size(mesh, sha256)
        if size is not None:
            with self.writing() as con:
                con.execute(
                    "UPDATE object SET idle_since = NULL "
                    "WHERE mesh = ? AND sha256 = ? AND whole = 1 AND idle_since IS NOT NULL",
                    (self.number_of(mesh), sha256),
                )
        return size

    async def objects_after(self, mesh: str, sha256: str, limit: int) -> list[str]:
        with self.reading() as con:
            rows = con.execute(
                "SELECT sha256 FROM object WHERE mesh = ? AND sha256 > ? AND whole = 1 "
                "ORDER BY sha256 LIMIT ?",
                (self.number_of(mesh), sha256, limit),
            )
            return [name for (name,) in rows]

    async def objects_settle(
        self, mesh: str, named: Sequence[str], unnamed: Sequence[str], now_ms: int, before_ms: int
    ) -> int:
        with self.writing() as con:
            at = self.number_of(mesh)
            con.executemany(
                "UPDATE object SET idle_since = NULL "
                "WHERE mesh = ? AND sha256 = ? AND whole = 1 AND idle_since IS NOT NULL",
                [(at, name) for name in named],
            )
            old = [
                name
                for name in unnamed
                if con.execute(
                    "SELECT 1 FROM object WHERE mesh = ? AND sha256 = ? AND whole = 1 "
                    "AND idle_since <= ?",
                    (at, name, before_ms),
                ).get
            ]
            for name in old:
                self.drop_object(at, name)
            con.executemany(
                "UPDATE object SET idle_since = ? "
                "WHERE mesh = ? AND sha256 = ? AND whole = 1 AND idle_since IS NULL",
                [(now_ms, at, name) for name in unnamed],
            )
        return len(old)
