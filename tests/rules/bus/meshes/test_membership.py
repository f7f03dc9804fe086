"""Meshes without a broker: the owner's signed list, who is let in, and who may do what."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from holdfast.rules.bus.capability import Capability, issue, narrow
from holdfast.rules.bus.meshes.member_list import (
    ListedMember,
    MemberList,
    check_grants,
    first_list,
    is_newer,
    read_list,
    scopes_of,
    with_member,
    without_member,
)
from holdfast.rules.bus.meshes.membership import (
    BusInviteRow,
    admit,
    find_member,
    invite_of_ticket,
    is_renewal_due,
    standing_of,
    ticket,
)
from holdfast.rules.bus.scope import MESH_RIGHTS
from holdfast.rules.errors import (
    AlreadyExists,
    BadAnswer,
    BadInput,
    InviteEnded,
    NotAMember,
    NotTrusted,
    OverLimit,
)
from holdfast.rules.limits import (
    BUS_CAPABILITY_MS,
    BUS_CLOCK_SKEW_MS,
    BUS_MEMBER_LIST_BYTES_MAX,
    BUS_MEMBERS_MAX,
    DAY_MS,
)

NOW = 1_700_000_000_000
ID = bytes(range(16))
OWNER, ANA, BOB, EVE, ZOE = (SigningKey(bytes((number,)) * 32) for number in range(5))
DIGEST = b"d" * 32
INVITE = BusInviteRow(
    digest=DIGEST, mesh="team", grants=("read", "write"), uses_left=1, expires_at=NOW + DAY_MS,
    made_at=NOW,
)  # fmt: skip


def key(of: SigningKey) -> bytes:
    return bytes(of.verify_key)


def listed(name: str, of: SigningKey, *grants: str) -> ListedMember:
    return ListedMember(name, key(of), check_grants(grants), NOW)


def team(*members: ListedMember) -> MemberList:
    made = first_list(OWNER, "team", ID, "hub", NOW)
    for member in members:
        made = with_member(OWNER, made, member, NOW + 1)
    return made


def right(of: SigningKey, name: str, *grants: str, at: int = NOW) -> Capability:
    scopes = scopes_of("team", check_grants(grants))
    return issue(OWNER, key(of), scopes, now_ms=at, expires_at=at + BUS_CAPABILITY_MS, name=name)


# --- the list ------------------------------------------------------------------------------------


def test_B6_a_list_is_read_as_its_owner_signed_it() -> None:
    made = team(listed("ana", ANA), listed("bob", BOB, "read"))
    read = read_list(made.raw, "team", key(OWNER))
    assert read == made
    assert [(member.name, member.grants) for member in read.members] == [
        *(("hub", MESH_RIGHTS), ("ana", ("read", "write")), ("bob", ("read",))),
    ]
    assert read.serial == 3
    assert read.of_key(key(BOB)) == read.of_name("bob") == find_member(read, key(BOB).hex())
    with pytest.raises(NotAMember):
        find_member(read, "eve")


def _taken(call: Callable[[], object]) -> bool:
    try:
        call()
    except BadAnswer:
        return False
    return True


def test_B6_every_flipped_bit_of_a_list_is_refused() -> None:
    good = team(listed("ana", ANA)).raw
    taken = []
    for at in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            if _taken(partial(read_list, bytes(bad), "team", key(OWNER))):
                taken.append((at, bit))
    assert not taken


def test_B6_a_list_of_another_mesh_or_signed_by_another_key_is_refused() -> None:
    made = team()
    with pytest.raises(BadAnswer, match="another mesh"):
        read_list(made.raw, "other", key(OWNER))
    with pytest.raises(BadAnswer, match="another mesh"):
        read_list(made.raw, "team", key(EVE))
    posed = msgspec.structs.replace(first_list(EVE, "team", ID, "hub", NOW), owner=key(OWNER))
    with pytest.raises(BadAnswer, match="not signed by the owner"):
        read_list(posed.raw, "team", key(OWNER))
    with pytest.raises(BadAnswer, match="bytes; most is"):
        read_list(bytes(BUS_MEMBER_LIST_BYTES_MAX + 1), "team", key(OWNER))
    with pytest.raises(BadAnswer, match="cannot be read"):
        read_list(b"\x91" * 10_000, "team", key(OWNER))


@pytest.mark.parametrize(
    "members",
    [
        [listed("ana", ANA), listed("ana", BOB)],
        [listed("ana", ANA), listed("bob", ANA)],
        [ListedMember("ana", key(ANA), ("write", "read"), NOW)],
        [ListedMember("ana", key(ANA), ("own",), NOW)],
        [ListedMember("ana", bytes(32), ("read",), NOW)],
        [ListedMember("a\nb", key(ANA), ("read",), NOW)],
    ],
)
def test_B6_a_list_that_makes_no_sense_is_refused_even_if_it_is_signed(
    members: list[ListedMember],
) -> None:
    from holdfast.rules.bus.meshes import member_list

    made = msgspec.structs.replace(team(), members=tuple(members))
    signed = member_list._signed(OWNER, made)
    with pytest.raises(BadAnswer):
        read_list(signed.raw, "team", key(OWNER))


def test_B6_only_a_later_list_of_the_same_mesh_takes_the_place_of_another() -> None:
    first = team()
    second = with_member(OWNER, first, listed("ana", ANA), NOW)
    assert is_newer(second, first)
    assert not is_newer(first, second)
    assert not is_newer(first, first)
    assert not is_newer(msgspec.structs.replace(second, id=b"x" * 16), first)


def test_B6_a_mesh_has_so_many_members_and_no_more() -> None:
    many = tuple(
        ListedMember(f"m{at}", bytes(SigningKey(at.to_bytes(32)).verify_key), ("read",), NOW)
        for at in range(BUS_MEMBERS_MAX - 1)
    )
    full = with_member(
        OWNER, msgspec.structs.replace(team(), members=many), listed("ana", ANA), NOW
    )
    assert len(read_list(full.raw, "team", key(OWNER)).members) == BUS_MEMBERS_MAX
    with pytest.raises(OverLimit):
        with_member(OWNER, full, listed("bob", BOB), NOW)
    changed = with_member(OWNER, full, listed("ana", ANA, "read"), NOW)
    assert len(changed.members) == BUS_MEMBERS_MAX


def test_B6_removed_keys_are_remembered_while_what_they_were_given_could_be_good() -> None:
    made = team(listed("ana", ANA), listed("bob", BOB))
    gone = without_member(OWNER, made, key(ANA), NOW + 5)
    assert (gone.of_key(key(ANA)), [one.key for one in gone.removed]) == (None, [key(ANA)])
    old = right(ANA, "ana")
    assert gone.has_removed(old)
    assert not gone.has_removed(right(ANA, "ana", at=NOW + 6)), "she came back later"
    passed = narrow(
        ANA, old, key(ZOE), scopes_of("team", ["read"]), now_ms=NOW + 9, expires_at=NOW + DAY_MS
    )
    assert gone.has_removed(passed), "what she passed on ends with her"
    later = NOW + 5 + BUS_CAPABILITY_MS + 2 * BUS_CLOCK_SKEW_MS
    assert without_member(OWNER, gone, key(BOB), later - 1).removed[0].key == key(ANA)
    assert [one.key for one in without_member(OWNER, gone, key(BOB), later).removed] == [key(BOB)]


# --- joining -------------------------------------------------------------------------------------


def test_B6_a_newcomer_is_let_in_by_an_open_invite_and_asks_again_for_free() -> None:
    made = team()
    member, used = admit(made, INVITE, key(ANA), "ana", NOW)
    assert (member.name, member.key, member.grants, used) == ("ana", key(ANA), INVITE.grants, True)
    after = with_member(OWNER, made, member, NOW)
    spent = msgspec.structs.replace(INVITE, uses_left=0)
    assert admit(after, spent, key(ANA), "ana", NOW + 2 * DAY_MS) == (member, False)


@pytest.mark.parametrize(
    "invite",
    [
        None,
        msgspec.structs.replace(INVITE, uses_left=0),
        msgspec.structs.replace(INVITE, expires_at=NOW),
        msgspec.structs.replace(INVITE, mesh="other"),
    ],
)
def test_B6_an_invite_that_ended_lets_nobody_in(invite: BusInviteRow | None) -> None:
    with pytest.raises(InviteEnded):
        admit(team(), invite, key(ANA), "ana", NOW)


def test_B6_two_homes_cannot_join_under_one_name() -> None:
    made = team(listed("ana", ANA))
    with pytest.raises(AlreadyExists, match="a member 'ana' with another key"):
        admit(made, INVITE, key(BOB), "ana", NOW)
    with pytest.raises(AlreadyExists, match="a member 'hub' with another key"):
        admit(made, INVITE, key(BOB), "hub", NOW)
    with pytest.raises(AlreadyExists, match="is the member 'ana'"):
        admit(made, INVITE, key(ANA), "ana-2", NOW)


@given(st.binary(min_size=1, max_size=120))
def test_B6_a_ticket_shows_that_a_newcomer_knows_an_invite_and_is_good_for_it_alone(
    rubbish: bytes,
) -> None:
    good = ticket(DIGEST, key(OWNER), key(ANA))
    assert DIGEST not in good
    find = partial(invite_of_ticket, invites=[INVITE], owner=key(OWNER))
    assert find([rubbish, good], newcomer=key(ANA)) == INVITE
    assert find([good], newcomer=key(EVE)) is None
    assert find([rubbish, good[:-1], good + b"x"], newcomer=key(ANA)) is None
    assert find([ticket(b"x" * 32, key(OWNER), key(ANA))], newcomer=key(ANA)) is None
    assert invite_of_ticket([good], [INVITE], key(EVE), key(ANA)) is None


# --- what a peer may do --------------------------------------------------------------------------


def test_B6_the_owner_may_do_everything_and_its_list_is_the_truth_for_itself() -> None:
    made = team(listed("ana", ANA, "read"))
    of_owner = standing_of(made, key(ANA), key(OWNER), [])
    assert of_owner is not None
    assert (of_owner.name, of_owner.grants) == ("hub", MESH_RIGHTS)
    seen_by_owner = standing_of(made, key(OWNER), key(ANA), [])
    assert seen_by_owner is not None
    assert (seen_by_owner.name, seen_by_owner.grants) == ("ana", ("read",))
    assert standing_of(made, key(OWNER), key(BOB), []) is None


def test_B6_two_members_recognise_each_other_by_what_the_owner_signed() -> None:
    made = team(listed("ana", ANA), listed("bob", BOB))
    found = standing_of(made, key(BOB), key(ANA), [right(ANA, "ana")])
    assert found == ("ana", ("read", "write"), NOW + BUS_CAPABILITY_MS)
    assert standing_of(made, key(BOB), key(ANA), []) is None, "the list alone is no proof for ever"
    forged = issue(
        EVE, key(ANA), scopes_of("team", ["read"]), now_ms=NOW, expires_at=NOW + DAY_MS, name="ana"
    )
    assert standing_of(made, key(BOB), key(ANA), [forged]) is None
    other = issue(
        OWNER, key(ANA), scopes_of("other", ["read"]), now_ms=NOW, expires_at=NOW + 1, name="ana"
    )
    assert standing_of(made, key(BOB), key(ANA), [other]) is None


def test_B6_a_member_that_joined_after_our_list_was_made_is_known_by_its_capability() -> None:
    made = team(listed("bob", BOB))
    found = standing_of(made, key(BOB), key(ANA), [right(ANA, "ana", "read", "relay")])
    assert found is not None
    assert (found.name, found.grants) == ("ana", ("read", "relay"))


def test_B6_what_the_owner_took_back_is_gone_for_those_who_have_heard_of_it() -> None:
    wide = right(ANA, "ana", "read", "write", "relay")
    narrowed = team(listed("ana", ANA, "read"), listed("bob", BOB))
    found = standing_of(narrowed, key(BOB), key(ANA), [wide])
    assert found is not None
    assert found.grants == ("read",)
    gone = without_member(OWNER, narrowed, key(ANA), NOW + 1)
    assert standing_of(gone, key(BOB), key(ANA), [wide]) is None


def test_B6_a_second_home_under_a_members_name_is_refused_aloud() -> None:
    made = team(listed("ana", ANA), listed("bob", BOB))
    with pytest.raises(NotTrusted, match="two homes are called 'ana'"):
        standing_of(made, key(BOB), key(ZOE), [right(ZOE, "ana")])


def test_B6_a_right_that_was_passed_on_has_no_name_and_writes_nothing() -> None:
    made = team(listed("ana", ANA), listed("bob", BOB))
    passed = narrow(
        ANA, right(ANA, "ana"), key(ZOE), scopes_of("team", ["read", "write"]), now_ms=NOW,
        expires_at=NOW + DAY_MS,
    )  # fmt: skip
    assert standing_of(made, key(BOB), key(ZOE), [passed]) == ("", ("read",), NOW + DAY_MS)


def test_B6_the_best_of_several_capabilities_counts() -> None:
    made = team(listed("bob", BOB))
    shown = [right(ANA, "ana", "read"), right(ANA, "ana", "read", "write", at=NOW - DAY_MS)]
    found = standing_of(made, key(BOB), key(ANA), shown)
    assert found is not None
    assert found.grants == ("read", "write")


def test_B6_a_capability_is_renewed_in_its_second_half() -> None:
    given_, half = right(ANA, "ana"), NOW + BUS_CAPABILITY_MS // 2
    due = partial(is_renewal_due, given_, owner=key(OWNER), listed=listed("ana", ANA))
    assert not due(now_ms=NOW)
    assert not due(now_ms=half)
    assert due(now_ms=half + 1)
    assert not due(now_ms=NOW - BUS_CLOCK_SKEW_MS)
    assert due(now_ms=NOW - BUS_CLOCK_SKEW_MS - 1), "the owner's clock was ahead"
    assert due(now_ms=NOW, owner=key(ZOE)), "the owner has another key now"
    assert due(now_ms=NOW, listed=listed("ana", ANA, "read", "invite")), "she was given more"
    assert due(now_ms=NOW, listed=None), "the list has another key of hers"


def test_B6_grants_are_those_of_a_mesh_without_a_broker() -> None:
    assert check_grants([]) == ("read", "write")
    assert check_grants(["relay", "read"]) == ("read", "relay")
    with pytest.raises(BadInput, match="'audit' is no grant"):
        check_grants(["audit"])


def test_B6_a_barred_key_has_no_right_by_a_clock_that_was_ahead() -> None:
    ahead = right(ANA, "ana", "read", at=NOW + DAY_MS)  # then the owner's clock was set right
    members = without_member(OWNER, team(listed("ana", ANA)), key(ANA), NOW + 5, barred=True)
    passed = narrow(
        ANA, ahead, key(BOB), ahead.scopes, now_ms=NOW + DAY_MS, expires_at=ahead.expires_at
    )
    for ours in (key(ZOE), key(OWNER)):
        assert standing_of(members, ours, key(ANA), [ahead]) is None
        assert standing_of(members, ours, key(BOB), [passed]) is None
