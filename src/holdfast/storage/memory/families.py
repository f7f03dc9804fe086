"""Memory, state, files and blobs in memory: one row per key, the last writer wins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

from holdfast.rules.order import Version, is_newer
from holdfast.rules.rows import BlobRow, FileRow, MemoryRow, StateRow, SweptRow, VersionedRow
from holdfast.storage.memory.undo import UndoTables

T = TypeVar("T")


class MemoryFamilies(UndoTables):
    """Memory, state, files and blobs."""

    def state_version(self, mesh: str, key: str) -> Version | None:
        row = self.state_get(mesh, key)
        return None if row is None else row.version

    def state_version_many(self, mesh: str, keys: Collection[str]) -> dict[str, Version]:
        found = ((key, self.state_version(mesh, key)) for key in keys)
        return {key: version for key, version in found if version is not None}

    def state_get(self, mesh: str, key: str) -> StateRow | None:
        return self._table("state").get((mesh, key))

    def state_scan(self, mesh: str, prefix: str, after: str, limit: int) -> list[StateRow]:
        rows = (
            row
            for row in self._rows("state", mesh)
            if row.key.startswith(prefix) and row.key.encode() > after.encode()
        )
        return _page(rows, lambda row: row.key.encode(), limit)

    def memory_get(self, mesh: str, owner: str, key: str) -> MemoryRow | None:
        return self._table("memory").get((mesh, owner, key))

    def memory_get_many(self, mesh: str, owner: str, keys: Collection[str]) -> dict[str, MemoryRow]:
        found = ((key, self.memory_get(mesh, owner, key)) for key in keys)
        return {key: row for key, row in found if row is not None}

    def memory_all(self, mesh: str, key: str) -> list[MemoryRow]:
        rows = [row for row in self._rows("memory", mesh) if row.key == key and not row.tombstone]
        return sorted(rows, key=lambda row: (-row.lamport, row.owner.encode()))

    def memory_scan(
        self, mesh: str, owner: str | None, after: tuple[str, str], limit: int
    ) -> list[MemoryRow]:
        return self._owned("memory", "key", mesh, owner, after, limit)

    def file_get(self, mesh: str, owner: str, path: str) -> FileRow | None:
        return self._table("file").get((mesh, owner, path))

    def file_scan(
        self, mesh: str, owner: str | None, after: tuple[str, str], limit: int
    ) -> list[FileRow]:
        return self._owned("file", "path", mesh, owner, after, limit)

    def blob_get(self, sha256: str) -> BlobRow | None:
        return self._table("blob").get(sha256)

    def blob_scan(self, after: str, limit: int) -> list[BlobRow]:
        rows = (row for row in self._table("blob").values() if row.sha256 > after)
        return _page(rows, lambda row: row.sha256, limit)

    def blob_released(self, limit: int) -> list[BlobRow]:
        rows = (row for row in self._table("blob").values() if row.released_at is not None)
        return _page(rows, lambda row: row.released_offset, limit)

    def blob_old(
        self, upto: int, before_ms: int, now_ms: int, old_upto: int, limit: int
    ) -> list[BlobRow]:
        def is_old(row: BlobRow) -> bool:
            at, offset = row.released_at or 0, row.released_offset or 0
            return offset <= upto and (at < before_ms or (at > now_ms and offset <= old_upto))

        released = self.blob_released(len(self._table("blob")))
        return [row for row in released if is_old(row)][:limit]

    def blob_refs(self, sha256: str) -> int:
        files = self._table("file").values()
        by_files = sum(row.in_blob and row.sha256 == sha256 for row in files)
        by_facts = sum(named == sha256 for _, named in self._table("fact_object"))
        return int(by_files + by_facts)

    def fact_objects(self, below: int, limit: int) -> list[tuple[int, str]]:
        return sorted(pair for pair in self._table("fact_object") if pair[0] < below)[:limit]

    def fact_objects_put(self, offset: int, sha256s: Sequence[str]) -> None:
        for sha256 in sha256s:
            self._put("fact_object", (offset, sha256), None)

    def fact_objects_drop(self, below: int) -> None:
        for pair in [pair for pair in self._table("fact_object") if pair[0] < below]:
            self._drop("fact_object", pair)

    def family_counts(self, mesh: str) -> dict[str, int]:
        live = {
            name: sum(not row.tombstone for row in self._rows(name, mesh))
            for name in ("state", "memory", "file")
        }
        vectors = sum(row.live for row in self._rows("vector", mesh))
        tasks = sum(row.known for row in self._rows("task", mesh))
        return {**live, "vector": vectors, "task": tasks}

    def state_put(self, row: StateRow) -> None:
        self._put_newer("state", (row.mesh, row.key), row)

    def state_put_many(self, rows: Sequence[StateRow]) -> None:
        for row in rows:
            self.state_put(row)

    def memory_put(self, row: MemoryRow) -> None:
        self._put_newer("memory", (row.mesh, row.owner, row.key), row)

    def memory_put_many(self, rows: Sequence[MemoryRow]) -> None:
        for row in rows:
            self.memory_put(row)

    def file_put(self, row: FileRow) -> None:
        self._put_newer("file", (row.mesh, row.owner, row.path), row)

    def blob_put(self, row: BlobRow) -> None:
        self._put("blob", row.sha256, row)

    def blob_drop(self, sha256: str) -> None:
        self._drop("blob", sha256)

    def state_seen(self, mesh: str, key: str) -> dict[str, int]:
        seen: dict[str, int] = self._table("state_seen").get((mesh, key), {})
        return dict(seen)

    def state_seen_put(self, mesh: str, key: str, peer: str, lamport: int) -> None:
        self._put("state_seen", (mesh, key), {**self.state_seen(mesh, key), peer: lamport})

    def state_seen_drop(self, mesh: str, key: str, peer: str) -> None:
        seen = self.state_seen(mesh, key)
        if seen.pop(peer, None) is not None:
            self._put("state_seen", (mesh, key), seen)

    def tombstones_sweep(self, mesh: str, below_offset: int, most: int) -> list[SweptRow]:
        removed: list[SweptRow] = []
        for name in ("state", "memory", "file", "vector"):
            table = self._table(name)
            dead = [
                key
                for key, row in table.items()
                if row.mesh == mesh
                and row.offset < below_offset
                and (not row.live if name == "vector" else row.tombstone)
            ]
            for key in sorted(dead, key=lambda key: table[key].offset)[: most - len(removed)]:
                removed.append(_swept(name, table[key]))
                self._drop(name, key)
                if name == "state":
                    self._drop("state_seen", key)
        return removed

    def _put_newer(self, table: str, key: tuple[str, ...], row: VersionedRow) -> None:
        current = self._table(table).get(key)
        if current is None or is_newer(row.version, current.version):
            self._put(table, key, row)

    def _owned(
        self,
        table: str,
        name: str,
        mesh: str,
        owner: str | None,
        after: tuple[str, str],
        limit: int,
    ) -> list[Any]:
        def key(row: Any) -> tuple[bytes, bytes]:
            return row.owner.encode(), getattr(row, name).encode()

        bound = (after[0].encode(), after[1].encode())
        rows = (
            row
            for row in self._rows(table, mesh)
            if (owner is None or row.owner == owner) and key(row) > bound
        )
        return _page(rows, key, limit)


def _page(rows: Iterable[T], key: Callable[[T], Any], limit: int) -> list[T]:
    return sorted(rows, key=key)[:limit]


def _swept(family: str, row: Any) -> SweptRow:
    owner = "" if family == "state" else row.owner
    key = row.path if family == "file" else row.key
    model = row.model if family == "vector" else ""
    return SweptRow(family, owner, key, model, row.lamport, row.tombstone)
