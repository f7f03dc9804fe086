"""Two lists of one owner that do not follow from each other, and who is barred from a mesh."""

from __future__ import annotations

import msgspec
import pytest
from nacl.signing import SigningKey

from holdfast.rules.bus.capability import Capability, issue, narrow
from holdfast.rules.bus.meshes.member_list import (
    ListedMember,
    MemberList,
    RemovedKey,
    check_grants,
    first_list,
    forgotten,
    joined,
    read_list,
    scopes_of,
    succeeded,
    unbarred,
    with_member,
    with_new_key,
    without_member,
)
from holdfast.rules.bus.meshes.membership import (
    BusInviteRow,
    admit,
    find_barred,
    member_invite,
    standing_of,
)
from holdfast.rules.bus.scope import JOIN_SCOPE
from holdfast.rules.bus.succession import succeed
from holdfast.rules.errors import BadAnswer, BadInput, MemberBarred, NotAMember, OverLimit
from holdfast.rules.limits import BUS_CAPABILITY_MS, BUS_MEMBERS_MAX, DAY_MS

NOW = 1_700_000_000_000
OWNER, ANA, BOB, EVE, ZOE = (SigningKey(bytes((number,)) * 32) for number in range(1, 6))
LATER = NOW + 2 * BUS_CAPABILITY_MS


def key(of: SigningKey) -> bytes:
    return bytes(of.verify_key)


def listed(name: str, of: SigningKey, *grants: str, at: int = NOW) -> ListedMember:
    return ListedMember(name, key(of), check_grants(grants), at)


def grown(before: MemberList, *members: ListedMember, at: int = NOW + 1) -> MemberList:
    for member in members:
        before = with_member(OWNER, before, member, at)
    return before


BASE = grown(first_list(OWNER, "team", bytes(16), "hub", NOW), listed("ana", ANA))


def names(members: MemberList) -> list[str]:
    return sorted(member.name for member in members.members)


def test_B6_a_list_that_counts_on_forgets_nothing() -> None:
    lists = [BASE]
    lists.append(grown(lists[-1], listed("bob", BOB, at=NOW + 2), at=NOW + 2))
    lists.append(without_member(OWNER, lists[-1], key(ANA), NOW + 3, barred=True))
    lists.append(unbarred(OWNER, lists[-1], key(ANA), NOW + 4))
    member, _ = admit(lists[-1], INVITE, key(ANA), "ana", NOW + 4)
    lists.append(grown(lists[-1], member, at=NOW + 4))
    lists.append(without_member(OWNER, lists[-1], key(BOB), NOW + 5))
    lists.append(with_new_key(OWNER, lists[-1], key(ANA), key(ZOE), NOW + 6))
    for at, newer in enumerate(lists):
        for older in lists[: at + 1]:
            assert not any(forgotten(newer, older, NOW + 10))
            assert joined(OWNER, newer, older, NOW + 10) is newer
            assert joined(OWNER, older, newer, NOW + 10) == newer


INVITE = BusInviteRow(
    digest=b"d" * 32, mesh="team", grants=("read",), uses_left=1, expires_at=NOW + DAY_MS,
    made_at=NOW,
)  # fmt: skip


def test_B6_two_branches_of_a_list_are_joined_and_nobody_is_lost() -> None:
    lost = grown(BASE, listed("bob", BOB, at=NOW + 2), at=NOW + 2)
    lost = without_member(OWNER, lost, key(ANA), NOW + 3, barred=True)
    back = grown(BASE, listed("zoe", ZOE, at=NOW + 4), listed("x", EVE, at=NOW + 4), at=NOW + 4)
    back = without_member(OWNER, back, key(EVE), NOW + 5, barred=True)
    for held, offered in ((back, lost), (lost, back)):
        both = joined(OWNER, held, offered, NOW + 9)
        assert names(both) == ["bob", "hub", "zoe"]
        assert (both.is_barred(key(ANA)), both.is_barred(key(EVE))) == (True, True)
        assert both.serial == max(held.serial, offered.serial) + 1
        assert joined(OWNER, both, offered, NOW + 9) is both, "told again, it changes nothing"
        assert read_list(both.raw, "team", key(OWNER)) == both
    other = msgspec.structs.replace(lost, id=b"x" * 16)
    assert joined(OWNER, back, other, NOW + 9) is back


