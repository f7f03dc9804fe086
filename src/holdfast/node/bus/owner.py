"""What the owner's node does for a mesh without a broker: it lets newcomers in, renews what members
were given, and lets members go.

The list of members changes in the transaction that uses an invite up, and only then does anybody
hear of it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
from nacl.signing import SigningKey

from holdfast.node.bus.member_peers import HeldMesh, MemberPeers
from holdfast.node.core.engine import NodeEngine
from holdfast.node.trust.own_key import OwnKey
from holdfast.protocol.bus_members import JoinAsked, JoinGiven, LeaveAsked, decode, encode
from holdfast.rules.bus.capability import Capability, issue
from holdfast.rules.bus.meshes.member_list import (
    ListedMember,
    MemberList,
    scopes_of,
    trusted_list,
    with_member,
    with_new_key,
    without_member,
)
from holdfast.rules.bus.meshes.membership import ENDED, BusInviteRow, admit, member_invite
from holdfast.rules.errors import BadInput, InviteEnded, NotAMember
from holdfast.rules.invites import digest
from holdfast.rules.limits import BUS_CAPABILITY_MS
from holdfast.rules.names import check_peer
from holdfast.storage.ports import Transaction, Work

log = logging.getLogger("holdfast.bus")


class MemberRequest(Protocol):
    """A request that came over a proved link."""

    @property
    def key(self) -> bytes: ...
    @property
    def body(self) -> bytes: ...


class MeshOwner:
    """The owner's side of the meshes of one node."""

    def __init__(
        self,
        engine: NodeEngine,
        own_key: OwnKey,
        peers: MemberPeers,
        write: Callable[[str, Work[Any]], Awaitable[Any]],
        changed: Callable[[MemberList, bytes | None], None],
    ) -> None:
        """`changed` hears of a new list, and whose request made it."""
        self._engine, self._own_key, self._write, self._changed = engine, own_key, write, changed
        self._peers = peers

    async def join_asked(self, asked: MemberRequest) -> bytes:
        wanted = decode(asked.body, JoinAsked)
        check_peer(wanted.name)
        key, now = SigningKey(self._own_key.seed()), self._engine.ctx.now_ms()

        def work(tx: Transaction) -> tuple[MemberList, ListedMember, str]:
            row, mesh = tx.bus_mesh_get(wanted.mesh), tx.mesh_get(wanted.mesh)
            if row is None or mesh is None or row.owner != bytes(key.verify_key):
                # The same words as for a wrong secret: who has none learns of no mesh.
                raise InviteEnded(ENDED)
            members = trusted_list(row.members)
            invite = self._invite(tx, members, wanted.secret, asked.key)
            member, used = admit(members, invite, asked.key, wanted.name, now)
            if used:
                assert invite is not None, "nobody is let in without one"
                _drop_expired(tx, members.mesh, now)
                members = with_member(key, members, member, now)
                tx.bus_mesh_put(msgspec.structs.replace(row, members=members.raw))
                tx.bus_invite_put(msgspec.structs.replace(invite, uses_left=invite.uses_left - 1))
            return members, member, mesh.name

        members, member, title = await self._write("mesh.members", work)
        log.info("%s has joined %s", member.name, wanted.mesh)
        self._changed(members, asked.key)
        given = self._capability(key, wanted.mesh, member)
        return encode(JoinGiven(members.raw, given.raw, title))

    def _invite(
        self, tx: Transaction, members: MemberList, secret: bytes, key: bytes
    ) -> BusInviteRow | None:
        """The invite whose secret a newcomer tells, or that a member made and it shows."""
        invite = tx.bus_invite_get(digest(secret))
        if invite is None:
            made = member_invite(members, self._peers.shown_by(key))
            invite = None if made is None else tx.bus_invite_get(made.digest) or made
        return invite

    async def leave_asked(self, asked: MemberRequest) -> bytes:
        wanted = decode(asked.body, LeaveAsked)
        key, now = SigningKey(self._own_key.seed()), self._engine.ctx.now_ms()

        def work(tx: Transaction) -> MemberList:
            row = tx.bus_mesh_get(wanted.mesh)
            held = None if row is None else HeldMesh(row, trusted_list(row.members))
            leaving = None if held is None else held.listed(self._peers.keys(asked.key))
            if row is None or held is None or leaving is None:
                raise NotAMember(f"this key is no member of {wanted.mesh!r}")
            if row.owner != bytes(key.verify_key) or leaving.key == row.owner:
                raise BadInput("only the owner of a mesh lets its members go")
            after = without_member(key, held.members, leaving.key, now)
            tx.bus_mesh_put(msgspec.structs.replace(row, members=after.raw))
            return after

        self._changed(await self._write("mesh.members", work), asked.key)
        return b""

    async def renewed(self, mesh: str, member: bytes) -> bytes:
        """A new capability for a member; empty if this node does not own the mesh. A member that
        has another key than before stands in the list by that one from then on.
        """
        key, now = SigningKey(self._own_key.seed()), self._engine.ctx.now_ms()

        def work(tx: Transaction) -> tuple[ListedMember | None, MemberList | None]:
            row = tx.bus_mesh_get(mesh)
            if row is None or row.owner != bytes(key.verify_key):
                return None, None
            members = trusted_list(row.members)
            known = HeldMesh(row, members).listed(self._peers.keys(member))
            if known is None or known.key in (member, row.owner):
                return known, None
            members = with_new_key(key, members, known.key, member, now)
            tx.bus_mesh_put(msgspec.structs.replace(row, members=members.raw))
            return members.of_key(member), members

        listed, changed = await self._write("mesh.members", work)
        if changed is not None:
            log.info("%s has another key in %s from now on", listed.name, mesh)
            self._changed(changed, member)
        return b"" if listed is None else self._capability(key, mesh, listed).raw

    def _capability(self, key: SigningKey, mesh: str, member: ListedMember) -> Capability:
        now = self._engine.ctx.now_ms()
        return issue(
            key,
            member.key,
            scopes_of(mesh, member.grants),
            now_ms=now,
            expires_at=now + BUS_CAPABILITY_MS,
            name=member.name,
        )


def _drop_expired(tx: Transaction, mesh: str, now_ms: int) -> None:
    """Forgets invites whose time is over. One that was used is known until then: what a member has
    made could be shown again.
    """
    for row in tx.bus_invite_list(mesh):
        if row.expires_at <= now_ms:
            tx.bus_invite_drop(row.digest)
