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
    return tuple(map(sum, zip(*map(_UNPACK, leaves), strict=True))) if leaves else EMPTY


def digest_of(lanes: Iterable[int]) -> bytes:
    """The digest that lanes make, however far they have run over."""
    total = 0
    for lane in lanes:
        total = (total << _LANE_BITS) + lane
    return (total % _MODULUS).to_bytes(32, "big")


class _Place(msgspec.Struct, array_like=True, gc=False):
    """The first fields of an envelope, up to its number."""

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


_place: Final = msgspec.msgpack.Decoder(_Place).decode


def place_of(raw: bytes) -> tuple[str, str, int, int, str]:
    """Mesh, origin, epoch, number and op of an envelope that was checked before."""
    found = _place(raw)
    return found.mesh, found.origin, found.epoch, found.seq, found.op
