"""What of a mesh only a snapshot can bring, and from whom it is taken.

A node that was away for long, or is new, lacks numbers that its peers have covered and truncated:
their entries are gone, what they led to stands in tables. If no neighbour has such entries any
more, one that had them is asked for a snapshot. What it then **claims** is covered when all of it
is stored: of each stream the numbers that the neighbour covered, up to where it has truncated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from holdfast.rules.bus.meshes.coverage import (
    NOTHING,
    StreamName,
    cover_all,
    lacking,
    ranges_of,
    without,
)
from holdfast.rules.frontier import Frontier, Range


class StreamOffer(NamedTuple):
    """What a neighbour that is believed has, or had, of a stream."""

    covered: Frontier
    floor: int
    """Up to this number it has truncated."""


class SnapshotChoice(NamedTuple):
    """A snapshot of a mesh is to be taken from a neighbour."""

    link: str
    mesh: str
    claims: dict[StreamName, StreamOffer]
    """Of which streams it brings what is lacking."""


def claimed(offer: StreamOffer) -> list[Range]:
    """The numbers that a snapshot stands for."""
    upto = offer.floor + 1
    return [
        (start, min(end, upto)) for start, end in ranges_of(offer.covered) if start < min(end, upto)
    ]


def only_by_snapshot(mine: Frontier, offers: Sequence[StreamOffer]) -> list[Range]:
    """Numbers of a stream that somebody had, and nobody has any more."""
    there = NOTHING
    for offer in offers:
        there = cover_all(there, lacking(mine, offer.covered, offer.floor))
    lost = NOTHING
    for offer in offers:
        lost = cover_all(lost, without(without(claimed(offer), mine), there))
    return ranges_of(lost)


def choose_snapshots(
    mine: Mapping[StreamName, Frontier],
    offers: Mapping[str, Mapping[StreamName, StreamOffer]],
    busy: Collection[str] = (),
) -> list[SnapshotChoice]:
    """Which snapshots to take, given what each neighbour offers: one of each mesh, from whom brings
    the most of what is lacking. Of `busy` meshes one is being taken already.
    """
    by_stream: dict[StreamName, list[StreamOffer]] = {}
    for streams in offers.values():
        for name, offer in streams.items():
            by_stream.setdefault(name, []).append(offer)
    lost = {
        name: found
        for name, some in by_stream.items()
        if name.mesh not in busy and (found := only_by_snapshot(mine.get(name, NOTHING), some))
    }
    choices: dict[str, tuple[int, SnapshotChoice]] = {}
    for link, streams in offers.items():
        for mesh in dict.fromkeys(name.mesh for name in lost):
            claims = {
                name: offer
                for name, offer in streams.items()
                if name.mesh == mesh and without(claimed(offer), mine.get(name, NOTHING))
            }
            brings = sum(_brings(offer, lost.get(name, [])) for name, offer in claims.items())
            if brings > choices.get(mesh, (0,))[0]:
                choices[mesh] = brings, SnapshotChoice(link, mesh, claims)
    return [choice for _, choice in choices.values()]


def _brings(offer: StreamOffer, lost: Sequence[Range]) -> int:
    """How many of the lost numbers a snapshot of this neighbour stands for."""
    there = cover_all(NOTHING, claimed(offer))
    all_of = sum(end - start for start, end in lost)
    return all_of - sum(end - start for start, end in without(lost, there))
