"""Messages of topics that peers pass on for each other: once each, as they were signed, and only
by those who may.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise, permutations

import pytest

from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.bus.subscription import BusSubscription
from holdfast.protocol.bus_frames import FrameKind, RelayFrame, Stream, read_told, told
from holdfast.rules.bus.relaying import topic_mark
from holdfast.rules.errors import BadAnswer, BadSignature
from holdfast.rules.limits import BUS_RELAY_HOPS_MAX, BUS_RELAY_WAITING_MAX
from support.bus_pairs import WINDOW, MemoryLink, join, run
from support.bus_relays import close_all, quiet, relay_bus, relay_world

LINE = ("ab", "bc")
LINE_GRANTS = (("a", "b"), ("c", "b"))


@pytest.fixture(autouse=True)
def _told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here waits for time: what changes is told in the same turn, however often."""
    monkeypatch.setattr("holdfast.bus.announcing._INTERVAL_S", 0.0)


def _waiting(subscription: BusSubscription) -> list[str]:
    return [message.text for message in subscription._ready]


def _relayed(link: MemoryLink) -> list[bytes]:
    return [body for kind, _, body in link.sent if kind is FrameKind.RELAY]


def test_B5_a_peer_that_may_relay_passes_a_message_on_as_its_origin_signed_it() -> None:
    async def story() -> None:
        buses, links = await relay_world(LINE, LINE_GRANTS)
        async with buses["c"].subscribe("news.*") as messages:
            await quiet()
            receipt = await buses["a"].publish("news.today", "hello")
            assert (receipt.peers, receipt.missed) == (0, 0)  # b does not listen itself
            message = await anext(messages)
            assert (message.text, message.sender, message.key) == ("hello", "a", buses["a"].key)
            assert message.id == receipt.id
            first, last = _relayed(links["ab"])[0], _relayed(links["bc"])[0]
            sent, passed = read_told(FrameKind.RELAY, first), read_told(FrameKind.RELAY, last)
            assert isinstance(sent, RelayFrame)
            assert isinstance(passed, RelayFrame)
            assert sent.envelope == passed.envelope
            await quiet()
            assert messages.waiting == 0
            assert buses["b"].status().counts["relayed"] == 1
            assert (await buses["a"].publish("weather.today", "x")).peers == 0
            await quiet()
            assert messages.waiting == 0  # the right is for news
        await close_all(buses)

    run(story())


@pytest.mark.parametrize("links", [("ab", "bc", "cd", "da"), ("ab", "ac", "ad", "bc", "bd", "cd")])
def test_B5_in_rings_and_where_all_are_linked_each_gets_a_message_once(
    links: tuple[str, ...],
) -> None:
    async def story() -> None:
        buses, ends = await relay_world(links, list(permutations("abcd", 2)))
        readers = {name: buses[name].subscribe("news.>") for name in "bcd"}
        for reader in readers.values():
            await reader.__aenter__()
        await quiet()
        for number in range(3):
            await buses["a"].publish("news.x", str(number))
            await quiet()
        came = {name: _waiting(one) for name, one in readers.items()}
        assert came == {name: ["0", "1", "2"] for name in "bcd"}
        copies = sum(len(_relayed(end)) + len(_relayed(end.other)) for end in ends.values())
        assert copies == 3 * (4 if len(links) == 4 else 3), "copies that were given anyway"
        for reader in readers.values():
            await reader.close()
        await close_all(buses)

    run(story())


@pytest.mark.parametrize("grants", [(), (("a", "b"),), (("c", "b"),)])
def test_B5_nothing_is_passed_on_unless_both_sides_let_the_peer_relay(
    grants: tuple[tuple[str, str], ...],
) -> None:
    async def story() -> None:
        buses, links = await relay_world(LINE, grants)
        async with buses["b"].subscribe("news.*") as bens, buses["c"].subscribe("news.*") as cats:
            await quiet()
            await buses["a"].publish("news.today", "hello")
            assert (await anext(bens)).text == "hello"
            await quiet()
            assert cats.waiting == 0
            assert _relayed(links["bc"]) == []
        await close_all(buses)

    run(story())


def test_B5_what_a_peer_passes_on_without_a_right_or_forged_is_refused() -> None:
    async def story() -> None:
        buses, links = await relay_world(LINE, LINE_GRANTS)
        cat = buses["c"]
        async with cat.subscribe(">") as messages:
            await quiet()
            await buses["a"].publish("news.today", "hello")
            assert (await anext(messages)).text == "hello"
            frame = read_told(FrameKind.RELAY, _relayed(links["bc"])[0])
            assert isinstance(frame, RelayFrame)
            mark = await cat.router.context.store.last_seq(topic_mark(buses["a"].key))
            for _ in range(3):  # again, and again
                _bring(links["bc"], frame)
            await quiet()
            assert cat.status().counts["relayed_again"] == 3
            cat.router.relay._granted.clear()  # taken back meanwhile
            body = told(FrameKind.RELAY, frame)
            links["bc"].credit[Stream.RELAY] -= len(body)
            with pytest.raises(BadAnswer, match="may not relay"):
                cat.router.relay.came(links["bc"].other, body)
            cat.router.relay._granted[buses["b"].key] = (("news.>",), 1 << 60)
            flipped = bytearray(frame.envelope)
            flipped[-1] ^= 1
            _bring(links["bc"], RelayFrame(frame.hops, frame.given, bytes(flipped)))
            await quiet()
            assert not links["bc"].is_up
            assert links["bc"].other.goodbye in ("bad_payload_id", BadSignature.code)
            assert await cat.router.context.store.last_seq(topic_mark(buses["a"].key)) == mark
            assert messages.waiting == 0
        await close_all(buses)

    run(story())


