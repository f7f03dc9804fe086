"""What waits for a broker, or for a peer of the bus. Rows that are done cost nothing to those that
wait: the indexes hold only what their question is about.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import apsw
import msgspec

from holdfast.rules.id_prefix import IdSpan
from holdfast.rules.limits import BACKOFF_MS_MAX
from holdfast.rules.outbox import QUORUM_LANES
from holdfast.rules.rows import OutboxRow
from holdfast.storage.sqlite.columns import RowColumns

_ROW: Final = RowColumns("spool", OutboxRow)
_NEW: Final = RowColumns("spool", OutboxRow, without=("number",))
_Done = tuple[int, bytes, int, int]
"""Number, broker's id, epoch and seq."""
_FAILING: Final = "(state = 'dead' OR (state = 'pending' AND attempts > 0))"
"""As the index of that name says it: else the index would not be used."""
_STATES: Final = (
    "SELECT spool.id, spool.state FROM json_each(?2) AS wanted CROSS JOIN spool "
    "ON spool.id = unhex(wanted.value) AND spool.lane = ?1"
)
_INSERT: Final = f"{_NEW.insert} ON CONFLICT (id, lane) DO NOTHING"


_RUN_MIN: Final = 8
"""Rows that follow each other are changed by one statement, if they are so many."""


