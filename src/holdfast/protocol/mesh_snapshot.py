"""A part of a mesh's snapshot, as a broker stores it: compressed envelopes.

A broker stores parts without looking into them. A node that fetches one trusts nothing: it unpacks
the part up to a size, decodes it strictly, and takes the envelopes in like any others from outside.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import msgspec

from holdfast.rules.errors import BadAnswer
from holdfast.rules.limits import ENVELOPE_BYTES_MAX, MESH_PART_BYTES, MIB

VERSION: Final = 1
_EFFORT: Final = 3
_UNPACKED_BYTES_MAX: Final = 2 * MESH_PART_BYTES + ENVELOPE_BYTES_MAX + MIB


class MeshPart(msgspec.Struct, frozen=True, array_like=True):
    """Envelopes of one mesh."""

    version: int
    mesh: str
    forgotten: int
    """The maker may have forgotten deletions up to this stamp. A node that begins with this part
    must refuse older writes too, or it would bring back what all others have deleted."""
    raws: list[bytes]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(MeshPart).decode


def pack_part(mesh: str, forgotten: int, raws: list[bytes]) -> bytes:
    return zlib.compress(_encode(MeshPart(VERSION, mesh, forgotten, raws)), _EFFORT)


def unpack_part(packed: bytes, mesh: str) -> MeshPart:
    """Raises BadAnswer if it is not a part of a snapshot of this mesh."""
    unpacker = zlib.decompressobj()
    try:
        raw = unpacker.decompress(packed, _UNPACKED_BYTES_MAX + 1)
    except zlib.error as error:
        raise BadAnswer(f"a part of the snapshot cannot be unpacked: {error}") from None
    if len(raw) > _UNPACKED_BYTES_MAX or not unpacker.eof or unpacker.unused_data:
        raise BadAnswer("a part of the snapshot is too large, or has no proper end")
    try:
        part = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadAnswer(f"a part of the snapshot cannot be read: {error}") from None
    if part.version != VERSION:
        raise BadAnswer(
            f"the snapshot is of version {part.version}", hint="upgrade Holdfast on this machine"
        )
    if part.mesh != mesh or part.forgotten < 0:
        raise BadAnswer(f"the snapshot is not one of the mesh {mesh!r}")
    return part


def part_digest(packed: bytes) -> bytes:
    return sha256(packed).digest()


def whole_digest(parts: Sequence[bytes]) -> bytes:
    """The digest of a snapshot, from the digests of its parts."""
    return sha256(b"".join(parts)).digest()
