"""Meshes with their clocks, the peers that were heard of, and the known members, in memory."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.rules.errors import AlreadyExists, UnknownMesh
from holdfast.rules.lamport import merge_run, worn_out
from holdfast.rules.limits import LAMPORT_MAX
from holdfast.rules.rows import BlockedPeer, KnownMember, MeshRow, PeerRow
from holdfast.storage.memory.undo import UndoTables


class MemoryMeshes(UndoTables):
    """Meshes, peers and known members."""

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
        if row.slug in self._table("mesh_ending"):
            raise AlreadyExists(f"mesh {row.slug!r} is being deleted, and not all of it is gone")
        was = self._table("ended_mesh").get(row.slug)
        if was is not None:
            row = msgspec.structs.replace(
                row, lamport=max(row.lamport, was.lamport), seq=max(row.seq, was.seq)
            )
        self._put("mesh", row.slug, row)

    def mesh_change(self, row: MeshRow) -> None:
        before = self._require_mesh(row.slug)
        changed = msgspec.structs.replace(
            row,
            lamport=before.lamport,
            seq=before.seq,
            forgotten_lamport=before.forgotten_lamport,
            forgotten_floor=before.forgotten_floor,
        )
        self._put("mesh", row.slug, changed)

    def tick(self, mesh: str) -> tuple[int, int, str | None, int]:
        return self.tick_many(mesh, 1)

    def tick_many(self, mesh: str, count: int) -> tuple[int, int, str | None, int]:
        row = self._require_mesh(mesh)
        if row.lamport > LAMPORT_MAX - count:
            raise worn_out(mesh)
        ticked = msgspec.structs.replace(row, lamport=row.lamport + count, seq=row.seq + count)
        self._put("mesh", mesh, ticked)
        lane = f"broker:{mesh}" if row.shared else None
        return row.lamport + 1, row.seq + 1, lane, int(row.on_bus)

    def tick_merged(self, mesh: str, incoming: int, now_ms: int) -> int:
        return self.tick_merged_run(mesh, (incoming,), now_ms)

    def tick_merged_run(self, mesh: str, lamports: Sequence[int], now_ms: int) -> int:
        row = self._require_mesh(mesh)
        lamport = merge_run(row.lamport, lamports, now_ms)
        if lamport > LAMPORT_MAX:
            raise worn_out(mesh)
        self._put("mesh", mesh, msgspec.structs.replace(row, lamport=lamport))
        return lamport

    def clock_raise(self, mesh: str, lamport: int) -> None:
        row = self._require_mesh(mesh)
        self._put("mesh", mesh, msgspec.structs.replace(row, lamport=max(row.lamport, lamport)))

    def forget_below(self, mesh: str, lamport: int) -> None:
        row = self._require_mesh(mesh)
        self._forget(row, lamport, lamport)

    def _forget(self, row: MeshRow, highest: int, floor: int) -> None:
        changed = msgspec.structs.replace(
            row,
            forgotten_lamport=max(row.forgotten_lamport, highest),
            forgotten_floor=max(row.forgotten_floor, floor),
        )
        self._put("mesh", row.slug, changed)

    def bury(self, mesh: str, highest: int, names: Sequence[tuple[bytes, int]], most: int) -> None:
        for name, lamport in names:
            self._put("buried", (mesh, name), max(lamport, self.buried(mesh, name)))
        known = [(at, key) for key, at in self._table("buried").items() if key[0] == mesh]
        gone = sorted(known)[: max(0, len(known) - most)]
        for _, key in gone:
            self._drop("buried", key)
        floor = max((lamport for lamport, _ in gone), default=0)
        self._forget(self._require_mesh(mesh), highest, floor)

    def buried(self, mesh: str, name: bytes) -> int:
        found: int = self._table("buried").get((mesh, name), 0)
        return found

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

    def blocked_get(self, peer: str) -> BlockedPeer | None:
        return self._table("blocked_peer").get(peer)

    def blocked_list(self) -> list[BlockedPeer]:
        return sorted(self._table("blocked_peer").values(), key=lambda row: row.peer.encode())

    def blocked_put(self, row: BlockedPeer) -> None:
        self._put("blocked_peer", row.peer, row)

    def blocked_drop(self, peer: str) -> None:
        self._drop("blocked_peer", peer)

    def blocked_dropped(self, peer: str, count: int) -> None:
        row = self.blocked_get(peer)
        if row is not None:
            self.blocked_put(msgspec.structs.replace(row, dropped=row.dropped + count))

    def known_members_list(self, mesh: str) -> list[KnownMember]:
        return sorted(self._rows("known_member", mesh), key=lambda row: row.key)

    def known_members_put(self, mesh: str, rows: Sequence[KnownMember]) -> None:
        for row in self._rows("known_member", mesh):
            self._drop("known_member", (mesh, row.key))
        for row in rows:
            self._put("known_member", (mesh, row.key), msgspec.structs.replace(row, mesh=mesh))

    def _require_mesh(self, slug: str) -> MeshRow:
        row = self.mesh_get(slug)
        if row is None:
            raise UnknownMesh(f"there is no mesh {slug!r}")
        return row
