"""Meshes that this node shares over the bus, with no broker: what is done in the home alone.

The node that shares a mesh is its owner. It keeps the members, makes invites and signs the list;
none of that needs a connection, so a person may do it whether or not a daemon runs. Whoever holds
the bus of the home tells the others (`node/bus/members.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import msgspec
from nacl.signing import SigningKey

from holdfast.node.bus.meshes.backfill import switch_off, switch_on
from holdfast.node.core.engine import NodeEngine
from holdfast.node.trust.own_key import OwnKey
from holdfast.rules.arguments import checks_arguments
from holdfast.rules.bus.meshes.member_list import (
    MESH_ID_BYTES,
    ListedMember,
    MemberList,
    check_grants,
    first_list,
    trusted_list,
    with_member,
    without_member,
)
from holdfast.rules.bus.meshes.membership import BusInviteRow, BusMeshRow, find_member
from holdfast.rules.errors import BadInput, Conflict, NotOurs, NotShared, OverLimit
from holdfast.rules.invites import SECRET_BYTES, PeerInvite, digest, format_invite
from holdfast.rules.keys import card_of, public_key
from holdfast.rules.limits import (
    BUS_INVITES_MAX,
    HOUR_MS,
    INVITE_HOURS,
    INVITE_HOURS_MAX,
    INVITE_USES_MAX,
)
from holdfast.storage.ports import Reader, Transaction


class NewPeerInvite(msgspec.Struct, frozen=True, kw_only=True):
    """An invite that was made just now. Its text is a secret."""

    id: str
    text: str
    mesh: str
    grants: tuple[str, ...]
    uses: int
    expires_at: int


class SharedOverBus(msgspec.Struct, frozen=True, kw_only=True):
    """How a mesh is shared over the bus."""

    mesh: str
    owner: str
    """The name of its owner."""
    ours: bool
    """This node is the owner."""
    members: int
    serial: int
    """The number of the list of members; it grows with each change."""


@checks_arguments()
class BusSharing:
    """What one node shares over the bus."""

    def __init__(
        self,
        engine: NodeEngine,
        own_key: OwnKey,
        *,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._engine, self._own_key, self._random = engine, own_key, random

    def share(self, mesh: str) -> SharedOverBus:
        """Lets other nodes become members of a mesh, with this node as its owner. Nothing changes
        if it is shared already.
        """
        key = self._key()

        def work(tx: Transaction) -> SharedOverBus:
            row = tx.bus_mesh_get(mesh)
            if row is None:
                now = self._engine.ctx.now_ms()
                id = self._random(MESH_ID_BYTES)
                made = first_list(key, mesh, id, self._own_key.name, now)
                row = BusMeshRow(mesh=mesh, owner=made.owner, members=made.raw, joined_at=now)
                tx.bus_mesh_put(row)
            return self._shown(row)

        self._engine.require_mesh(mesh)
        shared = self._engine.write("mesh.share", work)
        switch_on(self._engine, mesh)
        return shared

    def shared(self) -> list[SharedOverBus]:
        rows = self._engine.read("mesh.share", lambda tx: tx.bus_mesh_list())
        return [self._shown(row) for row in rows]

    def is_shared(self, mesh: str) -> bool:
        return self._engine.read("mesh.share", lambda tx: tx.bus_mesh_get(mesh)) is not None

    # --- invites -------------------------------------------------------------------------------

    def invite(
        self,
        mesh: str,
        *,
        uses: int = 1,
        hours: int = INVITE_HOURS,
        grants: Iterable[str] = (),
        addresses: Iterable[str] = (),
    ) -> NewPeerInvite:
        """Makes a text by which others join. Every holder of it may join, so it is handed on like a
        key. `addresses` say where this node listens, for newcomers that do not find it by
        themselves.
        """
        if not (1 <= uses <= INVITE_USES_MAX and 1 <= hours <= INVITE_HOURS_MAX):
            raise OverLimit(
                f"an invite is good for 1 to {INVITE_USES_MAX} uses and 1 to {INVITE_HOURS_MAX} "
                "hours"
            )
        given, secret, now = check_grants(grants), self._random(SECRET_BYTES), self._now()
        row = BusInviteRow(
            digest=digest(secret),
            mesh=mesh,
            grants=given,
            uses_left=uses,
            expires_at=now + hours * HOUR_MS,
            made_at=now,
        )
        card = card_of(self._own_key.name, public_key(self._own_key.seed()))
        text = format_invite(PeerInvite(card, mesh, secret, tuple(addresses), row.expires_at))

        def work(tx: Transaction) -> None:
            self._owned(tx, mesh)
            rows = tx.bus_invite_list(mesh)
            ended = [old for old in rows if not old.is_open(now)]
            # Some are remembered, so that who comes too late hears that.
            for old in ended[: max(0, len(ended) - BUS_INVITES_MAX)]:
                tx.bus_invite_drop(old.digest)
            if len(rows) - len(ended) >= BUS_INVITES_MAX:
                raise OverLimit(
                    f"{mesh!r} has {BUS_INVITES_MAX} open invites",
                    hint=f"take some back: holdfast mesh invites {mesh} --drop ID",
                )
            tx.bus_invite_put(row)

        self._engine.write("mesh.invite", work)
        return NewPeerInvite(
            id=row.digest.hex(),
            text=text,
            mesh=mesh,
            grants=given,
            uses=uses,
            expires_at=row.expires_at,
        )

    def invites(self, mesh: str) -> list[BusInviteRow]:
        """Those that are still good."""

        def look(tx: Reader) -> list[BusInviteRow]:
            self._owned(tx, mesh)
            return [row for row in tx.bus_invite_list(mesh) if row.is_open(self._now())]

        return self._engine.read("mesh.invite", look)

    def drop_invite(self, mesh: str, id: str) -> bool:
        """Takes an invite back. Who has joined by it stays a member."""
        try:
            wanted = bytes.fromhex(id)
        except ValueError:
            raise BadInput(f"{id!r} is no id of an invite") from None

        def work(tx: Transaction) -> bool:
            self._owned(tx, mesh)
            row = tx.bus_invite_get(wanted)
            if row is None or row.mesh != mesh or not row.is_open(self._now()):
                return False
            tx.bus_invite_put(msgspec.structs.replace(row, uses_left=0))
            return True

        return self._engine.write("mesh.invite", work)

    # --- members -------------------------------------------------------------------------------

    def members(self, mesh: str) -> list[ListedMember]:
        """As the owner's newest list says that this node has heard of."""
        return list(self._engine.read("mesh.members", lambda tx: self._list(tx, mesh)).members)

    def grant(self, mesh: str, member: str, grants: Iterable[str]) -> ListedMember:
        """Changes what a member may do. It holds as soon as the others have heard of it."""
        given, key = check_grants(grants), self._key()

        def work(tx: Transaction) -> ListedMember:
            row, before = self._owned(tx, mesh)
            found = find_member(before, member)
            if found.key == before.owner:
                raise Conflict("the owner of a mesh may do everything in it")
            changed = msgspec.structs.replace(found, grants=given)
            self._save(tx, row, with_member(key, before, changed, self._now()))
            return changed

        return self._engine.write("mesh.members", work)

    def remove_member(self, mesh: str, member: str) -> ListedMember:
        """Ends a membership. The node keeps what it has; nobody who has heard of it gives it
        more.
        """
        key = self._key()

        def work(tx: Transaction) -> ListedMember:
            row, before = self._owned(tx, mesh)
            found = find_member(before, member)
            if found.key == before.owner:
                raise Conflict(
                    "the owner cannot be removed from its mesh",
                    hint=f"to end the sharing: holdfast mesh leave {mesh} --remove",
                )
            self._save(tx, row, without_member(key, before, found.key, self._now()))
            return found

        return self._engine.write("mesh.members", work)

    def forget(self, mesh: str, *, remove: bool = False) -> None:
        """Makes a mesh one of this node alone again; all that is in it stays. An owner must say
        `remove`: nobody can be let in or renewed after that.
        """

        def work(tx: Transaction) -> None:
            row = self._row(tx, mesh)
            if row.owner == bytes(self._key().verify_key) and not remove:
                raise Conflict(
                    f"{mesh!r} is yours: if you leave, its members lose it within a month",
                    hint=f"if that is what you want: holdfast mesh leave {mesh} --remove",
                )
            tx.bus_mesh_drop(mesh)

        self._engine.write("mesh.leave", work)
        switch_off(self._engine, mesh)

    # --- helpers -------------------------------------------------------------------------------

    def _now(self) -> int:
        return self._engine.ctx.now_ms()

    def _key(self) -> SigningKey:
        return SigningKey(self._own_key.seed())

    def _row(self, tx: Reader, mesh: str) -> BusMeshRow:
        row = tx.bus_mesh_get(mesh)
        if row is None:
            raise NotShared(
                f"{mesh!r} is not shared over the bus", hint=f"run: holdfast mesh share {mesh}"
            )
        return row

    def _list(self, tx: Reader, mesh: str) -> MemberList:
        return trusted_list(self._row(tx, mesh).members)

    def _owned(self, tx: Reader, mesh: str) -> tuple[BusMeshRow, MemberList]:
        row = self._row(tx, mesh)
        members = trusted_list(row.members)
        if row.owner != bytes(self._key().verify_key):
            owner = members.of_key(row.owner)
            raise NotOurs(
                f"{mesh!r} belongs to {owner.name if owner else 'another key'}",
                hint="ask its owner to do this",
            )
        return row, members

    def _save(self, tx: Transaction, row: BusMeshRow, members: MemberList) -> None:
        tx.bus_mesh_put(msgspec.structs.replace(row, members=members.raw))

    def _shown(self, row: BusMeshRow) -> SharedOverBus:
        members = trusted_list(row.members)
        owner = members.of_key(row.owner)
        return SharedOverBus(
            mesh=row.mesh,
            owner=owner.name if owner else "",
            ours=row.owner == bytes(self._key().verify_key),
            members=len(members.members),
            serial=members.serial,
        )
