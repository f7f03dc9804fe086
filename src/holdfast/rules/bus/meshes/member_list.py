"""Who belongs to a mesh that has no broker: a list that its owner signs.

The owner's node keeps the members of the mesh and tells them the list. Whoever has it may pass it
on, because only the owner's key can sign another: the one with the higher number is the newer one.
It also names the keys that were removed, for as long as a capability that the owner gave them could
still be good. So a member that was removed is refused by everybody who has heard of it. A key that
the owner itself removed stays barred until the owner lets it in again.

    [1, mesh, id, owner, serial, made_at, members, removed, former, signature]

The signature covers a domain tag and all fields before it. A mesh has an id, so that a later mesh
of the same owner and name is not taken for this one. `former` are the earlier keys of the owner:
each has signed the next one, so whoever knows one of them can follow (`rules/bus/succession.py`).

**Lists that do not follow from each other.** Each list of an owner names what left since the one
before. An owner whose store was put back from a backup signs lists that know nothing of its later
ones: they forget members, or removals. Members do not take such a list; they tell the owner theirs,
which it signed itself, and it joins the two (`joined`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from holdfast.rules.bus.capability import Capability, Key, Moment
from holdfast.rules.bus.scope import JOIN_SCOPE, MESH_RIGHTS, mesh_scope
from holdfast.rules.bus.succession import Chain, KeySuccession, keys_before, with_step
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

if TYPE_CHECKING:
    from nacl.signing import SigningKey

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
    name: str
    """The member's."""
    barred: bool
    """The owner has removed it, so no invite lets it in again until the owner says so."""


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
    former: Chain
    """How the owner's key came to be: from its first one, or the eighth before, to that of now."""
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]

    @cached_property
    def raw(self) -> bytes:
        return _encode(self)

    @cached_property
    def digest(self) -> bytes:
        return sha256(self.raw).digest()

    @cached_property
    def _by_key(self) -> dict[bytes, ListedMember]:
        return {member.key: member for member in self.members}

    def of_key(self, key: bytes) -> ListedMember | None:
        return self._by_key.get(key)

    def of_name(self, name: str) -> ListedMember | None:
        return next((member for member in self.members if member.name == name), None)

    @cached_property
    def _gone(self) -> dict[bytes, RemovedKey]:
        return {removed.key: removed for removed in self.removed}

    def removed_at(self, key: bytes) -> int:
        """When a key was removed last; -1 if it was not, or if that is long ago."""
        removed = self._gone.get(key)
        return -1 if removed is None else removed.removed_at

    def is_barred(self, key: bytes) -> bool:
        removed = self._gone.get(key)
        return removed is not None and removed.barred and self.of_key(key) is None

    def has_removed(self, capability: Capability) -> bool:
        """Whether a key that the right passed through was removed after it had got it. Of a key
        that is barred nothing is good, whatever time it says: the owner's clock may have been
        ahead when it gave the right, and set right before it took it back.
        """
        return any(
            step.issued_at <= self.removed_at(step.holder) or self.is_barred(step.holder)
            for step in capability.steps
        )

    @cached_property
    def earlier_owners(self) -> tuple[bytes, ...]:
        """The keys that the owner had before this one, the newest first."""
        return keys_before(self.former, self.owner)


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(MemberList).decode


def scopes_of(mesh: str, grants: Iterable[str]) -> list[str]:
    """The scopes of the capability of a member with these grants. Who may invite may pass on that
    somebody asks to join.
    """
    scopes = [mesh_scope(mesh, grant) for grant in grants]
    return [*scopes, JOIN_SCOPE] if mesh_scope(mesh, "invite") in scopes else scopes


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
        key,
        MemberList(1, check_mesh(mesh), id, owner.key, 1, now_ms, (owner,), (), (), bytes(64)),
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
    _check_room(before, len(rest))
    return _next(key, before, (*rest, member), before.removed, now_ms)


def _check_room(members: MemberList, count: int) -> None:
    if count >= BUS_MEMBERS_MAX:
        raise OverLimit(f"{members.mesh!r} has {count} members; most is {BUS_MEMBERS_MAX}")


def without_member(
    key: SigningKey, before: MemberList, gone: bytes, now_ms: int, *, barred: bool = False
) -> MemberList:
    """The list after a member has left, or was removed by the owner (`barred`). What it was given
    is worth nothing from then on.
    """
    rest = tuple(member for member in before.members if member.key != gone)
    left = before.of_key(gone)
    removed = RemovedKey(gone, now_ms, "" if left is None else left.name, barred)
    return _next(key, before, rest, _with_removed(before, [removed]), now_ms)


def _with_removed(before: MemberList, new: Sequence[RemovedKey]) -> tuple[RemovedKey, ...]:
    """Those who are gone, with some more. If there are more than fit, the oldest of those who may
    come back are forgotten.
    """
    keys = [one.key for one in new]
    kept = [*(one for one in before.removed if one.key not in keys), *new]
    for one in [one for one in kept if not one.barred][: max(0, len(kept) - BUS_MEMBERS_MAX)]:
        kept.remove(one)
    if len(kept) > BUS_MEMBERS_MAX:
        raise OverLimit(
            f"{before.mesh!r} has {BUS_MEMBERS_MAX} keys that were removed",
            hint="let some in again: holdfast mesh admit NAME; or share the mesh anew",
        )
    return tuple(kept)


