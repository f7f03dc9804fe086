"""Tens of thousands of tiny frames in one piece of bytes: others have their turn in between."""

from __future__ import annotations

import asyncio
from collections import Counter

from holdfast.bus.links.tls_net import TlsNet
from holdfast.bus.ports import Link
from holdfast.protocol.bus_frames import FRAME_HEAD, AckFrame, FrameKind, Stream, frame, told
from holdfast.rules.keys import public_key
from holdfast.rules.limits import BUS_FRAMES_A_TURN
from support.bus_links import in_loop, key_seeds, peer
from support.raw_link import RawLink

LOW, HIGH = key_seeds(2)
FRAMES = 20_000


def _acks() -> bytes:
    """So many acknowledgements of nothing, which need no credit."""
    acks = (told(FrameKind.ACK, AckFrame(number)) for number in range(FRAMES))
    return b"".join(frame(FrameKind.ACK, Stream.CONTROL, ack) for ack in acks)


@in_loop
async def test_B6_a_flood_of_tiny_frames_leaves_others_their_turn_and_keeps_its_order() -> None:
    net = TlsNet()
    ana = await peer("ana", LOW, {public_key(HIGH): "bo"}, net)
    turn, in_turn, came = 0, Counter[int](), list[bytes]()

    def count(link: Link, kind: FrameKind, stream: Stream, body: bytes) -> None:
        in_turn[turn] += 1
        came.append(body)

    ana.told.on_frame = count
    flood = await RawLink(HIGH, net).link(ana.address, ana.key)
    flood.write(_acks())
    while len(came) < FRAMES:
        turn += 1
        await asyncio.sleep(0)
    assert max(in_turn.values()) <= BUS_FRAMES_A_TURN
    assert came == [told(FrameKind.ACK, AckFrame(number)) for number in range(FRAMES)]
    await ana.links.close()


@in_loop
async def test_B6_a_link_whose_frame_needs_more_turns_is_not_read_until_they_are_over() -> None:
    net = TlsNet()
    ana = await peer("ana", LOW, {public_key(HIGH): "bo"}, net)
    came, waiting = list[bytes](), list[Link]()

    def stop(link: Link, kind: FrameKind, stream: Stream, body: bytes) -> None:
        assert not waiting, "a frame was handed on while the one before it was worked on"
        came.append(body)
        if len(came) % 100 == 0:
            waiting.append(link)
            link.stop_reading()

    ana.told.on_frame = stop
    flood = await RawLink(HIGH, net).link(ana.address, ana.key)
    flood.write(_acks())
    for number in range(1, 10):
        while len(came) < 100 * number:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.pop().read_on()
    await ana.links.close()


@in_loop
async def test_B6_what_came_before_the_end_of_a_connection_is_handed_on_before_it() -> None:
    net = TlsNet()
    ana = await peer("ana", LOW, {public_key(HIGH): "bo"}, net)
    came = 0

    def count(link: Link, kind: FrameKind, stream: Stream, body: bytes) -> None:
        nonlocal came
        came += 1
        assert not ana.told.ended

    ana.told.on_frame = count
    flood = await RawLink(HIGH, net).link(ana.address, ana.key)
    flood.write(_acks())
    flood.transport.close()
    await ana.told.until(lambda: bool(ana.told.ended))
    assert came == FRAMES
    await ana.links.close()


@in_loop
async def test_B6_a_link_that_ended_holds_no_half_of_a_frame() -> None:
    net = TlsNet()
    ana = await peer("ana", LOW, {public_key(HIGH): "bo"}, net)
    half = await RawLink(HIGH, net).link(ana.address, ana.key)
    (link,) = ana.links.all()
    half.write(FRAME_HEAD.pack(1 << 20, FrameKind.PARCEL, Stream.NOW) + bytes(1 << 16))
    while not link._connection._reader.held:
        await asyncio.sleep(0)
    half.transport.close()
    await ana.told.until(lambda: bool(ana.told.ended))
    assert link._connection._reader.held == 0
    await ana.links.close()
