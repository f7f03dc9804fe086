"""Capabilities between real nodes over TLS: given, used, narrowed, taken back, and refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from nacl.signing import SigningKey

from holdfast.bus.received import ReceivedRequest
from holdfast.node.bus.capabilities import BusCapabilities
from holdfast.rules.bus.capability import capability_text, issue, parse_capability_text
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    CapabilityRefused,
    MessageRefused,
    NotTrusted,
    UnknownKey,
)
from holdfast.rules.keys import card_of
from holdfast.rules.limits import DAY_MS
from support.bus_nodes import BusNode, bus_nodes

Story = Callable[[list[BusNode]], Awaitable[None]]


def told(folder: Path, story: Story, *names: str) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), bus_nodes(folder, *names) as nodes:
            await story(nodes)

    asyncio.run(run())


def rights(node: BusNode) -> BusCapabilities:
    return BusCapabilities(node.engine, node.trust)


def card(node: BusNode) -> str:
    return card_of(node.name, node.key)


async def use(node: BusNode, text: str, issuer: BusNode) -> None:
    rights(node).use(text, addresses=issuer.bus.addresses)
    await node.bus.refresh_peers()


async def echo(request: ReceivedRequest) -> bytes:
    return request.body


def test_B6_a_holder_may_do_what_its_capability_says_and_nothing_else(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob = nodes
        for service in ("build.run", "secret"):
            ana.bus.serve(service, echo)
        made = rights(ana).give(card(bob), ["service:build.*", "topic:news.>"])
        await use(bob, made.text, ana)
        assert (await bob.bus.request("ana", "build.run", b"x")).body == b"x"
        await bob.until(lambda: bool(bob.bus.router.topics.services_of("ana")))
        assert bob.bus.router.topics.services_of("ana") == ["build.run"], "it learns of no other"
        with pytest.raises(MessageRefused, match=r"capability_refused.*service:build"):
            await bob.bus.request("ana", "secret", b"x")
        async with ana.bus.subscribe("news.>") as messages:
            await bob.until(lambda: bob.bus.router.topics.topics_of("ana") == ["news.>"])
            assert (await bob.bus.send("ana", "hi", topic="news.today")).state == "delivered"
            assert (await anext(messages)).sender == "bob"
            sending = asyncio.create_task(bob.bus.send("ana", "psst", topic="other"))
            await ana.until(lambda: ana.bus.status().counts["refused_capability_refused"] > 1)
            sending.cancel()
        assert ana.peers.standing(bob.key, "team") is None, "meshes are another thing"
        # The issuer may not do more at its holder than the holder may hear.
        bob.bus.serve("mine", echo)
        with pytest.raises(MessageRefused, match="capability_refused"):
            await ana.bus.request("bob", "mine", b"x", timeout_ms=5_000)

    told(tmp_path, story, "ana", "bob")


def test_B6_what_is_taken_back_ends_links_and_is_refused_aloud_from_then_on(
    tmp_path: Path,
) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob, zoe = nodes
        made = rights(ana).give(card(bob), ["service:build"])
        await use(bob, made.text, ana)
        await bob.until(lambda: bob.is_linked(ana))
        passed = rights(bob).narrow(made.id[:12], card(zoe))
        await use(zoe, passed.text, ana)
        await zoe.until(lambda: zoe.is_linked(ana))
        # One step further down first: bob keeps his.
        assert rights(ana).drop(passed.steps[1]) is None
        await ana.bus.refresh_peers()
        await zoe.until(lambda: not zoe.is_linked(ana))
        assert ana.is_linked(bob)
        rights(ana).drop(made.id[:8])
        await ana.bus.refresh_peers()
        await bob.until(lambda: not bob.is_linked(ana))
        with pytest.raises(CapabilityRefused, match="step 1 of 1 of a capability was taken back"):
            await ana.directory.admit(bob.key, "bob", bob.directory.capabilities(ana.key))

        def why() -> str:
            (dial,) = bob.bus.links.dials()
            return "" if dial.last_error is None else dial.last_error.message

        await bob.until(lambda: "was taken back by its issuer" in why())
        rights(bob).drop(made.id)
        assert rights(bob).list() == []

    told(tmp_path, story, "ana", "bob", "zoe")


def test_B6_a_capability_that_is_not_good_is_refused_with_the_reason(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob, eve = nodes
        now, key = ana.engine.ctx.now_ms(), SigningKey(ana.trust.seed())
        made = rights(ana).give(card(bob), ["service:build"], days=2)
        old = issue(
            key,
            bob.key,
            ["service:a"],
            now_ms=now - 9 * DAY_MS,
            expires_at=now - DAY_MS,
            name="bob",
        )
        with pytest.raises(CapabilityRefused, match=r"expired 24 hours ago"):
            rights(bob).use(capability_text("ana", old))
        with pytest.raises(CapabilityRefused, match="for another holder"):
            rights(eve).use(made.text)
        whole = parse_capability_text(made.text)[1]
        step = msgspec.structs.replace(whole.steps[0], scopes=("service:>",))
        forged = msgspec.structs.replace(whole, steps=(step,))
        with pytest.raises(CapabilityRefused, match="not signed by its issuer"):
            rights(bob).use(capability_text("ana", forged))
        for bad in (old, forged):
            with pytest.raises(CapabilityRefused):
                await ana.directory.admit(bob.key, "bob", [bad.raw])
        with pytest.raises(CapabilityRefused, match="for another holder"):
            await ana.directory.admit(eve.key, "bob", [whole.raw])
        rights(bob).use(made.text)
        with pytest.raises(CapabilityRefused, match=r"step 2 of 2 .* widens it: 'service:all'"):
            rights(bob).narrow(made.id, card(eve), ["service:all"])
        with pytest.raises(CapabilityRefused, match="later than the step before"):
            rights(bob).narrow(made.id, card(eve), days=3)
        with pytest.raises(CapabilityRefused, match="only its holder"):
            rights(ana).narrow(made.id, card(eve))
        foreign = rights(eve).give(card(bob), ["service:x"])
        with pytest.raises(NotTrusted):
            await ana.directory.admit(bob.key, "bob", [parse_capability_text(foreign.text)[1].raw])

    told(tmp_path, story, "ana", "bob", "eve")


def test_B6_what_cannot_be_given_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob = nodes
        for scopes in (["mesh:team:read"], ["nonsense"], []):
            with pytest.raises(BadInput):
                rights(ana).give(card(bob), scopes)
        with pytest.raises(BadInput, match="this node itself"):
            rights(ana).give(card(ana), ["service:a"])
        with pytest.raises(UnknownKey):
            rights(ana).drop("ff")
        for text in ("", "x", "ana:capability:", "ana:capability:!!", card(ana)):
            with pytest.raises((BadInput, CapabilityRefused, UnknownKey)):
                rights(bob).use(text)
        assert rights(ana).list() == rights(bob).list() == []
        rights(ana).give(card(bob), ["service:a"])
        other = bytes(SigningKey(b"z" * 32).verify_key)
        with pytest.raises(AlreadyExists, match="another key is called 'bob'"):
            rights(ana).give(card_of("bob", other), ["service:a"])

    told(tmp_path, story, "ana", "bob")


def test_B5_B6_a_node_that_holds_the_right_of_two_others_relays_between_them(
    tmp_path: Path,
) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, ben, cat = nodes
        cat.trust.trust(card(ana))  # whose messages they are
        for issuer in (ana, cat):
            made = rights(issuer).give(card(ben), ["relay:news.>"])
            await use(ben, made.text, issuer)
            await ben.until(lambda issuer=issuer: ben.is_linked(issuer))  # type: ignore[misc]
        async with cat.bus.subscribe("news.*") as messages:
            await ana.until(lambda: ana.bus.router.relay.is_carried("news.x"))
            await ben.until(lambda: ben.bus.router.topics.topics_of("cat") == ["news.*"])
            await ana.bus.publish("news.x", "by way of ben")
            message = await anext(messages)
            assert (message.sender, message.key) == ("ana", ana.key)
            rights(cat).drop(made.id)
            await cat.bus.refresh_peers()
            await ben.until(lambda: not ana.bus.router.relay.is_carried("news.x"))
            assert not cat.is_linked(ben)

    told(tmp_path, story, "ana", "ben", "cat")
