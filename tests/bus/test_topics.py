"""Publish and subscribe: who gets what, what is kept, and how a slow reader stops its senders."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

import pytest

from holdfast.bus import subscription
from holdfast.bus.bus import Bus
from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.protocol.bus_frames import FrameKind, InterestFrame, Stream, read_told, told
from holdfast.rules.limits import BUS_ANNOUNCE_MS
from support.bus_pairs import WINDOW, MemoryLink, bound, join, run


async def _pair() -> tuple[Bus, Bus]:
    return await bound("ana", "ben"), await bound("ben", "ana")


async def _listens(bus: Bus, topic: str, count: int = 1) -> None:
    """Until a bus has heard that others listen."""
    topics = bus.router.topics
    await bus.router.context.until(
        lambda: len(topics.listening(topic) + topics.durably_listening(topic)) >= count or None,
        10_000,
    )


def test_B5_a_published_message_reaches_those_who_listen_to_its_topic() -> None:
    async def story() -> None:
        ana = await bound("ana", "ben", "cat")
        ben, cat = await bound("ben", "ana"), await bound("cat", "ana")
        for other in (ben, cat):
            await join(ana, other)
        async with ben.subscribe("builds.*") as bens, cat.subscribe("builds.>") as cats:
            await _listens(ana, "builds.done", 2)
            receipt = await ana.publish("builds.done", "green")
            assert (receipt.peers, receipt.kept, receipt.missed) == (2, 0, 0)
            assert (await anext(bens)).text == (await anext(cats)).text == "green"
            assert (await ana.publish("builds.linux.done", "x")).peers == 1
            assert (await ana.publish("tests.done", "x")).peers == 0
            assert (await anext(cats)).topic == "builds.linux.done"
        for bus in (ana, ben, cat):
            await bus.close()

    run(story())


def test_B5_a_durable_subscriber_gets_what_was_published_while_it_was_away() -> None:
    async def story() -> None:
        kept = MemoryMeshStore()
        publisher = MemoryMeshStore()
        ana = await bound("ana", "ben", store=publisher)
        ben = await bound("ben", "ana", store=kept)
        link = await join(ana, ben)
        async with ben.subscribe("news.>", durable=True):
            await _listens(ana, "news.today")
        await ben.close()
        link.cut()
        await ana.close()
        ana = await bound("ana", "ben", store=publisher)  # both start again
        for number in range(3):
            receipt = await ana.publish("news.today", str(number))
            assert (receipt.peers, receipt.kept) == (0, 1)
        ben = await bound("ben", "ana", store=kept)
        await join(ana, ben)  # nobody subscribes yet: the inbox keeps them
        await ana.send("ben", "all came before this")
        async with ben.subscribe("news.>", durable=True) as news:
            assert [(await anext(news)).text for _ in range(3)] == ["0", "1", "2"]
        await ben.forget("news.>")
        await _until_forgotten(ana)
        assert (await ana.publish("news.today", "too late")).kept == 0
        await ana.close()
        await ben.close()

    run(story())


def test_B5_nothing_is_kept_for_a_durable_subscriber_that_is_not_known_any_more() -> None:
    async def story() -> None:
        publisher = MemoryMeshStore()
        ana = await bound("ana", "ben", store=publisher)
        ben = await bound("ben", "ana")
        link = await join(ana, ben)
        async with ben.subscribe("news.>", durable=True):
            await _listens(ana, "news.today")
        link.cut()
        await ana.close()
        ana = await bound("ana", store=publisher)  # ben was blocked meanwhile
        assert (await ana.publish("news.today", "x")).kept == 0
        await ana.close()
        assert await publisher.outbox_peers() == []
        ana = await bound("ana", "ben", store=publisher)
        assert (await ana.publish("news.today", "x")).kept == 1
        for bus in (ana, ben):
            await bus.close()

    run(story())


class _SlowStore(MemoryMeshStore):
    """A store that takes its time to write down who listens durably."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.written = asyncio.Event(), asyncio.Event()

    async def keep_interest(self, name: str, patterns: Sequence[str]) -> None:
        self.asked.set()
        await self.written.wait()
        await super().keep_interest(name, patterns)


