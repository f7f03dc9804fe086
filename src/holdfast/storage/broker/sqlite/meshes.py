"""Meshes, members, invites."""

from __future__ import annotations

from typing import Any, Final

from holdfast.rules.broker_rows import OWNER_GRANTS, BrokerMesh, EpochRow, InviteRow, MemberRow
from holdfast.rules.errors import AlreadyExists, InviteEnded
from holdfast.storage.broker.sqlite.database import MESH_COLUMNS, SEQ_BITS, BrokerDatabase, mesh_of

_MEMBER_COLUMNS: Final = "key, name, grants, added_at, removed_at, got_epoch, got_seq, seen_at"
_INVITE: Final = "mesh.slug, digest, grants, uses_left, expires_at, made_by, made_at"


def grants_text(grants: frozenset[str]) -> str:
    return " ".join(sorted(grants))


def _member(row: Any) -> MemberRow:
    key, name, grants, added_at, removed_at, got_epoch, got_seq, seen_at = row
    return MemberRow(
        key=key,
        name=name,
        grants=frozenset(grants.split()),
        added_at=added_at,
        removed_at=removed_at,
        got_epoch=got_epoch,
        got_seq=got_seq,
        seen_at=seen_at,
    )


class SqliteMeshes(BrokerDatabase):
    """Which meshes there are, and how they count."""

    async def mesh_register(
        self, slug: str, name: str, owner: bytes, owner_name: str, server_id: str, now_ms: int
    ) -> BrokerMesh:
        with self.writing() as con:
            found = self._mesh(slug)
            if found is not None:
                if found.owner != owner:
                    raise AlreadyExists(
                        f"somebody else has a mesh {slug!r} at this broker",
                        hint="choose another name for the mesh",
                    )
                return found
            con.execute(
                "INSERT INTO mesh (slug, name, server_id, owner, epoch, base, created_at) "
                "VALUES (?, ?, ?, ?, 1, 0, ?)",
                (slug, name, server_id, owner, now_ms),
            )
            number = con.last_insert_rowid()
            con.execute("INSERT INTO epoch VALUES (?, 1, 0, ?, 'registered')", (number, now_ms))
            con.execute(
                "INSERT INTO member (mesh, key, name, grants, added_at) VALUES (?, ?, ?, ?, ?)",
                (number, owner, owner_name, grants_text(OWNER_GRANTS), now_ms),
            )
            made = self._mesh(slug)
        assert made is not None
        self.write_mark()
        return made

    async def mesh_get(self, slug: str) -> BrokerMesh | None:
        with self.reading():
            return self._mesh(slug)

    async def mesh_list(self) -> list[BrokerMesh]:
        with self.reading() as con:
            return [mesh_of(r) for r in con.execute(f"SELECT {MESH_COLUMNS} FROM mesh ORDER BY 2")]

    async def mesh_remove(self, slug: str) -> bool:
        with self.writing() as con:
            number = self.find_number(slug)
            if number is None:
                return False
            low, high = number << SEQ_BITS, (number + 1) << SEQ_BITS
            for table in ("message", "queued"):
                con.execute(f"DELETE FROM {table} WHERE place >= ? AND place < ?", (low, high))
            for table in ("dedupe", "object_piece", "snapshot_part"):
                con.execute(f"DELETE FROM {table} WHERE mesh = ?", (number,))
            con.execute("DELETE FROM mesh WHERE number = ?", (number,))
            return True

    async def epochs(self, slug: str) -> list[EpochRow]:
        with self.reading() as con:
            rows = con.execute(
                "SELECT epoch, base, began_at, reason FROM epoch WHERE mesh = ? ORDER BY epoch",
                (self.number_of(slug),),
            )
            return [
                EpochRow(epoch=epoch, base=base, began_at=began_at, reason=reason)
                for epoch, base, began_at, reason in rows
            ]

    async def new_epoch(self, slug: str | None, reason: str, now_ms: int) -> list[BrokerMesh]:
        with self.writing() as con:
            if slug is None:
                numbers = [row[0] for row in con.execute("SELECT number FROM mesh ORDER BY slug")]
            else:
                numbers = [self.number_of(slug)]
            begun = [self.begin_epoch(number, reason, now_ms) for number in numbers]
        # Before anybody hears of it: the number must not be given twice.
        self.write_mark()
        return begun

    def _mesh(self, slug: str) -> BrokerMesh | None:
        sql = f"SELECT {MESH_COLUMNS} FROM mesh WHERE slug = ?"
        row = self.connection.execute(sql, (slug,)).get
        return None if row is None else mesh_of(row)


