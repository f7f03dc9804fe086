"""What waits for a broker and what came from it, in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice, takewhile

import msgspec

from holdfast.rules.rows import InboxRow, KnownMember, OutboxRow
from holdfast.storage.memory.undo import UndoTables

_NEEDED = ("pending", "inflight", "dead")


class MemoryOutbox(UndoTables):
    """Spool, inbox, what was heard, and mates."""

    # --- the spool ---------------------------------------------------------------------------

    def outbox_get(self, lane: str, id: bytes) -> OutboxRow | None:
        number = self._table("spool_id").get((lane, id))
        return None if number is None else self._table("spool")[number]

    def outbox_find(self, id: bytes) -> list[OutboxRow]:
        return [row for row in self._spool() if row.id == id]

    def outbox_due(
        self, lane: str, now_ms: int, limit: int, after: tuple[int, int] = (-1, 0)
    ) -> list[OutboxRow]:
        due = [
            row
            for row in self._spool(lane, "pending")
            if row.not_before <= now_ms and (row.rank, row.number) > after
        ]
        return sorted(due, key=lambda row: (row.rank, row.number))[:limit]

    def outbox_next_at(self, lane: str) -> int | None:
        return min((row.not_before for row in self._spool(lane, "pending")), default=None)

    def outbox_failing(self, lane: str, entities: Collection[str] | None) -> list[OutboxRow]:
        failing = [
            row
            for row in self._spool(lane, "pending", "dead")
            if row.state == "dead" or row.attempts > 0
        ]
        if entities is None:
            return failing[:1]
        first: dict[str, OutboxRow] = {}
        for row in failing:
            if row.entity in entities:
                first.setdefault(row.entity, row)
        return list(first.values())

    def outbox_list(
        self, lane: str | None, states: Collection[str], after: int, limit: int
    ) -> list[OutboxRow]:
        rows = [row for row in self._spool(lane, *map(str, states)) if row.number > after]
        return rows[:limit]

    def outbox_counts(self) -> dict[tuple[str, str], int]:
        counts: dict[tuple[str, str], int] = {}
        for row in self._spool():
            key = row.lane, str(row.state)
            counts[key] = counts.get(key, 0) + 1
        return counts

    def outbox_oldest(self, lane: str) -> int | None:
        return next((row.created_at for row in self._spool(lane, "pending", "inflight")), None)

    def outbox_old(self, lane: str, before_ms: int, limit: int) -> list[OutboxRow]:
        waiting = (row for row in self._spool(lane, "pending") if not row.entity)
        return list(islice((row for row in waiting if row.created_at < before_ms), limit))

    def outbox_floor(self) -> int | None:
        return min((row.offset for row in self._spool(None, *_NEEDED)), default=None)

    def outbox_add(self, rows: Sequence[OutboxRow]) -> int:
        new = 0
        for row in rows:
            if (row.lane, row.id) in self._table("spool_id"):
                continue
            number = max(self._table("spool"), default=0) + 1
            self._put("spool", number, msgspec.structs.replace(row, number=number))
            self._put("spool_id", (row.lane, row.id), number)
            new += 1
        return new

    def outbox_put(self, row: OutboxRow) -> None:
        before = self._table("spool").get(row.number)
        if before is not None:
            self._drop("spool_id", (before.lane, before.id))
            self._put("spool", row.number, row)
            self._put("spool_id", (row.lane, row.id), row.number)

    def outbox_inflight(self, lane: str, numbers: Sequence[int]) -> None:
        for number in numbers:
            row = self._table("spool").get(number)
            if row is not None and row.lane == lane and row.state == "pending":
                self._put("spool", number, msgspec.structs.replace(row, state="inflight"))

    def outbox_recover(self, lane: str | None = None) -> int:
        rows = list(self._spool(lane, "inflight"))
        for row in rows:
            self._put("spool", row.number, msgspec.structs.replace(row, state="pending"))
        return len(rows)

    def outbox_done(self, rows: Sequence[tuple[int, bytes, int, int]], now_ms: int) -> None:
        for number, id, epoch, seq in rows:
            row = self._table("spool").get(number)
            if row is not None:
                done = msgspec.structs.replace(
                    row,
                    state="done",
                    ended_at=now_ms,
                    tried_at=now_ms,
                    code="",
                    error="",
                    broker_id=id,
                    broker_epoch=epoch,
                    broker_seq=seq,
                )
                self._put("spool", number, done)

    def outbox_sweep(self, before_ms: int, most: int) -> int:
        last = max(self._table("spool"), default=0)
        ended = (row for row in self._spool(None, "done", "aborted") if row.number < last)
        old = list(islice(takewhile(lambda row: (row.ended_at or 0) < before_ms, ended), most))
        for row in old:
            self._drop("spool", row.number)
            self._drop("spool_id", (row.lane, row.id))
        return len(old)

    def _spool(self, lane: str | None = None, *states: str) -> Iterator[OutboxRow]:
        for _, row in sorted(self._table("spool").items()):
            if lane in (None, row.lane) and (not states or row.state in states):
                yield row

    # --- the inbox ---------------------------------------------------------------------------

    def inbox_get(self, id: bytes) -> InboxRow | None:
        number = self._table("inbox_id").get(id)
        return None if number is None else self._table("inbox")[number]

    def inbox_list(
        self, mesh: str | None, unread_only: bool, after: int, limit: int
    ) -> list[InboxRow]:
        rows = [
            row
            for row in self._inbox()
            if row.number > after
            and mesh in (None, row.mesh)
            and not (unread_only and row.read_at is not None)
        ]
        return rows[:limit]

    def inbox_unhooked(self, limit: int) -> list[InboxRow]:
        return [row for row in self._inbox() if row.hooked_at is None][:limit]

    def inbox_last(self) -> int:
        return max(self._table("inbox"), default=0)

    def inbox_counts(self) -> tuple[int, int]:
        rows = list(self._inbox())
        return len(rows), sum(row.read_at is None for row in rows)

    def inbox_floor(self, received_after_ms: int) -> int | None:
        needed = (
            row.offset
            for row in self._inbox()
            if row.read_at is None and row.received_at > received_after_ms
        )
        return min(needed, default=None)

    def inbox_add(self, row: InboxRow) -> bool:
        if row.id in self._table("inbox_id"):
            return False
        number = max(self._table("inbox"), default=0) + 1
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

    # --- what was heard, and mates -----------------------------------------------------------

    def broker_positions_above(
        self, mesh: str, epoch: int, seq: int, after_seq: int, limit: int
    ) -> list[tuple[int, int]]:
        above = [
            (at, offset)
            for (slug, in_epoch, at), offset in self._table("heard").items()
            if slug == mesh and in_epoch == epoch and at > max(seq, after_seq)
        ]
        return sorted(above)[:limit]

    def broker_positions_add(self, mesh: str, epoch: int, rows: Sequence[tuple[int, int]]) -> None:
        for seq, offset in rows:
            if (mesh, epoch, seq) not in self._table("heard"):
                self._put("heard", (mesh, epoch, seq), offset)

    def broker_positions_sweep(self, below_offset: int, most: int) -> int:
        old = sorted(
            (offset, key) for key, offset in self._table("heard").items() if offset < below_offset
        )[:most]
        for _, key in old:
            self._drop("heard", key)
        return len(old)

    def known_members_list(self, mesh: str) -> list[KnownMember]:
        return sorted(self._rows("mate", mesh), key=lambda row: row.key)

    def broker_positions_drop(self, mesh: str, most: int) -> int:
        gone = sorted(key for key in self._table("heard") if key[0] == mesh)[:most]
        for key in gone:
            self._drop("heard", key)
        return len(gone)

    def known_members_put(self, mesh: str, rows: Sequence[KnownMember]) -> None:
        for row in self._rows("mate", mesh):
            self._drop("mate", (mesh, row.key))
        for row in rows:
            self._put("mate", (mesh, row.key), msgspec.structs.replace(row, mesh=mesh))
