"""Keys that change in a mesh with no broker: the owner's, and a member's. Others follow."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from holdfast.rules.bus.capability import Capability, read_capability
from holdfast.rules.bus.succession import shown_chain, succeed
from holdfast.rules.errors import NotTrusted
from holdfast.rules.keys import public_key
from support.bus_nodes import BusNode, told


def test_B6_members_follow_an_owner_to_its_new_key(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob, zoe = nodes
        await bob.join(ana.invite())
        await bob.until(lambda: bob.is_linked(ana))
        invite = ana.invite()  # made by the old key, and still good afterwards
        await bob.bus.close()
        old = await ana.rotate()
        assert ana.key != old
        held = ana.peers.held_mesh("team")
        assert held is not None
        assert (held.row.owner, held.members.earlier_owners) == (ana.key, (old,))
        # Bob was away, knows the old key only, and is the one who calls.
        await bob.bind()
        await bob.peers.note_addresses(old, ana.bus.addresses)
        await bob.bus.refresh_peers()

        def owner(node: BusNode) -> bytes:
            held = node.peers.held_mesh("team")
            return b"" if held is None else held.row.owner

        def has_new_right() -> bool:
            held = bob.peers.held_mesh("team")
            return held is not None and read_capability(held.row.capability).issuer == ana.key

        await bob.until(lambda: owner(bob) == ana.key and has_new_right())
        await bob.until(lambda: bob.is_linked(ana) and ana.is_linked(bob))
        async with ana.bus.subscribe() as messages:
            assert (await bob.bus.send("ana", "still you?")).state == "delivered"
            assert (await anext(messages)).sender == "bob"
        at = tuple(ana.bus.addresses)
        joined = await zoe.join(type(invite)(invite.card, "team", invite.secret, at))
        assert joined.grants == ("read", "write")
        assert owner(zoe) == ana.key
        ana.sharing.grant("team", "bob", ["read"])
        await ana.members.refresh()
        await bob.until(lambda: bob.sharing.members("team")[-1].grants == ("read",))
        assert bob.names() == ["ana", "zoe", "bob"]

    told(tmp_path, story, "ana", "bob", "zoe")


def test_B4_what_waits_for_a_member_reaches_it_by_its_new_key(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob, zoe = nodes
        invite = ana.invite(uses=2)
        await bob.join(invite)
        await zoe.join(invite)
        await zoe.until(lambda: zoe.is_linked(ana) and zoe.is_linked(bob))
        await bob.bus.close()
        assert (await ana.bus.send("bob", "to the old key", wait_ms=0)).state == "spooled"
        assert (await zoe.bus.send("bob", "me too", wait_ms=0)).state == "spooled"
        old = await bob.rotate()
        async with bob.bus.subscribe() as messages:
            came = [await anext(messages), await anext(messages)]
            assert sorted((one.sender, one.text) for one in came) == [
                ("ana", "to the old key"),
                ("zoe", "me too"),
            ]
        for node in nodes:  # the owner has put the new key into the list, and all have heard
            await node.until(partial(_has_key, node, "bob", bob.key))
        held = bob.peers.held_mesh("team")
        assert held is not None
        await bob.until(lambda: _right(bob).holder == bob.key)
        # The old key is nobody any more, at whomever it shows what it was given.
        assert held.members.removed_at(old) > 0
        assert ana.peers.standing(old, "team") is None
        assert ana.names() == ["ana", "bob", "zoe"]

    told(tmp_path, story, "ana", "bob", "zoe")


def _has_key(node: BusNode, name: str, key: bytes) -> bool:
    return (name, key) in [(one.name, one.key) for one in node.sharing.members("team")]


def _right(node: BusNode) -> Capability:
    held = node.peers.held_mesh("team")
    assert held is not None
    return read_capability(held.row.capability)


def test_B6_nobody_follows_a_key_that_the_old_one_did_not_sign(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob, eve = nodes
        await bob.join(ana.invite())
        step = succeed(eve.trust.seed(), public_key(b"n" * 32))
        forged = type(step)(ana.key, eve.key, step.signature)
        assert not bob.peers.follow(eve.key, [forged])
        for node in (ana, bob):
            with pytest.raises(NotTrusted):
                node.peers.admit(eve.key, "ana", [shown_chain([forged])])
        # A switch that was cut short before the key was replaced leaves the old key in use.
        ana.trust.make_next()
        chain = [succeed(ana.trust.seed(), os.urandom(32))]
        assert ana.trust.former() == ()
        assert not bob.peers.follow(ana.key, chain)

    told(tmp_path, story, "ana", "bob", "eve")
