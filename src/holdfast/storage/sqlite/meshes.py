"""Meshes, their clocks, and the peers heard of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from holdfast.rules.errors import AlreadyExists, UnknownMesh
from holdfast.rules.lamport import merge_run, worn_out
from holdfast.rules.limits import LAMPORT_MAX
from holdfast.rules.rows import MeshRow, PeerRow

_COLUMNS = (
    "slug, name, kind, created_at, updated_at, last_sync_at, sync_paused, lamport, seq, "
    "forgotten_lamport, broker_url, broker_card, server_id, broker_epoch, broker_seq"
)


def _mesh(row: Any) -> MeshRow:
    return MeshRow(
        slug=row[0],
        name=row[1],
        kind=row[2],
        created_at=row[3],
        updated_at=row[4],
        last_sync_at=row[5],
        sync_paused=bool(row[6]),
        lamport=row[7],
        seq=row[8],
        forgotten_lamport=row[9],
        broker_url=row[10],
        broker_card=row[11],
        server_id=row[12],
        broker_epoch=row[13],
        broker_seq=row[14],
    )


class MeshReads:
    _con: apsw.Connection
    _once: apsw.Cursor

    def peer_name(self) -> str | None:
        name = self._con.execute("SELECT value FROM meta WHERE name = 'peer'").get
        return None if name is None else str(name)

    def mesh_get(self, slug: str) -> MeshRow | None:
        row = self._con.execute(f"SELECT {_COLUMNS} FROM mesh WHERE slug = ?", (slug,)).get
        return None if row is None else _mesh(row)

    def mesh_list(self) -> list[MeshRow]:
        return [
            _mesh(row) for row in self._con.execute(f"SELECT {_COLUMNS} FROM mesh ORDER BY slug")
        ]

    def peer_list(self, mesh: str) -> list[PeerRow]:
        rows = self._con.execute(
            "SELECT mesh, peer, last_seen_at, last_lamport FROM peer WHERE mesh = ? ORDER BY peer",
            (mesh,),
        )
        return [
            PeerRow(mesh=row[0], peer=row[1], last_seen_at=row[2], last_lamport=row[3])
            for row in rows
        ]


class MeshWrites(MeshReads):
    def set_peer_name(self, name: str) -> None:
        self._con.execute(
            "INSERT INTO meta (name, value) VALUES ('peer', ?) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name,),
        )

    def mesh_add(self, row: MeshRow) -> None:
        try:
            self._con.execute(
                f"INSERT INTO mesh ({_COLUMNS}) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    row.slug,
                    row.name,
                    row.kind,
                    row.created_at,
                    row.updated_at,
                    row.last_sync_at,
                    row.sync_paused,
                    row.lamport,
                    row.seq,
                    row.forgotten_lamport,
                    row.broker_url,
                    row.broker_card,
                    row.server_id,
                    row.broker_epoch,
                    row.broker_seq,
                ),
            )
        except apsw.ConstraintError:
            raise AlreadyExists(f"mesh {row.slug!r} exists already") from None

    def mesh_change(self, row: MeshRow) -> None:
        self._con.execute(
            "UPDATE mesh SET name = ?, kind = ?, created_at = ?, updated_at = ?, last_sync_at = ?, "
            "sync_paused = ?, broker_url = ?, broker_card = ?, server_id = ?, broker_epoch = ?, "
            "broker_seq = ? WHERE slug = ?",
            (
                row.name,
                row.kind,
                row.created_at,
                row.updated_at,
                row.last_sync_at,
                row.sync_paused,
                row.broker_url,
                row.broker_card,
                row.server_id,
                row.broker_epoch,
                row.broker_seq,
                row.slug,
            ),
        )
        if not self._con.changes():
            raise UnknownMesh(f"there is no mesh {row.slug!r}")

    def tick(self, mesh: str) -> tuple[int, int, str | None]:
        try:
            ticked = self._once.execute(
                "UPDATE mesh SET lamport = lamport + 1, seq = seq + 1 WHERE slug = ? "
                "RETURNING lamport, seq, iif(kind = 'personal', NULL, 'broker:' || slug)",
                (mesh,),
            ).get
        except apsw.ConstraintError:
            raise worn_out(mesh) from None  # past 63 bits it would be no integer any more
        if ticked is None:
            raise UnknownMesh(f"there is no mesh {mesh!r}")
        return ticked[0], ticked[1], ticked[2]

    def tick_merged(self, mesh: str, incoming: int) -> int:
        return self.tick_merged_run(mesh, (incoming,))

    def tick_merged_run(self, mesh: str, lamports: Sequence[int]) -> int:
        value = self._con.execute("SELECT lamport FROM mesh WHERE slug = ?", (mesh,)).get
        if value is None:
            raise UnknownMesh(f"there is no mesh {mesh!r}")
        lamport = merge_run(value, lamports)
        if lamport > LAMPORT_MAX:
            raise worn_out(mesh)
        self._once.execute("UPDATE mesh SET lamport = ? WHERE slug = ?", (lamport, mesh))
        return lamport

    def forget_below(self, mesh: str, lamport: int) -> None:
        self._con.execute(
            "UPDATE mesh SET forgotten_lamport = max(forgotten_lamport, ?) WHERE slug = ?",
            (lamport, mesh),
        )

    def peer_seen(self, row: PeerRow) -> None:
        self._con.execute(
            "INSERT INTO peer (mesh, peer, last_seen_at, last_lamport) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (mesh, peer) DO UPDATE SET "
            "last_seen_at = max(last_seen_at, excluded.last_seen_at), "
            "last_lamport = max(last_lamport, excluded.last_lamport)",
            (row.mesh, row.peer, row.last_seen_at, row.last_lamport),
        )
