"""Messages that came for this node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import apsw

from holdfast.rules.id_prefix import IdSpan
from holdfast.rules.inbox_match import EVERY_MESSAGE, InboxMatch
from holdfast.rules.limits import INBOX_SCAN_ROWS
from holdfast.rules.rows import InboxRow
from holdfast.storage.sqlite.columns import RowColumns

_ROW: Final = RowColumns("inbox", InboxRow)
_NEW: Final = RowColumns("inbox", InboxRow, without=("number",))


_MATCH: Final = (
    "number <= ?4",
    "(?5 IS NULL OR sender = ?5)",
    "(?6 IS NULL OR (kind = 'topic' AND ref = ?6))",
    "(?7 IS NULL OR received_at >= ?7)",
    "(?8 IS NULL OR received_at < ?8)",
)


def _match_values(match: InboxMatch, after: int) -> tuple[int | str | None, ...]:
    upto = after + INBOX_SCAN_ROWS
    return upto, match.sender, match.topic, match.since_ms, match.until_ms


class InboxReads:
    _con: apsw.Connection

    def inbox_get(self, id: bytes) -> InboxRow | None:
        return _ROW.find(self._con, "WHERE id = ?", (id,))

    def inbox_list(
        self,
        mesh: str | None,
        unread_only: bool,
        after: int,
        limit: int,
        match: InboxMatch = EVERY_MESSAGE,
    ) -> list[InboxRow]:
        # A row without a mesh only keeps its number (see mesh_end).
        terms = ["number > ?1", "mesh <> ''", "(?2 IS NULL OR mesh = ?2)"]
        if unread_only:
            terms.append("read_at IS NULL")
        if match.narrows:
            terms += _MATCH
        return _ROW.select(
            self._con,
            f"WHERE {' AND '.join(terms)} ORDER BY number LIMIT ?3",
            (after, mesh, limit, *(_match_values(match, after) if match.narrows else ())),
        )

    def inbox_ids_within(self, span: IdSpan, limit: int) -> list[bytes]:
        sql = "SELECT id FROM inbox WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?"
        return [id for (id,) in self._con.execute(sql, (*span, limit))]

    def inbox_unhooked(self, limit: int) -> list[InboxRow]:
        return _ROW.select(self._con, "WHERE hooked_at IS NULL ORDER BY number LIMIT ?", (limit,))

    def inbox_last(self) -> int:
        return int(self._con.execute("SELECT max(number) FROM inbox").get or 0)

    def inbox_counts(self) -> tuple[int, int]:
        total = self._con.execute(
            "SELECT count(*) - (SELECT count(*) FROM inbox WHERE offset = 0) FROM inbox"
        ).get
        unread = self._con.execute("SELECT count(*) FROM inbox WHERE read_at IS NULL").get
        assert isinstance(total, int)
        assert isinstance(unread, int)
        return total, unread

    def inbox_floor(self, after: int) -> int | None:
        floor: int | None = self._con.execute(
            "SELECT min(offset) FROM inbox WHERE read_at IS NULL AND offset > ?", (after,)
        ).get
        return floor


class InboxWrites(InboxReads):
    def inbox_add(self, row: InboxRow) -> bool:
        self._con.execute(f"{_NEW.insert} ON CONFLICT (id) DO NOTHING", _NEW.values(row))
        return self._con.changes() > 0

    def inbox_read(self, id: bytes, now_ms: int) -> bool:
        self._con.execute(
            "UPDATE inbox SET read_at = coalesce(read_at, ?) WHERE id = ?", (now_ms, id)
        )
        return self._con.changes() > 0

    def inbox_hooked(self, numbers: Sequence[int], now_ms: int) -> None:
        self._con.executemany(
            "UPDATE inbox SET hooked_at = coalesce(hooked_at, ?) WHERE number = ?",
            ((now_ms, number) for number in numbers),
        )

    def inbox_sweep(self, below_offset: int, most: int) -> int:
        # The row with the highest number stays, so that it is not given again.
        self._con.execute(
            "DELETE FROM inbox WHERE number IN (SELECT number FROM inbox WHERE offset < ? "
            "AND number < (SELECT max(number) FROM inbox) ORDER BY offset, number LIMIT ?)",
            (below_offset, most),
        )
        return self._con.changes()
