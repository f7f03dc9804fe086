"""Do two nodes have the same entries under the same numbers of a stream?

The digest of a set of entries is the sum of their leaf hashes modulo 2^256, as in
`rules/digests.py`: it does not depend on the order and grows with each append. A store keeps the
sum as eight lanes of 32 bits, because a database adds up those by itself. It is strong against
accidents; a node that wants to deceive makes both the entries and their digests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final

import msgspec

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
