"""Memory, state and files: one row per key, the last writer wins.

Every upsert compares versions again in SQL. The caller has compared them already to know what the
merge discards; the comparison here is what makes a lost race or a bug above unable to put an older
version over a newer one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import apsw
import msgspec

from holdfast.rules.order import Version
from holdfast.rules.rows import BlobRow, FileRow, MemoryRow, StateRow, SweptRow
from holdfast.storage.sqlite.columns import FLAG, NAMES, TEXT, RowColumns

_DEAD = (
    ("state", "tombstone = 1", "'', key, ''"),
    ("memory", "tombstone = 1", "owner, key, ''"),
    ("file", "tombstone = 1", "owner, path, ''"),
    ("vector", "live = 0", "owner, key, model"),
)
"""Tables with dead rows: which rows are dead, and owner, key and model of one."""
_STATE = RowColumns("state", StateRow, value=TEXT, tombstone=FLAG)
_MEMORY = RowColumns("memory", MemoryRow, value=TEXT, tags=NAMES, tombstone=FLAG)
_FILE = RowColumns("file", FileRow, tombstone=FLAG)
_BLOB = RowColumns("blob", BlobRow)


def _put_newer(columns: RowColumns[Any], key: str) -> str:
    new = ", ".join(f"excluded.{name}" for name in Version._fields)
    old = ", ".join(f"{columns.table}.{name}" for name in Version._fields)
    return f"{columns.upsert(key)} WHERE ({new}) > ({old})"


_PUT_STATE = _put_newer(_STATE, "mesh, key")
_VERSIONS = (
    "SELECT key, lamport, peer, id FROM state "
    "WHERE mesh = ? AND key IN (SELECT value FROM json_each(?))"
)
_PUT_MEMORY = _put_newer(_MEMORY, "mesh, owner, key")
_PUT_FILE = _put_newer(_FILE, "mesh, owner, path")
_PUT_BLOB = _BLOB.upsert("sha256", keep=("size", "created_at"))

_LIVE_COUNTS = {
    "state": "SELECT count(*) FROM state WHERE mesh = ? AND tombstone = 0",
    "memory": "SELECT count(*) FROM memory WHERE mesh = ? AND tombstone = 0",
    "file": "SELECT count(*) FROM file WHERE mesh = ? AND tombstone = 0",
    "vector": "SELECT count(*) FROM vector WHERE mesh = ? AND live = 1",
    "task": "SELECT count(*) FROM task WHERE mesh = ? AND known = 1",
}


class FamilyReads:
    _con: apsw.Connection
    _once: apsw.Cursor

    def state_version(self, mesh: str, key: str) -> Version | None:
        row = self._once.execute(
            "SELECT lamport, peer, id FROM state WHERE mesh = ? AND key = ?", (mesh, key)
        ).get
        return None if row is None else Version(*row)

    def state_version_many(self, mesh: str, keys: Collection[str]) -> dict[str, Version]:
        found = self._con.execute(_VERSIONS, (mesh, _listed(keys)))
        return {key: Version(lamport, peer, id) for key, lamport, peer, id in found}

    def state_get(self, mesh: str, key: str) -> StateRow | None:
        return _STATE.find(self._con, "WHERE mesh = ? AND key = ?", (mesh, key))

    def state_seen(self, mesh: str, key: str) -> dict[str, int]:
        rows: list[Any] = self._con.execute(
            "SELECT peer, lamport FROM state_seen WHERE mesh = ? AND key = ?", (mesh, key)
        ).fetchall()
        return dict(rows)

    def state_scan(self, mesh: str, prefix: str, after: str, limit: int) -> list[StateRow]:
        above = above_prefix(prefix)
        # Of two lower bounds SQLite searches by one, which may be the lower.
        started = after.encode() >= prefix.encode()
        return _STATE.select(
            self._con,
            f"WHERE mesh = ?1 AND key {'>' if started else '>='} ?2 "
            f"{'' if above is None else 'AND key < ?4 '}ORDER BY key LIMIT ?3",
            (
                *(mesh, after if started else prefix, limit),
                *(() if above is None else (above,)),
            ),
        )

    def memory_get(self, mesh: str, owner: str, key: str) -> MemoryRow | None:
        return _MEMORY.find(
            self._con, "WHERE mesh = ? AND owner = ? AND key = ?", (mesh, owner, key)
        )

    def memory_get_many(self, mesh: str, owner: str, keys: Collection[str]) -> dict[str, MemoryRow]:
        rows = _MEMORY.select(
            self._con,
            "WHERE mesh = ? AND owner = ? AND key IN (SELECT value FROM json_each(?))",
            (mesh, owner, _listed(keys)),
        )
        return {row.key: row for row in rows}

    def memory_all(self, mesh: str, key: str) -> list[MemoryRow]:
        return _MEMORY.select(
            self._con,
            "WHERE mesh = ? AND key = ? AND tombstone = 0 ORDER BY lamport DESC, owner",
            (mesh, key),
        )

    def memory_scan(
        self, mesh: str, owner: str | None, after: tuple[str, str], limit: int
    ) -> list[MemoryRow]:
        return _MEMORY.select(self._con, *_owned_page("key", mesh, owner, after, limit))

    def file_get(self, mesh: str, owner: str, path: str) -> FileRow | None:
        return _FILE.find(
            self._con, "WHERE mesh = ? AND owner = ? AND path = ?", (mesh, owner, path)
        )

    def file_scan(
        self, mesh: str, owner: str | None, after: tuple[str, str], limit: int
    ) -> list[FileRow]:
        return _FILE.select(self._con, *_owned_page("path", mesh, owner, after, limit))

    def blob_get(self, sha256: str) -> BlobRow | None:
        return _BLOB.find(self._con, "WHERE sha256 = ?", (sha256,))

    def blob_scan(self, after: str, limit: int) -> list[BlobRow]:
        return _BLOB.select(self._con, "WHERE sha256 > ? ORDER BY sha256 LIMIT ?", (after, limit))

    def blob_released(self, limit: int) -> list[BlobRow]:
        return _BLOB.select(
            self._con,
            "WHERE released_at IS NOT NULL ORDER BY released_offset, sha256 LIMIT ?",
            (limit,),
        )

    def blob_old(
        self, upto: int, before_ms: int, now_ms: int, old_upto: int, limit: int
    ) -> list[BlobRow]:
        return _BLOB.select(
            self._con,
            "WHERE released_at IS NOT NULL AND released_offset <= ?1 AND (released_at < ?2 "
            "OR (released_at > ?3 AND released_offset <= ?4)) "
            "ORDER BY released_offset, sha256 LIMIT ?5",
            (upto, before_ms, now_ms, old_upto, limit),
        )

    def blob_refs(self, sha256: str) -> int:
        count = self._con.execute(
            "SELECT (SELECT count(*) FROM file "
            "WHERE sha256 = ?1 AND tombstone = 0 AND content IS NULL) "
            "+ (SELECT count(*) FROM fact_object WHERE sha256 = ?1)",
            (sha256,),
        ).get
        assert isinstance(count, int)
        return count

    def fact_objects(self, below: int, limit: int) -> list[tuple[int, str]]:
        rows: list[Any] = self._con.execute(
            "SELECT offset, sha256 FROM fact_object WHERE offset < ? "
            "ORDER BY offset, sha256 LIMIT ?",
            (below, limit),
        ).fetchall()
        return rows

    def family_counts(self, mesh: str) -> dict[str, int]:
        return {
            family: int(self._con.execute(query, (mesh,)).get)
            for family, query in _LIVE_COUNTS.items()
        }


def above_prefix(prefix: str) -> str | None:
    """The least text above all that begin with a prefix, in byte order; None for no such."""
    rest = prefix.rstrip("\U0010ffff")
    if not rest:
        return None
    following = ord(rest[-1]) + 1
    # Halves of surrogate pairs are no characters: after U+D7FF comes U+E000.
    return rest[:-1] + chr(0xE000 if following == 0xD800 else following)


def _listed(keys: Collection[str]) -> str:
    return msgspec.json.encode(list(keys)).decode()


def _owned_page(
    key: str, mesh: str, owner: str | None, after: tuple[str, str], limit: int
) -> tuple[str, tuple[Any, ...]]:
    """One page of a family that is kept per owner, in the order of its primary key."""
    if owner is None:
        return (
            f"WHERE mesh = ? AND (owner, {key}) > (?, ?) ORDER BY owner, {key} LIMIT ?",
            (mesh, *after, limit),
        )
    start = after[1] if after[0] == owner else ""
    return (
        f"WHERE mesh = ? AND owner = ? AND owner >= ? AND {key} > ? ORDER BY {key} LIMIT ?",
        (mesh, owner, after[0], start, limit),
    )


class FamilyWrites(FamilyReads):
    def state_put(self, row: StateRow) -> None:
        self._once.execute(_PUT_STATE, _STATE.values(row))

    def state_put_many(self, rows: Sequence[StateRow]) -> None:
        self._con.executemany(_PUT_STATE, map(_STATE.values, rows))

    def memory_put(self, row: MemoryRow) -> None:
        self._con.execute(_PUT_MEMORY, _MEMORY.values(row))

    def memory_put_many(self, rows: Sequence[MemoryRow]) -> None:
        self._con.executemany(_PUT_MEMORY, map(_MEMORY.values, rows))

    def file_put(self, row: FileRow) -> None:
        self._con.execute(_PUT_FILE, _FILE.values(row))

    def blob_put(self, row: BlobRow) -> None:
        self._con.execute(_PUT_BLOB, _BLOB.values(row))

    def fact_objects_put(self, offset: int, sha256s: Sequence[str]) -> None:
        self._con.executemany(
            "INSERT INTO fact_object (sha256, offset) VALUES (?, ?) ON CONFLICT DO NOTHING",
            ((sha256, offset) for sha256 in sha256s),
        )

    def fact_objects_drop(self, below: int) -> None:
        self._con.execute("DELETE FROM fact_object WHERE offset < ?", (below,))

    def blob_drop(self, sha256: str) -> None:
        self._con.execute("DELETE FROM blob WHERE sha256 = ?", (sha256,))

    def state_seen_put(self, mesh: str, key: str, peer: str, lamport: int) -> None:
        self._con.execute(
            "INSERT INTO state_seen (mesh, key, peer, lamport) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (mesh, key, peer) DO UPDATE SET lamport = excluded.lamport",
            (mesh, key, peer, lamport),
        )

    def state_seen_drop(self, mesh: str, key: str, peer: str) -> None:
        self._con.execute(
            "DELETE FROM state_seen WHERE mesh = ? AND key = ? AND peer = ?", (mesh, key, peer)
        )

    def tombstones_sweep(self, mesh: str, below_offset: int, most: int) -> list[SweptRow]:
        removed: list[SweptRow] = []
        for table, dead, columns in _DEAD:
            rows: list[Any] = self._con.execute(
                f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} "
                f"WHERE mesh = ? AND {dead} AND offset < ? ORDER BY offset LIMIT ?) "
                f"RETURNING {columns}, lamport, tombstone",
                (mesh, below_offset, most - len(removed)),
            ).fetchall()
            removed += [
                SweptRow(table, owner, key, model, lamport, bool(tombstone))
                for owner, key, model, lamport, tombstone in rows
            ]
            if len(removed) >= most:
                break
        return removed
