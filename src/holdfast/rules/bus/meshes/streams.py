"""What a store keeps of the streams of a mesh that is shared over the bus, and whether two nodes
have the same entries under the same numbers.

The digest of a set of entries is the sum of their leaf hashes modulo 2^256, as in
`rules/digests.py`: it does not depend on the order and grows with each append. A store keeps the
sum as eight lanes of 32 bits, because a database adds up those by itself. It is strong against
accidents; a node that wants to deceive makes both the entries and their digests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from holdfast.rules.bus.meshes.coverage import NOTHING, StreamName
from holdfast.rules.frontier import Frontier, Range

LANES: Final = 8
EMPTY: Final = (0,) * LANES
_UNPACK: Final = Struct(">8I").unpack
_LANE_BITS: Final = 32
_MODULUS: Final = 1 << 256

Lanes = tuple[int, ...]


def lanes_of(leaves: Sequence[bytes]) -> Lanes:
    """The lanes of the sum of some leaf hashes."""
    if len(leaves) == 1:
        return _UNPACK(leaves[0])
    return _UNPACK(_bytes(sum([int.from_bytes(leaf, "big") for leaf in leaves])))


def digest_of(lanes: Iterable[int]) -> bytes:
    """The digest that lanes make, however far they have run over."""
    total = 0
    for lane in lanes:
        total = (total << _LANE_BITS) + lane
    return _bytes(total)


def digest_difference(one: bytes, other: bytes) -> int:
    """By how much the sums of two sets differ. Entries that are in both, or come to both, do not
    change it.
    """
    return (int.from_bytes(other, "big") - int.from_bytes(one, "big")) % _MODULUS


def _bytes(total: int) -> bytes:
    return (total % _MODULUS).to_bytes(32, "big")


class EntryPlace(msgspec.Struct, array_like=True, gc=False):
    """The first fields of an envelope, up to its number: where it stands in which stream."""

    protocol: msgspec.Raw
    version: msgspec.Raw
    id: msgspec.Raw
    mesh: str
    op: str
    entity: msgspec.Raw
    owner: msgspec.Raw
    origin: str
    epoch: int
    seq: int


place_of: Final = msgspec.msgpack.Decoder(EntryPlace).decode
"""The place of an envelope that was checked before."""

NO_ENTRIES: Final = digest_of(EMPTY)


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
