"""The log: append, find, range, truncate. While an entry stands, its id dedupes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from holdfast.rules.envelope import decode_trusted
from holdfast.rules.leaf import leaf_of
from holdfast.rules.limits import LAMPORT_MAX
from holdfast.rules.recorded import ClockTurn, next_time, recorded_by, with_turn
from holdfast.rules.rows import NOT_BY_ENTITY, Entry
from holdfast.storage.sqlite.columns import RowColumns
from holdfast.storage.sqlite.log_leaves import LeafWrites, refuse_damaged
from holdfast.storage.sqlite.log_pages import LogPages
from holdfast.storage.sqlite.tables.later import LaterWrites

if TYPE_CHECKING:
    from holdfast.rules.arrivals import Arrived
    from holdfast.rules.commit_columns import CommitColumns

_ENTRY = RowColumns("log", Entry)
_BY_ENTITY = " AND ".join(f"op <> '{op}'" for op in NOT_BY_ENTITY)
"""The index's own terms: without all of them, a look by entity would scan the log."""
_INSERT = (
    "INSERT INTO log (id, mesh, op, entity, origin, lamport, raw, recorded_at, via, leaf) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_KNOWN = (
    "SELECT log.id FROM json_each(?1) AS wanted CROSS JOIN log ON log.id = unhex(wanted.value) "
    "UNION ALL SELECT forgotten.id FROM json_each(?1) AS wanted "
    "CROSS JOIN forgotten ON forgotten.id = unhex(wanted.value)"
)


def note_turns(connection: apsw.Connection, turns: tuple[ClockTurn, ...]) -> None:
    """Writes where along the log the clock was set back, in place of what was noted before."""
    connection.execute(
        "INSERT INTO meta (name, value) VALUES ('turns', ?) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (msgspec.json.encode(turns).decode(),),
    )


class LogReads(LogPages):
    _con: apsw.Connection
    _once: apsw.Cursor
    may_have_holes = True
    """False for a database from before meshes could be deleted."""

    def epoch(self) -> int:
        value = self._con.execute("SELECT value FROM meta WHERE name = 'epoch'").get
        return 1 if value is None else int(value)

    def log_bounds(self) -> tuple[int, int]:
        # Two one-row probes of the key; together as min and max they would scan the table.
        last = self._con.execute("SELECT max(offset) FROM log").get
        if last is None:
            return 1, 0
        first = self._con.execute("SELECT min(offset) FROM log").get
        if self.may_have_holes:
            # What went with its mesh was not truncated: no reader has lost anything by it.
            hole = self._con.execute("SELECT min(first) FROM log_hole").get
            first = first if hole is None else min(first, hole)
        return int(first), int(last)

    def log_get(self, offset: int) -> Entry | None:
        return self._entry("WHERE offset = ?", offset)

    def log_find(self, id: bytes) -> Entry | None:
        return self._entry("WHERE id = ?", id)

    def log_range(self, start: int, end: int, limit: int) -> list[Entry]:
        return self._entries(
            "WHERE offset >= ? AND offset < ? ORDER BY offset LIMIT ?", start, end, limit
        )

    def log_newest(self, mesh: str, entity: str, most: int) -> list[Entry]:
        return _ENTRY.select(
            self._con,
            f"WHERE mesh = ? AND entity = ? AND {_BY_ENTITY} "
            "ORDER BY lamport DESC, origin DESC, id DESC LIMIT ?",
            (mesh, entity, most),
        )

    def log_entities(self, mesh: str, ops: str, after: str, limit: int) -> list[str]:
        found = self._con.execute(
            "SELECT DISTINCT entity FROM log WHERE mesh = ? AND entity > ? "
            f"AND {_BY_ENTITY} AND substr(op, 1, ?) = ? ORDER BY entity LIMIT ?",
            (mesh, after, len(ops), ops, limit),
        )
        return [entity for (entity,) in found]

    def log_of(
        self, mesh: str, entity: str, before: int, after: int = 0, limit: int = LAMPORT_MAX
    ) -> list[Entry]:
        return self._entries(
            f"WHERE mesh = ? AND entity = ? AND {_BY_ENTITY} AND offset > ? AND offset < ? "
            "ORDER BY offset LIMIT ?",
            *(mesh, entity, after, before, limit),
        )

    def log_at(self, recorded_by_ms: int, now_ms: int, *, cautious: bool = False) -> int:
        return recorded_by(
            recorded_by_ms,
            now_ms,
            self.log_bounds(),
            self.log_turns(),
            self._time_at,
            cautious=cautious,
        )

    def _time_at(self, offset: int) -> int:
        # A repaired log may have lost the entry itself.
        found = self._con.execute(
            "SELECT recorded_at FROM log WHERE offset <= ? ORDER BY offset DESC LIMIT 1", (offset,)
        ).get
        return 0 if found is None else int(found)

    def log_turns(self) -> tuple[ClockTurn, ...]:
        noted = self._con.execute("SELECT value FROM meta WHERE name = 'turns'").get
        try:
            return () if noted is None else msgspec.json.decode(noted, type=tuple[ClockTurn, ...])
        except (msgspec.MsgspecError, TypeError, UnicodeError):
            return ()  # a damaged file; a repair notes them anew

    def forgotten(self, id: bytes) -> tuple[int, bytes] | None:
        row = self._con.execute("SELECT offset, fingerprint FROM forgotten WHERE id = ?", (id,)).get
        return None if row is None else (row[0], row[1])

    def ids_known(self, ids: Collection[bytes]) -> set[bytes]:
        if not ids:
            return set()
        wanted = msgspec.json.encode([id.hex() for id in ids]).decode()
        return {id for (id,) in self._con.execute(_KNOWN, (wanted,))}

    @property
    def _checked(self) -> str:
        return f"SELECT {_ENTRY.sql}, {self.leaf_column} FROM log"

    def _entry(self, where: str, value: int | bytes) -> Entry | None:
        found = self._con.execute(f"{self._checked} {where}", (value,)).get
        if found is None:
            return None
        refuse_damaged(found[0], found[8], found[9])
        return _ENTRY.row(found)

    def _entries(self, where: str, *values: int | str) -> list[Entry]:
        entries = []
        make = _ENTRY.row
        for found in self._con.execute(f"{self._checked} {where}", values):
            refuse_damaged(found[0], found[8], found[9])
            entries.append(make(found))
        return entries


