"""One key in two processes at once, as after a home was copied: all who meet it say so, the link of
one of the two stays, and nobody is suspected who was only started again or has moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from holdfast.bus.bus import Bus
from holdfast.bus.links.frame_connection import FrameConnection
from holdfast.bus.links.link import PeerLink
from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.bus.options import BusOptions
from holdfast.bus.static_peers import StaticPeers
from holdfast.protocol.bus_frames import FrameKind, NoticeFrame, Stream, told
from holdfast.rules.errors import PeerCopied
from holdfast.rules.keys import card_of, public_key
from support.bus_pairs import run, seed_of


async def _bind(name: str, peer: str, at: str = "") -> Bus:
    card = card_of(peer, public_key(seed_of(peer)))
    peers = StaticPeers([f"{card}@{at}" if at else card])
    listen = () if at else ("127.0.0.1:0",)
    # The lot is always the shortest wait: who lost a link dials again at once.
    options = BusOptions(
        seed=seed_of(name),
        name=name,
        listen=listen,
        peers=peers,
        store=MemoryMeshStore(),
        jitter=lambda: 0.0,
    )
    return await Bus.bind_with(options)


async def _until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


def _link_of(bus: Bus) -> PeerLink:
    (link,) = bus.links.all()
    return link


def test_B6_two_processes_with_one_key_are_named_by_all_and_one_link_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        ben = await _bind("ben", "ana")
        ups: list[str] = []
        ben.router.parts.append(_Counting(ups))
        ana = await _bind("ana", "ben", ben.addresses[0])
        await ana.connected("ben")
        copy = await _bind("ana", "ben", ben.addresses[0])
        for bus in (ana, copy, ben):
            await _until(lambda bus=bus: bus.status().warnings)  # type: ignore[misc]
        (warning,) = ben.status().warnings
        assert warning.startswith("peer_copied: ")
        assert "'ana'" in warning
        for own in (ana, copy):
            assert own.status().warnings[0].startswith("peer_copied: ben ")
        # It has come to rest: one of the two has the link, the other one is refused.
        stays, count = _link_of(ben), len(ups)
        assert count <= 3, "each of them, and once more at the most"
        before = ben.links.counts[PeerCopied.code]
        for own in (ana, copy):
            own.links.try_now("ben")
        await _until(lambda: ben.links.counts[PeerCopied.code] > before)
        assert _link_of(ben) is stays
        assert len(ups) == count
        one, other = (ana, copy) if ana.router.link_to("ben") else (copy, ana)
        assert (await one.send("ben", "still here")).state == "delivered"
        problem = other.status().problems["ben"]
        assert problem.startswith("peer_copied: ")
        said = [one.getMessage() for one in caplog.records if one.name == "holdfast.bus"]
        assert sum("two processes show the key of 'ana'" in one for one in said) == 1, "said once"
        assert sum("the key of this node" in one for one in said) == 2, "once by each"
        # Whoever has the link ends: the other one gets through, and what it sent is not lost.
        await one.close()
        other.links.try_now("ben")
        assert (await other.send("ben", "now I am", wait_ms=20_000)).state == "delivered"
        for bus in (other, ben):
            await bus.close()

    run(story())


class _Counting:
    """A part of a bus that notes which links came up."""

    def __init__(self, ups: list[str]) -> None:
        self._ups = ups

    def link_up(self, link: object) -> None:
        self._ups.append("up")

    def frame(self, link: object, kind: FrameKind, stream: Stream, body: bytes) -> bool:
        return False

    def link_down(self, link: object) -> None: ...
    async def close(self) -> None: ...


def test_B6_a_peer_that_is_started_again_or_moves_is_not_suspected() -> None:
    async def story() -> None:
        ben = await _bind("ben", "ana")
        half_open: list[FrameConnection] = []
        for turn in range(3):
            ana = await _bind("ana", "ben", ben.addresses[0])
            assert await ana.connected("ben")
            await _until(ben.links.all)
            for _ in range(4):
                await _move(ana, ben, half_open)
            if turn:  # killed, or its power is lost: nobody tells ben
                half_open.append(_lose(ana))
            await ana.close()
        assert ben.status().warnings == []
        assert ben.links.counts[PeerCopied.code] == 0
        for connection in half_open:
            connection.abort()
        await ben.close()

    run(story())


async def _move(ana: Bus, ben: Bus, half_open: list[FrameConnection]) -> None:
    """Ana is in another network: her end of the link is gone, and ben still believes in his."""
    before = _link_of(ben)
    half_open.append(_lose(ana))
    assert not before.ended.done()
    ana.links.try_now("ben")
    await _until(before.ended.done)
    await _until(lambda: ana.links.all() and ben.links.all())


def _lose(bus: Bus) -> FrameConnection:
    """A bus believes that its link has ended; its connection stays open, as the other side's."""
    link = _link_of(bus)
    connection = link._connection
    bus.links._open.pop(connection)
    link.lost(None)
    return connection


def test_B6_a_peer_that_says_strange_things_of_our_key_is_quoted_and_harms_nothing() -> None:
    async def story() -> None:
        ben = await _bind("ben", "ana")
        ana = await _bind("ana", "ben", ben.addresses[0])
        await ana.connected("ben")
        await _until(ben.links.all)
        for code in ("peer_copied", "something_new", "peer_copied"):
            notice = told(FrameKind.NOTICE, NoticeFrame(code, "\x1b[31m" * 50))
            _link_of(ben).send(FrameKind.NOTICE, Stream.CONTROL, notice)
        await _until(lambda: ana.status().warnings)
        (warning,) = ana.status().warnings
        assert "ben" in warning
        assert "\x1b" not in warning
        assert (await ana.send("ben", "all is well")).state == "delivered"
        for bus in (ana, ben):
            await bus.close()

    run(story())
