"""Messages to one peer: kept until they are stored there, in order, each handed out once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from holdfast.bus.bus import Bus
from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.bus.options import BusOptions
from holdfast.bus.ports import Peer
from holdfast.bus.static_peers import StaticPeers
from holdfast.protocol.bus_frames import FrameKind, Stream
from holdfast.rules.bus.mesh_store import (
    ArrivalVerdict,
    InboxMessage,
    OutboxMessage,
    PeerKey,
    SignedArrival,
)
from holdfast.rules.errors import BusStoreFailed, PeerUnreachable, StoreFailed, UnknownPeer
from holdfast.rules.keys import card_of, public_key
from holdfast.rules.limits import BUS_PAGES_WINDOW_BYTES, BUS_PARCEL_BYTES_MAX, DAY_MS
from holdfast.service.clock import SystemClock
from support.bus_pairs import bound, join, run, seed_of


async def _pair() -> tuple[Bus, Bus]:
    return await bound("ana", "ben"), await bound("ben", "ana")


def test_B4_a_message_is_delivered_when_the_peer_has_stored_it() -> None:
    async def story() -> None:
        ana, ben = await _pair()
        await join(ana, ben)
        async with ben.subscribe() as messages:
            receipt = await ana.send("ben", "hello", topic="greetings.warm")
            assert receipt.state == "delivered"
            message = await anext(messages)
            assert (message.sender, message.topic, message.text) == (
                "ana",
                "greetings.warm",
                "hello",
            )
            assert message.id == receipt.id
        await ana.close()
        await ben.close()

    run(story())


def test_B4_a_message_to_an_absent_peer_waits_and_arrives_in_order_when_it_comes() -> None:
    async def story() -> None:
        ana, ben = await _pair()
        for number in range(600):
            receipt = await ana.send("ben", str(number), wait_ms=0)
            assert receipt.state == "spooled"
        await ana.send("ben", "first of all", priority="now", wait_ms=0)
        async with ben.subscribe(buffer=1000) as messages:
            await join(ana, ben)
            came = [(await anext(messages)).text for _ in range(601)]
            assert came == ["first of all", *map(str, range(600))]
            assert (await ana.send("ben", "last")).state == "delivered"
        await ana.close()
        assert await ana.router.context.store.outbox_peers() == []
        await ben.close()

    run(story())


def test_B4_a_lost_acknowledgement_makes_no_duplicate() -> None:
    async def story() -> None:
        ana, ben = await _pair()
        link = await join(ana, ben)
        link.other.drops = lambda kind: kind is FrameKind.ACK
        async with ben.subscribe() as messages:
            sending = asyncio.create_task(ana.send("ben", "once"))
            assert (await anext(messages)).text == "once"
            link.cut()
            await join(ana, ben)
            receipt = await sending
            assert receipt.state == "delivered"
            await ana.send("ben", "twice")
            assert (await anext(messages)).text == "twice"
        assert ben.status().peers[0].again == 1
        await ana.close()
        await ben.close()

    run(story())


def test_B4_a_full_outbox_in_memory_is_unreachable() -> None:
    async def story() -> None:
        ana = await bound("ana", "ben", store=MemoryMeshStore(outbox_max=2))
        for _ in range(2):
            await ana.send("ben", b"x", wait_ms=0)
        with pytest.raises(PeerUnreachable):
            await ana.send("ben", b"x", wait_ms=0)
        with pytest.raises(UnknownPeer):
            await ana.send("eve", b"x", wait_ms=0)
        await ana.close()

    run(story())


def test_B3_a_bus_that_is_bound_again_never_repeats_a_number() -> None:
    async def story() -> None:
        ben_store = MemoryMeshStore()
        ben = await bound("ben", "ana", store=ben_store)
        seen: list[int] = []
        for life in range(3):
            ana = await bound("ana", "ben")  # its store counts from 1 each time
            await join(ana, ben)
            assert (await ana.send("ben", f"life {life}")).state == "delivered"
            seen.append(await ben_store.last_seq(ana.key) or 0)
            await ana.close()
        assert seen == sorted(set(seen))
        await ben.close()

    run(story())


class QuietStore(MemoryMeshStore):
    """Tells verdicts only, as a store of somebody's own may."""

    async def accept(
        self,
        peer: PeerKey,
        arrivals: Sequence[SignedArrival],
        *,
        window: bool = False,
        name: str = "",
    ) -> list[ArrivalVerdict]:
        return list(await super().accept(peer, arrivals, window=window, name=name))


@pytest.mark.parametrize("store", [MemoryMeshStore, QuietStore])
def test_B4_messages_are_handed_out_once_and_in_order_beside_those_that_waited(
    store: type[MemoryMeshStore],
) -> None:
    async def story() -> None:
        kept = store()
        ana, ben = await bound("ana", "ben"), await bound("ben", "ana", store=kept)
        near = await join(ana, ben)
        for number in range(5):
            await ana.send("ben", str(number))
        near.cut()
        await ben.close()
        ben = await bound("ben", "ana", store=kept)
        await join(ana, ben)
        async with ben.subscribe(buffer=4) as messages:
            sending = asyncio.gather(*(ana.send("ben", str(number)) for number in range(5, 40)))
            texts = [(await anext(messages)).text for _ in range(40)]
            await sending
            assert texts == [str(number) for number in range(40)]
        await ana.close()
        await ben.close()
        assert await kept.pending_inbox(0, 10) == []

    run(story())


