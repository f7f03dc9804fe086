"""The other side of the bench of messages: sends so many to one peer, 64 at a time, and ends."""

from __future__ import annotations

import asyncio
import sys

from holdfast.bus.bus import Bus
from holdfast.bus.options import BusOptions
from holdfast.bus.static_peers import StaticPeers

BODY = b"x" * 500
IN_FLIGHT = 64


async def send(card: str, seed: str, count: int, batch: bool) -> None:
    peers = StaticPeers([card])
    (peer,) = await peers.all()
    options = BusOptions(seed=bytes.fromhex(seed), name="ana", listen=(), peers=peers, batch=batch)
    async with await Bus.bind_with(options) as bus:
        if not await bus.connected(peer.name):
            raise SystemExit("there is no link")

        async def some() -> None:
            for _ in range(count // IN_FLIGHT):
                await bus.send(peer.name, BODY)

        await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))


if __name__ == "__main__":
    _, card, seed, count, mode = sys.argv
    asyncio.run(send(card, seed, int(count), mode == "batch"))
