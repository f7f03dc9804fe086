"""What waits for a broker, in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice, takewhile

import msgspec

from holdfast.rules.id_prefix import IdSpan
from holdfast.rules.outbox import is_quorum_lane, waits_until
from holdfast.rules.rows import OutboxRow
from holdfast.storage.memory.undo import UndoTables

_NEEDED = ("pending", "inflight", "dead")


class MemoryOutbox(UndoTables):
    """What goes, or went, to brokers."""

    def outbox_get(self, lane: str, id: bytes) -> OutboxRow | None:
        number = self._table("outbox_id").get((lane, id))
        return None if number is None else self._table("outbox")[number]

    def outbox_states(self, lane: str, ids: Collection[bytes]) -> dict[bytes, str]:
        found = (self.outbox_get(lane, id) for id in ids)
        return {row.id: row.state for row in found if row is not None}

    def outbox_find(self, id: bytes) -> list[OutboxRow]:
        return [row for row in self._outbox() if row.id == id]

    def outbox_ids_within(self, lane: str | None, span: IdSpan, limit: int) -> list[bytes]:
        return sorted({row.id for row in self._outbox(lane) if span.first <= row.id <= span.last})[
            :limit
        ]

    def outbox_due(
        self, lane: str, now_ms: int, limit: int, after: tuple[int, int] = (-1, 0)
    ) -> list[OutboxRow]:
        due = [
            row
            for row in self._outbox(lane, "pending")
            if waits_until(row.not_before, now_ms) <= now_ms and (row.rank, row.number) > after
        ]
        return sorted(due, key=lambda row: (row.rank, row.number))[:limit]

    def outbox_next_at(self, lane: str) -> int | None:
        return min((row.not_before for row in self._outbox(lane, "pending")), default=None)

    def outbox_failing(self, lane: str, entities: Collection[str] | None) -> list[OutboxRow]:
        failing = [
            row
            for row in self._outbox(lane, "pending", "dead")
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
        rows = [row for row in self._outbox(lane, *map(str, states)) if row.number > after]
        return [row for row in rows if row.lane][:limit]  # one without keeps its number

    def outbox_counts(self) -> dict[tuple[str, str], int]:
        counts: dict[tuple[str, str], int] = {}
        for row in self._outbox():
            key = row.lane, str(row.state)
            if row.lane:
                counts[key] = counts.get(key, 0) + 1
        return counts

    def outbox_oldest(self, lane: str) -> int | None:
        return next((row.created_at for row in self._outbox(lane, "pending", "inflight")), None)

    def outbox_old(self, lane: str, before_ms: int, now_ms: int, limit: int) -> list[OutboxRow]:
        waiting = (row for row in self._outbox(lane, "pending") if row.offset and not row.entity)
        old = [row for row in waiting if not before_ms <= row.created_at <= now_ms]
        return sorted(old, key=lambda row: (row.created_at, row.number))[:limit]

    def outbox_floor(self) -> int | None:
        needed = self._outbox(None, *_NEEDED)
        return min((row.offset for row in needed if row.offset), default=None)

    def outbox_add(self, rows: Sequence[OutboxRow]) -> int:
        new = 0
        for row in rows:
            if (row.lane, row.id) in self._table("outbox_id"):
                continue
            number = self._next("outbox")
            self._put("outbox", number, msgspec.structs.replace(row, number=number))
            self._put("outbox_id", (row.lane, row.id), number)
            new += 1
        return new

    def outbox_put(self, row: OutboxRow) -> None:
        before = self._table("outbox").get(row.number)
        if before is not None:
            self._drop("outbox_id", (before.lane, before.id))
            self._put("outbox", row.number, row)
            self._put("outbox_id", (row.lane, row.id), row.number)

    def outbox_inflight(self, lane: str, numbers: Sequence[int]) -> None:
        for number in numbers:
            row = self._table("outbox").get(number)
            if row is not None and row.lane == lane and row.state == "pending":
                self._put("outbox", number, msgspec.structs.replace(row, state="inflight"))

    def outbox_recover(self, lane: str | None = None) -> int:
        rows = list(self._outbox(lane, "inflight"))
        for row in rows:
            self._put("outbox", row.number, msgspec.structs.replace(row, state="pending"))
        return len(rows)

    def outbox_done(self, rows: Sequence[tuple[int, bytes, int, int]], now_ms: int) -> None:
        for number, id, epoch, seq in rows:
            row = self._table("outbox").get(number)
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
                self._put("outbox", number, done)

    def outbox_arrived(
        self, lane: str, rows: Sequence[tuple[bytes, bytes, int, int]], now_ms: int
    ) -> int:
        waiting = [
            (found.number, broker_id, epoch, seq)
            for id, broker_id, epoch, seq in rows
            if (found := self.outbox_get(lane, id)) is not None and found.state == "pending"
        ]
        self.outbox_done(waiting, now_ms)
        return len(waiting)

    def outbox_sweep(self, before_ms: int, now_ms: int, most: int) -> int:
        last = max(self._table("outbox"), default=0)
        ended = (
            row
            for row in self._outbox(None, "done", "aborted")
            if row.number < last and (row.ended_at or 0) <= now_ms and not is_quorum_lane(row.lane)
        )
        old = list(islice(takewhile(lambda row: (row.ended_at or 0) < before_ms, ended), most))
        for row in old:
            self._drop("outbox", row.number)
            self._drop("outbox_id", (row.lane, row.id))
        return len(old)

    def _outbox(self, lane: str | None = None, *states: str) -> Iterator[OutboxRow]:
        for _, row in sorted(self._table("outbox").items()):
            if lane in (None, row.lane) and (not states or row.state in states):
                yield row
