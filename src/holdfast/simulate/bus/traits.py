"""What is special about the world of a seed: who is there, and what may happen to them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

PEERS: Final = ("ana", "bob", "cai", "dee")


@dataclass(frozen=True, slots=True)
class BusTraits:
    """Drawn from the seed."""

    peers: tuple[str, ...]
    durable: frozenset[str]
    """Whose store survives the process."""
    batch: bool
    """One signature for a parcel; else one for each message."""
    restoring: bool
    """Disks are put back to older copies."""
    moving: bool
    """One machine changes its address from time to time."""
    attacked: bool
    """Somebody records parcels and brings them again."""
    two_networks: bool
    year_off: str
    """Whose clock is a year off, for good; nobody's if it is empty."""
    busy: bool
    """There is more work than slow readers can take."""
    homes: bool
    """Each machine has a home, and all of them share a mesh without a broker; its owner is the
    first. So it is in every other world."""
    relays: frozenset[str]
    """Members that may relay; the owner may."""


def traits_of(seed: int) -> BusTraits:
    rng = random.Random(f"traits of bus {seed}")
    peers = PEERS[: rng.choice((2, 3, 3, 4))]
    drawn = BusTraits(
        peers=peers,
        durable=frozenset(peer for peer in peers if rng.random() < 0.75),
        batch=rng.random() < 0.7,
        restoring=rng.random() < 0.5,
        moving=rng.random() < 0.3,
        attacked=rng.random() < 0.5,
        two_networks=rng.random() < 0.3,
        year_off=rng.choice(("", "", *peers)),
        busy=rng.random() < 0.3,
        homes=seed % 2 == 0,
        relays=frozenset((peers[0], *(peer for peer in peers[1:] if rng.random() < 0.4))),
    )
    if drawn.homes:
        # Rights end by the clock, so a member whose clock is a year off belongs to nothing.
        drawn = replace(drawn, durable=frozenset(peers), year_off="")
    return drawn
