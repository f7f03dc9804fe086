"""Messages that came for this node, in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.rules.id_prefix import IdSpan
from holdfast.rules.inbox_match import EVERY_MESSAGE, InboxMatch
from holdfast.rules.limits import INBOX_SCAN_ROWS
from holdfast.rules.rows import InboxRow
from holdfast.storage.memory.undo import UndoTables


def _matches(row: InboxRow, match: InboxMatch, after: int) -> bool:
    return (
        row.number <= after + INBOX_SCAN_ROWS
        and match.sender in (None, row.sender)
        and (match.topic is None or (row.kind, row.ref) == ("topic", match.topic))
        and (match.since_ms is None or row.received_at >= match.since_ms)
        and (match.until_ms is None or row.received_at < match.until_ms)
    )


class MemoryInbox(UndoTables):
    """Received messages."""

    def inbox_get(self, id: bytes) -> InboxRow | None:
        number = self._table("inbox_id").get(id)
        return None if number is None else self._table("inbox")[number]

    def inbox_list(
        self,
        mesh: str | None,
        unread_only: bool,
        after: int,
        limit: int,
        match: InboxMatch = EVERY_MESSAGE,
    ) -> list[InboxRow]:
        rows = [
            row
            for row in self._inbox()
            if row.number > after
            and row.mesh  # else it only keeps its number (see mesh_end)
            and mesh in (None, row.mesh)
            and not (unread_only and row.read_at is not None)
            and (not match.narrows or _matches(row, match, after))
        ]
        return rows[:limit]

    def inbox_ids_within(self, span: IdSpan, limit: int) -> list[bytes]:
        return sorted(row.id for row in self._inbox() if span.first <= row.id <= span.last)[:limit]

    def inbox_unhooked(self, limit: int) -> list[InboxRow]:
        return [row for row in self._inbox() if row.hooked_at is None][:limit]

    def inbox_last(self) -> int:
        return max(self._table("inbox"), default=0)

    def inbox_counts(self) -> tuple[int, int]:
        rows = [row for row in self._inbox() if row.mesh]
        return len(rows), sum(row.read_at is None for row in rows)

    def inbox_floor(self, after: int) -> int | None:
        needed = (row.offset for row in self._inbox() if row.read_at is None and row.offset > after)
        return min(needed, default=None)

    def inbox_add(self, row: InboxRow) -> bool:
        if row.id in self._table("inbox_id"):
            return False
        number = self._next("inbox")
        self._put("inbox", number, msgspec.structs.replace(row, number=number))
        self._put("inbox_id", row.id, number)
        return True

    def inbox_read(self, id: bytes, now_ms: int) -> bool:
        row = self.inbox_get(id)
        if row is None:
            return False
        if row.read_at is None:
            self._put("inbox", row.number, msgspec.structs.replace(row, read_at=now_ms))
        return True

    def inbox_hooked(self, numbers: Sequence[int], now_ms: int) -> None:
        for number in numbers:
            row = self._table("inbox").get(number)
            if row is not None and row.hooked_at is None:
                self._put("inbox", number, msgspec.structs.replace(row, hooked_at=now_ms))

    def inbox_sweep(self, below_offset: int, most: int) -> int:
        last = max(self._table("inbox"), default=0)
        gone = [row for row in self._inbox() if row.offset < below_offset and row.number < last]
        old = sorted(gone, key=lambda row: (row.offset, row.number))[:most]
        for row in old:
            self._drop("inbox", row.number)
            self._drop("inbox_id", row.id)
        return len(old)

    def _inbox(self) -> Iterator[InboxRow]:
        for _, row in sorted(self._table("inbox").items()):
            yield row