def test_B5_a_durable_subscriber_is_seen_when_the_store_has_it_and_never_by_halves() -> None:
    async def story() -> None:
        slow = _SlowStore()
        ana, ben = await bound("ana", "ben", store=slow), await bound("ben", "ana")
        await join(ana, ben)
        async with ben.subscribe("news.>", durable=True) as news:
            await slow.asked.wait()
            early = await ana.publish("news.today", "not promised to anybody")
            assert (early.peers, early.kept) == (0, 0)
            assert ana.status().peers[0].topics == ana.status().peers[0].durable == []
            slow.written.set()
            await _listens(ana, "news.today")
            assert ana.status().peers[0].topics == ana.status().peers[0].durable == ["news.>"]
            kept = await ana.publish("news.today", "kept")
            assert (kept.peers, kept.kept) == (0, 1)
            assert (await anext(news)).text == "kept"
        await ana.close()
        await ben.close()

    run(story())


def test_B5_a_peer_that_goes_while_the_store_notes_it_is_not_taken_for_one_that_listens() -> None:
    async def story() -> None:
        slow = _SlowStore()
        ana, ben = await bound("ana", "ben", store=slow), await bound("ben", "ana")
        link = await join(ana, ben)
        async with ben.subscribe("news.>", durable=True), ben.subscribe("weather"):
            await slow.asked.wait()
            link.cut()
            await ana.router.context.until(lambda: not ana.router.intakes or None, 10_000)
            slow.written.set()
            await _listens(ana, "news.today")
            assert ana.router.topics.interest_of("ben") is None
            assert (await ana.publish("weather", "x")).peers == 0
            assert (await ana.publish("news.today", "x")).kept == 1, "the store has it"
        await ana.close()
        await ben.close()

    run(story())


def _interests(link: MemoryLink) -> list[InterestFrame]:
    frames = [read_told(kind, body) for kind, _, body in link.sent if kind is FrameKind.INTEREST]
    return [one for one in frames if isinstance(one, InterestFrame)]


def test_B5_a_burst_of_subscriptions_is_told_in_a_few_frames_the_first_at_once() -> None:
    async def story() -> None:
        ana, ben = await _pair()
        near = await join(ana, ben)
        await _told_before(near)
        before = len(_interests(near))
        begun = asyncio.get_running_loop().time()
        async with ana.subscribe("first"):
            await _listens(ben, "first")
            assert len(_interests(near)) == before + 1
            for number in range(300):
                async with ana.subscribe(f"t{number}"):
                    await asyncio.sleep(0)
            async with ana.subscribe("last"):
                await _listens(ben, "last")
                passed = asyncio.get_running_loop().time() - begun
                count = len(_interests(near)) - before
                assert count <= 2 + passed * 1000 / BUS_ANNOUNCE_MS
                assert _interests(near)[-1].topics == ["first", "last"]
                assert ben.status().peers[0].topics == ["first", "last"]
        for bus in (ana, ben):
            await bus.close()

    run(story())


def test_B5_a_peer_that_changes_its_wishes_a_thousand_times_costs_others_a_few_frames() -> None:
    async def story() -> None:
        names = ("ben", "cat", "dan")
        ana = await bound("ana", "eve", *names)
        eve = await bound("eve", "ana")
        others = [await bound(name, "ana") for name in names]
        hostile = await join(eve, ana)
        ends = [await join(ana, other) for other in others]
        begun, before = asyncio.get_running_loop().time(), [len(_interests(end)) for end in ends]
        for number in range(1000):
            takes = [f"news.{number % 7}"]
            frame = told(FrameKind.INTEREST, InterestFrame([], [], [], [], takes))
            hostile.send(FrameKind.INTEREST, Stream.CONTROL, frame)
            await asyncio.sleep(0)
        last = f"news.{999 % 7}"
        heard = others[0].router.context
        assert await heard.until(lambda: _relays(others[0]) == [last] or None, 10_000)
        passed = asyncio.get_running_loop().time() - begun
        for end, first in zip(ends, before, strict=True):
            assert len(_interests(end)) - first <= 2 + passed * 1000 / BUS_ANNOUNCE_MS
        for bus in (ana, eve, *others):
            await bus.close()

    run(story())


def _relays(bus: Bus) -> list[str]:
    interest = bus.router.topics.interest_of("ana")
    return [] if interest is None else interest.relays


async def _told_before(link: MemoryLink) -> None:
    """Until nothing holds up the next announcement."""
    while not _interests(link):
        await asyncio.sleep(0)
    await asyncio.sleep(BUS_ANNOUNCE_MS / 1000)


async def _until_forgotten(bus: Bus) -> None:
    topics = bus.router.topics
    await bus.router.context.until(
        lambda: not topics.durably_listening("news.today") or None, 10_000
    )


