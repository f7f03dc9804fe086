"""Who gets a message of a topic from whom, when peers pass on what others have published.

The origin signs such a message once, for the topic, and every carrier brings the same bytes. So its
number tells that it has come before, whoever brings it: a peer takes it in once, and passes it on
only when it takes it in. That alone makes circles impossible. The word of those who get it anyway
(`given`) spares copies, and the count of hops bounds how far it goes.

A right stands behind each step. A peer is given a message to pass on if it may relay here, and is
believed about others if it may relay here: both are the same grant, of each side for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from blake3 import blake3

from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.limits import BUS_RELAY_GIVEN_MAX, BUS_RELAY_HOPS_MAX

TAG_BYTES: Final = 8
_MARK: Final = b"holdfast bus topic mark 1\0"


def tag_of(key: PeerKey) -> bytes:
    """How a peer is named among those who get a message."""
    return key[:TAG_BYTES]


def topic_mark(key: PeerKey) -> PeerKey:
    """Under which key the numbers of what a peer published by several carriers are remembered. They
    have a window of their own: what was overtaken on the way does not disturb the strict mark of
    what the peer sends over its link.
    """
    return blake3(_MARK + key).digest()


class Neighbour(NamedTuple):
    """A linked peer, as one topic concerns it."""

    name: str
    key: PeerKey
    takes: bool
    """It takes from us what others have published."""
    listens: bool
    carries: bool
    """It passes on, and may."""


class Step(NamedTuple):
    """A message that goes to one peer."""

    name: str
    hops: int
    given: tuple[bytes, ...]


def first_steps(neighbours: Iterable[Neighbour], otherwise: Iterable[PeerKey]) -> list[Step]:
    """To whom its origin gives a message; `otherwise` are peers that get it by another way."""
    chosen = [one for one in neighbours if one.listens or one.carries]
    apart = [tag_of(key) for key in otherwise]
    return _steps(chosen, 0, apart)


def next_steps(
    neighbours: Iterable[Neighbour],
    *,
    came_from: PeerKey,
    origin: PeerKey,
    hops: int,
    given: Sequence[bytes],
) -> list[Step]:
    """To whom a message is passed on that came after so many hops."""
    if hops >= BUS_RELAY_HOPS_MAX:
        return []
    chosen = [
        one
        for one in neighbours
        if one.takes
        and (one.listens or one.carries)
        and one.key not in (came_from, origin)
        and tag_of(one.key) not in given
    ]
    return _steps(chosen, hops + 1, given)


def _steps(chosen: Sequence[Neighbour], hops: int, given: Sequence[bytes]) -> list[Step]:
    """One who does not pass it on gets it as if it had come to its end."""
    tags = [tag_of(one.key) for one in chosen]
    known = tuple(dict.fromkeys([*given, *tags]))
    steps = []
    for one, tag in zip(chosen, tags, strict=True):
        others = [other for other in known if other != tag or tag in given]
        last = hops if one.carries else BUS_RELAY_HOPS_MAX
        steps.append(Step(one.name, last, tuple(others[:BUS_RELAY_GIVEN_MAX])))
    return steps
