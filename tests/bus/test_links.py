"""Links between two peers on the machine's own network."""

from __future__ import annotations

import asyncio

from holdfast.protocol.bus_frames import FrameKind, Stream
from support.bus_links import in_loop, two_peers


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
    await asyncio.gather(ana.links.close(), bo.links.close())
    assert [word for word in ana.told.seen if "frame" not in word] == ["up bo out", "down bo"]