def test_B5_what_no_handler_has_finished_is_handed_out_again() -> None:
    async def story() -> None:
        store = MemoryMeshStore()
        ana, ben = await bound("ana", "ben"), await bound("ben", "ana", store=store)
        await join(ana, ben)
        for number in range(4):
            await ana.send("ben", str(number))
        async with ben.subscribe() as messages:
            assert [(await anext(messages)).text for _ in range(2)] == ["0", "1"]
        try:
            async with ben.subscribe() as messages:
                assert (await anext(messages)).text == "2"
                raise RuntimeError("the handler fails")
        except RuntimeError:
            pass
        await ben.close()
        ben = await bound("ben", "ana", store=store)
        async with ben.subscribe() as messages:
            again = await anext(messages)
            assert (again.text, again.sender) == ("2", "ana")
            assert (await anext(messages)).text == "3"
        await ben.close()
        assert await store.pending_inbox(0, 10) == []
        await ana.close()

    run(story())


def test_B5_a_slow_reader_stops_its_senders_and_nothing_is_lost() -> None:
    async def story() -> None:
        ana, ben = await _pair()
        link = await join(ana, ben)
        body, count = b"x" * 4096, 4 * WINDOW // 4096
        async with ben.subscribe(buffer=4) as messages:
            sends = [
                asyncio.create_task(ana.send("ben", body, wait_ms=60_000)) for _ in range(count)
            ]
            while link.credit[Stream.NEXT] > 8192 or not any(one.done() for one in sends):
                await asyncio.sleep(0)
            waiting = sum(not one.done() for one in sends)
            assert count // 2 < waiting < count  # a window of them went, and no more
            sent = sum(len(body) for _, _, body in link.sent)
            assert sent <= 2 * WINDOW
            for _ in range(count):
                await anext(messages)
            assert {(await one).state for one in sends} == {"delivered"}
        await ana.close()
        await ben.close()

    run(story())


def test_B5_passing_messages_beyond_the_buffer_hold_their_senders_credit() -> None:
    async def story() -> None:
        ana, ben = await _pair()
        await join(ana, ben)
        async with ben.subscribe("t", buffer=2) as messages:
            await _listens(ana, "t")
            bodies = [str(number).encode().ljust(WINDOW // 8, b".") for number in range(24)]
            first = await asyncio.gather(
                *(ana.publish("t", body, wait_ms=500) for body in bodies[:12])
            )
            reached = sum(receipt.peers for receipt in first)
            assert 2 < reached < 12
            assert sum(receipt.missed for receipt in first) == 12 - reached
            for number in range(reached):
                assert (await anext(messages)).body == bodies[number]
            publishing = asyncio.create_task(ana.publish("t", bodies[20]))
            assert (await anext(messages)).body == bodies[20]
            assert (await publishing).peers == 1
        await ana.close()
        await ben.close()

    run(story())


def test_B5_a_handler_that_asks_back_while_its_buffer_is_full_is_answered() -> None:
    async def story() -> None:
        ana, ben = await _pair()

        async def echo(request: object) -> bytes:
            return b"echo"

        ana.serve("echo", echo)
        await join(ana, ben)
        sends = [asyncio.create_task(ana.send("ben", b"x" * 8192)) for _ in range(100)]
        async with ben.subscribe(buffer=1) as messages:
            for _ in range(100):
                await anext(messages)
                assert (await ben.request("ana", "echo", timeout_ms=10_000)).body == b"echo"
        await asyncio.gather(*sends)
        await ana.close()
        await ben.close()

    run(story())


def test_B6_a_publisher_that_comes_back_again_and_again_leaves_only_so_much_to_a_blocked_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscription, "BUS_BEYOND_BYTES_MAX", 2 * WINDOW)

    async def story() -> None:
        ana, ben = await _pair()
        body = bytes(WINDOW // 4)
        async with ben.subscribe("t", buffer=1) as messages:
            # Each link brings up to a window of them: less if it is cut before all were read.
            rounds = count(1)
            while next(rounds) <= 10 or not ben.status().counts.get("passing_dropped"):
                link = await join(ana, ben)
                await _listens(ana, "t")
                for _ in range(4):
                    await ana.publish("t", body, wait_ms=0)
                await ana.ping("ben")
                link.cut()
                while "ana" in ben.router.intakes:
                    await asyncio.sleep(0)
            assert 8 <= messages.waiting <= 10
            for _ in range(messages.waiting):
                assert (await anext(messages)).body == body
            await join(ana, ben)
            await _listens(ana, "t")
            await ana.publish("t", b"after")
            assert (await anext(messages)).body == b"after"
        await ana.close()
        await ben.close()

    run(story())