class LogWrites(LogReads, LeafWrites, LaterWrites):
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
        newest = self._recorded_at or self._newest_time()
        # The usual case spelt out: this is in the way of every write.
        self._recorded_at = now_ms if now_ms > newest else next_time(newest, now_ms)
        if self._recorded_at < newest:
            self._note_turn(newest)
        self._once.execute(
            _INSERT,
            (id, mesh, op, entity, origin, lamport, raw, self._recorded_at, via, leaf_of(raw)),
        )
        return self._con.last_insert_rowid()

    def log_append_new(self, arrivals: Sequence[Arrived], now_ms: int, via: int = 0) -> int | None:
        if not arrivals:
            return self._last_offset() + 1
        if not isinstance(arrivals, list):
            # Here, because a write of one key should not load how facts are read in columns.
            from holdfast.storage.sqlite.tables.log_facts import FactColumns, insert_facts

            if isinstance(arrivals, FactColumns):
                facts = partial(insert_facts, self._con, arrivals, via)
                return self._append_new(arrivals.all_ids(), now_ms, facts)

        def insert(recorded_at: int) -> None:
            self._con.executemany(
                f"{_INSERT} ON CONFLICT (id) DO NOTHING",
                ((*arrived, recorded_at, via, leaf_of(arrived[6])) for arrived in arrivals),
            )

        return self._append_new([arrived[0] for arrived in arrivals], now_ms, insert)

    def log_append_columns(self, mesh: str, run: CommitColumns, now_ms: int) -> int | None:
        from holdfast.storage.sqlite.committed.column_writes import log_insert

        return self._append_new(run.id_list(), now_ms, partial(log_insert, self._con, mesh, run))

    def _last_offset(self) -> int:
        return int(self._con.execute("SELECT max(offset) FROM log").get or 0)

    def _append_new(
        self, ids: Sequence[bytes], now_ms: int, insert: Callable[[int], None]
    ) -> int | None:
        """Appends entries by `insert`, which gets their time; None, and nothing has changed, if one
        of them is or was there.
        """
        before = self._last_offset()
        newest = self._recorded_at or self._newest_time()
        recorded_at = next_time(newest, now_ms)
        changes = self._con.total_changes()
        insert(recorded_at)
        new = self._con.total_changes() - changes
        if new < len(ids) or self._any_forgotten(ids, before):
            # The next offset is the one after the last, so taking these back leaves no gap.
            self._con.execute("DELETE FROM log WHERE offset > ?", (before,))
            return None
        self._recorded_at = recorded_at
        if recorded_at < newest:
            self._note_turn(newest, before + 1)
        return before + 1

    def _note_turn(self, newest_ms: int, offset: int | None = None) -> None:
        """Notes that the clock was set back for the entry at `offset`; None: the next one."""
        turn = ClockTurn(offset or self.log_bounds()[1] + 1, newest_ms, self._recorded_at)
        note_turns(self._con, with_turn(self.log_turns(), turn))

    def _any_forgotten(self, ids: Sequence[bytes], before: int) -> bool:
        """Whether an entry after `before`, which are these, was here once and truncated."""
        # Ids begin with their time. What is pulled is mostly newer than all that was truncated, and
        # one look tells so.
        if not self._con.execute(
            "SELECT EXISTS (SELECT 1 FROM forgotten WHERE id BETWEEN ? AND ?)",
            (min(ids), max(ids)),
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
        # Here, because a write needs no name of a stream while its mesh is not on the bus.
        from holdfast.rules.bus.meshes.coverage import StreamName

        gone = [decode_trusted(raw) for _, _, raw in doomed]
        self._con.executemany(
            "INSERT INTO forgotten (id, offset, fingerprint, truncated_at) VALUES (?, ?, ?, ?)",
            (
                (id, offset, envelope.fingerprint, now_ms)
                for (offset, id, _), envelope in zip(doomed, gone, strict=True)
            ),
        )
        self._streams_truncated(
            (StreamName(one.mesh, one.origin, one.epoch), one.seq) for one in gone
        )
        self._con.execute(
            "DELETE FROM log WHERE offset BETWEEN ? AND ?", (doomed[0][0], doomed[-1][0])
        )
        self._con.execute("DELETE FROM log_hole WHERE last <= ?", (doomed[-1][0],))
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
