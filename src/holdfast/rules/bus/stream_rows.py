"""What a store keeps of the streams of a mesh that is shared over the bus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from holdfast.rules.bus.coverage import NOTHING, StreamName
from holdfast.rules.bus.stream_digest import EMPTY, digest_of
from holdfast.rules.frontier import Frontier, Range

NO_ENTRIES = digest_of(EMPTY)


class StreamRow(msgspec.Struct, frozen=True, kw_only=True):
    """What this node has of a stream."""

    number: int = 0
    mesh: str
    origin: str
    epoch: int
    key: bytes = b""
    """The key of the origin; empty if it is not known."""
    base: int = 0
    """The origin's first number of this epoch is the one after it; 0 if nobody has told it."""
    floor: int = 0
    """Up to this number entries were truncated here."""
    covered: Frontier = NOTHING
    entries: int = 0
    """How many entries were ever here; the digest is of those."""
    digest: bytes = NO_ENTRIES
    trouble: str = ""
    """What a person has to look at; empty: nothing."""

    @property
    def name(self) -> StreamName:
        return StreamName(self.mesh, self.origin, self.epoch)


Placed = tuple[int, int, bytes]
"""One number of a stream, and offset and leaf hash of its entry in the log. The offset is 0 where
the number is covered and there is nothing to send on."""


class StreamPage(NamedTuple):
    """Entries of a stream in the order of their numbers."""

    seqs: list[int]
    raws: list[bytes]
    upto: int
    """Everything that is held up to here is in it."""


class BlockDigest(NamedTuple):
    """The entries of a block of numbers that are still here."""

    block: int
    entries: int
    digest: bytes


def runs_of(seqs: Sequence[int]) -> list[Range]:
    """Numbers as ranges, however they are ordered."""
    if not seqs:
        return []
    low, high = min(seqs), max(seqs)
    if high - low + 1 == len(seqs):  # nearly always; a number does not come twice
        return [(low, high + 1)]
    runs: list[Range] = []
    for seq in sorted(seqs):
        if runs and runs[-1][1] >= seq:
            runs[-1] = (runs[-1][0], seq + 1)
        else:
            runs.append((seq, seq + 1))
    return runs


def two_contents(there: Mapping[int, int], placed: Sequence[Placed]) -> str:
    """What is wrong with entries whose number has another one already, given the offsets of those;
    empty if nothing is.
    """
    for seq, offset, _ in placed:
        first = there.get(seq, offset)
        if offset and first != offset:
            return (
                f"number {seq} has two contents, at offsets {first} and {offset} of the log: two "
                "homes wrote under one name"
            )
    return ""