def test_B6_who_has_got_a_name_meanwhile_keeps_it() -> None:
    lost = grown(BASE, listed("bob", BOB, at=NOW + 2), at=NOW + 2)
    back = grown(BASE, listed("bob", ZOE, at=NOW + 3), listed("x", EVE, at=NOW + 3), at=NOW + 3)
    both = joined(OWNER, back, lost, NOW + 9)
    assert (names(both), both.of_name("bob")) == (names(back), back.of_name("bob"))
    assert joined(OWNER, both, lost, NOW + 9) is both


def test_B6_of_what_is_older_than_the_memory_of_removals_nothing_is_brought_back() -> None:
    old = grown(BASE, listed("bob", BOB, at=NOW + 2), at=NOW + 2)
    gone = without_member(OWNER, old, key(BOB), NOW + 3)
    much_later = grown(gone, listed("zoe", ZOE, at=LATER), at=LATER)
    assert much_later.removed == ()
    assert joined(OWNER, much_later, old, LATER) is much_later


# --- barred --------------------------------------------------------------------------------------


def test_B6_a_key_that_the_owner_removed_is_barred_until_it_says_otherwise() -> None:
    gone = without_member(OWNER, BASE, key(ANA), NOW + 2, barred=True)
    with pytest.raises(MemberBarred):
        admit(gone, INVITE, key(ANA), "ana", NOW + 3)
    long_ago = grown(gone, listed("bob", BOB, at=LATER), at=LATER)
    assert long_ago.is_barred(key(ANA)), "however long ago"
    with pytest.raises(NotAMember):
        find_barred(long_ago, "bob")
    free = unbarred(OWNER, long_ago, find_barred(long_ago, "ana"), LATER + 1)
    member, _ = admit(free, msgspec.structs.replace(INVITE, expires_at=LATER * 2), key(ANA), "ana",
                      LATER + 1)  # fmt: skip
    assert member.added_at > free.removed_at(key(ANA))
    left = without_member(OWNER, BASE, key(ANA), NOW + 2)
    assert not left.is_barred(key(ANA)), "who leaves may come back"
    twice = without_member(OWNER, grown(gone, listed("ana", BOB)), key(BOB), NOW + 5, barred=True)
    with pytest.raises(BadInput, match="2 keys of 'ana'"):
        find_barred(twice, "ana")
    assert find_barred(twice, key(BOB).hex()) == key(BOB)


def test_B6_so_many_keys_can_be_barred_and_those_who_left_are_forgotten_first() -> None:
    def removed(count: int, *, barred: bool) -> MemberList:
        many = tuple(RemovedKey(at.to_bytes(32), NOW, "", barred) for at in range(count))
        return msgspec.structs.replace(BASE, removed=many)

    full = removed(BUS_MEMBERS_MAX, barred=False)
    after = without_member(OWNER, full, key(ANA), NOW + 1, barred=True)
    assert len(after.removed) == BUS_MEMBERS_MAX
    assert after.is_barred(key(ANA))
    with pytest.raises(OverLimit, match="keys that were removed"):
        without_member(OWNER, removed(BUS_MEMBERS_MAX, barred=True), key(ANA), NOW + 1, barred=True)


# --- keys that change ----------------------------------------------------------------------------


