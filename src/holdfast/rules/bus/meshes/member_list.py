"""Who belongs to a mesh that has no broker: a list that its owner signs.

The owner's node keeps the members of the mesh and tells them the list. Whoever has it may pass it
on, because only the owner's key can sign another: the one with the higher number is the newer one.
It also names the keys that were removed, for as long as a capability that the owner gave them could
still be good. So a member that was removed is refused by everybody who has heard of it.

    [1, mesh, id, owner, serial, made_at, members, removed, signature]

The signature covers a domain tag and all fields before it. A mesh has an id, so that a later mesh
of the same owner and name is not taken for this one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from holdfast.rules.bus.capability import Capability, Key, Moment
from holdfast.rules.bus.scope import MESH_RIGHTS, mesh_scope
from holdfast.rules.errors import BadAnswer, BadInput, HoldfastError, OverLimit
from holdfast.rules.keys import check_key_bytes
from holdfast.rules.limits import (
    BUS_CAPABILITY_MS,
    BUS_CLOCK_SKEW_MS,
    BUS_MEMBER_LIST_BYTES_MAX,
    BUS_MEMBERS_MAX,
    LAMPORT_MAX,
)
from holdfast.rules.names import check_mesh, check_peer

MESH_ID_BYTES: Final = 16
MEMBER_RIGHTS: Final = ("read", "write")
"""What a member may do unless its invite says otherwise."""
_WORDS: Final = b"holdfast bus members 1\0"
_REMOVED_KEPT_MS: Final = BUS_CAPABILITY_MS + 2 * BUS_CLOCK_SKEW_MS


class ListedMember(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A member of a mesh, by its name and key."""

    name: str
    key: Key
    grants: tuple[str, ...]
    added_at: Moment


class RemovedKey(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A key that was a member's until then."""

    key: Key
    removed_at: Moment


class MemberList(
    msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, dict=True
):
    """All members of a mesh, as its owner says."""

    version: Literal[1]
    mesh: str
    id: Annotated[bytes, Meta(min_length=MESH_ID_BYTES, max_length=MESH_ID_BYTES)]
    owner: Key
    serial: Annotated[int, Meta(ge=1, lt=LAMPORT_MAX)]
    made_at: Moment
    members: Annotated[tuple[ListedMember, ...], Meta(max_length=BUS_MEMBERS_MAX)]
    removed: Annotated[tuple[RemovedKey, ...], Meta(max_length=BUS_MEMBERS_MAX)]
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]

    @cached_property
    def raw(self) -> bytes:
        return _encode(self)

    @cached_property
    def _by_key(self) -> dict[bytes, ListedMember]:
        return {member.key: member for member in self.members}

    def of_key(self, key: bytes) -> ListedMember | None:
        return self._by_key.get(key)

    def of_name(self, name: str) -> ListedMember | None:
        return next((member for member in self.members if member.name == name), None)

    def has_removed(self, capability: Capability) -> bool:
        """Whether a key that the right passed through was removed after it had got it."""
        gone = {removed.key: removed.removed_at for removed in self.removed}
        return any(step.issued_at <= gone.get(step.holder, -1) for step in capability.steps)


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(MemberList).decode


def scopes_of(mesh: str, grants: Iterable[str]) -> list[str]:
    """The scopes of the capability of a member with these grants."""
    return [mesh_scope(mesh, grant) for grant in grants]


def check_grants(grants: Iterable[str]) -> tuple[str, ...]:
    """Grants in the order in which people list them; those of a member if none is named."""
    given = frozenset(grants) or frozenset(MEMBER_RIGHTS)
    unknown = sorted(given.difference(MESH_RIGHTS))
    if unknown:
        raise BadInput(
            f"{unknown[0]!r} is no grant in a mesh without a broker",
            hint=f"there are {', '.join(MESH_RIGHTS)}",
        )
    return tuple(right for right in MESH_RIGHTS if right in given)


# --- what the owner does -------------------------------------------------------------------------


def first_list(key: SigningKey, mesh: str, id: bytes, name: str, now_ms: int) -> MemberList:
    """The list of a mesh that was shared just now: its owner alone."""
    owner = ListedMember(check_peer(name), bytes(key.verify_key), MESH_RIGHTS, now_ms)
    return _signed(
        key, MemberList(1, check_mesh(mesh), id, owner.key, 1, now_ms, (owner,), (), bytes(64))
    )


