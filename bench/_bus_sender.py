"""The other side of the bench of messages: sends so many to one peer, 64 at a time, and says how
much CPU that took.

Modes: `each` signs every message, `batch` signs all that leave together once, `unsigned` is `batch`
with zeros in place of the signature.
"""

from __future__ import annotations

import asyncio
import sys
from time import process_time
from unittest import mock

import uvloop

from holdfast.bus.bus import Bus
from holdfast.bus.options import BusOptions
from holdfast.bus.static_peers import StaticPeers
from holdfast.rules.bus import signed_envelope

BODY = b"x" * 500
IN_FLIGHT = 64


async def send(card: str, seed: str, count: int, mode: str) -> None:
    if mode == "unsigned":
        zeros = bytes(signed_envelope.SIGNATURE_BYTES)
        mock.patch.object(signed_envelope, "crypto_sign", return_value=zeros).start()
    peers = StaticPeers([card])
    (peer,) = await peers.all()
    options = BusOptions(
        seed=bytes.fromhex(seed), name="ana", listen=(), peers=peers, batch=mode != "each"
    )
    async with await Bus.bind_with(options) as bus:
        if not await bus.connected(peer.name):
            raise SystemExit("there is no link")

        async def some() -> None:
            for _ in range(count // IN_FLIGHT):
                await bus.send(peer.name, BODY)

        began = process_time()
        await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))
        print(process_time() - began, flush=True)


if __name__ == "__main__":
    _, card, seed, count, mode = sys.argv
    uvloop.run(send(card, seed, int(count), mode))