def test_B6_a_list_by_a_new_key_of_the_owner_is_believed_by_who_knew_the_old_one() -> None:
    step = succeed(bytes(OWNER), key(ZOE))
    made = succeeded(ZOE, BASE, [step], NOW + 5)
    for known in (OWNER, ZOE):
        assert read_list(made.raw, "team", key(known)) == made
    assert made.of_name("hub") == ListedMember("hub", key(ZOE), BASE.members[0].grants, NOW + 5)
    with pytest.raises(BadAnswer, match="another mesh"):
        read_list(made.raw, "team", key(EVE))
    thief = succeeded(EVE, BASE, [succeed(bytes(OWNER), key(EVE))], NOW + 6)
    with pytest.raises(BadAnswer):
        read_list(thief.raw, "team", key(ZOE))  # who follows the new key is not led away
    forged = msgspec.structs.replace(step, after=key(EVE))
    with pytest.raises(BadAnswer):
        read_list(succeeded(EVE, BASE, [forged], NOW + 6).raw, "team", key(OWNER))


def right(of: SigningKey, name: str, *grants: str, by: SigningKey = OWNER) -> Capability:
    scopes = scopes_of("team", check_grants(grants))
    return issue(by, key(of), scopes, now_ms=NOW, expires_at=NOW + BUS_CAPABILITY_MS, name=name)


def test_B6_what_the_old_key_gave_holds_for_members_that_the_list_names() -> None:
    step = succeed(bytes(OWNER), key(ZOE))
    made = succeeded(ZOE, grown(BASE, listed("bob", BOB)), [step], NOW + 5)
    found = standing_of(made, key(BOB), key(ANA), [right(ANA, "ana")])
    assert found is not None
    assert found.grants == ("read", "write")
    # A thief of the old key lets nobody in with it.
    assert standing_of(made, key(BOB), key(EVE), [right(EVE, "eve")]) is None
    # By its old key the owner is nobody; a member that was away takes the new one for the owner.
    assert standing_of(made, key(BOB), key(OWNER), []) is None
    known_as = standing_of(BASE, key(ANA), key(ZOE), [], before=[key(OWNER)])
    assert known_as is not None
    assert known_as.name == "hub"


def test_B6_an_owner_believes_what_it_signed_and_has_not_taken_back() -> None:
    later = issue(
        OWNER, key(BOB), scopes_of("team", ["read"]), now_ms=NOW + 9, expires_at=NOW + DAY_MS,
        name="bob",
    )  # fmt: skip
    found = standing_of(BASE, key(OWNER), key(BOB), [later])
    assert found is not None
    assert (found.name, found.grants) == ("bob", ("read",))
    passed = narrow(
        BOB, later, key(EVE), scopes_of("team", ["read"]), now_ms=NOW + 9, expires_at=NOW + 99
    )
    assert standing_of(BASE, key(OWNER), key(EVE), [passed]) is None, "it was not given to her"
    gone = without_member(OWNER, grown(BASE, listed("bob", BOB)), key(BOB), NOW + 10)
    assert standing_of(gone, key(OWNER), key(BOB), [later]) is None


# --- invites of members --------------------------------------------------------------------------


def test_B6_an_invite_of_a_member_is_as_good_as_the_member() -> None:
    made = with_member(OWNER, BASE, listed("ana", ANA, "read", "write", "invite"), NOW + 1)
    mine = right(ANA, "ana", "read", "write", "invite")
    scopes = [*scopes_of("team", ["read"]), JOIN_SCOPE]
    asks = narrow(ANA, mine, key(EVE), scopes, now_ms=NOW, expires_at=NOW + DAY_MS)
    found = member_invite(made, [asks])
    assert found is not None
    assert (found.grants, found.uses_left, found.expires_at) == (("read",), 1, NOW + DAY_MS)
    passed = narrow(EVE, asks, key(ZOE), scopes, now_ms=NOW, expires_at=NOW + DAY_MS)
    assert member_invite(made, [passed]) == found, "it stays one invite"
    plain = narrow(
        ANA, mine, key(EVE), scopes_of("team", ["read"]), now_ms=NOW, expires_at=NOW + DAY_MS
    )
    assert member_invite(made, [plain]) is None, "a right to read is no invite"
    assert member_invite(made, [mine]) is None
    assert member_invite(BASE, [asks]) is None, "she may not invite"
    gone = without_member(OWNER, made, key(ANA), NOW + 2)
    assert member_invite(gone, [asks]) is None
