"""Discovery within one machine: real mDNS on the loopback interface."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from errno import EADDRINUSE

import pytest

from holdfast.bus.discovery import interfaces, mdns, responder
from holdfast.bus.discovery.mdns import MdnsDiscovery
from holdfast.bus.discovery.responder import MdnsResponder
from holdfast.rules.bus.links import discovery as rules
from holdfast.rules.bus.links.discovery import InterfaceAddress, instance_of
from holdfast.rules.errors import DiscoveryFailed
from support import hostile_mdns

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
    ana, ben, eve = (os.urandom(32) for _ in range(3))  # others may test on this machine too

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


def test_B6_a_name_that_was_redirected_is_asked_for_as_if_nothing_were_known() -> None:
    """Nobody but the one who looks asks here, so the lie stands until he does."""
    victim = instance_of(os.urandom(32))
    around = rules.surroundings([(HERE, 7001)], interfaces.interface_addresses())

    async def look() -> None:
        honest = MdnsResponder(victim, around, _ignore, _ignore)
        looking = MdnsResponder(instance_of(os.urandom(32)), around, _ignore, _ignore)
        await honest.begin(around)
        assert await looking.resolve(victim, ask=False) == [(HERE, 7001)]
        await asyncio.sleep(1.1)  # by the rules of mDNS a record replaces those older than a second
        async with asyncio.timeout(PATIENCE_S):
            while (HERE, 7001) in await looking.resolve(victim, ask=False):
                # Again and again: one datagram may get lost on a busy machine.
                hostile_mdns.main(HERE, "redirect", victim, "10.9.9.9", "6666")
                await asyncio.sleep(0.02)
        assert ("10.9.9.9", 6666) in await looking.resolve(victim, ask=False)
        assert (HERE, 7001) in await looking.resolve(victim, ask=True)
        await asyncio.gather(honest.close(), looking.close())

    asyncio.run(look())


def test_B6_more_talk_than_anybody_can_listen_to_is_not_listened_to_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "BUS_RECORDS_MAX", 500)
    monkeypatch.setattr(mdns, "BUS_DEAF_MS", 50)

    async def suffer() -> None:
        node = MdnsDiscovery()
        await node.start(os.urandom(32), [f"{HERE}:7001"], Sightings())
        await _until(lambda: node.status().state == "on")
        async with asyncio.timeout(PATIENCE_S):
            while node.status().state != "deaf":
                hostile_mdns.main(HERE, "names", "1000")
                await asyncio.sleep(0.01)
        assert "more by mDNS" in node.status().problem
        assert node.status().announced == ()
        await _until(lambda: node.status().state == "on")
        assert node.status().problem == ""
        await node.stop()

    asyncio.run(suffer())


def test_B6_a_machine_that_refuses_mdns_is_a_state_with_a_reason_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(EADDRINUSE, "somebody has the port for himself")

    async def suffer() -> None:
        node = MdnsDiscovery(jitter=lambda: 0.0)
        with monkeypatch.context() as refused:
            refused.setattr(responder, "AsyncZeroconf", refuse)
            await node.start(os.urandom(32), [f"{HERE}:7001"], Sightings())
            await _until(lambda: node.status().state == "failed")
        assert "somebody has the port" in node.status().problem
        await _until(lambda: node.status().state == "on")
        assert node.status().announced == (HERE,)
        await node.stop()

    asyncio.run(suffer())


def test_B6_the_network_is_asked_again_for_a_peer_that_nothing_was_heard_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A peer that began while the cable was cut has announced itself to nobody."""
    monkeypatch.setattr(rules, "BUS_BROWSE_MS", 20)
    questions = asyncio.Semaphore(0)
    browse = MdnsResponder.browse

    async def counted(self: MdnsResponder) -> None:
        questions.release()
        await browse(self)

    monkeypatch.setattr(MdnsResponder, "browse", counted)

    async def look() -> None:
        node = MdnsDiscovery()
        await node.start(os.urandom(32), [f"{HERE}:7001"], Sightings())
        node.seek([os.urandom(32)])
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(5):
                await questions.acquire()
        await node.stop()

    asyncio.run(look())


QUIET = """
import asyncio, sys
from holdfast.bus.discovery.mdns import MdnsDiscovery

async def be_quiet():
    node = MdnsDiscovery(quiet=True)
    await node.start(b"a" * 32, ["0.0.0.0:7001"], print)
    node.seek([b"b" * 32])
    node.look(b"b" * 32)
    print(node.status().state)
    await node.stop()

asyncio.run(be_quiet())
print("zeroconf" in sys.modules, "ifaddr" in sys.modules)
"""


def test_B6_quiet_means_that_no_instance_is_made() -> None:
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["quiet", "False", "False"]


def test_B6_a_quiet_bus_finds_nobody_and_says_so() -> None:
    async def ask() -> None:
        node = MdnsDiscovery(quiet=True)
        await node.start(os.urandom(32), [f"{HERE}:7001"], Sightings())
        with pytest.raises(DiscoveryFailed, match="quiet"):
            await node.find("0" * 16)
        await node.stop()

    asyncio.run(ask())


def test_B6_who_waits_for_a_peer_is_told_when_the_bus_stops() -> None:
    async def ask() -> None:
        node = MdnsDiscovery()
        await node.start(os.urandom(32), [f"{HERE}:7001"], Sightings())
        waiting = asyncio.create_task(node.find("0" * 16))
        await _until(lambda: node.status().state == "on")
        await node.stop()
        with pytest.raises(DiscoveryFailed, match="stopping"):
            await waiting

    asyncio.run(ask())


def test_B6_where_the_system_tells_nothing_addresses_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = [InterfaceAddress(1, HERE, 8)]
    monkeypatch.setattr(interfaces, "BUS_INTERFACES_MS", 5)
    monkeypatch.setattr(interfaces, "interface_addresses", lambda: list(places))
    monkeypatch.setattr(sys, "platform", "elsewhere")

    async def watch() -> None:
        changed = asyncio.Event()
        end = interfaces.watch_interfaces(changed.set)
        for ip in ("10.0.0.1", "10.0.0.2"):
            changed.clear()
            places.append(InterfaceAddress(2, ip, 8))
            async with asyncio.timeout(PATIENCE_S):
                await changed.wait()
        end()

    asyncio.run(watch())


def _ignore(_: object) -> None:
    pass


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)