def with_member(
    key: SigningKey, before: MemberList, member: ListedMember, now_ms: int
) -> MemberList:
    """The list with one member more, or with other grants for one that is there. Raises
    AlreadyExists by `check_name`, OverLimit if there are too many.
    """
    check_key_bytes(member.key)
    check_peer(member.name)
    rest = tuple(one for one in before.members if one.key != member.key)
    if len(rest) >= BUS_MEMBERS_MAX:
        raise OverLimit(f"{before.mesh!r} has {len(rest)} members; most is {BUS_MEMBERS_MAX}")
    return _next(key, before, (*rest, member), before.removed, now_ms)


def without_member(key: SigningKey, before: MemberList, gone: bytes, now_ms: int) -> MemberList:
    """The list after a member has left or was removed. What it was given is worth nothing from
    then on.
    """
    rest = tuple(member for member in before.members if member.key != gone)
    others = (removed for removed in before.removed if removed.key != gone)
    # The newest are kept if there are more than fit: theirs can be good for longest.
    removed = (*others, RemovedKey(gone, now_ms))[-BUS_MEMBERS_MAX:]
    return _next(key, before, rest, removed, now_ms)


def _next(
    key: SigningKey,
    before: MemberList,
    members: tuple[ListedMember, ...],
    removed: tuple[RemovedKey, ...],
    now_ms: int,
) -> MemberList:
    assert bytes(key.verify_key) == before.owner, "only the owner changes the list"
    still = tuple(one for one in removed if now_ms < one.removed_at + _REMOVED_KEPT_MS)
    after = msgspec.structs.replace(
        before,
        serial=before.serial + 1,
        made_at=max(now_ms, before.made_at),
        members=members,
        removed=still,
    )
    return _signed(key, after)


def _signed(key: SigningKey, unsigned: MemberList) -> MemberList:
    signature = key.sign(_signed_text(unsigned)).signature
    made = msgspec.structs.replace(unsigned, signature=signature)
    if len(made.raw) > BUS_MEMBER_LIST_BYTES_MAX:
        raise OverLimit(
            f"the list of members of {made.mesh!r} would have {len(made.raw)} bytes; "
            f"most is {BUS_MEMBER_LIST_BYTES_MAX}"
        )
    return made


def _signed_text(members: MemberList) -> bytes:
    return _WORDS + _encode(msgspec.structs.astuple(members)[:-1])


# --- what everybody checks -----------------------------------------------------------------------


def read_list(raw: bytes, mesh: str, owner: bytes) -> MemberList:
    """The list, if it is whole, of this mesh and signed by its owner. Raises BadAnswer."""
    try:
        found = _read(raw)
        if (found.mesh, found.owner) != (mesh, owner):
            raise BadInput("it is of another mesh")
        VerifyKey(owner).verify(_signed_text(found), found.signature)
    except HoldfastError as error:
        raise _refused(mesh, error.message) from None
    except BadSignatureError:
        raise _refused(mesh, "it is not signed by the owner") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _refused(mesh, "it cannot be read") from None
    return found


def trusted_list(raw: bytes) -> MemberList:
    """A list from this node's own store, where it was checked before it came in."""
    return _decode(raw)


def _refused(mesh: str, why: str) -> BadAnswer:
    return BadAnswer(f"a list of members of {mesh!r} is refused: {why}")


def _read(raw: bytes) -> MemberList:
    if len(raw) > BUS_MEMBER_LIST_BYTES_MAX:
        raise OverLimit(f"it has {len(raw)} bytes; most is {BUS_MEMBER_LIST_BYTES_MAX}")
    found = _decode(raw)
    for member in found.members:
        check_peer(member.name)
        check_key_bytes(member.key)
        if member.grants != check_grants(member.grants):
            raise BadInput("its grants are out of order")
    names = {member.name for member in found.members}
    if len(names) != len(found.members) or len(found._by_key) != len(found.members):
        raise BadInput("a name or key stands in it twice")
    if found.raw != raw:
        raise BadInput("it is not spelled as it must be")
    return found


def is_newer(offered: MemberList, held: MemberList) -> bool:
    """Whether a list takes the place of the one that is held. Another id is another mesh."""
    return offered.id == held.id and offered.serial > held.serial
