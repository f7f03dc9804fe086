"""Unpacking what arrives packed, without letting a few bytes become very many."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Final

from holdfast.rules.errors import BadAnswer
from holdfast.rules.limits import KIB
from holdfast.transport.remote_errors import clean

_GZIP: Final = 31
"""What zlib calls the window of a gzip stream, and no other."""
_PIECE_BYTES: Final = 64 * KIB
_NO_END: Final = "the answer cannot be unpacked: it has no proper end"


def unpacker(headers: Mapping[str, str]) -> zlib._Decompress | None:
    """For an answer with these headers; None if it is not packed."""
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding != "gzip":
        raise BadAnswer(f"the answer is packed as {clean(encoding)!r}")
    return zlib.decompressobj(_GZIP)


def unpack(headers: Mapping[str, str], body: bytes, bytes_max: int) -> bytes:
    """The whole body, of `bytes_max` bytes at most: no more than that is ever unpacked."""
    unpacked = unpacker(headers) if body else None
    if unpacked is None:
        return body
    found = _some(unpacked, body, bytes_max + 1)
    if len(found) > bytes_max:
        raise BadAnswer(f"the answer unpacks to more than {bytes_max} bytes")
    if not unpacked.eof or unpacked.unused_data:
        raise BadAnswer(_NO_END)
    return found


def unpack_pieces(unpacked: zlib._Decompress, packed: bytes) -> Iterator[bytes]:
    """What one packed piece of a stream holds, a little at a time."""
    while True:
        found = _some(unpacked, packed, _PIECE_BYTES)
        if found:
            yield found
        if unpacked.unused_data:
            raise BadAnswer(_NO_END)
        packed = unpacked.unconsumed_tail
        if len(found) < _PIECE_BYTES:
            return


def _some(unpacked: zlib._Decompress, packed: bytes, most: int) -> bytes:
    try:
        return unpacked.decompress(packed, most)
    except zlib.error as error:
        raise BadAnswer(f"the answer cannot be unpacked: {error}") from None
