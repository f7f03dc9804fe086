"""Meshes, their epochs and members, and the invites by which members come."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.rules import limits
from holdfast.rules.broker_rows import (
    OWNER_GRANTS,
    BrokerMesh,
    EpochRow,
    InviteRow,
    MemberRow,
    Membership,
    MeshStanding,
)
from holdfast.storage.broker.postgres import timeline
from holdfast.storage.broker.postgres.base import PostgresPart, columns, number_of, touched
from holdfast.storage.broker.postgres.driver import asyncpg
from holdfast.storage.broker.postgres.migrations import take_turn
from holdfast.storage.broker.refusals import (
    check_invite,
    name_taken,
    no_invite,
    no_mesh,
    slug_taken,
)

_MESH: Final = f"SELECT {columns(BrokerMesh)} FROM mesh"
_OF_MESHES: Final = columns(BrokerMesh, "m.")
_OF_MEMBER: Final = columns(MemberRow, "b.")
_MEMBER: Final = (
    f"SELECT {_OF_MEMBER} "
    "FROM member b JOIN mesh m ON m.number = b.mesh WHERE m.slug = $1 AND removed_at IS NULL"
)
_PUT_MEMBER: Final = f"""
INSERT INTO member (mesh, {columns(MemberRow)})
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (mesh, key) DO UPDATE SET
    name = excluded.name, grants = excluded.grants, added_at = excluded.added_at,
    removed_at = excluded.removed_at, got_epoch = excluded.got_epoch, got_seq = excluded.got_seq,
    seen_at = excluded.seen_at
