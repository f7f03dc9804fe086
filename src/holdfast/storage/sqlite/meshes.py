"""Meshes with their clocks, the peers that were heard of, and the members of shared meshes as their
brokers last listed them (table `mate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from holdfast.rules.errors import AlreadyExists, UnknownMesh
from holdfast.rules.lamport import merge_run, worn_out
from holdfast.rules.limits import LAMPORT_MAX
from holdfast.rules.rows import BlockedPeer, KnownMember, MeshRow, PeerRow
from holdfast.storage.sqlite.columns import FLAG, NAMES, RowColumns

_MESH = RowColumns("mesh", MeshRow, sync_paused=FLAG, on_bus=FLAG)
_CHANGED = RowColumns(
    "mesh",
    MeshRow,
    without=("slug", "lamport", "seq", "forgotten_lamport", "forgotten_floor"),
    sync_paused=FLAG,
    on_bus=FLAG,
)
_PEER = RowColumns("peer", PeerRow)
_BLOCKED = RowColumns("blocked_peer", BlockedPeer)
_MEMBER = RowColumns("mate", KnownMember, grants=NAMES)


class MeshReads:
    _con: apsw.Connection
    _once: apsw.Cursor

    def peer_name(self) -> str | None:
        name = self._con.execute("SELECT value FROM meta WHERE name = 'peer'").get
        return None if name is None else str(name)

    def mesh_get(self, slug: str) -> MeshRow | None:
        return _MESH.find(self._con, "WHERE slug = ? AND ending = 0", (slug,))

    def mesh_list(self) -> list[MeshRow]:
        return _MESH.select(self._con, "WHERE ending = 0 ORDER BY slug")

    def buried(self, mesh: str, name: bytes) -> int:
        found = self._con.execute(
            "SELECT lamport FROM buried WHERE mesh = ? AND name = ?", (mesh, name)
        ).get
        return 0 if found is None else int(found)

    def peer_list(self, mesh: str) -> list[PeerRow]:
        return _PEER.select(self._con, "WHERE mesh = ? ORDER BY peer", (mesh,))

    def blocked_get(self, peer: str) -> BlockedPeer | None:
        return _BLOCKED.find(self._con, "WHERE peer = ?", (peer,))

    def blocked_list(self) -> list[BlockedPeer]:
        return _BLOCKED.select(self._con, "ORDER BY peer")

    def known_members_list(self, mesh: str) -> list[KnownMember]:
        return _MEMBER.select(self._con, "WHERE mesh = ? ORDER BY key", (mesh,))


class MeshWrites(MeshReads):
    def set_peer_name(self, name: str) -> None:
        self._con.execute(
            "INSERT INTO meta (name, value) VALUES ('peer', ?) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name,),
        )

    def mesh_add(self, row: MeshRow) -> None:
        try:
            self._con.execute(_MESH.insert, _MESH.values(row))
        except apsw.ConstraintError:
            raise _taken(self._con, row.slug) from None
        self._con.execute(
            "UPDATE mesh SET lamport = max(mesh.lamport, was.lamport), "
            "seq = max(mesh.seq, was.seq) FROM ended_mesh AS was "
            "WHERE slug = ? AND was.mesh = slug",
            (row.slug,),
        )

    def mesh_change(self, row: MeshRow) -> None:
        self._con.execute(
            f"{_CHANGED.update} WHERE slug = ? AND ending = 0", (*_CHANGED.values(row), row.slug)
        )
        if not self._con.changes():
            raise UnknownMesh(f"there is no mesh {row.slug!r}")

    def tick(self, mesh: str) -> tuple[int, int, str | None, int]:
        return self.tick_many(mesh, 1)

    def tick_many(self, mesh: str, count: int) -> tuple[int, int, str | None, int]:
        try:
            ticked = self._once.execute(
                "UPDATE mesh SET lamport = lamport + ?1, seq = seq + ?1 "
                "WHERE slug = ?2 AND ending = 0 RETURNING lamport - ?1 + 1, seq - ?1 + 1, "
                "iif(kind = 'personal', NULL, 'broker:' || slug), on_bus",
                (count, mesh),
            ).get
        except apsw.ConstraintError:
            raise worn_out(mesh) from None  # past 63 bits it would be no integer any more
        if ticked is None:
            raise UnknownMesh(f"there is no mesh {mesh!r}")
        return ticked[0], ticked[1], ticked[2], ticked[3]

    def tick_merged(self, mesh: str, incoming: int, now_ms: int) -> int:
        return self.tick_merged_run(mesh, (incoming,), now_ms)

    def tick_merged_run(self, mesh: str, lamports: Sequence[int], now_ms: int) -> int:
        value = self._con.execute(
            "SELECT lamport FROM mesh WHERE slug = ? AND ending = 0", (mesh,)
        ).get
        if value is None:
            raise UnknownMesh(f"there is no mesh {mesh!r}")
        lamport = merge_run(value, lamports, now_ms)
        if lamport > LAMPORT_MAX:
            raise worn_out(mesh)
        self._once.execute("UPDATE mesh SET lamport = ? WHERE slug = ?", (lamport, mesh))
        return lamport

    def clock_raise(self, mesh: str, lamport: int) -> None:
        self._con.execute(
            "UPDATE mesh SET lamport = max(lamport, ?) WHERE slug = ? AND ending = 0",
            (lamport, mesh),
        )
        if not self._con.changes():
            raise UnknownMesh(f"there is no mesh {mesh!r}")

    def forget_below(self, mesh: str, lamport: int) -> None:
        self._con.execute(
            "UPDATE mesh SET forgotten_lamport = max(forgotten_lamport, ?1), "
            "forgotten_floor = max(forgotten_floor, ?1) WHERE slug = ?2",
            (lamport, mesh),
        )

    def bury(self, mesh: str, highest: int, names: Sequence[tuple[bytes, int]], most: int) -> None:
        self._con.executemany(
            "INSERT INTO buried (mesh, name, lamport) VALUES (?, ?, ?) "
            "ON CONFLICT (mesh, name) DO UPDATE SET lamport = max(lamport, excluded.lamport)",
            ((mesh, name, lamport) for name, lamport in names),
        )
        count: Any = self._con.execute("SELECT count(*) FROM buried WHERE mesh = ?", (mesh,)).get
        gone: list[Any] = self._con.execute(
            "DELETE FROM buried WHERE (mesh, name) IN (SELECT mesh, name FROM buried "
            "WHERE mesh = ? ORDER BY lamport, name LIMIT ?) RETURNING lamport",
            (mesh, max(0, count - most)),
        ).fetchall()
        floor = max((lamport for (lamport,) in gone), default=0)
        self._con.execute(
            "UPDATE mesh SET forgotten_lamport = max(forgotten_lamport, ?), "
            "forgotten_floor = max(forgotten_floor, ?) WHERE slug = ?",
            (highest, floor, mesh),
        )

    def peer_seen(self, row: PeerRow) -> None:
        self._con.execute(
            f"{_PEER.insert} ON CONFLICT (mesh, peer) DO UPDATE SET "
            "last_seen_at = max(last_seen_at, excluded.last_seen_at), "
            "last_lamport = max(last_lamport, excluded.last_lamport)",
            _PEER.values(row),
        )

    def blocked_put(self, row: BlockedPeer) -> None:
        self._con.execute(_BLOCKED.upsert("peer"), _BLOCKED.values(row))

    def blocked_drop(self, peer: str) -> None:
        self._con.execute("DELETE FROM blocked_peer WHERE peer = ?", (peer,))

    def blocked_dropped(self, peer: str, count: int) -> None:
        self._con.execute(
            "UPDATE blocked_peer SET dropped = dropped + ? WHERE peer = ?", (count, peer)
        )

    def known_members_put(self, mesh: str, rows: Sequence[KnownMember]) -> None:
        self._con.execute("DELETE FROM mate WHERE mesh = ?", (mesh,))
        self._con.executemany(
            _MEMBER.insert,
            (_MEMBER.values(msgspec.structs.replace(row, mesh=mesh)) for row in rows),
        )


def _taken(connection: apsw.Connection, slug: str) -> AlreadyExists:
    ending = connection.execute("SELECT ending FROM mesh WHERE slug = ?", (slug,)).get
    if not ending:
        return AlreadyExists(f"mesh {slug!r} exists already")
    return AlreadyExists(
        f"mesh {slug!r} is being deleted, and not all of it is gone",
        hint=f"let that come to its end first: holdfast mesh delete {slug} --yes",
    )
