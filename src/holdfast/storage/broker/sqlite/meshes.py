"""Meshes, their epochs and members, and the invites by which members come."""

from __future__ import annotations

from typing import Final

from holdfast.rules.broker_rows import (
    OWNER_GRANTS,
    BrokerMesh,
    EpochRow,
    InviteRow,
    MemberRow,
    Membership,
    MeshStanding,
)
from holdfast.storage.broker.refusals import check_invite, name_taken, no_invite, slug_taken
from holdfast.storage.broker.sqlite.database import MESH, BrokerDatabase
from holdfast.storage.sqlite.columns import WORDS, RowColumns

_MEMBER: Final = RowColumns("member", MemberRow, grants=WORDS)
_EPOCH: Final = RowColumns("epoch", EpochRow)
_INVITE: Final = RowColumns("invite", InviteRow, without=("mesh",), grants=WORDS)
_LISTED: Final = RowColumns("invite", InviteRow, grants=WORDS)
"""With the name of the mesh in the first column."""


_PUT_MEMBER: Final = (
    f"INSERT INTO member (mesh, {_MEMBER.sql}) VALUES (?, {_MEMBER.marks}) "
    "ON CONFLICT DO UPDATE SET name = excluded.name, grants = excluded.grants, "
    "added_at = excluded.added_at, removed_at = excluded.removed_at, "
    "got_epoch = excluded.got_epoch, got_seq = excluded.got_seq, seen_at = excluded.seen_at"
)


class SqliteMeshes(BrokerDatabase):
    """Meshes and their epochs."""

    async def mesh_register(
        self, slug: str, name: str, owner: bytes, owner_name: str, server_id: str, now_ms: int
    ) -> BrokerMesh:
        with self.writing() as con:
            found = self._mesh(slug)
            if found is not None:
                if found.owner != owner:
                    raise slug_taken(slug)
                return found
            con.execute(
                "INSERT INTO mesh (slug, name, server_id, owner, epoch, base, created_at) "
                "VALUES (?, ?, ?, ?, 1, 0, ?)",
                (slug, name, server_id, owner, now_ms),
            )
            number = con.last_insert_rowid()
            con.execute("INSERT INTO epoch VALUES (?, 1, 0, ?, 'registered')", (number, now_ms))
            row = MemberRow(key=owner, name=owner_name, grants=OWNER_GRANTS, added_at=now_ms)
            con.execute(_PUT_MEMBER, (number, *_MEMBER.values(row)))
            made = self._mesh(slug)
        assert made is not None
        self.write_mark()
        return made

    async def mesh_get(self, slug: str) -> BrokerMesh | None:
        with self.reading():
            return self._mesh(slug)

    async def mesh_list(self) -> list[BrokerMesh]:
        with self.reading() as con:
            return MESH.select(con, "ORDER BY slug")

    async def mesh_remove(self, slug: str) -> bool:
        with self.writing() as con:
            number = self.find_number(slug)
            if number is None:
                return False
            con.execute("DELETE FROM mesh WHERE number = ?", (number,))
            # Its messages, ids and pieces go by sweeps: at once they would hold up everybody. Its
            # number is never given again, so nobody sees them.
            self.note_removed([*self.noted_removed(), number])
            return True

    async def epochs(self, slug: str) -> list[EpochRow]:
        with self.reading() as con:
            return _EPOCH.select(con, "WHERE mesh = ? ORDER BY epoch", (self.number_of(slug),))

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
        return MESH.find(self.connection, "WHERE slug = ?", (slug,))


