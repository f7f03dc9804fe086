"""Meshes that this node shares over the bus, with no broker: what is done in the home alone.

The node that shares a mesh is its owner. It keeps the members, makes invites and signs the list;
none of that needs a connection, so a person may do it whether or not a daemon runs. Whoever holds
the bus of the home tells the others (`node/bus/members.py`), and hears of changes that are made
here. A member that may `invite` makes invites too, by passing on what the owner gave it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import msgspec
from nacl.signing import SigningKey

from holdfast.node.bus.left_meshes import note_back, note_left
from holdfast.node.bus.meshes.backfill import switch_off, switch_on
from holdfast.node.bus.take_over import is_due, take_over
from holdfast.node.core.engine import NodeEngine
from holdfast.node.trust.own_key import OwnKey
from holdfast.rules.arguments import checks_arguments
from holdfast.rules.bus.capability import narrow, read_capability
from holdfast.rules.bus.meshes.member_list import (
    MESH_ID_BYTES,
    ListedMember,
    MemberList,
    check_grants,
    first_list,
    trusted_list,
    unbarred,
    with_member,
    without_member,
)
from holdfast.rules.bus.meshes.membership import (
    BusInviteRow,
    BusMeshRow,
    find_barred,
    find_member,
)
from holdfast.rules.bus.scope import JOIN_SCOPE, mesh_scope
from holdfast.rules.errors import (
    BadInput,
    CapabilityRefused,
    Conflict,
    NotAllowed,
    NotOurs,
    NotShared,
    OverLimit,
)
from holdfast.rules.invites import SECRET_BYTES, PeerInvite, digest, format_invite
from holdfast.rules.keys import card_of, public_key, text_of
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
        changed: Callable[[], None] = lambda: None,
        *,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """`changed` is called after each change that others have to hear of."""
        self._engine, self._own_key, self._tell = engine, own_key, changed
        self._random = random

    def share(self, mesh: str) -> SharedOverBus:
        """Lets other nodes become members of a mesh, with this node as its owner. Nothing changes
        if it is shared already.

        >>> node.create_mesh("pier")
        >>> node.bus.sharing.share("pier").ours
        True
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
                note_back(tx, mesh)
            return self._shown(row)

        self._engine.require_mesh(mesh)
        shared = self._engine.write("mesh.share", work)
        switch_on(self._engine, mesh)
        self._tell()
        return shared

    def shared(self) -> list[SharedOverBus]:
        """The meshes that are shared over the bus, by this node or by others.

        >>> "club" in [shared.mesh for shared in node.bus.sharing.shared()]
        True
        """
        rows = self._engine.read("mesh.share", lambda tx: tx.bus_mesh_list())
        return [self._shown(row) for row in rows]

    def is_shared(self, mesh: str) -> bool:
        """Whether a mesh is shared over the bus.

        >>> node.bus.sharing.is_shared("club")
        True
        """
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
        key. `addresses` say where the owner's node listens, for newcomers that do not find it by
        themselves. An invite of a member is good for one, and ends if the member may not invite
        any more.

        >>> node.bus.sharing.invite("club", uses=3, hours=24, grants=["read", "relay"]).text
        '...'
        """
        if not (1 <= uses <= INVITE_USES_MAX and 1 <= hours <= INVITE_HOURS_MAX):
            raise OverLimit(
                f"an invite is good for 1 to {INVITE_USES_MAX} uses and 1 to {INVITE_HOURS_MAX} "
                "hours"
            )
        secret, now = self._random(SECRET_BYTES), self._now()
        held = self._engine.read("mesh.invite", lambda tx: self._row(tx, mesh))
        if not self._is_ours(held):
            return self._invite_as_member(held, secret, uses, hours, grants, addresses)
        given = check_grants(grants)
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
            ended = [old for old in rows if old.expires_at <= now]
            # Some are remembered, so that who comes too late hears that.
            for old in ended[: max(0, len(ended) - BUS_INVITES_MAX)]:
                tx.bus_invite_drop(old.digest)
            if sum(old.is_open(now) for old in rows) >= BUS_INVITES_MAX:
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

    def _invite_as_member(
        self,
        held: BusMeshRow,
        secret: bytes,
        uses: int,
        hours: int,
        grants: Iterable[str],
        addresses: Iterable[str],
    ) -> NewPeerInvite:
        """Passes on what the owner gave this node, to a key that only the text holds."""
        members, key, now = trusted_list(held.members), self._key(), self._now()
        me, owner = members.of_key(bytes(key.verify_key)), members.of_key(held.owner)
        if me is None or owner is None or "invite" not in me.grants:
            raise _not_ours(members, held)
        given = check_grants(grants)
        lacking = [right for right in given if right not in me.grants]
        if uses != 1 or lacking:
            raise NotAllowed(
                f"this node may not give {lacking[0]!r} in {held.mesh!r}: it has not got it"
                if lacking
                else "an invite of a member is good for one",
                hint=f"ask {owner.name}, who owns the mesh, or leave it out",
            )
        right = read_capability(held.capability)
        if right.holder != me.key or JOIN_SCOPE not in right.scopes:
            raise CapabilityRefused(
                f"{owner.name} has not yet handed over that this node may invite",
                hint="it does when the two nodes meet; then ask again",
            )
        ends_at = min(now + hours * HOUR_MS, right.expires_at)
        passed = narrow(
            key,
            right,
            public_key(secret),
            [*(mesh_scope(held.mesh, one) for one in given), JOIN_SCOPE],
            now_ms=now,
            expires_at=ends_at,
        )
        known = self._engine.read("mesh.invite", lambda tx: tx.bus_address_get(held.owner))
        places = tuple(addresses) or (() if known is None else known.addresses)
        card = card_of(owner.name, owner.key)
        text = format_invite(PeerInvite(card, held.mesh, secret, places, ends_at, passed.raw))
        return NewPeerInvite(
            id=passed.id.hex(), text=text, mesh=held.mesh, grants=given, uses=1, expires_at=ends_at
        )

    def invites(self, mesh: str) -> list[BusInviteRow]:
        """Those that are still good.

        >>> [invite.uses_left for invite in node.bus.sharing.invites("club")]
        [...]
        """

        def look(tx: Reader) -> list[BusInviteRow]:
            self._owned(tx, mesh)
            return [row for row in tx.bus_invite_list(mesh) if row.is_open(self._now())]

        return self._engine.read("mesh.invite", look)

    def drop_invite(self, mesh: str, id: str) -> bool:
        """Takes an invite back. Who has joined by it stays a member.

        >>> invite = node.bus.sharing.invite("club")
        >>> node.bus.sharing.drop_invite("club", invite.id)
        True
        """
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

        dropped = self._engine.write("mesh.invite", work)
        self._tell()
        return dropped

    # --- members -------------------------------------------------------------------------------

    def members(self, mesh: str) -> list[ListedMember]:
        """As the owner's newest list says that this node has heard of.

        >>> node.bus.sharing.members("club")[0].name
        'ana'
        """
        return list(self._engine.read("mesh.members", lambda tx: self._list(tx, mesh)).members)

    def grant(self, mesh: str, member: str, grants: Iterable[str]) -> ListedMember:
        """Changes what a member may do. It holds as soon as the others have heard of it.

        >>> node.bus.sharing.grant("club", "gus", ["read", "relay"]).grants
        ('read', 'relay')
        """
        given, key = check_grants(grants), self._key()

        def work(tx: Transaction) -> ListedMember:
            row, before = self._changing(tx, mesh)
            found = find_member(before, member)
            if found.key == before.owner:
                raise Conflict("the owner of a mesh may do everything in it")
            changed = msgspec.structs.replace(found, grants=given)
            self._save(tx, row, with_member(key, before, changed, self._now()))
            return changed

        changed = self._engine.write("mesh.members", work)
        self._tell()
        return changed

    def remove_member(self, mesh: str, member: str) -> ListedMember:
        """Ends a membership. The node keeps what it has; nobody who has heard of it gives it
        more. No invite lets its key in again, until `admit`.

        >>> node.bus.sharing.remove_member("club", "eve").name
        'eve'
        """
        key = self._key()

        def work(tx: Transaction) -> ListedMember:
            row, before = self._changing(tx, mesh)
            found = find_member(before, member)
            if found.key == before.owner:
                raise Conflict(
                    "the owner cannot be removed from its mesh",
                    hint=f"to end the sharing: holdfast mesh leave {mesh} --remove",
                )
            self._save(tx, row, without_member(key, before, found.key, self._now(), barred=True))
            return found

        removed = self._engine.write("mesh.members", work)
        self._tell()
        return removed

    def admit(self, mesh: str, member: str) -> str:
        """Lets a key join again that was removed, by the name that it had or by the key. It needs
        an invite, like any other. Returns the key, as on a card.

        >>> node.bus.sharing.remove_member("club", "dora")
        >>> node.bus.sharing.admit("club", "dora")
        '...'
        """
        key = self._key()

        def work(tx: Transaction) -> str:
            row, before = self._changing(tx, mesh)
            found = find_barred(before, member)
            self._save(tx, row, unbarred(key, before, found, self._now()))
            return text_of(found)

        admitted = self._engine.write("mesh.members", work)
        self._tell()
        return admitted

    def forget(self, mesh: str, *, remove: bool = False) -> None:
        """Makes a mesh one of this node alone again; all that is in it stays. An owner must say
        `remove`: nobody can be let in or renewed after that.

        >>> node.create_mesh("quay")
        >>> node.bus.sharing.share("quay")
        >>> node.bus.sharing.forget("quay", remove=True)
        """

        def work(tx: Transaction) -> None:
            row = self._row(tx, mesh)
            if self._is_ours(row) and not remove:
                raise Conflict(
                    f"{mesh!r} is yours: if you leave, its members lose it within a month",
                    hint=f"if that is what you want: holdfast mesh leave {mesh} --remove",
                )
            note_left(tx, trusted_list(row.members), self._now())
            tx.bus_mesh_drop(mesh)

        self._engine.write("mesh.leave", work)
        switch_off(self._engine, mesh)
        self._tell()

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

    def _is_ours(self, row: BusMeshRow) -> bool:
        return row.owner in (bytes(self._key().verify_key), *self._own_key.former_keys())

    def _owned(self, tx: Reader, mesh: str) -> tuple[BusMeshRow, MemberList]:
        row = self._row(tx, mesh)
        members = trusted_list(row.members)
        if not self._is_ours(row):
            raise _not_ours(members, row)
        return row, members

    def _changing(self, tx: Transaction, mesh: str) -> tuple[BusMeshRow, MemberList]:
        """As `_owned`, signed by the key of now: the list is about to change."""
        if is_due(tx, self._own_key):
            take_over(tx, self._own_key, self._now())
        return self._owned(tx, mesh)

    def _save(self, tx: Transaction, row: BusMeshRow, members: MemberList) -> None:
        tx.bus_mesh_put(msgspec.structs.replace(row, members=members.raw))

    def _shown(self, row: BusMeshRow) -> SharedOverBus:
        members = trusted_list(row.members)
        owner = members.of_key(row.owner)
        return SharedOverBus(
            mesh=row.mesh,
            owner=owner.name if owner else "",
            ours=self._is_ours(row),
            members=len(members.members),
            serial=members.serial,
        )


def _not_ours(members: MemberList, row: BusMeshRow) -> NotOurs:
    owner = members.of_key(row.owner)
    return NotOurs(
        f"{row.mesh!r} belongs to {owner.name if owner else 'another key'}",
        hint="ask its owner to do this",
    )
