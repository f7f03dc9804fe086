"""The log in memory: append, find, range, truncate. While an entry stands, its id dedupes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from holdfast.rules.arrivals import Arrived
from holdfast.rules.bus.meshes.coverage import StreamName
from holdfast.rules.commit_columns import CommitColumns
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.leaf import columns_of, damage_of, leaf_of
from holdfast.rules.limits import LAMPORT_MAX
from holdfast.rules.push_columns import unpacked
from holdfast.rules.quorum.plain_intents import CHANGE
from holdfast.rules.recorded import ClockTurn, next_time, recorded_by, with_turn
from holdfast.rules.rows import NOT_BY_ENTITY, Entry
from holdfast.storage.memory.streams import MemoryStreams

_FIRST, _LAST = "first", "last"


class MemoryLog(MemoryStreams):
    """Entries of the log, and the ids of those that were truncated."""

    def epoch(self) -> int:
        return int(self._table("meta").get("epoch", 1))

    def set_epoch(self, epoch: int) -> None:
        self._put("meta", "epoch", epoch)

    def log_bounds(self) -> tuple[int, int]:
        meta = self._table("log_meta")
        return meta.get(_FIRST, 1), meta.get(_LAST, 0)

    def log_get(self, offset: int) -> Entry | None:
        return self._table("log").get(offset)

    def log_find(self, id: bytes) -> Entry | None:
        offset = self._table("log_id").get(id)
        return None if offset is None else self._table("log")[offset]

    def ids_known(self, ids: Collection[bytes]) -> set[bytes]:
        known = (self._table("log_id"), self._table("forgotten"))
        return {id for id in ids if any(id in table for table in known)}

    def log_range(self, start: int, end: int, limit: int) -> list[Entry]:
        first, last = self.log_bounds()
        start = max(start, first)
        stop = min(end, last + 1, start + max(limit, 0))
        log = self._table("log")
        if self._table("log_hole"):
            return [log[at] for at in range(start, min(end, last + 1)) if at in log][:limit]
        return [log[offset] for offset in range(start, stop)]

    def log_newest(self, mesh: str, entity: str, most: int) -> list[Entry]:
        entries = self.log_of(mesh, entity, self.log_bounds()[1] + 1)
        entries.sort(key=lambda one: (one.lamport, one.origin.encode(), one.id), reverse=True)
        return entries[:most]

    def log_entities(self, mesh: str, ops: str, after: str, limit: int) -> list[str]:
        found = {
            entry.entity
            for entry in self._table("log").values()
            if entry.mesh == mesh and entry.op.startswith(ops) and entry.op not in NOT_BY_ENTITY
        }
        later = [entity for entity in found if entity.encode() > after.encode()]
        return sorted(later, key=str.encode)[:limit]

    def log_of(
        self, mesh: str, entity: str, before: int, after: int = 0, limit: int = LAMPORT_MAX
    ) -> list[Entry]:
        offsets = self._table("log_entity").get((mesh, entity), ())
        log = self._table("log")
        found = [log[offset] for offset in offsets if offset in log and after < offset < before]
        return found[:limit]

    def log_at(self, recorded_by_ms: int, now_ms: int, *, cautious: bool = False) -> int:
        log = self._table("log")
        return recorded_by(
            recorded_by_ms,
            now_ms,
            self.log_bounds(),
            self.log_turns(),
            lambda offset: int(log[offset].recorded_at) if offset in log else 0,
            cautious=cautious,
        )

    def log_turns(self) -> tuple[ClockTurn, ...]:
        turns: tuple[ClockTurn, ...] = self._table("meta").get("turns", ())
        return turns

    def forgotten(self, id: bytes) -> tuple[int, bytes] | None:
        row = self._table("forgotten").get(id)
        return None if row is None else (row[0], row[1])

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
        _, last = self.log_bounds()
        newest = self._table("log").get(last)
        offset, recorded_at = last + 1, now_ms
        if newest is not None:
            recorded_at = next_time(newest.recorded_at, now_ms)
            if recorded_at < newest.recorded_at:
                turn = ClockTurn(offset, newest.recorded_at, recorded_at)
                self._put("meta", "turns", with_turn(self.log_turns(), turn))
        entry = Entry(offset, id, mesh, op, entity, origin, lamport, recorded_at, raw)
        assert id not in self._table("log_id"), "the caller looks before it appends"
        self._put("log", offset, entry)
        self._put("log_id", id, offset)
        if op not in NOT_BY_ENTITY:
            about = self._table("log_entity").get((mesh, entity), ())
            self._put("log_entity", (mesh, entity), (*about, offset))
        self._put("log_meta", _LAST, offset)
        if via:
            self._put("log_via", offset, via)
        return offset

    def log_append_new(self, arrivals: Sequence[Arrived], now_ms: int, via: int = 0) -> int | None:
        ids = {arrived[0] for arrived in arrivals}
        known = self._table("log_id").keys() | self._table("forgotten").keys()
        if len(ids) < len(arrivals) or not ids.isdisjoint(known):
            return None
        first = self.log_bounds()[1] + 1
        for id, mesh, op, entity, origin, lamport, raw in arrivals:
            self.log_append(id, mesh, op, entity, origin, lamport, now_ms, raw, via)
        return first

    def log_append_columns(self, mesh: str, run: CommitColumns, now_ms: int) -> int | None:
        places = range(run.size)
        rows = zip(
            *(run.id_list(), run.name_list(), run.origin_list(), unpacked(run.stamps), places),
            strict=True,
        )
        arrivals: list[Arrived] = [
            (id, mesh, CHANGE, name, origin, lamport, run.raw(place))
            for id, name, origin, lamport, place in rows
        ]
        return self.log_append_new(arrivals, now_ms)

    def log_set_aside(self, offset: int, id: bytes) -> None:
        entry = self._table("log").get(offset)
        if entry is not None:
            self._drop("log_id", entry.id)
            self._put("log", offset, msgspec.structs.replace(entry, id=id))
            self._put("log_id", id, offset)

    def log_truncate(self, below: int, most: int, now_ms: int) -> int:
        first, last = self.log_bounds()
        stop = min(below, last, first + most)
        for offset in range(first, stop):
            entry = self._table("log").get(offset)
            if entry is None:  # it went with its mesh
                self._drop("log_hole", offset)
                continue
            gone = decode_trusted(entry.raw)
            self._put("forgotten", entry.id, (offset, gone.fingerprint, now_ms))
            if self._table("stream"):
                name = StreamName(gone.mesh, gone.origin, gone.epoch)
                self._streams_truncated([(name, gone.seq)])
            self._drop("log", offset)
            self._drop("log_id", entry.id)
            self._drop("log_via", offset)
        if stop > first:
            self._put("log_meta", _FIRST, stop)
        return max(stop - first, 0)

    def forgotten_add(self, id: bytes, fingerprint: bytes, now_ms: int) -> None:
        if id not in self._table("forgotten"):
            self._put("forgotten", id, (0, fingerprint, now_ms))

    def log_leaves(self, start: int, end: int, limit: int) -> list[bytes | None]:
        return [leaf_of(entry.raw) for entry in self.log_range(start, end, limit)]

    def log_damage(self, start: int, end: int, limit: int) -> list[tuple[int, str]]:
        found = (
            (entry.offset, damage_of(msgspec.structs.asdict(entry)))
            for entry in self.log_range(start, end, limit)
        )
        return [(offset, damage) for offset, damage in found if damage is not None]

    def log_seal(self, rows_max: int, bytes_max: int) -> int:
        return 0  # no entry here is from before leaf hashes

    def log_replace(self, offset: int, raw: bytes) -> None:
        entry = self._table("log")[offset]
        columns = columns_of(raw, entry.id)
        self._drop("log_id", entry.id)
        self._put("log", offset, msgspec.structs.replace(entry, raw=raw, **columns))
        self._put("log_id", columns["id"], offset)

    def forgotten_sweep(self, before_ms: int, most: int) -> int:
        old = sorted(
            (truncated_at, id)
            for id, (_, _, truncated_at) in self._table("forgotten").items()
            if truncated_at < before_ms
        )[:most]
        for _, id in old:
            self._drop("forgotten", id)
        return len(old)