class SqliteMembers(BrokerDatabase):
    """Who belongs to a mesh."""

    async def member_get(self, mesh: str, key: bytes) -> MemberRow | None:
        with self.reading():
            number = self.find_number(mesh)
            return None if number is None else self.present(number, key)

    def present(self, number: int, key: bytes) -> MemberRow | None:
        row = self.connection.execute(
            f"SELECT {_MEMBER_COLUMNS} FROM member "
            "WHERE mesh = ? AND key = ? AND removed_at IS NULL",
            (number, key),
        ).get
        return None if row is None else _member(row)

    async def member_list(self, mesh: str) -> list[MemberRow]:
        with self.reading() as con:
            rows = con.execute(
                f"SELECT {_MEMBER_COLUMNS} FROM member "
                "WHERE mesh = ? AND removed_at IS NULL ORDER BY name",
                (self.number_of(mesh),),
            )
            return [_member(row) for row in rows]

    async def member_put(self, mesh: str, row: MemberRow) -> None:
        with self.writing():
            self._put(self.number_of(mesh), row)

    def _put(self, number: int, row: MemberRow) -> None:
        self._refuse_name(number, row.key, row.name)
        self.connection.execute(
            f"INSERT INTO member (mesh, {_MEMBER_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET name = excluded.name, grants = excluded.grants, "
            "added_at = excluded.added_at, removed_at = excluded.removed_at, "
            "got_epoch = excluded.got_epoch, got_seq = excluded.got_seq, "
            "seen_at = excluded.seen_at",
            (
                number,
                row.key,
                row.name,
                grants_text(row.grants),
                row.added_at,
                row.removed_at,
                row.got_epoch,
                row.got_seq,
                row.seen_at,
            ),
        )

    def _refuse_name(self, number: int, key: bytes, name: str) -> None:
        taken = self.connection.execute(
            "SELECT 1 FROM member WHERE mesh = ? AND name = ? AND key <> ? AND removed_at IS NULL",
            (number, name, key),
        ).get
        if taken is not None:
            raise AlreadyExists(
                f"another member of the mesh is called {name!r}",
                hint="choose another peer name, or have the other one removed",
            )

    async def member_grant(self, mesh: str, key: bytes, grants: frozenset[str]) -> MemberRow | None:
        with self.writing() as con:
            number = self.number_of(mesh)
            con.execute(
                "UPDATE member SET grants = ? WHERE mesh = ? AND key = ? AND removed_at IS NULL",
                (grants_text(grants), number, key),
            )
            return self.present(number, key)

    async def member_remove(self, mesh: str, key: bytes, now_ms: int) -> bool:
        with self.writing() as con:
            number = self.number_of(mesh)
            con.execute(
                "UPDATE member SET removed_at = ? "
                "WHERE mesh = ? AND key = ? AND removed_at IS NULL",
                (now_ms, number, key),
            )
            removed = con.changes() > 0
            con.execute("DELETE FROM subscription WHERE mesh = ? AND key = ?", (number, key))
            # Or it lets itself in again.
            con.execute("DELETE FROM invite WHERE mesh = ? AND made_by = ?", (number, key))
            self.news(mesh, 0)
            return removed

    async def meshes_of(self, key: bytes) -> list[str]:
        with self.reading() as con:
            rows = con.execute(
                "SELECT slug FROM member JOIN mesh ON mesh.number = member.mesh "
                "WHERE key = ? AND removed_at IS NULL ORDER BY slug",
                (key,),
            )
            return [slug for (slug,) in rows]

    async def member_got(self, mesh: str, key: bytes, epoch: int, seq: int, now_ms: int) -> None:
        with self.writing() as con:
            con.execute(
                "UPDATE member SET seen_at = ?, "
                "got_seq = iif(got_epoch = ?, max(got_seq, ?), ?), got_epoch = ? "
                "WHERE mesh = ? AND key = ? AND removed_at IS NULL AND got_epoch <= ?",
                (now_ms, epoch, seq, seq, epoch, self.number_of(mesh), key, epoch),
            )


class SqliteInvites(SqliteMembers):
    """How one becomes a member."""

    async def invite_put(self, row: InviteRow) -> None:
        with self.writing() as con:
            con.execute(
                "INSERT INTO invite (digest, mesh, grants, uses_left, expires_at, made_by, made_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    row.digest,
                    self.number_of(row.mesh),
                    grants_text(row.grants),
                    row.uses_left,
                    row.expires_at,
                    row.made_by,
                    row.made_at,
                ),
            )

    async def invite_list(self, mesh: str) -> list[InviteRow]:
        with self.reading() as con:
            rows = con.execute(
                f"SELECT {_INVITE} FROM invite JOIN mesh ON mesh.number = invite.mesh "
                "WHERE mesh.number = ? ORDER BY made_at, digest",
                (self.number_of(mesh),),
            )
            return [
                InviteRow(
                    mesh=slug,
                    digest=digest,
                    grants=frozenset(grants.split()),
                    uses_left=uses_left,
                    expires_at=expires_at,
                    made_by=made_by,
                    made_at=made_at,
                )
                for slug, digest, grants, uses_left, expires_at, made_by, made_at in rows
            ]

    async def invite_drop(self, mesh: str, digest: bytes) -> bool:
        with self.writing() as con:
            number = self.number_of(mesh)
            con.execute("DELETE FROM invite WHERE mesh = ? AND digest = ?", (number, digest))
            return con.changes() > 0

    async def invite_use(self, digest: bytes, key: bytes, name: str, now_ms: int) -> str:
        with self.writing() as con:
            row = con.execute(
                "SELECT mesh.number, slug, grants, uses_left, expires_at, invite.made_at "
                "FROM invite JOIN mesh ON mesh.number = invite.mesh WHERE digest = ?",
                (digest,),
            ).get
            if row is None:
                raise InviteEnded("this broker knows no such invite")
            number, slug, grants, uses_left, expires_at, made_at = row
            if self.present(number, key) is not None:
                return str(slug)
            if uses_left <= 0 or expires_at <= now_ms:
                raise InviteEnded("the invite was used" if uses_left <= 0 else "the invite is over")
            removed_at = con.execute(
                "SELECT removed_at FROM member WHERE mesh = ? AND key = ?", (number, key)
            ).get
            if removed_at is not None and made_at <= removed_at:
                raise InviteEnded("this key has left the mesh since the invite was made")
            chosen = frozenset(grants.split())
            self._put(number, MemberRow(key=key, name=name, grants=chosen, added_at=now_ms))
            con.execute("UPDATE invite SET uses_left = uses_left - 1 WHERE digest = ?", (digest,))
            return str(slug)
