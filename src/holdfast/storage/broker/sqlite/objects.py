"""Objects and snapshots: large things that come in parts, each part a row.

While an object comes in, its hash is computed piece by piece, so that its end does not stop
everything else for as long as reading it again would take. After a restart it is read again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cached_property
from hashlib import sha256 as new_hash
from typing import Any, Final

from holdfast.rules.broker_rows import SnapshotRow
from holdfast.storage.broker.refusals import (
    check_part,
    check_piece,
    check_snapshot,
    no_object,
    no_upload,
    not_the_object,
    not_the_snapshot,
)
from holdfast.storage.broker.sqlite.database import BrokerDatabase
from holdfast.storage.sqlite.columns import FLAG, RowColumns

_HASHES_MAX: Final = 64
_SNAPSHOT: Final = RowColumns("snapshot", SnapshotRow, ready=FLAG)


class SqliteObjects(BrokerDatabase):
    @cached_property
    def _hashes(self) -> dict[tuple[int, str], tuple[int, Any]]:
        """By mesh and name: the pieces that are in a hash, and the hash."""
        return {}

    async def object_size(self, mesh: str, sha256: str) -> int | None:
        with self.reading() as con:
            number = self.find_number(mesh)
            size = con.execute(
                "SELECT size FROM object WHERE mesh = ? AND sha256 = ? AND whole = 1",
                (number, sha256),
            ).get
            return None if size is None else int(size)

    async def object_add(self, mesh: str, sha256: str, number: int, piece: bytes) -> int:
        check_piece(piece)
        with self.writing(adds=True) as con:
            at = self.number_of(mesh)
            whole, pieces = self._object(at, sha256) or (0, 0)
            if whole or number != pieces:
                return int(pieces)
            con.execute(
                "INSERT INTO object (mesh, sha256, pieces, size) VALUES (?, ?, 1, ?) "
                "ON CONFLICT DO UPDATE SET pieces = pieces + 1, size = size + excluded.size, "
                "idle_since = NULL",
                (at, sha256, len(piece)),
            )
            con.execute("INSERT INTO object_piece VALUES (?, ?, ?, ?)", (at, sha256, number, piece))
        self._hash_on((at, sha256), number, piece)
        return number + 1

    async def object_finish(self, mesh: str, sha256: str, size: int) -> None:
        with self.writing() as con:
            at = self.number_of(mesh)
            row = con.execute(
                "SELECT whole, pieces, size FROM object WHERE mesh = ? AND sha256 = ?",
                (at, sha256),
            ).get
            whole, pieces, held = row or (0, 0, 0)
            same = held == size
            if whole:
                if not same:
                    raise not_the_object(sha256)
                return
            same = same and self._hash((at, sha256), pieces) == sha256
            if same:
                con.execute(
                    "INSERT INTO object (mesh, sha256, whole) VALUES (?, ?, 1) "
                    "ON CONFLICT DO UPDATE SET whole = 1, idle_since = NULL",
                    (at, sha256),
                )
            else:
                self.drop_object(at, sha256)
        self._hashes.pop((at, sha256), None)
        # Refused outside: what is thrown away must be committed.
        if not same:
            raise not_the_object(sha256)

    async def object_read(self, mesh: str, sha256: str) -> AsyncIterator[bytes]:
        number = 0
        while (piece := await self.object_piece(mesh, sha256, number)) is not None:
            yield piece
            number += 1

    async def object_piece(self, mesh: str, sha256: str, number: int) -> bytes | None:
        """One piece of a whole object; None behind the last."""
        with self.reading() as con:
            at = self.number_of(mesh)
            whole, pieces = self._object(at, sha256) or (0, 0)
            if not whole:
                raise no_object(sha256)
            if number >= pieces:
                return None
            piece = con.execute(
                "SELECT piece FROM object_piece WHERE mesh = ? AND sha256 = ? AND number = ?",
                (at, sha256, number),
            ).get
            assert isinstance(piece, bytes)
            return piece

    def drop_object(self, at: int, sha256: str) -> None:
        for table in ("object_piece", "object"):
            self.connection.execute(
                f"DELETE FROM {table} WHERE mesh = ? AND sha256 = ?", (at, sha256)
            )

    def _object(self, at: int, sha256: str) -> tuple[int, int] | None:
        row = self.connection.execute(
            "SELECT whole, pieces FROM object WHERE mesh = ? AND sha256 = ?", (at, sha256)
        ).get
        return None if row is None else (row[0], row[1])

    def _hash_on(self, which: tuple[int, str], number: int, piece: bytes) -> None:
        done, running = self._hashes.pop(which, (0, new_hash()))
        if number == 0:
            done, running = 0, new_hash()
        if done != number:
            return
        running.update(piece)
        self._hashes[which] = (number + 1, running)
        if len(self._hashes) > _HASHES_MAX:
            del self._hashes[next(iter(self._hashes))]

    def _hash(self, which: tuple[int, str], pieces: int) -> str:
        done, running = self._hashes.get(which, (0, new_hash()))
        if done != pieces:
            running = new_hash()
            for (piece,) in self.connection.execute(
                "SELECT piece FROM object_piece WHERE mesh = ? AND sha256 = ? ORDER BY number",
                which,
            ):
                running.update(piece)
        return str(running.hexdigest())


class SqliteSnapshots(BrokerDatabase):
    async def snapshot_begin(self, mesh: str, row: SnapshotRow) -> SnapshotRow:
        with self.writing(adds=True) as con:
            at = self.number_of(mesh)
            epoch, seq = con.execute("SELECT epoch, seq FROM mesh WHERE number = ?", (at,)).get
            check_snapshot(mesh, row, epoch, seq)
            found = _SNAPSHOT.find(
                con,
                "WHERE mesh = ? AND epoch = ? AND seq = ? AND made_by = ? AND NOT ready",
                (at, row.epoch, row.seq, row.made_by),
            )
            if found is not None:
                return found
            con.execute(
                "INSERT INTO snapshot (mesh, id, epoch, seq, made_by, began_at) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (at, row.id, row.epoch, row.seq, row.made_by, row.began_at),
            )
            return self._find(at, row.id)

    async def snapshot_add(self, mesh: str, id: str, number: int, rows: int, part: bytes) -> int:
        check_part(part)
        with self.writing(adds=True) as con:
            at = self.number_of(mesh)
            found = self._find(at, id)
            if found.ready or number != found.parts:
                return found.parts
            con.execute(
                "INSERT INTO snapshot_part VALUES (?, ?, ?, ?, ?)",
                (at, id, number, new_hash(part).digest(), part),
            )
            con.execute(
                "UPDATE snapshot SET parts = parts + 1, rows = rows + ?, idle_since = NULL "
                "WHERE mesh = ? AND id = ?",
                (rows, at, id),
            )
            return found.parts + 1

    async def snapshot_commit(self, mesh: str, id: str, digest: bytes, now_ms: int) -> SnapshotRow:
        del now_ms  # when it was finished is nowhere asked
        with self.writing() as con:
            at = self.number_of(mesh)
            found = self._find(at, id)
            if found.ready:
                right = found.digest == digest
            else:
                parts = con.execute(
                    "SELECT digest FROM snapshot_part WHERE mesh = ? AND id = ? ORDER BY number",
                    (at, id),
                )
                right = new_hash(b"".join(one for (one,) in parts)).digest() == digest
                if right:
                    self._make_ready(at, id, digest)
                    found = self._find(at, id)
                else:
                    self.drop_snapshot(at, id)
        if not right:
            raise not_the_snapshot(id)
        return found

    def _make_ready(self, at: int, id: str, digest: bytes) -> None:
        con = self.connection
        con.execute(
            "UPDATE snapshot SET ready = 1, digest = ? WHERE mesh = ? AND id = ?", (digest, at, id)
        )
        older = con.execute(
            "SELECT id FROM snapshot WHERE mesh = ?1 AND ready AND id <> ?2 AND (epoch, seq) <= "
            "(SELECT epoch, seq FROM snapshot WHERE mesh = ?1 AND id = ?2)",
            (at, id),
        )
        for (one,) in list(older):
            self.drop_snapshot(at, one)

    async def snapshot_get(self, mesh: str) -> SnapshotRow | None:
        with self.reading() as con:
            newest = "WHERE mesh = ? AND ready ORDER BY epoch DESC, seq DESC LIMIT 1"
            return _SNAPSHOT.find(con, newest, (self.find_number(mesh),))

    async def snapshot_part(self, mesh: str, id: str, number: int) -> bytes | None:
        with self.reading() as con:
            part = con.execute(
                "SELECT part FROM snapshot_part JOIN snapshot USING (mesh, id) "
                "WHERE mesh = ? AND id = ? AND number = ? AND ready",
                (self.number_of(mesh), id, number),
            ).get
            assert part is None or isinstance(part, bytes)
            return part

    def drop_snapshot(self, at: int, id: str) -> None:
        for table in ("snapshot_part", "snapshot"):
            self.connection.execute(f"DELETE FROM {table} WHERE mesh = ? AND id = ?", (at, id))

    def _find(self, at: int, id: str) -> SnapshotRow:
        found = _SNAPSHOT.find(self.connection, "WHERE mesh = ? AND id = ?", (at, id))
        if found is None:
            raise no_upload(id)
        return found