class SqliteMembers(BrokerDatabase):
    """The members of a mesh."""

    async def member_get(self, mesh: str, key: bytes) -> MemberRow | None:
        with self.reading():
            number = self.find_number(mesh)
            return None if number is None else self.present(number, key)

    def present(self, number: int, key: bytes) -> MemberRow | None:
        return _MEMBER.find(
            self.connection, "WHERE mesh = ? AND key = ? AND removed_at IS NULL", (number, key)
        )

    async def member_list(self, mesh: str) -> list[MemberRow]:
        with self.reading() as con:
            where = "WHERE mesh = ? AND removed_at IS NULL ORDER BY name"
            return _MEMBER.select(con, where, (self.number_of(mesh),))

    async def member_put(self, mesh: str, row: MemberRow) -> None:
        with self.writing():
            self._put(self.number_of(mesh), row)

    def _put(self, number: int, row: MemberRow) -> None:
        self._refuse_name(number, row.key, row.name)
        self.connection.execute(_PUT_MEMBER, (number, *_MEMBER.values(row)))

    def _refuse_name(self, number: int, key: bytes, name: str) -> None:
        taken = self.connection.execute(
            "SELECT 1 FROM member WHERE mesh = ? AND name = ? AND key <> ? AND removed_at IS NULL",
            (number, name, key),
        ).get
        if taken is not None:
            raise name_taken(name)

    async def member_grant(self, mesh: str, key: bytes, grants: frozenset[str]) -> MemberRow | None:
        with self.writing() as con:
            number = self.number_of(mesh)
            con.execute(
                "UPDATE member SET grants = ? WHERE mesh = ? AND key = ? AND removed_at IS NULL",
                (" ".join(sorted(grants)), number, key),
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

    async def memberships(self, key: bytes) -> list[Membership]:
        with self.reading() as con:
            here = "JOIN member AS b ON b.mesh = mesh.number WHERE b.key = ? AND removed_at IS NULL"
            epochs: dict[int, list[EpochRow]] = {}
            for number, *row in con.execute(
                f"SELECT epoch.mesh, {_EPOCH.qualified('epoch')} FROM mesh "
                f"JOIN epoch ON epoch.mesh = mesh.number {here} ORDER BY epoch.epoch",
                (key,),
            ):
                epochs.setdefault(number, []).append(_EPOCH.row(row))
            found = con.execute(
                f"SELECT number, {MESH.qualified('mesh')}, {_MEMBER.qualified('b')} "
                f"FROM mesh {here} ORDER BY slug",
                (key,),
            )
            end = 1 + len(MESH.names)
            return [
                Membership(
                    mesh=MESH.row(row[1:end]),
                    member=_MEMBER.row(row[end:]),
                    epochs=epochs[row[0]],
                )
                for row in found
            ]

    async def standings(self) -> list[MeshStanding]:
        with self.reading() as con:
            rows = con.execute(
                "SELECT slug, epoch, base, first, seq, count(b.key), "
                "coalesce(max(seq - iif(got_epoch = epoch, got_seq, 0)) "
                "FILTER (WHERE got_epoch > 0), 0) "
                "FROM mesh LEFT JOIN member AS b ON b.mesh = number AND removed_at IS NULL "
                "GROUP BY number ORDER BY slug"
            )
            return [MeshStanding(*row) for row in rows]

    async def member_got(self, mesh: str, key: bytes, epoch: int, seq: int, now_ms: int) -> None:
        with self.writing() as con:
            con.execute(
                "UPDATE member SET seen_at = ?, "
                "got_seq = iif(got_epoch = ?, max(got_seq, ?), ?), got_epoch = ? "
                "WHERE mesh = ? AND key = ? AND removed_at IS NULL AND got_epoch <= ?",
                (now_ms, epoch, seq, seq, epoch, self.number_of(mesh), key, epoch),
            )


class SqliteInvites(SqliteMembers):
    """Invites, by which keys become members."""

    async def invite_put(self, row: InviteRow) -> None:
        with self.writing() as con:
            con.execute(
                f"INSERT INTO invite (mesh, {_INVITE.sql}) VALUES (?, {_INVITE.marks})",
                (self.number_of(row.mesh), *_INVITE.values(row)),
            )

    async def invite_list(self, mesh: str) -> list[InviteRow]:
        with self.reading() as con:
            rows = con.execute(
                f"SELECT ?, {_INVITE.sql} FROM invite WHERE mesh = ? ORDER BY made_at, digest",
                (mesh, self.number_of(mesh)),
            )
            return _LISTED.rows(rows)

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
                raise no_invite()
            number, slug, grants, uses_left, expires_at, made_at = row
            if self.present(number, key) is not None:
                return str(slug)
            removed_at = con.execute(
                "SELECT removed_at FROM member WHERE mesh = ? AND key = ?", (number, key)
            ).get
            check_invite(uses_left, expires_at, made_at, removed_at, now_ms)
            chosen = frozenset(grants.split())
            self._put(number, MemberRow(key=key, name=name, grants=chosen, added_at=now_ms))
            con.execute("UPDATE invite SET uses_left = uses_left - 1 WHERE digest = ?", (digest,))
            return str(slug)