def _bring(link: MemoryLink, frame: RelayFrame) -> None:
    """A frame goes over a link although nobody there would send it."""
    link.send(FrameKind.RELAY, Stream.RELAY, told(FrameKind.RELAY, frame))


def test_B5_a_message_of_somebody_who_is_not_known_is_not_taken_from_a_relay() -> None:
    async def story() -> None:
        buses, links = await relay_world(LINE, LINE_GRANTS, apart=[("a", "c")])
        async with buses["c"].subscribe("news.*") as messages:
            await quiet()
            await buses["a"].publish("news.today", "hello")
            await quiet()
            assert messages.waiting == 0
            assert buses["c"].status().counts["refused_zone_not_trusted"] == 1
            assert links["bc"].is_up
            assert links["bc"].other.faults == []
        await close_all(buses)

    run(story())


def test_B5_a_peer_that_uses_the_nonce_of_a_message_does_not_keep_it_from_others() -> None:
    """Whoever sees a published message could be faster at another peer than the message itself."""

    async def story() -> None:
        buses, _ = await relay_world(LINE, LINE_GRANTS)
        for name in "ab":
            buses[name].router.context.random = lambda size: b"n" * size
        async with buses["c"].subscribe("news.*") as messages:
            await quiet()
            assert (await buses["b"].send("c", "mine")).state == "delivered"
            await buses["a"].publish("news.today", "hello")
            assert (await anext(messages)).text == "hello"
        await close_all(buses)

    run(story())


def test_B5_a_message_goes_only_so_many_hops() -> None:
    async def story() -> None:
        names = "abcdefg"
        pairs = [first + second for first, second in pairwise(names)]
        buses, _ = await relay_world(pairs, list(permutations(names, 2)))
        readers = {name: buses[name].subscribe("news.>") for name in names[1:]}
        for reader in readers.values():
            await reader.__aenter__()
        await quiet()
        await buses["a"].publish("news.x", "far")
        await quiet()
        reached = [name for name, one in readers.items() if one.waiting]
        assert reached == list(names[1 : BUS_RELAY_HOPS_MAX + 2])
        for reader in readers.values():
            await reader.close()
        await close_all(buses)

    run(story())


def test_B5_a_flood_of_one_origin_is_dropped_at_the_relay_and_others_pass() -> None:
    async def story() -> None:
        buses, links = await relay_world(
            ("ab", "bc", "db"), (("a", "b"), ("c", "b"), ("d", "b")), apart=()
        )
        reader = buses["c"].subscribe("news.*", buffer=10_000)
        async with reader:
            await quiet()
            links["bc"].credit[Stream.RELAY] = 0  # c takes nothing for a while
            for number in range(BUS_RELAY_WAITING_MAX + 50):
                await buses["a"].publish("news.flood", str(number))
                await asyncio.sleep(0)
            await buses["d"].publish("news.other", "mine")
            await quiet()
            assert buses["b"].status().counts["relay_dropped"] == 50
            links["bc"].credit[Stream.RELAY] = WINDOW
            buses["b"].router.writable(links["bc"])
            await quiet()
            came = _waiting(reader)
            assert len(came) == BUS_RELAY_WAITING_MAX + 1
            assert came[-1] == "mine"
        await close_all(buses)

    run(story())


def test_B5_a_durable_subscriber_gets_a_message_from_its_origin_and_not_from_relays() -> None:
    async def story() -> None:
        buses, _ = await relay_world(("ab", "bc", "ac"), list(permutations("abc", 2)))
        async with (
            buses["c"].subscribe("news.>", durable=True) as cats,
            buses["b"].subscribe("news.>", durable=True) as bens,
        ):
            await quiet()
            receipt = await buses["a"].publish("news.x", "once")
            assert (receipt.peers, receipt.kept) == (0, 2)
            await quiet()
            assert [_waiting(cats), _waiting(bens)] == [["once"], ["once"]]
        await close_all(buses)

    run(story())


def test_B3_a_relayed_message_is_refused_after_a_restart_of_its_receiver() -> None:
    async def story() -> None:
        store = MemoryMeshStore()  # it outlives its bus
        ana = await relay_bus("a", "abc", LINE_GRANTS)
        ben = await relay_bus("b", "abc", LINE_GRANTS)
        cat = await relay_bus("c", "abc", LINE_GRANTS, store=store)
        await join(ana, ben)
        link = await join(ben, cat)
        async with cat.subscribe("news.>") as messages:
            await quiet()
            await ana.publish("news.x", "once")
            assert (await anext(messages)).text == "once"
        frame = read_told(FrameKind.RELAY, _relayed(link)[0])
        assert isinstance(frame, RelayFrame)
        await cat.close()
        link.cut()
        cat = await relay_bus("c", "abc", LINE_GRANTS, store=store)
        link = await join(ben, cat)
        async with cat.subscribe("news.>") as messages:
            await quiet()
            _bring(link, frame)
            await quiet()
            assert messages.waiting == 0
            assert cat.status().counts["relayed_again"] == 1
        for bus in (ana, ben, cat):
            await bus.close()

    run(story())
