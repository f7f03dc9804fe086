"""The log and the meshes' clocks in memory."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.rules.arrivals import Arrived
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import AlreadyExists, UnknownMesh
from holdfast.rules.lamport import merge_run, tick, worn_out
from holdfast.rules.limits import LAMPORT_MAX
from holdfast.rules.rows import ConsumerRow, Entry, JobRow, MeshRow, PeerRow
from holdfast.storage.memory.undo import UndoTables

_FIRST, _LAST = "first", "last"


class MemoryLog(UndoTables):
    """Meshes, peers, log entries, consumers, jobs."""

    # --- meshes ------------------------------------------------------------------------------

    def peer_name(self) -> str | None:
        return self._table("meta").get("peer")

    def set_peer_name(self, name: str) -> None:
        self._put("meta", "peer", name)

    def mesh_get(self, slug: str) -> MeshRow | None:
        return self._table("mesh").get(slug)

    def mesh_list(self) -> list[MeshRow]:
        return sorted(self._table("mesh").values(), key=lambda row: row.slug)

    def mesh_add(self, row: MeshRow) -> None:
        if row.slug in self._table("mesh"):
            raise AlreadyExists(f"mesh {row.slug!r} exists already")
        self._put("mesh", row.slug, row)

    def mesh_change(self, row: MeshRow) -> None:
        before = self._require_mesh(row.slug)
        changed = msgspec.structs.replace(
            row,
            lamport=before.lamport,
            seq=before.seq,
            forgotten_lamport=before.forgotten_lamport,
        )
        self._put("mesh", row.slug, changed)

    def tick(self, mesh: str) -> tuple[int, int, str | None]:
        row = self._require_mesh(mesh)
        if row.lamport >= LAMPORT_MAX:
            raise worn_out(mesh)
        ticked = msgspec.structs.replace(row, lamport=tick(row.lamport), seq=row.seq + 1)
        self._put("mesh", mesh, ticked)
        return ticked.lamport, ticked.seq, f"broker:{mesh}" if row.shared else None

    def tick_merged(self, mesh: str, incoming: int) -> int:
        return self.tick_merged_run(mesh, (incoming,))

    def tick_merged_run(self, mesh: str, lamports: Sequence[int]) -> int:
        row = self._require_mesh(mesh)
        lamport = merge_run(row.lamport, lamports)
        if lamport > LAMPORT_MAX:
            raise worn_out(mesh)
        self._put("mesh", mesh, msgspec.structs.replace(row, lamport=lamport))
        return lamport

    def forget_below(self, mesh: str, lamport: int) -> None:
        row = self._require_mesh(mesh)
        highest = max(row.forgotten_lamport, lamport)
        self._put("mesh", mesh, msgspec.structs.replace(row, forgotten_lamport=highest))

    def peer_list(self, mesh: str) -> list[PeerRow]:
        return sorted(self._rows("peer", mesh), key=lambda row: row.peer.encode())

    def peer_seen(self, row: PeerRow) -> None:
        before = self._table("peer").get((row.mesh, row.peer))
        if before is not None:
            row = msgspec.structs.replace(
                row,
                last_seen_at=max(row.last_seen_at, before.last_seen_at),
                last_lamport=max(row.last_lamport, before.last_lamport),
            )
        self._put("peer", (row.mesh, row.peer), row)

    # --- the log -----------------------------------------------------------------------------

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

    def log_range(self, start: int, end: int, limit: int) -> list[Entry]:
        first, last = self.log_bounds()
        start = max(start, first)
        stop = min(end, last + 1, start + max(limit, 0))
        log = self._table("log")
        return [log[offset] for offset in range(start, stop)]

    def log_of(self, mesh: str, entity: str, before: int) -> list[Entry]:
        offsets = self._table("log_entity").get((mesh, entity), ())
        log = self._table("log")
        return [log[offset] for offset in offsets if offset in log and offset < before]

    def log_at(self, recorded_by_ms: int) -> int:
        first, last = self.log_bounds()
        log = self._table("log")
        found = 0
        for offset in range(first, last + 1):
            if log[offset].recorded_at > recorded_by_ms:
                break
            found = offset
        return found

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
        recorded_at = max(now_ms, newest.recorded_at if newest is not None else 0)
        offset = last + 1
        entry = Entry(offset, id, mesh, op, entity, origin, lamport, recorded_at, raw)
        assert id not in self._table("log_id"), "the caller looks before it appends"
        self._put("log", offset, entry)
        self._put("log_id", id, offset)
        if op != "fact.append":
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

    def log_truncate(self, below: int, most: int, now_ms: int) -> int:
        first, last = self.log_bounds()
        stop = min(below, last, first + most)
        for offset in range(first, stop):
            entry = self._table("log")[offset]
            fingerprint = decode_trusted(entry.raw).fingerprint
            self._put("forgotten", entry.id, (offset, fingerprint, now_ms))
            self._drop("log", offset)
            self._drop("log_id", entry.id)
            self._drop("log_via", offset)
        if stop > first:
            self._put("log_meta", _FIRST, stop)
        return max(stop - first, 0)

    def forgotten_add(self, id: bytes, fingerprint: bytes, now_ms: int) -> None:
        if id not in self._table("forgotten"):
            self._put("forgotten", id, (0, fingerprint, now_ms))

    def forgotten_sweep(self, before_ms: int, most: int) -> int:
        old = sorted(
            (truncated_at, id)
            for id, (_, _, truncated_at) in self._table("forgotten").items()
            if truncated_at < before_ms
        )[:most]
        for _, id in old:
            self._drop("forgotten", id)
        return len(old)

    # --- readers and jobs --------------------------------------------------------------------

    def consumer_get(self, name: str) -> ConsumerRow | None:
        return self._table("consumer").get(name)

    def consumer_list(self) -> list[ConsumerRow]:
        return sorted(self._table("consumer").values(), key=lambda row: row.name.encode())

    def consumer_put(self, row: ConsumerRow) -> None:
        self._put("consumer", row.name, row)

    def consumer_drop(self, name: str) -> None:
        self._drop("consumer", name)

    def job_get(self, name: str) -> JobRow | None:
        return self._table("job").get(name)

    def job_put(self, row: JobRow) -> None:
        self._put("job", row.name, row)

    def job_drop(self, name: str) -> None:
        self._drop("job", name)

    def _require_mesh(self, slug: str) -> MeshRow:
        row = self.mesh_get(slug)
        if row is None:
            raise UnknownMesh(f"there is no mesh {slug!r}")
        return row
