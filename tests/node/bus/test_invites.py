"""Invites between real nodes over TLS: those that ended, races, thieves, removed members, and those
that members make.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from holdfast.node.bus.member_peers import GUEST
from holdfast.protocol import bus_members as wire
from holdfast.protocol.bus_members import JOIN, JoinAsked
from holdfast.rules.errors import (
    InviteEnded,
    MemberBarred,
    NotAllowed,
    NotAMember,
    NotTrusted,
    RequestRefused,
)
from holdfast.rules.invites import PeerInvite, parse_any_invite
from holdfast.rules.keys import text_of
from support.bus_nodes import BusNode, told


def invite_of(node: BusNode, **options: object) -> PeerInvite:
    """An invite that a member makes, as a newcomer reads it."""
    invite = parse_any_invite(node.sharing.invite("team", **options).text)  # type: ignore[arg-type]
    assert isinstance(invite, PeerInvite)
    return invite


def _is_guest(name: str) -> bool:
    return name.startswith(GUEST)


def test_B6_an_invite_that_has_ended_lets_nobody_in_and_says_so(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, eve = nodes
        invite = ana.invite()
        eve.members.begin_join(invite)
        await eve.bus.refresh_peers()
        await eve.until(lambda: eve.is_linked(ana))
        assert ana.bus.links.counts["invite_ended"] == 0
        # Taken back while the guest is linked: its link ends with the next look.
        ana.sharing.drop_invite("team", ana.sharing.invites("team")[0].digest.hex())
        await ana.bus.refresh_peers()
        await ana.until(lambda: not ana.is_linked(eve))
        await ana.until(lambda: ana.bus.links.counts["invite_ended"] > 0)
        assert not ana.is_linked(eve), "it is refused at the door"
        with pytest.raises(InviteEnded, match="was taken back"):
            async with asyncio.timeout(10):  # not only when the time to look for the owner is over
                await eve.join(invite)
        assert ana.names() == ["ana"]
        # The guest's link left nothing behind here, neither a name nor what it had shown.
        assert (ana.peers._shown, ana.peers._guests) == ({}, {})

    told(tmp_path, story, "ana", "eve")


def test_B6_two_guests_with_one_ticket_race_and_one_is_let_in(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob, zoe = nodes
        invite = ana.invite()
        for node in (bob, zoe):
            node.members.begin_join(invite)
            await node.bus.refresh_peers()
        await ana.until(lambda: ana.is_linked(bob) and ana.is_linked(zoe))
        done = await asyncio.gather(bob.join(invite), zoe.join(invite), return_exceptions=True)
        ended = [one for one in done if isinstance(one, InviteEnded)]
        assert len(ended) == 1
        assert len(ana.names()) == 2
        (row,) = ana.engine.read("test", lambda tx: tx.bus_invite_list("team"))
        assert row.uses_left == 0
        # Nothing is kept for a guest: its link has ended, and it asks again if it must.
        await ana.until(lambda: not [name for name in ana.bus.router.lanes if _is_guest(name)])
        outbox = ana.bus.router.context.store
        kept = [await outbox.outbox_of(GUEST + text_of(n.key)[:16], 9, []) for n in (bob, zoe)]
        assert kept == [[], []]

    told(tmp_path, story, "ana", "bob", "zoe")


def test_B6_an_owner_killed_between_letting_in_and_answering_answers_again(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob = nodes
        invite = ana.invite()
        let_in = asyncio.Event()
        answer = ana.members._owner.join_asked

        async def killed(asked: object) -> bytes:
            await answer(asked)  # type: ignore[arg-type]
            let_in.set()
            await asyncio.get_running_loop().create_future()
            raise AssertionError

        ana.bus.stop_serving(JOIN)
        ana.bus.serve(JOIN, killed)
        joining = asyncio.create_task(bob.join(invite))
        await let_in.wait()
        await ana.bus.close()
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
        assert ana.names() == ["ana", "bob"], "it is on the disk"
        await ana.bind()
        again = PeerInvite(invite.card, "team", invite.secret, tuple(ana.bus.addresses))
        assert (await bob.join(again)).grants == ("read", "write")
        assert ana.names() == bob.names() == ["ana", "bob"]
        assert ana.sharing.shared()[0].serial == 2, "it was let in once"

    told(tmp_path, story, "ana", "bob")


def test_B6_a_stolen_ticket_is_worth_nothing_on_a_real_link(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob, eve = nodes
        invite = ana.invite()
        bob.members.begin_join(invite)
        ((peer, ticket),) = bob.peers._joining.values()
        eve.peers.begin_join(peer, ticket)  # she has seen it, but not the secret
        await eve.bus.refresh_peers()
        await ana.until(lambda: ana.bus.links.counts["invite_ended"] > 0)
        assert not ana.is_linked(eve)
        # And a guest with a ticket of its own does not get in by a secret that it guesses.
        await bob.bus.refresh_peers()
        await bob.until(lambda: bob.is_linked(ana))
        asked = wire.encode(JoinAsked("team", "bob", bytes(32)))
        with pytest.raises(RequestRefused, match="invite_ended"):
            await bob.bus.request(text_of(ana.key), JOIN, asked)
        assert ana.names() == ["ana"]

    told(tmp_path, story, "ana", "bob", "eve")


def test_B6_a_removed_member_comes_back_only_when_the_owner_says_so(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob = nodes
        invite = ana.invite(uses=5)
        await bob.join(invite)
        ana.sharing.remove_member("team", "bob")
        await ana.members.refresh()
        await bob.until(lambda: not bob.is_linked(ana))
        with pytest.raises(MemberBarred, match="has removed this key"):
            await bob.join(invite)
        assert ana.names() == ["ana"]
        with pytest.raises(NotAMember, match="'zoe' was not removed"):
            ana.sharing.admit("team", "zoe")
        assert ana.sharing.admit("team", "bob") == text_of(bob.key)
        assert ana.names() == ["ana"], "it still needs an invite"
        await bob.join(invite)
        assert ana.names() == bob.names() == ["ana", "bob"]
        # Who leaves by itself may come back.
        await bob.until(lambda: bob.is_linked(ana))
        await bob.members.leave("team")
        assert ana.names() == ["ana"]
        await bob.join(invite)
        assert ana.names() == ["ana", "bob"]

    told(tmp_path, story, "ana", "bob")


def test_B6_a_member_that_may_invite_invites_while_the_owner_is_away(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob, zoe, eve = nodes
        await bob.join(ana.invite())
        await bob.until(lambda: bob.is_linked(ana))
        with pytest.raises(NotAllowed, match="belongs to ana"):
            bob.sharing.invite("team")
        ana.sharing.grant("team", "bob", ["read", "write", "invite"])
        await ana.members.refresh()

        def may() -> bool:
            try:
                bob.sharing.invite("team")
            except NotAllowed:
                return False
            return True

        await bob.until(may)  # it is told, and gets what it can pass on
        await ana.bus.close()
        with pytest.raises(NotAllowed, match="'relay'"):
            invite_of(bob, grants=["read", "relay"])
        with pytest.raises(NotAllowed, match="good for one"):
            invite_of(bob, uses=2)
        invite, late = invite_of(bob, grants=["read"]), invite_of(bob)
        await ana.bind()
        at = tuple(ana.bus.addresses)
        invite, late = (msgspec.structs.replace(one, addresses=at) for one in (invite, late))
        joined = await zoe.join(invite)
        assert (joined.owner, joined.grants) == ("ana", ("read",))
        assert ana.names() == ["ana", "bob", "zoe"]
        with pytest.raises(InviteEnded, match="used up"):
            await eve.join(invite)
        # What a member has made ends with its right.
        ana.sharing.grant("team", "bob", ["read", "write"])
        with pytest.raises(InviteEnded, match="may not invite any more"):
            await eve.join(late)
        ana.sharing.grant("team", "bob", ["read", "invite"])
        ana.sharing.remove_member("team", "bob")
        with pytest.raises((InviteEnded, NotTrusted)):
            await eve.join(late)
        assert ana.names() == ["ana", "zoe"]

    told(tmp_path, story, "ana", "bob", "zoe", "eve")
