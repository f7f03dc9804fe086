"""A peer of the bench of meshes: a home with its bus, in a process of its own.

    python -m bench._mesh_peer HOME WANTED [CARD@host:port]

It prints `up CARD ADDRESS`, and `linked` once the other peer is there. For a line on its input it
begins to share its mesh, and prints `done CPU_SECONDS WALL_SECONDS BYTES` once it covers WANTED
numbers of others and knows that the other peer has the same.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from time import perf_counter, process_time

import holdfast
from holdfast.bus.bus import Bus
from holdfast.bus.options import BusOptions
from holdfast.bus.static_peers import StaticPeers
from holdfast.node.bus.meshes.exchange import MeshExchange
from holdfast.node.trust.trust import Trust
from holdfast.rules.keys import card_of

_LOOK_S = 0.002
_LOOK_SELDOM_S = 0.05
"""Where much is brought: to look costs processor time, too."""


async def main(home: Path, wanted: int, dials: str | None) -> None:
    with holdfast.open(home, sync="full") as node:
        engine = node._engine
        (other,) = engine.read("bench", lambda tx: tx.zone_list())
        known = dials or card_of(other.name, other.keys[0].key)
        seed = Trust(engine, node._opened.paths).seed()
        options = BusOptions(seed=seed, name=node.peer, peers=StaticPeers([known]))
        async with await Bus.bind_with(options) as bus:
            exchange = MeshExchange(engine, bus.key)
            await exchange.start()
            print("up", bus.card, bus.addresses[0], flush=True)
            while not bus.links.all():
                await asyncio.sleep(_LOOK_S)
            print("linked", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            cpu, wall = process_time(), perf_counter()
            bus.attach(exchange)
            while not _is_same(exchange, node.peer, wanted):
                await asyncio.sleep(_LOOK_SELDOM_S if wanted else _LOOK_S)
            sent = sum(link.figures.bytes_sent for link in exchange._links.values())
            print("done", process_time() - cpu, perf_counter() - wall, sent, flush=True)
            await asyncio.to_thread(sys.stdin.readline)


def _is_same(exchange: MeshExchange, us: str, wanted: int) -> bool:
    """Whether so much of others is here, and all streams are known to be the same there."""
    spread = exchange._context.spread
    covered = sum(has.prefix for name, has in spread.mine.items() if name.origin != us)
    known = [spread.known_of(label) for label in exchange._links]
    return covered >= wanted and bool(known) and known[0] == spread.mine


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), (*sys.argv[3:], None)[0]))
