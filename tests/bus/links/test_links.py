"""Links between two peers on the machine's own network."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.bus.links.dialling import WantedPeer
from holdfast.protocol.bus_frames import FrameKind, Stream
from holdfast.rules.bus.links.dial_plan import DialState
from holdfast.rules.errors import PeerUnreachable
from holdfast.transport.fault_proxy import FaultProxy
from support.bus_links import LinkedPeer, in_loop, two_peers

DEAD = "127.0.0.1:1"


async def close(*peers: LinkedPeer) -> None:
    await asyncio.gather(*(peer.links.close() for peer in peers))


def target(peer: LinkedPeer) -> tuple[str, int]:
    host, _, port = peer.address.rpartition(":")
    return host, int(port)


def address(proxy: FaultProxy) -> str:
    return "{}:{}".format(*proxy.address)


@in_loop
async def test_B6_two_peers_prove_their_keys_and_exchange_frames() -> None:
    ana, bo = await two_peers()
    ana.want(bo)
    there, here = await ana.link_to(bo), await bo.link_to(ana)
    assert (there.name, there.welcome.name, there.dialled) == ("bo", "bo", True)
    assert (here.name, here.peer, here.dialled) == ("ana", ana.key, False)
    there.send(FrameKind.PARCEL, Stream.NEXT, b"hi")
    here.send(FrameKind.MESH, Stream.MESH, b"m" * 3_000_000)
    await bo.told.until(lambda: bo.told.frames == [(FrameKind.PARCEL, Stream.NEXT, b"hi")])
    await ana.told.until(lambda: bool(ana.told.frames))
    assert ana.told.frames == [(FrameKind.MESH, Stream.MESH, b"m" * 3_000_000)]
    assert 0 < await there.ping() < 5000
    await close(ana, bo)
    assert [word for word in ana.told.seen if "frame" not in word] == ["up bo out", "down bo"]


@in_loop
async def test_B6_frames_leave_in_the_order_of_their_calls_and_only_control_overtakes() -> None:
    ana, bo = await two_peers()
    ana.want(bo)
    link = await ana.link_to(bo)
    link.send(FrameKind.PARCEL, Stream.LOW, b"1")
    link.send(FrameKind.PARCEL, Stream.NOW, b"2")
    link.send(FrameKind.MESH, Stream.MESH, b"3")
    link.send(FrameKind.PARCEL, Stream.REPLY, b"4")
    link.send(FrameKind.ACK, Stream.CONTROL, b"first")
    await bo.told.until(lambda: len(bo.told.frames) == 5)
    assert [body for *_, body in bo.told.frames] == [b"first", b"1", b"2", b"3", b"4"]
    await close(ana, bo)


@in_loop
async def test_B6_a_link_that_breaks_anywhere_in_a_frame_is_dialled_again() -> None:
    ana, bo = await two_peers()
    with FaultProxy(target(bo)) as proxy:
        ana.want(bo, address(proxy))
        for round in range(1, 4):
            link = await ana.link_to(bo)
            proxy.cut_after(50_000 * round, "up")
            link.send(FrameKind.MESH, Stream.MESH, bytes(1_000_000))
            await ana.told.until(lambda round=round: len(ana.told.ended) == round)  # type: ignore[misc]
            await bo.told.until(lambda round=round: len(bo.told.ended) == round)  # type: ignore[misc]
        await ana.link_to(bo)
        assert not bo.told.frames, "half a frame is no frame"
        with pytest.raises(PeerUnreachable):
            await link.room(Stream.NOW)
        await close(ana, bo)


@in_loop
async def test_B6_garbled_bytes_end_a_link_and_a_clean_line_brings_it_back() -> None:
    ana, bo = await two_peers()
    with FaultProxy(target(bo)) as proxy:
        ana.want(bo, address(proxy))
        link = await ana.link_to(bo)
        proxy.garble(direction="up")
        link.send(FrameKind.PARCEL, Stream.NOW, b"never")
        await ana.told.until(lambda: bool(ana.told.ended))
        proxy.heal()
        ana.links.found("bo", [])
        await (await ana.link_to(bo)).ping()
        assert not bo.told.frames
        await close(ana, bo)


@in_loop
async def test_B6_all_addresses_of_a_peer_are_tried_and_a_new_one_at_once() -> None:
    ana, bo = await two_peers()
    ana.links.refresh({"bo": WantedPeer((bo.key,))})
    while (dial := ana.links.dials()[0]).state is not DialState.NOWHERE:
        await asyncio.sleep(0)
    assert dial.name == "bo"
    with FaultProxy(target(bo)) as silent:
        silent.stall()
        ana.links.found("bo", [DEAD, address(silent), ana.address, bo.address])
        link = await ana.link_to(bo)
        assert link.address == bo.address
    (dial,) = ana.links.dials()
    assert dial.state in (DialState.LINKED, DialState.DIALLING)
    ana.links.refresh({})
    assert not ana.links.dials()
    assert ana.links.link_to([bo.key]) is link, "a link stays when nobody dials for it any more"
    await close(ana, bo)
