"""Contents that envelopes name, and snapshots: both come in pieces, in order, and count when whole.

A row for the whole is locked while a piece is added, so that two uploads of the same thing take
turns instead of mixing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import sha256 as sha256_of
from typing import Any, Final

from holdfast.rules.broker_rows import SnapshotRow
from holdfast.storage.broker.postgres.base import PostgresPart, columns, number_of
from holdfast.storage.broker.refusals import (
    check_part,
    check_piece,
    check_snapshot,
    no_object,
    no_upload,
    not_the_object,
    not_the_snapshot,
)

_SNAPSHOT: Final = columns(SnapshotRow)
_PIECE: Final = (
    "SELECT p.piece FROM mesh m JOIN object o ON o.mesh = m.number AND o.whole "
    "JOIN object_piece p ON p.mesh = o.mesh AND p.sha256 = o.sha256 "
    "WHERE m.slug = $1 AND o.sha256 = $2 AND p.number = $3"
)


class PostgresObjects(PostgresPart):
    async def object_size(self, mesh: str, sha256: str) -> int | None:
        size: int | None = await self._connections.fetchval(
            "SELECT size FROM object o JOIN mesh m ON m.number = o.mesh "
            "WHERE m.slug = $1 AND sha256 = $2 AND whole",
            *(mesh, sha256),
        )
        return size

    async def object_add(self, mesh: str, sha256: str, number: int, piece: bytes) -> int:
        check_piece(piece)

        async def work(con: Any) -> int:
            of = await number_of(con, mesh)
            await con.execute(
                "INSERT INTO object (mesh, sha256, size, pieces, whole) "
                "VALUES ($1, $2, 0, 0, FALSE) ON CONFLICT (mesh, sha256) DO NOTHING",
                *(of, sha256),
            )
            there = await con.fetchrow(
                "SELECT pieces, whole FROM object WHERE mesh = $1 AND sha256 = $2 FOR UPDATE",
                *(of, sha256),
            )
            pieces: int = there["pieces"]
            if there["whole"] or number != pieces:
                return pieces
            await con.execute(
                "INSERT INTO object_piece VALUES ($1, $2, $3, $4)", of, sha256, number, piece
            )
            await con.execute(
                "UPDATE object SET pieces = pieces + 1, size = size + $3, idle_since = NULL "
                "WHERE mesh = $1 AND sha256 = $2",
                *(of, sha256, len(piece)),
            )
            return pieces + 1

        return await self._connections.transact(work)

    async def object_finish(self, mesh: str, sha256: str, size: int) -> None:
        async def work(con: Any) -> bool:
            of = await number_of(con, mesh)
            there = await con.fetchrow(
                "SELECT size, pieces, whole FROM object WHERE mesh = $1 AND sha256 = $2 FOR UPDATE",
                *(of, sha256),
            )
            if there is None:
                there = {"size": 0, "pieces": 0, "whole": False}
            if there["whole"]:
                return bool(there["size"] == size)
            same = there["size"] == size and await _hash(con, of, sha256, there["pieces"]) == sha256
            if same:
                await con.execute(
                    "INSERT INTO object VALUES ($1, $2, $3, 0, TRUE) "
                    "ON CONFLICT (mesh, sha256) DO UPDATE SET whole = TRUE, idle_since = NULL",
                    *(of, sha256, size),
                )
            else:
                await con.execute("DELETE FROM object WHERE mesh = $1 AND sha256 = $2", of, sha256)
            return same

        # Refused outside: what is thrown away must be committed.
        if not await self._connections.transact(work):
            raise not_the_object(sha256)

    async def object_read(self, mesh: str, sha256: str) -> AsyncIterator[bytes]:
        if await self.object_size(mesh, sha256) is None:
            raise no_object(sha256)
        number = 0
        while True:
            # One piece at a time: no connection is held while the reader is slow.
            piece = await self._piece(mesh, sha256, number)
            if piece is None:
                return
            yield piece
            number += 1

    async def _piece(self, mesh: str, sha256: str, number: int) -> bytes | None:
        piece: bytes | None = await self._connections.fetchval(_PIECE, mesh, sha256, number)
        return piece


class PostgresSnapshots(PostgresPart):
    async def snapshot_begin(self, mesh: str, row: SnapshotRow) -> SnapshotRow:
        async def work(con: Any) -> SnapshotRow:
            of = await number_of(con, mesh, lock=True)
            epoch, seq = await con.fetchrow("SELECT epoch, seq FROM mesh WHERE number = $1", of)
            check_snapshot(mesh, row, epoch, seq)
            found = await con.fetchrow(
                f"SELECT {_SNAPSHOT} FROM snapshot WHERE mesh = $1 AND made_by = $2 "
                "AND epoch = $3 AND seq = $4 AND NOT ready",
                *(of, row.made_by, row.epoch, row.seq),
            )
            if found is None:
                found = await con.fetchrow(
                    f"INSERT INTO snapshot (mesh, {_SNAPSHOT}) "
                    "VALUES ($1, $2, $3, $4, 0, 0, FALSE, $5, $6, '') "
                    f"RETURNING {_SNAPSHOT}",
                    *(of, row.id, row.epoch, row.seq, row.made_by, row.began_at),
                )
            return SnapshotRow(**found)

        return await self._connections.transact(work)

    async def snapshot_add(self, mesh: str, id: str, number: int, rows: int, part: bytes) -> int:
        check_part(part)
        digest = sha256_of(part).digest()

        async def work(con: Any) -> int:
            of = await number_of(con, mesh)
            there = await con.fetchrow(
                "SELECT parts, ready FROM snapshot WHERE mesh = $1 AND id = $2 FOR UPDATE", of, id
            )
            if there is None:
                raise no_upload(id)
            parts: int = there["parts"]
            if there["ready"] or number != parts:
                return parts
            await con.execute(
                "INSERT INTO snapshot_part VALUES ($1, $2, $3, $4, $5)",
                *(of, id, number, digest, part),
            )
            await con.execute(
                "UPDATE snapshot SET parts = parts + 1, rows = rows + $3, idle_since = NULL "
                "WHERE mesh = $1 AND id = $2",
                *(of, id, rows),
            )
            return parts + 1

        return await self._connections.transact(work)

    async def snapshot_commit(self, mesh: str, id: str, digest: bytes, now_ms: int) -> SnapshotRow:
        async def work(con: Any) -> SnapshotRow | None:
            # With the mesh's lock: of two that are finished at once, the newer one stays.
            of = await number_of(con, mesh, lock=True)
            there = await con.fetchrow(
                f"SELECT {_SNAPSHOT} FROM snapshot WHERE mesh = $1 AND id = $2 FOR UPDATE", of, id
            )
            if there is None:
                raise no_upload(id)
            if there["ready"]:
                return SnapshotRow(**there) if there["digest"] == digest else None
            digests = await con.fetch(
                "SELECT digest FROM snapshot_part WHERE mesh = $1 AND id = $2 ORDER BY number",
                *(of, id),
            )
            if sha256_of(b"".join(row["digest"] for row in digests)).digest() != digest:
                await con.execute("DELETE FROM snapshot WHERE mesh = $1 AND id = $2", of, id)
                return None
            return await _make_ready(con, of, SnapshotRow(**there), digest)

        ready = await self._connections.transact(work)
        if ready is None:
            raise not_the_snapshot(id)
        return ready

    async def snapshot_get(self, mesh: str) -> SnapshotRow | None:
        row = await self._connections.fetchrow(
            f"SELECT {_SNAPSHOT} FROM snapshot WHERE ready "
            "AND mesh = (SELECT number FROM mesh WHERE slug = $1)",
            mesh,
        )
        return None if row is None else SnapshotRow(**row)

    async def snapshot_part(self, mesh: str, id: str, number: int) -> bytes | None:
        part: bytes | None = await self._connections.fetchval(
            "SELECT p.part FROM snapshot s JOIN snapshot_part p USING (mesh, id) "
            "WHERE s.mesh = (SELECT number FROM mesh WHERE slug = $1) AND s.id = $2 "
            "AND s.ready AND p.number = $3",
            *(mesh, id, number),
        )
        return part


async def _make_ready(con: Any, of: int, row: SnapshotRow, digest: bytes) -> SnapshotRow:
    older = await con.fetchrow("SELECT id, seq FROM snapshot WHERE mesh = $1 AND ready", of)
    if older is not None:
        if older["seq"] > row.seq:
            await con.execute("DELETE FROM snapshot WHERE mesh = $1 AND id = $2", of, row.id)
            newer = await con.fetchrow(
                f"SELECT {_SNAPSHOT} FROM snapshot WHERE mesh = $1 AND ready", of
            )
            return SnapshotRow(**newer)
        await con.execute("DELETE FROM snapshot WHERE mesh = $1 AND id = $2", of, older["id"])
    ready = await con.fetchrow(
        "UPDATE snapshot SET ready = TRUE, digest = $3, idle_since = NULL "
        f"WHERE mesh = $1 AND id = $2 RETURNING {_SNAPSHOT}",
        *(of, row.id, digest),
    )
    return SnapshotRow(**ready)


async def _hash(con: Any, of: int, sha256: str, pieces: int) -> str:
    """Of all pieces together, one after the other: an object may be larger than the memory."""
    digest = sha256_of()
    for number in range(pieces):
        digest.update(
            await con.fetchval(
                "SELECT piece FROM object_piece WHERE mesh = $1 AND sha256 = $2 AND number = $3",
                *(of, sha256, number),
            )
        )
    return digest.hexdigest()
