"""What quorums have committed, by mesh and number."""

from __future__ import annotations

from typing import Final

from holdfast.protocol.commit_page import CheckedPage, CommitLine
from holdfast.protocol.quorum_snapshot import SnapshotHeader
from holdfast.rules.broker_rows import BrokerOrder
from holdfast.storage.broker.commit_order import check_brought, check_state
from holdfast.storage.broker.sqlite.database import BrokerDatabase
from holdfast.storage.sqlite.columns import RowColumns

_ORDER: Final = RowColumns("commit_order", BrokerOrder)
_COVERED: Final = (
    "SELECT mesh, first, state_number FROM commit_order WHERE first <= state_number LIMIT ?"
)


class SqliteCommits(BrokerDatabase):
    async def commit_order(self, mesh: str) -> BrokerOrder | None:
        with self.reading():
            return self._order(self.number_of(mesh))

    def _order(self, at: int) -> BrokerOrder | None:
        return _ORDER.find(self.connection, "WHERE mesh = ?", (at,))

    def _put_order(self, at: int, order: BrokerOrder) -> None:
        self.connection.execute(
            f"INSERT OR REPLACE INTO commit_order (mesh, {_ORDER.sql}) VALUES (?, {_ORDER.marks})",
            (at, *_ORDER.values(order)),
        )

    async def commits_add(
        self, mesh: str, page: CheckedPage, expires_at: int
    ) -> BrokerOrder | None:
        with self.writing(adds=True) as con:
            at = self.number_of(mesh)
            before = self._order(at)
            held = dict(
                con.execute(
                    "SELECT number, record FROM commit_line "
                    "WHERE mesh = ? AND number BETWEEN ? AND ?",
                    (at, page.first, page.first + len(page.lines) - 1),
                )
            )
            order, new = check_brought(before, page, held)
            if order is None or not new:
                return order
            con.executemany(
                "INSERT INTO commit_line VALUES (?, ?, ?, ?, ?)",
                [(at, one.record.number, expires_at, one.record_bytes, one.raw) for one in new],
            )
            self._put_order(at, order)
            self.news(mesh, 0)
            return order

    async def commit_lines(
        self, mesh: str, first: int, limit: int, bytes_max: int
    ) -> list[CommitLine]:
        with self.reading() as con:
            found = con.execute(
                "SELECT record, raw FROM commit_line WHERE mesh = ? AND number >= ? "
                "ORDER BY number LIMIT ?",
                (self.number_of(mesh), first, limit),
            )
            lines: list[CommitLine] = []
            size = 0
            for record, raw in found:
                lines.append(CommitLine(record, raw))
                size += len(record) + len(raw)
                if size >= bytes_max:
                    break
            found.close(True)
            return lines

    async def commit_state(
        self, mesh: str, header: SnapshotHeader, engine: str, sha256: str, size: int
    ) -> BrokerOrder | None:
        with self.writing(adds=True) as con:
            at = self.number_of(mesh)
            before = self._order(at)
            order = check_state(before, header, engine, sha256, size)
            if order is None:
                return before
            self._put_order(at, order)
            con.execute("DELETE FROM commit_line WHERE mesh = ? AND number < ?", (at, order.first))
            self.news(mesh, 0)
            return order

    def sweep_commits(self, now_ms: int, most: int) -> int:
        """Removes commits that a state covers and whose time is over, from the first on."""
        con = self.connection
        gone = 0
        for mesh, first, covered in list(con.execute(_COVERED, (most,))):
            over = con.execute(
                "SELECT max(number) FROM (SELECT number, expires_at FROM commit_line "
                "WHERE mesh = ? AND number BETWEEN ? AND ? ORDER BY number LIMIT ?) "
                "WHERE expires_at <= ?",
                (mesh, first, covered, max(0, most - gone), now_ms),
            ).get
            if over is None:
                continue
            con.execute("DELETE FROM commit_line WHERE mesh = ? AND number <= ?", (mesh, over))
            gone += con.changes()
            con.execute("UPDATE commit_order SET first = ? WHERE mesh = ?", (over + 1, mesh))
        return gone
