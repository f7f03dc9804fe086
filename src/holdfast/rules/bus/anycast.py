"""Which peer a request goes to that names none.

Of the peers that are connected and serve it, the one that has the fewest of our requests; among
equals the one that was asked longest ago. A peer that was tried in vain is asked again only when
all others were.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Candidate(NamedTuple):
    """A connected peer that serves what is asked for."""

    name: str
    outstanding: int
    """How many of our requests it has not answered yet."""
    asked_at: int
    """When it was asked last, in any unit that grows."""


def choose(candidates: Iterable[Candidate], tried: Sequence[str]) -> str | None:
    """The name of the peer to ask; None if nobody serves it."""
    best = min(
        candidates,
        key=lambda one: (tried.count(one.name), one.outstanding, one.asked_at, one.name),
        default=None,
    )
    return None if best is None else best.name
