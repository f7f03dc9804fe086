"""Who is let into a mesh that has no broker, and what a peer may do in it.

The owner decides who belongs: by an invite whose secret the newcomer shows, under a name that
nobody else has. A member that may `invite` makes an invite too: it passes the right to ask on to a
key that only the text of the invite holds (`member_invite`). Everybody decides who may do what,
from three things: the owner's key, the newest list of members that this node has heard of, and the
capabilities that a peer shows.

    the owner                        everything
    a member, asked by the owner     what the list says: the owner's own list is the truth; of a key
                                     that it says nothing about, what the owner itself gave it
    a member, asked by a member      what its capability and the list say; the capability alone if
                                     it came after this node's list was made
    a key that was removed           nothing

A peer that has changed its key shows how the old one signed the new one, and is who it was.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from holdfast.rules.bus.capability import Capability, narrow, read_capability
from holdfast.rules.bus.meshes.member_list import ListedMember, MemberList
from holdfast.rules.bus.scope import JOIN_SCOPE, MESH_RIGHTS, mesh_scope
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    InviteEnded,
    MemberBarred,
    NotAMember,
    NotTrusted,
)
from holdfast.rules.invites import PeerInvite
from holdfast.rules.keys import text_of
from holdfast.rules.limits import BUS_CAPABILITY_MS, BUS_CLOCK_SKEW_MS
from holdfast.rules.member_names import meant_key

ENDED: Final = "the invite was used up, has expired or was taken back"
RENEW_MS: Final = BUS_CAPABILITY_MS // 2
"""A capability is renewed when less than this is left of it."""
_TICKET: Final = b"holdfast bus join 1\0"
_MEMBER_INVITE: Final = b"holdfast bus member invite 1\0"


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


def member_invite(members: MemberList, shown: Iterable[Capability]) -> BusInviteRow | None:
    """The invite that a member has made, if a newcomer shows one to the owner: a right to ask to
    join that passed through a member who may invite now. It is good for one; `digest` is by what
    the owner remembers that it was used.
    """
    for one in shown:
        if not asks_to_join(one, members.mesh) or not _is_by(one, members):
            continue
        maker, made = members.of_key(one.steps[0].holder), one.steps[1]
        if maker is not None and "invite" in maker.grants and not members.has_removed(one):
            return BusInviteRow(
                digest=sha256(_MEMBER_INVITE + made.signature).digest(),
                mesh=members.mesh,
                grants=_rights_of(one, members.mesh, maker.grants),
                uses_left=1,
                expires_at=one.expires_at,
                made_at=made.issued_at,
            )
    return None


def passed_on(invite: PeerInvite, owner: bytes, newcomer: bytes, now_ms: int) -> bytes:
    """What a newcomer shows whom a member has invited: the right to ask to join, passed on from the
    key in the invite to its own. Raises BadInput for an invite that does not fit together.
    """
    from nacl.signing import SigningKey  # here: its library takes long to load

    found, key = read_capability(invite.capability), SigningKey(invite.secret)
    if found.issuer != owner or found.holder != bytes(key.verify_key):
        raise BadInput("the invite does not fit together", hint="ask for a new one")
    ends_at = found.expires_at
    return narrow(key, found, newcomer, found.scopes, now_ms=now_ms, expires_at=ends_at).raw


def asks_to_join(shown: Capability, mesh: str) -> bool:
    """Whether a right was passed on to its holder so that it joins a mesh."""
    return (
        len(shown.steps) > 1
        and JOIN_SCOPE in shown.scopes
        and bool(_rights_of(shown, mesh, MESH_RIGHTS))
    )


def _is_by(shown: Capability, members: MemberList) -> bool:
    return shown.issuer in (members.owner, *members.earlier_owners)


def _rights_of(shown: Capability, mesh: str, most: Iterable[str]) -> tuple[str, ...]:
    """What a capability gives in a mesh, of `most`."""
    return tuple(right for right in most if mesh_scope(mesh, right) in shown.scopes)


class MemberAdmission(NamedTuple):
    """What joining comes to at the owner."""

    member: ListedMember
    used: bool
    """The invite has one use less. Whoever asks again, because the answer was lost, uses none."""


def admit(
    members: MemberList, invite: BusInviteRow | None, key: bytes, name: str, now_ms: int
) -> MemberAdmission:
    """Lets a newcomer in. Raises InviteEnded, MemberBarred for a key that the owner has removed, or
    AlreadyExists if the name is another member's.
    """
    there = members.of_key(key)
    if there is not None:
        if there.name != name:
            raise AlreadyExists(
                f"this key is the member {there.name!r} of {members.mesh!r} already",
                hint=f"call the node {there.name} again, or make a home of its own for {name!r}",
            )
        return MemberAdmission(there, False)
    if invite is None or invite.mesh != members.mesh:
        raise InviteEnded(ENDED)
    check_invited(members, invite, key, now_ms)
    check_name(members, key, name)
    # Later than its removal, if there was one: lists of both are told apart by that.
    added_at = max(now_ms, members.removed_at(key) + 1)
    return MemberAdmission(ListedMember(name, key, invite.grants, added_at), True)


def check_invited(members: MemberList, invite: BusInviteRow, key: bytes, now_ms: int) -> None:
    """Raises InviteEnded or MemberBarred unless an invite lets this key in now."""
    if not invite.is_open(now_ms):
        raise InviteEnded(ENDED)
    if members.is_barred(key):
        raise MemberBarred(f"the owner of {members.mesh!r} has removed this key from it")


def check_name(members: MemberList, key: bytes, name: str) -> None:
    """Raises AlreadyExists if another key has this name in the mesh."""
    holder = members.of_name(name)
    if holder is not None and holder.key != key:
        raise AlreadyExists(
            f"{members.mesh!r} has a member {name!r} with another key; two homes cannot write "
            "under one name",
            hint="join with a home of another name, or let the owner remove the old one: "
            f"`holdfast mesh remove-member {name}`",
        )


def find_member(members: MemberList, named: str) -> ListedMember:
    """A member by its name or its key."""
    key = meant_key(named, ((one.name, one.key) for one in members.members))
    for member in members.members:
        if member.key == key:
            return member
    raise NotAMember(
        f"{members.mesh!r} has no member {named!r}",
        hint=f"see: holdfast mesh members {members.mesh}",
    )


def find_barred(members: MemberList, named: str) -> bytes:
    """The key of a member that the owner has removed, by its name or its key."""
    barred = [one for one in members.removed if members.is_barred(one.key)]
    by_name = [one.key for one in barred if one.name == named]
    if len(by_name) > 1:
        raise BadInput(
            f"{len(by_name)} keys of {named!r} were removed from {members.mesh!r}",
            hint="name one: " + ", ".join(map(text_of, by_name)),
        )
    found = meant_key(named, ((one.name, one.key) for one in barred))
    if found is None:
        raise NotAMember(
            f"{named!r} was not removed from {members.mesh!r}",
            hint=f"let it in with an invite: holdfast mesh invite {members.mesh}",
        )
    return found


# --- what a peer may do --------------------------------------------------------------------------


class MemberStanding(NamedTuple):
    """What a peer may do in one mesh, and under which name it writes there."""

    name: str
    """Empty for a key that a member passed its right on to: it has no name, and writes nothing."""
    grants: tuple[str, ...]
    ends_at: int | None = None
    """When what it shows ends; None: it stands in the list that we sign ourselves."""


def standing_of(
    members: MemberList,
    ours: bytes,
    key: bytes,
    shown: Iterable[Capability],
    before: Collection[bytes] = (),
) -> MemberStanding | None:
    """What a peer may do; None if it does not belong. `shown` are capabilities that were found
    good for this key, or for one of those that it had `before` (`check_capability`,
    `keys_before`). Raises NotTrusted for a second home under one name.
    """
    keys = (key, *before)
    listed = next((one for one in map(members.of_key, keys) if one is not None), None)
    if members.owner in keys:
        return MemberStanding(listed.name if listed else "", MESH_RIGHTS)
    good = [one for one in shown if _is_good(members, one)]
    if ours == members.owner:
        if listed is not None:
            return MemberStanding(listed.name, listed.grants)
        # We gave it a right and have not taken it back, but do not know it: our store went back in
        # time, and the peer has a list of ours that names it.
        good = [one for one in good if len(one.steps) == 1]
    found = [_by_capability(members, keys, one) for one in good]
    return max((one for one in found if one.grants), key=_rank, default=None)


def _is_good(members: MemberList, shown: Capability) -> bool:
    """Whether the owner gave it and has not taken it back since. What an earlier key of the owner
    gave holds for members that the list names, until the owner renews it: that key may be the
    reason for the new one.
    """
    if members.has_removed(shown):
        return False
    if shown.issuer == members.owner:
        return True
    return _is_by(shown, members) and members.of_key(shown.steps[0].holder) is not None


def _rank(standing: MemberStanding) -> tuple[int, int]:
    return len(standing.grants), standing.ends_at or 0


def _by_capability(
    members: MemberList, keys: Collection[bytes], shown: Capability
) -> MemberStanding:
    grants = list(_rights_of(shown, members.mesh, MESH_RIGHTS))
    first = members.of_key(shown.steps[0].holder)
    if first is not None:  # what the owner has taken back since then is gone
        grants = [right for right in grants if right in first.grants]
    name = shown.name
    namesake = members.of_name(name) if name else None
    if namesake is not None and namesake.key not in keys:
        raise NotTrusted(
            f"two homes are called {name!r} in {members.mesh!r}: the list of its owner has another "
            "key under this name",
            hint="one of them has to join under another name",
        )
    if not name:
        grants = [right for right in grants if right != "write"]
    return MemberStanding(name, tuple(grants), shown.expires_at)


def is_renewal_due(
    capability: Capability, now_ms: int, owner: bytes, listed: ListedMember | None
) -> bool:
    """Whether a member needs another capability: the one that it has ends soon, begins in the
    future, because the owner's clock was ahead, is for an earlier key of it or by one of the
    owner, or gives less than the list.
    """
    begins_at = max(step.issued_at for step in capability.steps)
    if not begins_at - BUS_CLOCK_SKEW_MS <= now_ms <= capability.expires_at - RENEW_MS:
        return True
    if capability.issuer != owner:
        return True
    mesh_rights = () if listed is None else listed.grants
    given = [scope.rpartition(":")[2] for scope in capability.scopes if scope.startswith("mesh:")]
    return listed is None or any(right not in given for right in mesh_rights)