class SlowStore(MemoryMeshStore):
    """Shows its inbox only when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_show = asyncio.Event()
        self.is_asked = asyncio.Event()

    async def pending_inbox(self, after: int, limit: int) -> list[InboxMessage]:
        rows = await super().pending_inbox(after, limit)
        self.is_asked.set()
        await self.may_show.wait()
        return rows


def test_B4_what_comes_while_the_inbox_is_being_read_is_handed_out_behind_it_and_once() -> None:
    async def story() -> None:
        kept = SlowStore()
        kept.may_show.set()
        ana, ben = await bound("ana", "ben"), await bound("ben", "ana", store=kept)
        near = await join(ana, ben)
        for number in range(3):
            await ana.send("ben", str(number))
        near.cut()
        await ben.close()
        kept.may_show.clear()
        kept.is_asked.clear()
        ben = await bound("ben", "ana", store=kept)
        await join(ana, ben)
        async with ben.subscribe() as messages:
            await kept.is_asked.wait()
            for number in range(3, 6):
                await ana.send("ben", str(number))
            kept.may_show.set()
            texts = [(await anext(messages)).text for _ in range(6)]
            await ana.send("ben", "6")
            texts.append((await anext(messages)).text)
            assert texts == [str(number) for number in range(7)]
        await ana.close()
        await ben.close()

    run(story())


def test_B6_frames_of_meshes_that_nobody_takes_cost_no_credit() -> None:
    async def story() -> None:
        cards = {name: card_of(name, public_key(seed_of(name))) for name in ("ana", "ben")}
        known = StaticPeers([cards["ana"]])
        ben = await Bus.bind_with(BusOptions(seed=seed_of("ben"), name="ben", peers=known))
        at = StaticPeers([f"{cards['ben']}@{ben.addresses[0]}"])
        ana = await Bus.bind_with(BusOptions(seed=seed_of("ana"), name="ana", peers=at))
        assert await ana.connected("ben", 20_000)
        link = ana.router.link_to("ben")
        assert link is not None
        for _ in range(3 * BUS_PAGES_WINDOW_BYTES // BUS_PARCEL_BYTES_MAX):
            await link.room(Stream.MESH)  # ben has no part that shares meshes
            link.send(FrameKind.MESH, Stream.MESH, bytes(BUS_PARCEL_BYTES_MAX))
        await link.room(Stream.MESH)
        await ana.close()
        await ben.close()

    run(story())


class _UnreadablePeers(StaticPeers):
    async def find(self, name: str) -> Peer | None:
        raise StoreFailed("the disk failed")


def test_B2_a_directory_that_cannot_be_read_is_an_error_of_the_bus() -> None:
    async def story() -> None:
        bus = await Bus.bind_with(BusOptions(name="ana", listen=(), peers=_UnreadablePeers()))
        with pytest.raises(BusStoreFailed) as caught:
            await bus.send("ben", "hello", wait_ms=0)
        assert isinstance(caught.value.__cause__, StoreFailed)
        await bus.close()

    run(story())


class _SetClock(SystemClock):
    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


def test_B4_a_clock_that_leaps_ahead_and_back_ends_nothing_and_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.bus.router.BUS_SWEEP_MS", 5)

    async def story() -> None:
        clock = _SetClock()
        store = _CountsSweeps(now_ms=clock.now_ms)
        peers = StaticPeers([card_of("ben", public_key(seed_of("ben")))])
        ana = await Bus.bind_with(
            BusOptions(
                seed=seed_of("ana"), name="ana", listen=(), peers=peers, store=store, clock=clock
            )
        )
        ben = await bound("ben", "ana")
        await ana.send("ben", "early", ttl_ms=3_600_000, wait_ms=0)
        clock.ahead_ms = 60 * DAY_MS
        await store.swept()
        await ana.send("ben", "while it is wrong", ttl_ms=3_600_000, wait_ms=0)
        async with ben.subscribe() as messages:
            link = await join(ana, ben)
            assert (await anext(messages)).text == "early"
            assert (await anext(messages)).text == "while it is wrong"
            link.cut()
            await ana.router.context.until(lambda: not ana.router.intakes or None, 10_000)
            await ana.send("ben", "until it is right", ttl_ms=3_600_000, wait_ms=0)
            clock.ahead_ms = 0
            await store.swept()
            await join(ana, ben)
            assert (await anext(messages)).text == "until it is right"
        assert ana.status().counts.get("expired", 0) == 0
        await ana.close()
        await ben.close()

    run(story())


class _CountsSweeps(MemoryMeshStore):
    sweeps = 0

    async def expire_outbox(self) -> list[OutboxMessage]:
        self.sweeps += 1
        return await super().expire_outbox()

    async def swept(self) -> None:
        """A whole sweep has begun and ended since."""
        upto = self.sweeps + 2
        while self.sweeps < upto:
            await asyncio.sleep(0.001)