def _spans(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of what follows each other."""
    first = last = None
    for number in sorted(numbers):
        if first is None or last is None:
            first = last = number
        elif number == last + 1:
            last = number
        else:
            yield first, last
            first = last = number
    if first is not None and last is not None:
        yield first, last


def _runs(rows: Sequence[_Done]) -> Iterator[Sequence[_Done]]:
    """Parts in which each has the number and the seq behind the last one's. What was written one
    after the other is mostly accepted so, too.
    """
    begin = 0
    for at in range(1, len(rows)):
        number, id, epoch, seq = rows[at - 1]
        if (rows[at][0], len(rows[at][1]), *rows[at][2:]) != (number + 1, len(id), epoch, seq + 1):
            yield rows[begin:at]
            begin = at
    if rows:
        yield rows[begin:]


class OutboxReads:
    _con: apsw.Connection
    _once: apsw.Cursor

    def outbox_get(self, lane: str, id: bytes) -> OutboxRow | None:
        return _ROW.find(self._con, "WHERE lane = ? AND id = ?", (lane, id))

    def outbox_states(self, lane: str, ids: Collection[bytes]) -> dict[bytes, str]:
        wanted = msgspec.json.encode([id.hex() for id in ids]).decode()
        found: Any = self._con.execute(_STATES, (lane, wanted))
        return dict(found)

    def outbox_find(self, id: bytes) -> list[OutboxRow]:
        return _ROW.select(self._con, "WHERE id = ? ORDER BY number", (id,))

    def outbox_ids_within(self, lane: str | None, span: IdSpan, limit: int) -> list[bytes]:
        sql = (
            "SELECT DISTINCT id FROM spool WHERE id BETWEEN ?1 AND ?2 "
            "AND (?3 IS NULL OR lane = ?3) ORDER BY id LIMIT ?4"
        )
        return [id for (id,) in self._con.execute(sql, (*span, lane, limit))]

    def outbox_due(
        self, lane: str, now_ms: int, limit: int, after: tuple[int, int] = (-1, 0)
    ) -> list[OutboxRow]:
        return _ROW.select(
            self._con,
            "WHERE lane = ?1 AND state = 'pending' "
            "AND (rank, number) > (?2, ?3) AND not_before NOT BETWEEN ?4 + 1 AND ?5 "
            "ORDER BY rank, number LIMIT ?6",
            (lane, *after, now_ms, now_ms + BACKOFF_MS_MAX, limit),
        )

    def outbox_next_at(self, lane: str) -> int | None:
        # Nearly all of them may go at once, and the first one found tells so.
        if self._con.execute(
            "SELECT EXISTS (SELECT 1 FROM spool WHERE lane = ? AND state = 'pending' "
            "AND not_before = 0)",
            (lane,),
        ).get:
            return 0
        first: int | None = self._con.execute(
            "SELECT min(not_before) FROM spool WHERE lane = ? AND state = 'pending'", (lane,)
        ).get
        return first

    def outbox_failing(self, lane: str, entities: Collection[str] | None) -> list[OutboxRow]:
        failing = f"AND {_FAILING} ORDER BY number LIMIT 1"
        if entities is None:
            return _ROW.select(self._con, f"WHERE lane = ? {failing}", (lane,))
        if not self._con.execute(
            f"SELECT EXISTS (SELECT 1 FROM spool WHERE lane = ? AND {_FAILING})", (lane,)
        ).get:
            return []  # as nearly always: one look instead of one for each
        first = (
            _ROW.find(self._con, f"WHERE lane = ? AND entity = ? {failing}", (lane, entity))
            for entity in set(entities)
        )
        return sorted((row for row in first if row is not None), key=lambda row: row.number)

    def outbox_list(
        self, lane: str | None, states: Collection[str], after: int, limit: int
    ) -> list[OutboxRow]:
        wanted = sorted(map(str, states))
        places = ", ".join(f"?{number}" for number, _ in enumerate(wanted, 4))
        of_states = f"AND state IN ({places}) " if wanted else ""
        return _ROW.select(
            self._con,
            "WHERE number > ?1 AND lane <> '' AND (?2 IS NULL OR lane = ?2) "
            f"{of_states}ORDER BY number LIMIT ?3",
            (after, lane, limit, *wanted),
        )

    def outbox_counts(self) -> dict[tuple[str, str], int]:
        # Rows that are done stand in no index but that of the ids, so they are what is left over.
        counts = {
            (lane, state): count
            for lane, state, count in self._con.execute(
                "SELECT lane, 'pending', count(*) FROM spool WHERE state = 'pending' GROUP BY lane "
                "UNION ALL SELECT lane, 'inflight', count(*) FROM spool WHERE state = 'inflight' "
                "GROUP BY lane UNION ALL SELECT lane, 'aborted', count(*) FROM spool "
                "WHERE state = 'aborted' GROUP BY lane UNION ALL SELECT lane, 'dead', count(*) "
                f"FROM spool WHERE state = 'dead' AND {_FAILING} GROUP BY lane"
            )
        }
        for lane, count in self._lane_counts():
            done = count - sum(number for (of, _), number in counts.items() if of == lane)
            if done and lane:  # a row without a lane only keeps its number (see mesh_end)
                counts[lane, "done"] = done
        return counts

    def _lane_counts(self) -> list[tuple[str, int]]:
        # To count all is nothing, and to sort by lanes is dear: only what is not of the first lane
        # is sorted, and mostly there is one lane.
        first = self._con.execute("SELECT lane FROM spool LIMIT 1").get
        if first is None:
            return []
        others: list[Any] = self._con.execute(
            "SELECT lane, count(*) FROM spool WHERE lane <> ? GROUP BY lane", (first,)
        ).fetchall()
        total: int = self._con.execute("SELECT count(*) FROM spool").get
        return [(first, total - sum(count for _, count in others)), *others]

    def outbox_oldest(self, lane: str) -> int | None:
        sent: int | None = self._con.execute(
            "SELECT min(number) FROM spool WHERE lane = ? AND state = 'inflight'", (lane,)
        ).get
        first = [] if sent is None else [sent]
        rank = -1
        # The first of each rank; there are few ranks, and there may be many rows.
        while found := self._con.execute(
            "SELECT rank, number FROM spool WHERE lane = ? AND state = 'pending' AND rank > ? "
            "ORDER BY rank, number LIMIT 1",
            (lane, rank),
        ).get:
            rank, number = found
            first.append(number)
        if not first:
            return None
        at: int = self._con.execute(
            "SELECT created_at FROM spool WHERE number = ?", (min(first),)
        ).get
        return at

    def outbox_old(self, lane: str, before_ms: int, now_ms: int, limit: int) -> list[OutboxRow]:
        # Two searches: of one with OR the index could give neither the rows nor their order.
        found: list[OutboxRow] = []
        for bound, at in (("<", before_ms), (">", now_ms)):
            found += _ROW.select(
                self._con,
                "WHERE lane = ? AND state = 'pending' AND entity = '' "
                f"AND offset > 0 AND created_at {bound} ? ORDER BY created_at, number LIMIT ?",
                (lane, at, limit - len(found)),
            )
        return found

    def outbox_floor(self) -> int | None:
        floor: int | None = self._con.execute(
            "SELECT min(offset) FROM spool WHERE state IN ('pending', 'inflight', 'dead') "
            "AND offset > 0"
        ).get
        return floor


class OutboxWrites(OutboxReads):
    def outbox_add(self, rows: Sequence[OutboxRow]) -> int:
        if len(rows) == 1:  # one for every local write
            self._once.execute(_INSERT, _NEW.values(rows[0]))
            return self._con.changes()
        before = self._con.total_changes()
        self._con.executemany(_INSERT, map(_NEW.values, rows))
        return self._con.total_changes() - before

    def outbox_renew(self, old: OutboxRow, row: OutboxRow) -> int:
        """Puts a row in the place of one that has ended, behind all others; returns its number."""
        number: int = self._con.execute("SELECT max(number) + 1 FROM spool").get
        self._con.execute("DELETE FROM spool WHERE number = ?", (old.number,))
        self._con.execute(_ROW.insert, _ROW.values(msgspec.structs.replace(row, number=number)))
        return number

    def outbox_put(self, row: OutboxRow) -> None:
        self._con.execute(f"{_NEW.update} WHERE number = ?", (*_NEW.values(row), row.number))

    def outbox_inflight(self, lane: str, numbers: Sequence[int]) -> None:
        # As few statements as can be: it is run for everything that leaves.
        rest: list[int] = []
        for first, last in _spans(numbers):
            if last - first < _RUN_MIN:
                rest.extend(range(first, last + 1))
                continue
            # The signs keep SQLite from looking for the span in an index that it changes.
            self._con.execute(
                "UPDATE spool SET state = 'inflight' WHERE number BETWEEN ? AND ? AND +lane = ? "
                "AND +state = 'pending'",
                (first, last, lane),
            )
        if rest:
            self._con.execute(
                "UPDATE spool SET state = 'inflight' "
                "WHERE number IN (SELECT value FROM json_each(?)) AND lane = ? "
                "AND state = 'pending'",
                (msgspec.json.encode(rest).decode(), lane),
            )

    def outbox_recover(self, lane: str | None = None) -> int:
        of_lane = "" if lane is None else "AND lane = ?"
        self._con.execute(
            f"UPDATE spool SET state = 'pending' WHERE state = 'inflight' {of_lane}",
            () if lane is None else (lane,),
        )
        return self._con.changes()

    def outbox_done(self, rows: Sequence[_Done], now_ms: int) -> None:
        for run in _runs(rows):
            first, _, epoch, seq = run[0]
            if len(run) < _RUN_MIN:
                self._con.executemany(
                    "UPDATE spool SET state = 'done', ended_at = ?1, tried_at = ?1, code = '', "
                    "error = '', broker_id = ?2, broker_epoch = ?3, broker_seq = ?4 "
                    "WHERE number = ?5",
                    ((now_ms, id, epoch, seq, number) for number, id, epoch, seq in run),
                )
                continue
            self._con.execute(
                "UPDATE spool SET state = 'done', ended_at = ?1, tried_at = ?1, code = '', "
                "error = '', broker_id = substr(?2, (number - ?3) * ?4 + 1, ?4), "
                "broker_epoch = ?5, broker_seq = ?6 + (number - ?3) WHERE number BETWEEN ?3 AND ?7",
                (
                    now_ms,
                    b"".join([id for _, id, _, _ in run]),
                    first,
                    len(run[0][1]),
                    epoch,
                    seq,
                    run[-1][0],
                ),
            )

    def outbox_arrived(
        self, lane: str, rows: Sequence[tuple[bytes, bytes, int, int]], now_ms: int
    ) -> int:
        if not self._con.execute(
            "SELECT EXISTS (SELECT 1 FROM spool WHERE lane = ? AND state = 'pending')", (lane,)
        ).get:
            return 0  # as nearly always
        before = self._con.total_changes()
        self._con.executemany(
            "UPDATE spool SET state = 'done', ended_at = ?1, tried_at = ?1, code = '', error = '', "
            "broker_id = ?4, broker_epoch = ?5, broker_seq = ?6 "
            "WHERE id = ?3 AND lane = ?2 AND state = 'pending'",
            [(now_ms, lane, *row) for row in rows],
        )
        return self._con.total_changes() - before

    def outbox_sweep(self, before_ms: int, now_ms: int, most: int) -> int:
        doomed: list[tuple[int]] = []
        # The row with the highest number stays, so that it is not given again.
        rows = self._con.execute(
            "SELECT number, ended_at FROM spool WHERE state IN ('done', 'aborted') "
            "AND number < (SELECT max(number) FROM spool) AND substr(lane, 1, ?) <> ? "
            "ORDER BY number",
            (len(QUORUM_LANES), QUORUM_LANES),
        )
        for number, ended_at in rows:
            if len(doomed) == most or before_ms <= ended_at <= now_ms:
                rows.close()
                break
            if ended_at < before_ms:
                doomed.append((number,))
        self._con.executemany("DELETE FROM spool WHERE number = ?", doomed)
        return len(doomed)
