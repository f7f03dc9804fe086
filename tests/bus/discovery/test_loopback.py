"""Discovery within one machine: real mDNS on the loopback interface."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.bus.discovery.mdns import MdnsDiscovery
from holdfast.rules.bus.discovery import instance_of

HERE = "127.0.0.1"
PATIENCE_S = 30


class Sightings:
    """What a discovery has told, and a way to wait for it."""

    def __init__(self) -> None:
        self.places: dict[bytes, Sequence[str]] = {}
        self._news = asyncio.Event()

    def __call__(self, key: bytes, places: Sequence[str]) -> None:
        self.places[key] = places
        self._news.set()

    async def until(self, key: bytes, place: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while place not in self.places.get(key, ()):
                self._news.clear()
                await self._news.wait()


def test_B6_two_peers_of_one_machine_find_each_other_and_strangers_stay_unresolved() -> None:
    ana, ben, eve = (bytes([n]) * 32 for n in b"abe")

    async def meet() -> None:
        a, b, e = MdnsDiscovery(), MdnsDiscovery(), MdnsDiscovery()
        seen_by_a, seen_by_b, seen_by_e = Sightings(), Sightings(), Sightings()
        await e.start(eve, [f"{HERE}:7003"], seen_by_e)
        await a.start(ana, [f"{HERE}:7001"], seen_by_a)
        a.seek([ben])
        await b.start(ben, [f"{HERE}:7002"], seen_by_b)
        b.seek([ana])
        await seen_by_a.until(ben, f"{HERE}:7002")
        await seen_by_b.until(ana, f"{HERE}:7001")
        async with asyncio.timeout(PATIENCE_S):
            # The one that a join looks for is found by the hash of its key, known or not.
            assert await b.find(instance_of(eve)) == (f"{HERE}:7003",)
        assert seen_by_a.places.keys() == {ben}
        assert seen_by_b.places.keys() == {ana}
        assert seen_by_e.places == {}
        assert e.status().strangers > 0
        assert a.status().announced == (HERE,)

        # A peer that comes to be trusted later was there all the time: no word comes again.
        a.seek([ben, eve])
        await seen_by_a.until(eve, f"{HERE}:7003")
        await asyncio.gather(a.stop(), b.stop(), e.stop())
        assert a.status().state == "stopped"

    asyncio.run(meet())
