"""The log: append, find, range, truncate. While an entry stands, its id dedupes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from holdfast.rules.arrivals import Arrived
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.limits import LAMPORT_MAX
from holdfast.rules.rows import Entry
from holdfast.storage.sqlite.columns import RowColumns
from holdfast.storage.sqlite.log_pages import LogPages

_ENTRY = RowColumns("log", Entry)
_INSERT = (
    "INSERT INTO log (id, mesh, op, entity, origin, lamport, raw, recorded_at, via) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class LogReads(LogPages):
    _con: apsw.Connection
    _once: apsw.Cursor

    def epoch(self) -> int:
        value = self._con.execute("SELECT value FROM meta WHERE name = 'epoch'").get
        return 1 if value is None else int(value)

    def log_bounds(self) -> tuple[int, int]:
        # Two one-row probes of the key; together as min and max they would scan the table.
        last = self._con.execute("SELECT max(offset) FROM log").get
        if last is None:
            return 1, 0
        first = self._con.execute("SELECT min(offset) FROM log").get
        return int(first), int(last)

    def log_get(self, offset: int) -> Entry | None:
        return _ENTRY.find(self._con, "WHERE offset = ?", (offset,))

    def log_find(self, id: bytes) -> Entry | None:
        return _ENTRY.find(self._con, "WHERE id = ?", (id,))

    def log_range(self, start: int, end: int, limit: int) -> list[Entry]:
        return _ENTRY.select(
            self._con,
            "WHERE offset >= ? AND offset < ? ORDER BY offset LIMIT ?",
            (start, end, limit),
        )

    def log_entities(self, mesh: str, ops: str, after: str, limit: int) -> list[str]:
        found = self._con.execute(
            "SELECT DISTINCT entity FROM log WHERE mesh = ? AND entity > ? "
            "AND op <> 'fact.append' AND substr(op, 1, ?) = ? ORDER BY entity LIMIT ?",
            (mesh, after, len(ops), ops, limit),
        )
        return [entity for (entity,) in found]

    def log_of(
        self, mesh: str, entity: str, before: int, after: int = 0, limit: int = LAMPORT_MAX
    ) -> list[Entry]:
        return _ENTRY.select(
            self._con,
            # The term about facts is the index's own: without it, this would scan the log.
            "WHERE mesh = ? AND entity = ? AND op <> 'fact.append' AND offset > ? AND offset < ? "
            "ORDER BY offset LIMIT ?",
            (mesh, entity, after, before, limit),
        )

    def log_at(self, recorded_by_ms: int) -> int:
        """Recorded times never run backwards along the log, so halving finds the place without an
        index.
        """
        low, high = self.log_bounds()
        answer = 0
        while low <= high:
            middle = (low + high) // 2
            recorded = self._con.execute(
                "SELECT recorded_at FROM log WHERE offset = ?", (middle,)
            ).get
            if recorded is not None and recorded <= recorded_by_ms:
                answer, low = middle, middle + 1
            else:
                high = middle - 1
        return answer

    def forgotten(self, id: bytes) -> tuple[int, bytes] | None:
        row = self._con.execute("SELECT offset, fingerprint FROM forgotten WHERE id = ?", (id,)).get
        return None if row is None else (row[0], row[1])


class LogWrites(LogReads):
    _recorded_at = 0
    """The newest time in the log that this transaction knows of; 0 before its first append."""

    def log_append(
        self,
        id: bytes,
        mesh: str,
        op: str,
        entity: str,
        origin: str,
        lamport: int,
        now_ms: int,
        raw: bytes,
        via: int = 0,
    ) -> int:
        if not self._recorded_at:
            self._recorded_at = self._newest_time()
        # A wall clock that jumps back must not make the log look out of order.
        if now_ms > self._recorded_at:
            self._recorded_at = now_ms
        self._once.execute(
            _INSERT, (id, mesh, op, entity, origin, lamport, raw, self._recorded_at, via)
        )
        return self._con.last_insert_rowid()

    def log_append_new(self, arrivals: Sequence[Arrived], now_ms: int, via: int = 0) -> int | None:
        before = self._con.execute("SELECT max(offset) FROM log").get or 0
        if not arrivals:
            return before + 1
        recorded_at = max(now_ms, self._recorded_at or self._newest_time())
        changes = self._con.total_changes()
        self._con.executemany(
            f"{_INSERT} ON CONFLICT (id) DO NOTHING",
            ((*arrived, recorded_at, via) for arrived in arrivals),
        )
        new = self._con.total_changes() - changes
        if new < len(arrivals) or self._any_forgotten(arrivals, before):
            # The next offset is the one after the last, so taking these back leaves no gap.
            self._con.execute("DELETE FROM log WHERE offset > ?", (before,))
            return None
        self._recorded_at = recorded_at
        return before + 1

    def _any_forgotten(self, arrivals: Sequence[Arrived], before: int) -> bool:
        """Whether an entry after `before`, which are these, was here once and truncated."""
        # Ids begin with their time. What is pulled is mostly newer than all that was truncated, and
        # one look tells so.
        if not self._con.execute(
            "SELECT EXISTS (SELECT 1 FROM forgotten WHERE id BETWEEN ? AND ?)",
            (min(arrived[0] for arrived in arrivals), max(arrived[0] for arrived in arrivals)),
        ).get:
            return False
        return bool(
            self._con.execute(
                "SELECT EXISTS (SELECT 1 FROM log CROSS JOIN forgotten USING (id) "
                "WHERE log.offset > ?)",
                (before,),
            ).get
        )

    def log_set_aside(self, offset: int, id: bytes) -> None:
        self._con.execute("UPDATE log SET id = ? WHERE offset = ?", (id, offset))

    def log_truncate(self, below: int, most: int, now_ms: int) -> int:
        doomed: list[Any] = self._con.execute(
            "SELECT offset, id, raw FROM log WHERE offset < ? "
            "AND offset < (SELECT max(offset) FROM log) ORDER BY offset LIMIT ?",
            (below, most),
        ).fetchall()
        if not doomed:
            return 0
        self._con.executemany(
            "INSERT INTO forgotten (id, offset, fingerprint, truncated_at) VALUES (?, ?, ?, ?)",
            ((id, offset, decode_trusted(raw).fingerprint, now_ms) for offset, id, raw in doomed),
        )
        self._con.execute(
            "DELETE FROM log WHERE offset BETWEEN ? AND ?", (doomed[0][0], doomed[-1][0])
        )
        return len(doomed)

    def forgotten_add(self, id: bytes, fingerprint: bytes, now_ms: int) -> None:
        self._con.execute(
            "INSERT INTO forgotten (id, offset, fingerprint, truncated_at) VALUES (?, 0, ?, ?) "
            "ON CONFLICT (id) DO NOTHING",
            (id, fingerprint, now_ms),
        )

    def forgotten_sweep(self, before_ms: int, most: int) -> int:
        self._con.execute(
            "DELETE FROM forgotten WHERE id IN "
            "(SELECT id FROM forgotten WHERE truncated_at < ? ORDER BY truncated_at LIMIT ?)",
            (before_ms, most),
        )
        return self._con.changes()

    def set_epoch(self, epoch: int) -> None:
        self._con.execute(
            "INSERT INTO meta (name, value) VALUES ('epoch', ?) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (epoch,),
        )

    def _newest_time(self) -> int:
        newest = self._con.execute("SELECT recorded_at FROM log ORDER BY offset DESC LIMIT 1").get
        return 1 if newest is None else int(newest)
