"""The end of a mesh in memory: all of its rows go in one step."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import HoldfastError, UnknownMesh
from holdfast.rules.outbox import lane_of, quorum_lane_of
from holdfast.rules.rows import EndedMesh
from holdfast.storage.memory.undo import UndoTables
from holdfast.storage.mesh_end_port import Erased, ErasePlace

_NAMED_BY_NUMBER = {"outbox": "outbox_id", "inbox": "inbox_id"}


class MemoryMeshEnd(UndoTables):
    """Meshes that were deleted, and the holes that they left in the log."""

    def ended_mesh(self, mesh: str) -> EndedMesh | None:
        return self._table("ended_mesh").get(mesh)

    def ended_meshes(self) -> list[EndedMesh]:
        return sorted(self._table("ended_mesh").values(), key=lambda row: row.mesh)

    def log_last_of(self, mesh: str) -> int:
        log = self._table("log")
        return max((at for at, entry in log.items() if entry.mesh == mesh), default=0)

    def log_count_of(self, mesh: str) -> int:
        return sum(entry.mesh == mesh for entry in self._table("log").values())

    def log_holes(self, first: int, last: int) -> list[tuple[int, int]]:
        holes: list[tuple[int, int]] = []
        for at in sorted(self._table("log_hole")):
            if not first <= at <= last:
                continue
            if holes and holes[-1][1] == at - 1:
                holes[-1] = (holes[-1][0], at)
            else:
                holes.append((at, at))
        return holes

    def mesh_end_begin(self, mesh: str, now_ms: int) -> EndedMesh:
        row = self._table("mesh").get(mesh) or self._table("mesh_ending").get(mesh)
        if row is None:
            raise UnknownMesh(f"there is no mesh {mesh!r}")
        meta = self._table("meta")
        ended = EndedMesh(
            mesh=mesh,
            lamport=row.lamport,
            seq=row.seq,
            epoch=int(meta.get("epoch", 1)),
            head=self._table("log_meta").get("last", 0),
            begun_at=now_ms,
        )
        self._put("ended_mesh", mesh, ended)
        self._put("mesh_ending", mesh, row)
        for name in ("mesh", "bus_mesh", "quorum"):
            self._drop(name, mesh)
        self._unname(mesh)
        return ended

    def mesh_erase(self, mesh: str, place: ErasePlace, most: int, now_ms: int) -> Erased:
        gone = self._erase_log(mesh)
        shas = {row.sha256 for row in self._rows("file", mesh)}
        for name, last in (
            ("outbox", self._next("outbox") - 1),
            ("inbox", self._next("inbox") - 1),
        ):
            gone += self._erase_numbered(name, mesh, last, now_ms)
        for name in list(self._tables):
            if name not in ("mesh_ending", "ended_mesh", "outbox", "inbox", "log"):
                gone += self._erase_table(name, mesh)
        for number, row in list(self._table("quarantine").items()):
            if row.link == lane_of(mesh) or _is_of(row.raw, mesh):
                self._drop("quarantine", number)
                gone += 1
        self._release_named(shas, now_ms)
        return Erased(gone, None)

    def mesh_end_done(self, mesh: str, now_ms: int) -> None:
        self._drop("mesh_ending", mesh)
        row = self._table("ended_mesh")[mesh]
        head = max(row.head, self._table("log_meta").get("last", 0))
        self._put("ended_mesh", mesh, msgspec.structs.replace(row, ended_at=now_ms, head=head))

    def ended_mesh_dropped(self, mesh: str, count: int) -> None:
        row = self._table("ended_mesh")[mesh]
        self._put("ended_mesh", mesh, msgspec.structs.replace(row, dropped=row.dropped + count))

    def _erase_log(self, mesh: str) -> int:
        gone = 0
        for offset, entry in list(self._table("log").items()):
            if entry.mesh != mesh:
                continue
            gone += 1
            self._drop("log", offset)
            self._drop("log_id", entry.id)
            self._drop("log_via", offset)
            self._put("log_hole", offset, None)
            for at, sha in [pair for pair in self._table("fact_object") if pair[0] == offset]:
                self._drop("fact_object", (at, sha))
                self._put("mesh_sha", sha, None)
        return gone

    def _release_named(self, shas: set[str], now_ms: int) -> None:
        named = {row.sha256 for row in self._table("file").values() if row.in_blob}
        named |= {sha for _, sha in self._table("fact_object")}
        for sha in shas | set(self._table("mesh_sha")):
            blob = self._table("blob").get(sha)
            if blob is not None and blob.released_at is None and sha not in named:
                freed = msgspec.structs.replace(blob, released_at=now_ms, released_offset=0)
                self._put("blob", sha, freed)
        for sha in list(self._table("mesh_sha")):
            self._drop("mesh_sha", sha)

    def _erase_numbered(self, name: str, mesh: str, last: int, now_ms: int) -> int:
        """The row with the last number stays without content: no number is given twice."""
        gone = 0
        for number, row in list(self._table(name).items()):
            lane = getattr(row, "lane", "")
            if row.mesh != mesh and lane not in (lane_of(mesh), quorum_lane_of(mesh)):
                continue
            gone += 1
            key = (row.lane, row.id) if name == "outbox" else row.id
            self._drop(_NAMED_BY_NUMBER[name], key)
            self._drop("queue_note", number)
            if number != last:
                self._drop(name, number)
            elif name == "outbox":
                blank = msgspec.structs.replace(
                    row, lane="", mesh="", entity="", offset=0, state="done", ended_at=now_ms
                )
                self._put(name, number, blank)
            else:
                blank = msgspec.structs.replace(
                    row, mesh="", kind="", ref="", sender="", offset=0, read_at=now_ms
                )
                self._put(name, number, msgspec.structs.replace(blank, hooked_at=now_ms))
        return gone

    def _erase_table(self, name: str, mesh: str) -> int:
        doomed = [key for key, row in self._table(name).items() if _belongs(key, row, mesh)]
        for key in doomed:
            self._drop(name, key)
        return len(doomed)

    def _unname(self, mesh: str) -> None:
        for name in ("zone", "token"):
            for key, row in list(self._table(name).items()):
                reads = tuple(one for one in row.reads if one != mesh)
                self._put(name, key, msgspec.structs.replace(row, reads=reads))
        for name in ("link", "consumer"):
            for key, row in list(self._table(name).items()):
                if mesh not in row.filter.meshes:
                    continue
                rest = tuple(one for one in row.filter.meshes if one != mesh)
                if not rest:
                    self._drop(name, key)
                    continue
                filter = msgspec.structs.replace(row.filter, meshes=rest)
                self._put(name, key, msgspec.structs.replace(row, filter=filter))
        for key in [key for key in self._table("job") if key.endswith(f":{mesh}")]:
            self._drop("job", key)


def _belongs(key: Any, row: Any, mesh: str) -> bool:
    if getattr(row, "mesh", None) == mesh:
        return True
    return key == mesh or (isinstance(key, tuple) and bool(key) and key[0] == mesh)


def _is_of(raw: bytes, mesh: str) -> bool:
    try:
        return decode_trusted(raw).mesh == mesh
    except (msgspec.MsgspecError, HoldfastError, ValueError, TypeError):
        return False