def unbarred(key: SigningKey, before: MemberList, gone: bytes, now_ms: int) -> MemberList:
    """The list after the owner has said that a key may join again."""
    found = next(one for one in before.removed if one.key == gone)
    # Noted as of now, and so kept for as long as anybody may hold a list that says otherwise.
    free = msgspec.structs.replace(found, removed_at=now_ms, barred=False)
    return _next(key, before, before.members, _with_removed(before, [free]), now_ms)


def with_new_key(
    key: SigningKey, before: MemberList, old: bytes, new: bytes, now_ms: int
) -> MemberList:
    """The list after a member has shown that another key is its own now. The old one is gone."""
    check_key_bytes(new)
    return _next(key, before, *_rekeyed(before, old, new, now_ms), now_ms)


def succeeded(
    key: SigningKey, before: MemberList, steps: Sequence[KeySuccession], now_ms: int
) -> MemberList:
    """The list of an owner that has another key from now on: `key`, to which these steps lead."""
    new, former = bytes(key.verify_key), before.former
    assert (steps[0].before, steps[-1].after) == (before.owner, new), "they lead to another key"
    for step in steps:
        former = with_step(former, step)
    members, removed = _rekeyed(before, before.owner, new, now_ms)
    after = msgspec.structs.replace(before, owner=new, former=former)
    return _next(key, after, members, removed, now_ms)


def _rekeyed(
    before: MemberList, old: bytes, new: bytes, now_ms: int
) -> tuple[tuple[ListedMember, ...], tuple[RemovedKey, ...]]:
    member = before.of_key(old)
    assert member is not None, "only a member changes its key"
    other = msgspec.structs.replace(member, key=new, added_at=now_ms)
    members = tuple(other if one is member else one for one in before.members if one.key != new)
    return members, _with_removed(before, [RemovedKey(old, now_ms, member.name, False)])


def _next(
    key: SigningKey,
    before: MemberList,
    members: tuple[ListedMember, ...],
    removed: tuple[RemovedKey, ...],
    now_ms: int,
) -> MemberList:
    assert bytes(key.verify_key) == before.owner, "only the owner changes the list"
    still = tuple(one for one in removed if one.barred or _is_recent(one.removed_at, now_ms))
    after = msgspec.structs.replace(
        before,
        serial=before.serial + 1,
        made_at=max(now_ms, before.made_at),
        members=members,
        removed=still,
    )
    return _signed(key, after)


def _is_recent(moment: int, now_ms: int) -> bool:
    return now_ms < moment + _REMOVED_KEPT_MS


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
    """The list, if it is whole, of this mesh and signed by its owner, or by a key that the owner
    has said to be its own from then on. Raises BadAnswer.
    """
    from nacl.exceptions import BadSignatureError  # here: its library takes long to load
    from nacl.signing import VerifyKey

    try:
        found = _read(raw)
        if found.mesh != mesh or owner not in (found.owner, *found.earlier_owners):
            raise BadInput("it is of another mesh")
        VerifyKey(found.owner).verify(_signed_text(found), found.signature)
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
    check_key_bytes(found.owner)
    for removed in found.removed:
        if removed.name:
            check_peer(removed.name)
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


# --- which of two lists counts --------------------------------------------------------------------


class Forgotten(NamedTuple):
    """What one list knows and another one should."""

    members: tuple[ListedMember, ...]
    removed: tuple[RemovedKey, ...]


def forgotten(newer: MemberList, older: MemberList, now_ms: int) -> Forgotten:
    """Members and removals of `older` of which `newer` says nothing, neither that they are there
    nor that they are gone. An owner that counts on never makes such a list. Of what is older than
    the memory of removals nothing can be said.
    """
    if not _is_recent(older.made_at, now_ms):
        return Forgotten((), ())
    members = tuple(
        one
        for one in older.members
        if newer.of_key(one.key) is None and one.added_at > newer.removed_at(one.key)
    )
    removed = tuple(
        one
        for one in older.removed
        if (one.barred or _is_recent(one.removed_at, now_ms))
        and one.removed_at > newer.removed_at(one.key)
        and not _came_later(newer, one)
    )
    return Forgotten(members, removed)


def _came_later(members: MemberList, removed: RemovedKey) -> bool:
    back = members.of_key(removed.key)
    return back is not None and back.added_at > removed.removed_at


def is_newer(offered: MemberList, held: MemberList) -> bool:
    """Whether a list has a higher number than the one that is held. Another id is another mesh."""
    return offered.id == held.id and offered.serial > held.serial


def joined(key: SigningKey, held: MemberList, offered: MemberList, now_ms: int) -> MemberList:
    """What an owner makes of its own list and another one that it has signed itself: the newer one,
    with what it has forgotten of the other. That is the held one unless something is new.
    """
    newer, older = (offered, held) if is_newer(offered, held) else (held, offered)
    if offered.id != held.id:
        return held
    lost = forgotten(newer, older, now_ms)
    if not any(lost):
        return newer
    gone = {one.key: one.removed_at for one in lost.removed if one.key != newer.owner}
    members = [one for one in newer.members if one.added_at > gone.get(one.key, -1)]
    names = {one.name: None for one in members}
    members += [one for one in lost.members if one.name not in names]
    # Whoever has got the name meanwhile keeps it.
    late = [RemovedKey(m.key, now_ms, m.name, False) for m in lost.members if m.name in names]
    _check_room(newer, len(members) - 1)
    return _next(key, newer, tuple(members), _with_removed(newer, [*lost.removed, *late]), now_ms)