"""
_OF_MESH: Final = ("message", "dedupe", "queue")
"""Tables without a reference to their mesh."""


class PostgresMeshes(PostgresPart):
    async def mesh_register(
        self, slug: str, name: str, owner: bytes, owner_name: str, server_id: str, now_ms: int
    ) -> BrokerMesh:
        async def work(con: Any) -> BrokerMesh:
            number = await con.fetchval(
                "INSERT INTO mesh (slug, server_id, name, owner, epoch, base, seq, created_at) "
                "VALUES ($1, $2, $3, $4, 1, 0, 0, $5) ON CONFLICT (slug) DO NOTHING "
                "RETURNING number",
                *(slug, server_id, name, owner, now_ms),
            )
            if number is not None:
                await con.execute(
                    "INSERT INTO epoch VALUES ($1, 1, 0, $2, 'the mesh was made')", number, now_ms
                )
                row = MemberRow(key=owner, name=owner_name, grants=OWNER_GRANTS, added_at=now_ms)
                await _put_member(con, number, row)
            found = await con.fetchrow(f"{_MESH} WHERE slug = $1", slug)
            if found is None or found["owner"] != owner:
                raise slug_taken(slug)
            return BrokerMesh(**found)

        return await self._connections.transact(work)

    async def mesh_get(self, slug: str) -> BrokerMesh | None:
        row = await self._connections.fetchrow(f"{_MESH} WHERE slug = $1", slug)
        return None if row is None else BrokerMesh(**row)

    async def mesh_list(self) -> list[BrokerMesh]:
        rows = await self._connections.fetch(f"{_MESH} ORDER BY slug")
        return [BrokerMesh(**row) for row in rows]

    async def mesh_remove(self, slug: str) -> bool:
        async def work(con: Any) -> bool:
            # A large one takes its time; what is given up would never be done.
            patience = limits.POSTGRES_MIGRATE_MS_MAX
            await con.execute(f"SET LOCAL statement_timeout = {patience}")
            number = await con.fetchval(
                "DELETE FROM mesh WHERE slug = $1 RETURNING number", slug, timeout=patience / 1000
            )
            if number is None:
                return False
            for table in _OF_MESH:
                await con.execute(
                    f"DELETE FROM {table} WHERE mesh = $1", number, timeout=patience / 1000
                )
            return True

        return await self._connections.transact(work)

    async def epochs(self, slug: str) -> list[EpochRow]:
        rows = await self._connections.fetch(
            f"SELECT {columns(EpochRow, 'e.')} FROM epoch e "
            "JOIN mesh m ON m.number = e.mesh WHERE m.slug = $1 ORDER BY e.epoch",
            slug,
        )
        return [EpochRow(**row) for row in rows]

    async def new_epoch(self, slug: str | None, reason: str, now_ms: int) -> list[BrokerMesh]:
        async def work(con: Any) -> list[BrokerMesh]:
            await take_turn(con)
            slugs = await timeline.begin(con, slug, reason, now_ms)
            if slug is not None and not slugs:
                raise no_mesh(slug)
            rows = await con.fetch(f"{_MESH} WHERE slug = ANY ($1) ORDER BY slug", slugs)
            return [BrokerMesh(**row) for row in rows]

        moved = await self._connections.transact(work)
        for mesh in moved:
            self._news.grew(mesh.slug, 0)
        return moved

    # --- members -------------------------------------------------------------------------------

    async def member_get(self, mesh: str, key: bytes) -> MemberRow | None:
        row = await self._connections.fetchrow(f"{_MEMBER} AND key = $2", mesh, key)
        return None if row is None else _member(row)

    async def member_list(self, mesh: str) -> list[MemberRow]:
        rows = await self._connections.fetch(f"{_MEMBER} ORDER BY b.name", mesh)
        return [_member(row) for row in rows]

    async def member_put(self, mesh: str, row: MemberRow) -> None:
        async def work(con: Any) -> None:
            await _put_member(con, await number_of(con, mesh), row)

        await self._connections.transact(work)

    async def member_grant(self, mesh: str, key: bytes, grants: frozenset[str]) -> MemberRow | None:
        row = await self._connections.change(
            lambda con: con.fetchrow(
                "UPDATE member b SET grants = $3 FROM mesh m WHERE m.number = b.mesh "
                "AND m.slug = $1 AND key = $2 AND removed_at IS NULL "
                f"RETURNING {_OF_MEMBER}",
                *(mesh, key, sorted(grants)),
            )
        )
        return None if row is None else _member(row)

    async def member_remove(self, mesh: str, key: bytes, now_ms: int) -> bool:
        async def work(con: Any) -> bool:
            number = await con.fetchval(
                "UPDATE member SET removed_at = $3 FROM mesh m WHERE m.number = mesh "
                "AND m.slug = $1 AND key = $2 AND removed_at IS NULL RETURNING m.number",
                *(mesh, key, now_ms),
            )
            if number is None:
                return False
            await con.execute("DELETE FROM subscription WHERE mesh = $1 AND key = $2", number, key)
            # Or it lets itself in again.
            await con.execute("DELETE FROM invite WHERE mesh = $1 AND made_by = $2", number, key)
            return True

        return await self._connections.transact(work)

    async def memberships(self, key: bytes) -> list[Membership]:
        here = "JOIN member b ON b.mesh = m.number WHERE b.key = $1 AND b.removed_at IS NULL"

        async def work(con: Any) -> list[Membership]:
            meshes = await con.fetch(f"SELECT {_OF_MESHES} FROM mesh m {here} ORDER BY slug", key)
            members = await con.fetch(f"SELECT m.slug, {_OF_MEMBER} FROM mesh m {here}", key)
            rows = await con.fetch(
                f"SELECT m.slug, {columns(EpochRow, 'e.')} FROM mesh m "
                f"JOIN epoch e ON e.mesh = m.number {here} ORDER BY e.epoch",
                key,
            )
            epochs: dict[str, list[EpochRow]] = {}
            for slug, *row in rows:
                epochs.setdefault(slug, []).append(
                    EpochRow(**dict(zip(EpochRow.__struct_fields__, row, strict=True)))
                )
            member = {
                slug: _member(dict(zip(MemberRow.__struct_fields__, row, strict=True)))
                for slug, *row in members
            }
            # A mesh that was made or left between the three is not told: the next hello has it.
            return [
                Membership(
                    mesh=BrokerMesh(**row), member=member[row["slug"]], epochs=epochs[row["slug"]]
                )
                for row in meshes
                if row["slug"] in member and row["slug"] in epochs
            ]

        return await self._connections.transact(work)

    async def standings(self) -> list[MeshStanding]:
        rows = await self._connections.fetch(
            "SELECT m.slug, m.epoch, m.base, m.first, m.seq, count(b.key), coalesce(max("
            "m.seq - CASE WHEN got_epoch = m.epoch THEN got_seq ELSE 0 END) "
            "FILTER (WHERE got_epoch > 0), 0) FROM mesh m "
            "LEFT JOIN member b ON b.mesh = m.number AND removed_at IS NULL "
            "GROUP BY m.number ORDER BY m.slug"
        )
        return [MeshStanding(*row) for row in rows]

    async def member_got(self, mesh: str, key: bytes, epoch: int, seq: int, now_ms: int) -> None:
        await self._connections.execute(
            "UPDATE member SET seen_at = greatest(seen_at, $5), "
            "(got_epoch, got_seq) = (SELECT * FROM (VALUES (got_epoch, got_seq), ($3, $4)) "
            "AS both_of (e, s) ORDER BY e DESC, s DESC LIMIT 1) "
            "FROM mesh m WHERE m.number = mesh AND m.slug = $1 AND key = $2 "
            "AND removed_at IS NULL",
            *(mesh, key, epoch, seq, now_ms),
        )

    # --- invites -------------------------------------------------------------------------------

    async def invite_put(self, row: InviteRow) -> None:
        async def work(con: Any) -> None:
            await con.execute(
                "INSERT INTO invite (digest, mesh, grants, uses_left, expires_at, made_by, made_at)"
                " VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (digest) DO UPDATE SET "
                "mesh = excluded.mesh, grants = excluded.grants, uses_left = excluded.uses_left, "
                "expires_at = excluded.expires_at, made_by = excluded.made_by, "
                "made_at = excluded.made_at",
                *(row.digest, await number_of(con, row.mesh), sorted(row.grants), row.uses_left),
                *(row.expires_at, row.made_by, row.made_at),
            )

        await self._connections.transact(work)

    async def invite_list(self, mesh: str) -> list[InviteRow]:
        rows = await self._connections.fetch(
            "SELECT m.slug AS mesh, digest, grants, uses_left, expires_at, made_by, made_at "
            "FROM invite i JOIN mesh m ON m.number = i.mesh WHERE m.slug = $1 "
            "ORDER BY made_at, digest",
            mesh,
        )
        return [InviteRow(**{**row, "grants": frozenset(row["grants"])}) for row in rows]

    async def invite_drop(self, mesh: str, digest: bytes) -> bool:
        status = await self._connections.execute(
            "DELETE FROM invite USING mesh m WHERE m.number = mesh AND m.slug = $1 AND digest = $2",
            *(mesh, digest),
        )
        return touched(status) > 0

    async def invite_use(self, digest: bytes, key: bytes, name: str, now_ms: int) -> str:
        async def work(con: Any) -> str:
            # The lock makes the uses of one invite follow each other.
            invite = await con.fetchrow(
                "SELECT i.*, m.slug FROM invite i JOIN mesh m ON m.number = i.mesh "
                "WHERE digest = $1 FOR UPDATE OF i",
                digest,
            )
            if invite is None:
                raise no_invite()
            slug: str = invite["slug"]
            if await _is_member(con, invite["mesh"], key):
                return slug
            removed_at = await con.fetchval(
                "SELECT removed_at FROM member WHERE mesh = $1 AND key = $2", invite["mesh"], key
            )
            check_invite(
                invite["uses_left"], invite["expires_at"], invite["made_at"], removed_at, now_ms
            )
            grants = frozenset(invite["grants"])
            row = MemberRow(key=key, name=name, grants=grants, added_at=now_ms)
            await _put_member(con, invite["mesh"], row)
            await con.execute(
                "UPDATE invite SET uses_left = uses_left - 1 WHERE digest = $1", digest
            )
            return slug

        return await self._connections.transact(work)


def _member(row: Any) -> MemberRow:
    return MemberRow(**{**row, "grants": frozenset(row["grants"])})


async def _is_member(con: Any, number: int, key: bytes) -> bool:
    found = await con.fetchval(
        "SELECT 1 FROM member WHERE mesh = $1 AND key = $2 AND removed_at IS NULL", number, key
    )
    return found is not None


async def _put_member(con: Any, number: int, row: MemberRow) -> None:
    try:
        await con.execute(
            _PUT_MEMBER,
            number,
            *msgspec.structs.astuple(msgspec.structs.replace(row, grants=sorted(row.grants))),
        )
    except asyncpg.UniqueViolationError as error:
        raise name_taken(row.name) from error
