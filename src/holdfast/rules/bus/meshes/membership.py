"""Who is let into a mesh that has no broker, and what a peer may do in it.

The owner decides who belongs: by an invite whose secret the newcomer shows, under a name that
nobody else has. Everybody decides who may do what, from three things: the owner's key, the newest
list of members that this node has heard of, and the capabilities that a peer shows.

    the owner                    everything
    a member, asked by the owner     what the list says: the owner's own list is the truth
    a member, asked by a member      what its capability and the list say; the capability alone if
                                     it came after this node's list was made
    a key that was removed           nothing
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from holdfast.rules.bus.capability import Capability
from holdfast.rules.bus.meshes.member_list import ListedMember, MemberList
from holdfast.rules.bus.scope import MESH_RIGHTS, mesh_scope
from holdfast.rules.errors import AlreadyExists, InviteEnded, NotAMember, NotTrusted
from holdfast.rules.limits import BUS_CAPABILITY_MS

RENEW_MS: Final = BUS_CAPABILITY_MS // 2
"""A capability is renewed when less than this is left of it."""
_TICKET: Final = b"holdfast bus join 1\0"


class BusMeshRow(msgspec.Struct, frozen=True, kw_only=True):
    """A mesh that this node shares over the bus, as its owner or as a member."""

    mesh: str
    owner: bytes
    members: bytes
    """The newest list of members, as its owner signed it."""
    capability: bytes = b""
    """What the owner gave this node; empty at the owner."""
    joined_at: int


class BusInviteRow(msgspec.Struct, frozen=True, kw_only=True):
    """An invite as the owner's node keeps it: with the digest of its secret, never the secret."""

    digest: bytes
    mesh: str
    grants: tuple[str, ...]
    uses_left: int
    expires_at: int
    made_at: int

    def is_open(self, now_ms: int) -> bool:
        return self.uses_left > 0 and now_ms < self.expires_at


class BusCapabilityRow(msgspec.Struct, frozen=True, kw_only=True):
    """A right over the bus that this node gave, was given, or took back."""

    id: bytes
    kind: str
    """`given` by this node, `held` by it, or `revoked`: whatever has a step of this id is refused.
    """
    name: str
    """Of the holder of a given one, of the issuer of a held one."""
    key: bytes
    """Whose name that is."""
    capability: bytes
    added_at: int
    expires_at: int


class BusAddressRow(msgspec.Struct, frozen=True, kw_only=True):
    """Where a member was reached."""

    key: bytes
    addresses: tuple[str, ...]
    """host:port, the newest first."""
    seen_at: int


# --- joining -------------------------------------------------------------------------------------


def ticket(digest: bytes, owner: bytes, newcomer: bytes) -> bytes:
    """What a newcomer shows in its welcome to be let in for the join alone: that it knows an
    invite, without telling the secret. It is worth nothing to another key, or at another owner.
    """
    return _TICKET + hmac.digest(digest, _TICKET + owner + newcomer, sha256)


def is_ticket(shown: bytes) -> bool:
    return shown.startswith(_TICKET)


def invite_of_ticket(
    shown: Iterable[bytes], invites: Iterable[BusInviteRow], owner: bytes, newcomer: bytes
) -> BusInviteRow | None:
    """The invite that a newcomer knows, if it shows that."""
    tickets = [one for one in shown if is_ticket(one)]
    for invite in invites:
        known = ticket(invite.digest, owner, newcomer)
        if any(hmac.compare_digest(one, known) for one in tickets):
            return invite
    return None


class MemberAdmission(NamedTuple):
    """What joining comes to at the owner."""

    member: ListedMember
    used: bool
    """The invite has one use less. Whoever asks again, because the answer was lost, uses none."""


def admit(
    members: MemberList, invite: BusInviteRow | None, key: bytes, name: str, now_ms: int
) -> MemberAdmission:
    """Lets a newcomer in. Raises InviteEnded, or AlreadyExists if the name is another member's."""
    there = members.of_key(key)
    if there is not None:
        if there.name != name:
            raise AlreadyExists(
                f"this key is the member {there.name!r} of {members.mesh!r} already",
                hint=f"call the node {there.name} again, or make a home of its own for {name!r}",
            )
        return MemberAdmission(there, False)
    if invite is None or invite.mesh != members.mesh or not invite.is_open(now_ms):
        raise InviteEnded("the invite was used up, has expired or was taken back")
    check_name(members, key, name)
    return MemberAdmission(ListedMember(name, key, invite.grants, now_ms), True)


def check_name(members: MemberList, key: bytes, name: str) -> None:
    """Raises AlreadyExists if another key has this name in the mesh."""
    holder = members.of_name(name)
    if holder is not None and holder.key != key:
        raise AlreadyExists(
            f"{members.mesh!r} has a member {name!r} with another key; two homes cannot write "
            "under one name",
            hint="join with a home of another name, or let the owner remove the old one: "
            f"holdfast mesh remove-member {name}",
        )


def find_member(members: MemberList, named: str) -> ListedMember:
    """A member by its name or by the hex digits of its key."""
    for member in members.members:
        if named in (member.name, member.key.hex()):
            return member
    raise NotAMember(
        f"{members.mesh!r} has no member {named!r}",
        hint=f"see: holdfast mesh members {members.mesh}",
    )


# --- what a peer may do --------------------------------------------------------------------------


class MemberStanding(NamedTuple):
    """What a peer may do in one mesh, and under which name it writes there."""

    name: str
    """Empty for a key that a member passed its right on to: it has no name, and writes nothing."""
    grants: tuple[str, ...]
    ends_at: int | None = None
    """When what it shows ends; None: it stands in the list that we sign ourselves."""


def standing_of(
    members: MemberList, ours: bytes, key: bytes, shown: Iterable[Capability]
) -> MemberStanding | None:
    """What a peer may do; None if it does not belong. `shown` are capabilities that were found
    good for this key (`check_capability`). Raises NotTrusted for a second home under one name.
    """
    listed = members.of_key(key)
    if key == members.owner:
        return MemberStanding(listed.name if listed else "", MESH_RIGHTS)
    if ours == members.owner:
        return None if listed is None else MemberStanding(listed.name, listed.grants)
    good = [one for one in shown if one.issuer == members.owner and not members.has_removed(one)]
    found = [_by_capability(members, key, one) for one in good]
    return max((one for one in found if one.grants), key=_rank, default=None)


def _rank(standing: MemberStanding) -> tuple[int, int]:
    return len(standing.grants), standing.ends_at or 0


def _by_capability(members: MemberList, key: bytes, shown: Capability) -> MemberStanding:
    grants = {right for right in MESH_RIGHTS if mesh_scope(members.mesh, right) in shown.scopes}
    first = members.of_key(shown.steps[0].holder)
    if first is not None:  # what the owner has taken back since then is gone
        grants.intersection_update(first.grants)
    name = shown.name
    namesake = members.of_name(name) if name else None
    if namesake is not None and namesake.key != key:
        raise NotTrusted(
            f"two homes are called {name!r} in {members.mesh!r}: the list of its owner has another "
            "key under this name",
            hint="one of them has to join under another name",
        )
    if not name:
        grants.discard("write")
    return MemberStanding(
        name, tuple(right for right in MESH_RIGHTS if right in grants), shown.expires_at
    )


def is_renewal_due(capability: Capability, now_ms: int) -> bool:
    return now_ms > capability.expires_at - RENEW_MS
