"""Receivers forget ids when senders say that nothing comes again, and no message comes twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import pytest

from holdfast.bus import lane, settling
from holdfast.bus.bus import Bus
from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.protocol.bus_frames import FrameKind
from holdfast.rules.bus.mesh_store import ArrivalVerdict, PeerKey, SignedArrival
from holdfast.rules.limits import BUS_SETTLE_EVERY
from support.bus_pairs import bound, join, run
from support.seeds import seeds


class SlowToForget(MemoryMeshStore):
    """Rows are removed late, as by a disk: a kill before that brings them back."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    async def remove_many(self, ids: Collection[int]) -> None:
        for _ in range(self._rng.randrange(30)):
            await asyncio.sleep(0)
        await super().remove_many(ids)


class SlowToStore(MemoryMeshStore):
    """What comes meanwhile waits. Forgets all ids that it may."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(settled_kept=0)
        self._rng = rng

    async def accept(
        self,
        peer: PeerKey,
        arrivals: Sequence[SignedArrival],
        *,
        window: bool = False,
        name: str = "",
    ) -> list[ArrivalVerdict]:
        for _ in range(self._rng.randrange(8)):
            await asyncio.sleep(0)
        return await super().accept(peer, arrivals, window=window, name=name)


async def _killed(bus: Bus) -> None:
    """Ends without telling its store anything more."""
    bus.router.context.is_closed = True
    await bus.router.context.end_tasks()


async def _say_more(bus: Bus, store: SlowToForget, enough: Callable[[], bool]) -> None:
    """What is settled is said with later messages; how many it takes depends on who came first."""
    for _ in range(20):
        if enough():
            return
        await bus.send("ben", b"more", priority="low")
        while await store.outbox_peers():
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", [*seeds(6), 34])
def test_B4_nothing_comes_twice_although_ids_are_forgotten_as_soon_as_they_are_settled(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "BUS_SETTLE_EVERY", 3)
    monkeypatch.setattr(lane, "BUS_LANE_ROWS", 4)
    rng = random.Random(seed)

    async def story() -> None:
        ana_store, ben_store = SlowToForget(rng), SlowToStore(rng)
        ben = await bound("ben", "ana", store=ben_store)
        came = Counter[bytes]()

        async def read() -> None:
            async with ben.subscribe(buffer=1000) as messages:
                async for message in messages:
                    came[message.id] += 1

        reading = asyncio.create_task(read())
        for life in range(8):
            ana = await bound("ana", "ben", store=ana_store)
            for _ in range(rng.randrange(1, 4)):
                link = await join(ana, ben)
                lossy = rng.random() < 0.6 and life < 7
                link.other.drops = lambda kind, lossy=lossy: (  # type: ignore[misc]
                    lossy and kind is FrameKind.ACK and rng.random() < 0.7
                )
                sends = [
                    asyncio.create_task(
                        ana.send("ben", b"x", priority=rng.choice(["now", "next", "low"]))
                    )
                    for _ in range(rng.randrange(12))
                ]
                for _ in range(rng.randrange(5, 60) if life < 7 else 600):
                    await asyncio.sleep(0)
                link.cut()
                for one in sends:
                    one.cancel()
                await asyncio.sleep(0)
            await _killed(ana)
        ana = await bound("ana", "ben", store=ana_store)
        await join(ana, ben)
        await ana.send("ben", b"last", priority="low")
        while await ana_store.outbox_peers():
            await asyncio.sleep(0)
        await _say_more(ana, ana_store, lambda: len(ben_store._ids) < len(came) / 2)
        assert len(ben_store._ids) < len(came) / 2, "nothing was forgotten"
        assert [id for id, times in came.items() if times > 1] == []
        reading.cancel()
        for bus in (ana, ben):
            await bus.close()

    run(story())


def test_B4_a_sender_says_what_is_settled_now_and_then_and_not_with_each_message() -> None:
    async def story() -> None:
        ana, ben = await bound("ana", "ben"), await bound("ben", "ana")
        link = await join(ana, ben)
        async with ben.subscribe() as messages:
            for _ in range(50):
                await ana.send("ben", b"x")
                await anext(messages)
        words = [body for kind, _, body in link.sent if kind is FrameKind.SETTLED]
        assert len(words) == 1 + 50 // BUS_SETTLE_EVERY, "one when the link came up"
        for bus in (ana, ben):
            await bus.close()

    run(story())
