"""A mesh with no broker between real nodes over TLS: joining, recognising each other, removal."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import msgspec
import pytest
from nacl.signing import SigningKey

from holdfast.node.bus.member_peers import HeldMesh
from holdfast.protocol import bus_members as wire
from holdfast.protocol.bus_members import JOIN, NEWS, NewsAsked
from holdfast.rules.bus.capability import issue, narrow, read_capability
from holdfast.rules.bus.meshes.member_list import scopes_of, trusted_list
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    CapabilityRefused,
    InviteEnded,
    MessageRefused,
    NotAMember,
    NotTrusted,
    RequestRefused,
    StoreFailed,
)
from holdfast.rules.invites import PeerInvite
from holdfast.rules.keys import text_of
from holdfast.rules.limits import BUS_CAPABILITY_MS, DAY_MS
from support.bus_nodes import BusNode, bus_nodes, told


async def _fails() -> None:
    raise StoreFailed("the disk failed")


def test_B6_a_newcomer_joins_by_an_invite_with_no_broker_at_all(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob = nodes
        joined = await bob.join(ana.invite())
        assert (joined.mesh, joined.owner, joined.grants) == ("team", "ana", ("read", "write"))
        assert ana.names() == bob.names() == ["ana", "bob"]
        assert [row.slug for row in bob.node.meshes()] == ["own", "team"]
        assert ana.sharing.invites("team") == [], "it was good for one"
        # The guest's link is gone; as members they are linked anew and may do more.
        await bob.until(lambda: bob.is_linked(ana) and ana.is_linked(bob))
        async with ana.bus.subscribe() as messages:
            assert (await bob.bus.send("ana", "here I am")).state == "delivered"
            message = await anext(messages)
            assert (message.sender, message.text) == ("bob", "here I am")
        standing = bob.peers.standing(ana.key, "team")
        assert standing is not None
        assert "invite" in standing.grants

    told(tmp_path, story, "ana", "bob")


def test_B6_two_members_recognise_each_other_while_the_owner_is_away(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob, zoe = nodes
        await bob.join(ana.invite())
        await bob.bus.close()  # it does not hear that zoe joins
        await zoe.join(ana.invite(grants=("read", "relay")))
        await ana.bus.close()
        await bob.bind()
        assert (bob.names(), zoe.names()) == (["ana", "bob"], ["ana", "bob", "zoe"])
        await zoe.dial(bob)
        seen_by_bob = bob.peers.standing(zoe.key, "team")
        seen_by_zoe = zoe.peers.standing(bob.key, "team")
        assert seen_by_bob is not None
        assert seen_by_zoe is not None
        assert (seen_by_bob.name, seen_by_bob.grants) == ("zoe", ("read", "relay"))
        assert (seen_by_zoe.name, seen_by_zoe.grants) == ("bob", ("read", "write"))
        # And bob gets the newer list from her, which the owner has signed.
        await bob.until(lambda: bob.names() == ["ana", "bob", "zoe"])

    told(tmp_path, story, "ana", "bob", "zoe")


def test_B6_members_find_each_other_where_the_operator_says(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob, zoe = nodes
        invite = ana.invite(uses=2)
        await bob.join(invite)
        zoe.peers.static = {"bob": (bob.bus.addresses[0],)}
        await zoe.join(invite)
        await zoe.until(lambda: zoe.is_linked(bob) and bob.is_linked(zoe))

    told(tmp_path, story, "ana", "bob", "zoe")


def test_B6_a_member_that_was_removed_loses_its_links_and_is_refused_by_all(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob, zoe = nodes
        invite = ana.invite(uses=2)
        await bob.join(invite)
        await zoe.join(invite)
        await zoe.dial(bob)
        await bob.until(lambda: bob.is_linked(ana) and zoe.is_linked(ana))
        ana.sharing.remove_member("team", "zoe")
        await ana.members.refresh()
        await bob.until(lambda: bob.names() == ["ana", "bob"])
        await zoe.until(lambda: not zoe.is_linked(ana) and not zoe.is_linked(bob))
        assert bob.peers.standing(zoe.key, "team") is None
        with pytest.raises(NotTrusted):
            bob.peers.admit(zoe.key, "zoe", zoe.peers.shown_to(bob.key))

    told(tmp_path, story, "ana", "bob", "zoe")


def test_B6_a_second_home_under_a_members_name_is_refused_aloud(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob = nodes
        await bob.join(ana.invite())
        async with bus_nodes(tmp_path / "again", "hub", "bob") as others:
            invite = ana.invite()
            with pytest.raises(AlreadyExists, match="a member 'bob' with another key"):
                await others[1].join(invite)
            assert len(ana.sharing.invites("team")) == 1, "it was not used up"
        assert ana.names() == ["ana", "bob"]

    told(tmp_path, story, "ana", "bob")


def test_B6_an_invite_lets_in_as_many_as_it_says_and_the_same_one_again(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob, zoe = nodes
        invite = ana.invite()
        assert not (await bob.join(invite)).resumed
        assert (await bob.join(invite)).resumed, "who lost the answer asks again"
        with pytest.raises(InviteEnded, match="was used up"):
            await zoe.join(invite)
        other = ana.invite()
        ana.sharing.drop_invite("team", ana.sharing.invites("team")[0].digest.hex())
        with pytest.raises(InviteEnded, match="was taken back"):
            await zoe.join(other)
        assert ana.names() == ["ana", "bob"]
        with pytest.raises(BadInput, match="this very node"):
            await ana.join(ana.invite())

    told(tmp_path, story, "ana", "bob", "zoe")


def test_B6_a_guest_may_ask_to_join_and_nothing_else(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, eve = nodes
        invite = ana.invite()
        eve.members.begin_join(invite)
        await eve.bus.refresh_peers()
        await eve.until(lambda: eve.is_linked(ana))
        async with ana.bus.subscribe() as messages, eve.bus.subscribe():
            asked = wire.encode(NewsAsked("team", 0, False))
            with pytest.raises(MessageRefused, match="capability_refused"):
                await eve.bus.request(text_of(ana.key), NEWS, asked)
            sending = asyncio.create_task(eve.bus.send(text_of(ana.key), "let me in"))
            await ana.until(lambda: ana.bus.status().counts["refused_capability_refused"] > 1)
            await eve.until(lambda: bool(eve.bus.router.topics.services_of("ana")))
            (guest,) = ana.bus.router.intakes
            await ana.until(lambda: ana.bus.router.topics.interest_of(guest) is not None)
            assert (await ana.bus.publish("builds", "secret")).peers == 0
            assert eve.bus.router.topics.services_of("ana") == [JOIN]
            sending.cancel()
            coming = asyncio.ensure_future(anext(messages))
            await eve.bus.ping(text_of(ana.key))
            assert not coming.done()
            coming.cancel()
        assert ana.names() == ["ana"]
        assert ana.peers.standing(eve.key, "team") is None

    told(tmp_path, story, "ana", "eve")


def test_B6_a_stranger_and_a_stolen_ticket_are_refused(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob, eve = nodes
        invite = ana.invite()
        bob.members.begin_join(invite)
        (ticket,) = bob.peers.shown_to(ana.key)
        with pytest.raises(InviteEnded):
            ana.peers.admit(eve.key, "bob", [ticket])
        with pytest.raises(NotTrusted):
            ana.peers.admit(eve.key, "eve", [])
        assert ana.peers.admit(bob.key, "bob", [ticket]).scopes == (f"service:{JOIN}",)
        wrong = PeerInvite(invite.card, "team", bytes(32), invite.addresses)
        with pytest.raises(InviteEnded):
            await eve.join(wrong)
        assert not ana.is_linked(eve)

    told(tmp_path, story, "ana", "bob", "eve")


def test_B6_a_member_shows_an_expired_or_widened_capability_in_vain(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob, zoe = nodes
        await bob.join(ana.invite())
        now, owner = ana.engine.ctx.now_ms(), SigningKey(ana.trust.seed())
        old = issue(
            owner, zoe.key, scopes_of("team", ["read"]), now_ms=now - 40 * DAY_MS,
            expires_at=now - 10 * DAY_MS, name="zoe",
        )  # fmt: skip
        with pytest.raises(CapabilityRefused, match="expired 10 days ago"):
            bob.peers.admit(zoe.key, "zoe", [old.raw])
        good = issue(
            owner, zoe.key, scopes_of("team", ["read"]), now_ms=now, expires_at=now + DAY_MS,
            name="zoe",
        )  # fmt: skip
        forged = msgspec.structs.replace(
            good.steps[0], scopes=("mesh:team:read", "mesh:team:write")
        )
        with pytest.raises(CapabilityRefused, match="not signed by its issuer"):
            bob.peers.admit(zoe.key, "zoe", [msgspec.structs.replace(good, steps=(forged,)).raw])
        assert bob.peers.admit(zoe.key, "someone else", [good.raw]).name == "zoe"
        worker = SigningKey(b"w" * 32)
        passed = narrow(
            SigningKey(zoe.trust.seed()), good, bytes(worker.verify_key),
            scopes_of("team", ["read"]), now_ms=now, expires_at=now + DAY_MS,
        )  # fmt: skip
        admitted = bob.peers.admit(bytes(worker.verify_key), "zoe", [passed.raw])
        assert admitted.name == text_of(bytes(worker.verify_key)), "it has no name of its own"

    told(tmp_path, story, "ana", "bob", "zoe")


def test_B6_a_capability_is_renewed_on_contact_with_the_owner(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob = nodes
        await bob.join(ana.invite())
        await bob.until(lambda: bob.is_linked(ana))
        now = ana.engine.ctx.now_ms()
        short = issue(
            SigningKey(ana.trust.seed()), bob.key, scopes_of("team", ["read"]),
            now_ms=now - 20 * DAY_MS, expires_at=now + 10 * DAY_MS, name="bob",
        )  # fmt: skip
        held = bob.peers.held_mesh("team")
        assert held is not None
        row = msgspec.structs.replace(held.row, capability=short.raw)
        bob.engine.write("test", lambda tx: tx.bus_mesh_put(row))
        await bob.bus.close()
        await bob.bind()

        def end() -> int:
            held = bob.peers.held_mesh("team")
            assert held is not None
            return read_capability(held.row.capability).expires_at

        await bob.until(lambda: end() >= now + BUS_CAPABILITY_MS)

    told(tmp_path, story, "ana", "bob")


def test_B6_a_right_that_is_due_is_renewed_over_the_link_that_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.node.bus.members.BUS_RIGHTS_MS", 10)

    async def story(nodes: list[BusNode]) -> None:
        ana, bob = nodes
        await bob.join(ana.invite())
        await bob.until(lambda: bob.is_linked(ana))
        link = bob.bus.links.link_to([ana.key])
        looks: list[int] = []

        def fails() -> list[HeldMesh]:
            looks.append(1)
            raise StoreFailed("the disk failed")

        # A look that fails is not the last one. (The first may be at what is new on the link.)
        with monkeypatch.context() as broken:
            broken.setattr(bob.peers, "held", fails)
            await bob.until(lambda: len(looks) > 2)
        now = ana.engine.ctx.now_ms()
        ahead = issue(
            SigningKey(ana.trust.seed()), bob.key, scopes_of("team", ["read", "write"]),
            now_ms=now + DAY_MS, expires_at=now + BUS_CAPABILITY_MS, name="bob",
        )  # fmt: skip
        held = bob.peers.held_mesh("team")
        assert held is not None
        row = msgspec.structs.replace(held.row, capability=ahead.raw)
        bob.engine.write("test", lambda tx: tx.bus_mesh_put(row))

        def begins_at() -> int:
            held = bob.peers.held_mesh("team")
            assert held is not None
            return read_capability(held.row.capability).steps[0].issued_at

        await bob.until(lambda: begins_at() < now + DAY_MS)
        assert bob.bus.links.link_to([ana.key]) is link

    told(tmp_path, story, "ana", "bob")


def test_B6_a_member_leaves_and_the_owner_lets_it_go(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob = nodes
        await bob.join(ana.invite())
        await bob.until(lambda: bob.is_linked(ana))
        await bob.members.leave("team")
        # The answer may be lost with the link: then it is asked for again, and gets nothing else.
        await bob.until(lambda: not bob.is_linked(ana))
        await bob.members.leave("team")
        with pytest.raises(MessageRefused, match=r"it has service:holdfast\.mesh\.leave"):
            await bob.bus.request("ana", NEWS, wire.encode(NewsAsked("team", 0, False)))
        bob.sharing.forget("team")
        assert ana.names() == ["ana"]
        assert not bob.sharing.is_shared("team")
        assert "team" in [row.slug for row in bob.node.meshes()], "it keeps what it has"

    told(tmp_path, story, "ana", "bob")


def test_B6_a_home_with_another_mesh_of_the_name_joins_nothing(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob = nodes
        bob.node.create_mesh("team")
        with pytest.raises(AlreadyExists, match="another mesh 'team'"):
            await bob.join(ana.invite())
        assert ana.names() == ["ana"], "nobody was asked"

    told(tmp_path, story, "ana", "bob")


def test_B6_a_list_that_the_owner_did_not_sign_changes_nothing(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob, zoe = nodes
        invite = ana.invite(uses=2)
        await bob.join(invite)
        await zoe.join(invite)
        await zoe.dial(bob)
        await bob.until(lambda: bob.names() == ["ana", "bob", "zoe"])
        held = zoe.peers.held_mesh("team")
        assert held is not None
        forged = msgspec.structs.replace(
            trusted_list(held.row.members), serial=99, members=held.members.members[1:]
        )
        told_ = wire.ListTold("team", forged.raw)
        with pytest.raises(RequestRefused, match="not signed by the owner"):
            await zoe.bus.request("bob", wire.TOLD, wire.encode(told_))
        assert bob.names() == ["ana", "bob", "zoe"]

    told(tmp_path, story, "ana", "bob", "zoe")


def test_B6_members_that_know_only_the_owner_find_each_other_while_it_is_away(
    tmp_path: Path,
) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob, zoe = nodes
        invite = ana.invite(uses=2)
        await bob.join(invite)
        await bob.until(lambda: bob.is_linked(ana))
        await zoe.join(invite)
        # Nobody has told them of each other's addresses, and they look for nobody on the LAN.
        await bob.until(lambda: bob.is_linked(zoe) and zoe.is_linked(bob))
        await ana.bus.close()
        await zoe.bus.close()
        await zoe.bind()  # at another port, of which bob knows nothing
        await zoe.until(lambda: zoe.is_linked(bob) and bob.is_linked(zoe))

    told(tmp_path, story, "ana", "bob", "zoe")


def test_B6_places_are_told_to_members_alone_and_of_members_alone(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob, zoe = nodes
        invite = ana.invite(uses=2)
        await bob.join(invite)
        await zoe.join(invite)
        await bob.until(lambda: bob.is_linked(zoe))
        stranger = b"s" * 32
        places = [wire.MemberPlaces(stranger, ["127.0.0.1:9"])]
        await bob.members._hear_places("team", places, ana.key)
        assert bob.engine.read("test", lambda tx: tx.bus_address_get(stranger)) is None
        ana.sharing.remove_member("team", "zoe")
        await ana.members.refresh()
        await bob.until(lambda: bob.names() == ["ana", "bob"])
        held = bob.peers.held_mesh("team")
        assert held is not None
        assert zoe.key not in [one.key for one in bob.members._places(held.members, ana.key)]
        with pytest.raises(NotAMember):
            bob.members._of_member("team", zoe.key)

    told(tmp_path, story, "ana", "bob", "zoe")


def test_B6_what_fails_between_members_is_logged_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(nodes: list[BusNode]) -> None:
        unseen: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: unseen.append(context["message"])
        )
        (ana,) = nodes
        standing = set(ana.members._tasks)
        ana.members._spawn(_fails())
        await ana.until(lambda: set(ana.members._tasks) == standing)
        gc.collect()
        assert not unseen

    told(tmp_path, story, "ana")
    assert "members of meshes: the disk failed" in caplog.text


def test_B6_a_right_that_cannot_be_renewed_holds_up_no_other_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob = nodes
        await bob.join(ana.invite())
        await bob.bus.close()
        ana.sharing.grant("team", "bob", ["read", "write", "relay"])
        # As by a clock that is far off: the old one ends soon, and the new one is not good.
        monkeypatch.setattr("holdfast.node.bus.members.is_renewal_due", lambda *given: True)
        asked: list[bytes] = []

        async def renewed(mesh: str, member: bytes) -> bytes:
            asked.append(member)
            return b"\xc1"

        monkeypatch.setattr(ana.members._owner, "renewed", renewed)
        await bob.bind()
        await bob.dial(ana)
        await bob.until(lambda: "relay" in bob.sharing.members("team")[1].grants)
        assert set(asked) == {bob.key}

    told(tmp_path, story, "ana", "bob")
