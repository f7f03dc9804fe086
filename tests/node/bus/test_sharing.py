"""Meshes without a broker in the owner's home: share, invite, members, grants, removal."""

from __future__ import annotations

from pathlib import Path

import pytest
from nacl.signing import SigningKey

import holdfast
from holdfast.node.bus.sharing import BusSharing
from holdfast.node.trust.own_key import OwnKey
from holdfast.rules.bus.meshes.member_list import read_list
from holdfast.rules.errors import (
    BadInput,
    Conflict,
    NotAMember,
    NotFound,
    NotOurs,
    NotShared,
    OverLimit,
)
from holdfast.rules.invites import PeerInvite, digest, parse_any_invite, parse_invite
from holdfast.rules.keys import parse_card, public_key
from holdfast.rules.limits import BUS_INVITES_MAX, HOUR_MS, INVITE_HOURS, INVITE_USES_MAX
from holdfast.storage.files.home import HomePaths
from support.daemon import make_home
from support.example_world import newcomer


@pytest.fixture
def sharing(tmp_path: Path) -> BusSharing:
    home = make_home(tmp_path / "ana")
    node = holdfast.open(home)
    return BusSharing(node._engine, OwnKey(node._engine, HomePaths(home)))


def test_B6_sharing_a_mesh_makes_its_node_the_owner_and_does_nothing_twice(
    sharing: BusSharing,
) -> None:
    first = sharing.share("team")
    assert (first.owner, first.ours, first.members, first.serial) == ("ana", True, 1, 1)
    assert sharing.share("team") == first
    assert sharing.shared() == [first]
    assert sharing.is_shared("team")
    (owner,) = sharing.members("team")
    assert (owner.name, owner.grants) == ("ana", ("read", "write", "relay", "invite", "vote"))
    row = sharing._engine.store.write(lambda tx: tx.bus_mesh_get("team"))
    assert row is not None
    assert read_list(row.members, "team", row.owner).members == (owner,)
    with pytest.raises(NotFound):
        sharing.share("nowhere")


def test_B6_an_invite_is_a_text_and_the_home_keeps_only_its_digest(sharing: BusSharing) -> None:
    sharing.share("team")
    made = sharing.invite("team", uses=2, grants=["read"], addresses=["10.0.0.5:7412"])
    invite = parse_any_invite(made.text)
    assert isinstance(invite, PeerInvite)
    assert parse_card(invite.card) == ("ana", public_key(sharing._own_key.seed()))
    assert (invite.mesh, invite.addresses) == ("team", ("10.0.0.5:7412",))
    assert invite.expires_at == made.expires_at
    (kept,) = sharing.invites("team")
    assert (kept.digest, kept.grants, kept.uses_left) == (digest(invite.secret), ("read",), 2)
    assert kept.expires_at == kept.made_at + INVITE_HOURS * HOUR_MS
    with pytest.raises(BadInput, match="without a broker"):
        parse_invite(made.text)
    assert sharing.drop_invite("team", made.id)
    assert not sharing.drop_invite("team", made.id)
    assert sharing.invites("team") == []


def test_B6_an_invite_that_cannot_be_is_not_made(sharing: BusSharing) -> None:
    with pytest.raises(NotShared):
        sharing.invite("team")
    sharing.share("team")
    for uses, hours in ((0, 1), (INVITE_USES_MAX + 1, 1), (1, 0)):
        with pytest.raises(OverLimit):
            sharing.invite("team", uses=uses, hours=hours)
    with pytest.raises(BadInput):
        sharing.invite("team", grants=["audit"])
    with pytest.raises(BadInput):
        sharing.invite("team", addresses=["nowhere"])
    with pytest.raises(BadInput):
        sharing.drop_invite("team", "xyz")
    for _ in range(BUS_INVITES_MAX):
        sharing.invite("team")
    with pytest.raises(OverLimit, match="256 open invites"):
        sharing.invite("team")


def test_B6_the_owner_changes_grants_and_removes_members(sharing: BusSharing) -> None:
    sharing.share("team")
    bob = newcomer(sharing, "bob", b"b" * 32)
    assert sharing.grant("team", "bob", ["read", "relay"]).grants == ("read", "relay")
    assert sharing.members("team")[1].grants == ("read", "relay")
    with pytest.raises(Conflict, match="may do everything"):
        sharing.grant("team", "ana", ["read"])
    with pytest.raises(Conflict, match="cannot be removed"):
        sharing.remove_member("team", "ana")
    with pytest.raises(NotAMember, match="'zoe'"):
        sharing.remove_member("team", "zoe")
    assert sharing.remove_member("team", bob.key.hex()).name == "bob"
    assert [member.name for member in sharing.members("team")] == ["ana"]
    assert sharing.shared()[0].serial == 4


def test_B6_only_the_owner_changes_who_belongs(sharing: BusSharing, tmp_path: Path) -> None:
    shared = sharing.share("team")
    assert shared.ours
    other = SigningKey(b"z" * 32)

    class AnotherKey(OwnKey):
        def seed(self) -> bytes:
            return bytes(other)

    guest = BusSharing(sharing._engine, AnotherKey(sharing._engine, HomePaths(tmp_path / "ana")))
    for call in (
        lambda: guest.invite("team"),
        lambda: guest.remove_member("team", "ana"),
        lambda: guest.grant("team", "ana", ["read"]),
        lambda: guest.invites("team"),
    ):
        with pytest.raises(NotOurs, match="belongs to ana"):
            call()
    assert not guest.shared()[0].ours


def test_B6_an_owner_that_ends_the_sharing_says_so_twice(sharing: BusSharing) -> None:
    sharing.share("team")
    sharing.invite("team")
    with pytest.raises(Conflict, match="is yours"):
        sharing.forget("team")
    sharing.forget("team", remove=True)
    assert not sharing.is_shared("team")
    with pytest.raises(NotShared):
        sharing.members("team")
