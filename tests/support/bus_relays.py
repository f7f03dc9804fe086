"""Buses in memory of which some may pass on what others publish."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from nacl.signing import SigningKey

from holdfast.bus.bus import Bus
from holdfast.bus.options import BusOptions
from holdfast.bus.static_peers import StaticPeers
from holdfast.rules.bus.capability import capability_text, issue
from holdfast.rules.bus.mesh_store import MeshStore
from holdfast.rules.keys import card_of, public_key
from holdfast.service.clock import SystemClock
from support.bus_pairs import MemoryLink, join, seed_of

T = TypeVar("T")
Grant = tuple[str, str]
"""Who lets whom relay."""


async def relay_bus(
    name: str,
    others: Iterable[str],
    grants: Sequence[Grant],
    *,
    scope: str = "relay:news.>",
    store: MeshStore | None = None,
) -> Bus:
    """A bus that knows others, and holds what they let it relay."""
    now = SystemClock().now_ms()
    held = [
        capability_text(
            issuer,
            issue(
                SigningKey(seed_of(issuer)),
                public_key(seed_of(name)),
                (scope,),
                now_ms=now,
                expires_at=now + 3_600_000,
                name=name,
            ),
        )
        for issuer, holder in grants
        if holder == name
    ]
    cards = [card_of(other, public_key(seed_of(other))) for other in others if other != name]
    peers = StaticPeers(cards, held)
    options = BusOptions(
        seed=seed_of(name),
        name=name,
        listen=(),
        peers=peers,
        store=store,
        run_in_thread=_at_once,
    )
    return await Bus.bind_with(options)


async def _at_once(work: Callable[[], T]) -> T:
    return work()


async def relay_world(
    links: Sequence[str], grants: Sequence[Grant], *, apart: Sequence[Grant] = ()
) -> tuple[dict[str, Bus], dict[str, MemoryLink]]:
    """Peers with names of one letter, all known to each other, and links like `ab`. In `apart` the
    second does not know the first.
    """
    names = sorted(set("".join(links)))
    buses = {}
    for name in names:
        known = [other for other in names if (other, name) not in apart]
        buses[name] = await relay_bus(name, known, grants)
    made = {link: await join(buses[link[0]], buses[link[1]]) for link in links}
    await quiet()
    return buses, made


async def quiet() -> None:
    """Lets everything happen that happens by itself: nothing here waits for time."""
    for _ in range(200):
        await asyncio.sleep(0)


async def close_all(buses: dict[str, Bus]) -> None:
    for bus in buses.values():
        await bus.close()
