"""A process that is held up judges nobody before it has read what came meanwhile."""

from __future__ import annotations

import asyncio
import time

import pytest
import uvloop

from holdfast.bus.links.tls_net import TlsNet
from holdfast.protocol.bus_frame_reader import RawFrame
from holdfast.protocol.bus_frames import FrameKind, Stream
from holdfast.rules.keys import public_key
from support.bus_links import key_seeds, peer
from support.raw_link import RawLink

LOW, HIGH = key_seeds(2)


class HoldsUp(RawLink):
    """Answers the first question at once, and then holds up the loop for longer than an answer may
    take, from within what the loop does for the network: uvloop calls its timers next.
    """

    def take(self, frame: RawFrame) -> None:
        kind, _, body = frame
        if kind == FrameKind.PING:
            self.connection.send(FrameKind.PONG, Stream.CONTROL, body)
            self.connection._flush()
            if not self.frames:
                time.sleep(0.5)
        super().take(frame)


def test_B6_a_loop_that_was_held_up_reads_before_it_gives_a_peer_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = "holdfast.rules.bus.links.keepalive"
    monkeypatch.setattr(f"{rules}._PING_S", 0.1)
    monkeypatch.setattr(f"{rules}._PONG_S", 0.2)
    monkeypatch.setattr(f"{rules}._LOOK_S", 0.2)

    async def story() -> None:
        net = TlsNet()
        ana = await peer("ana", LOW, {public_key(HIGH): "bo"}, net)
        bo = await HoldsUp(HIGH, net).link(ana.address, ana.key)
        (link,) = ana.links.all()
        async with asyncio.timeout(60):
            await bo.until_frames(2)
        assert not ana.told.ended
        assert link.rtt_ms is not None
        assert link.rtt_ms >= 500
        await ana.links.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())
