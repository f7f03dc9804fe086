"""Unpacking compressed answers, without letting a few bytes become very many."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Final

from holdfast.rules.errors import BadAnswer
from holdfast.rules.limits import KIB
from holdfast.transport.remote_errors import clean

_GZIP: Final = 31
"""The window by which zlib reads a gzip stream and nothing else."""
_PIECE_BYTES: Final = 64 * KIB
_NO_END: Final = "the answer cannot be unpacked: it has no proper end"


def unpacker(headers: Mapping[str, str]) -> zlib._Decompress | None:
    """The decompressor for an answer with these headers; None if it is not compressed."""
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding != "gzip":
        raise BadAnswer(f"the answer is packed as {clean(encoding)!r}")
    return zlib.decompressobj(_GZIP)


def unpack(headers: Mapping[str, str], body: bytes, bytes_max: int) -> bytes:
    """The whole body, unpacked if it is compressed; raises if it has more than `bytes_max`
    bytes.
    """
    reader = unpacker(headers) if body else None
    if reader is None:
        return body
    unpacked = _some(reader, body, bytes_max + 1)
    if len(unpacked) > bytes_max:
        raise BadAnswer(f"the answer unpacks to more than {bytes_max} bytes")
    if not reader.eof or reader.unused_data:
        raise BadAnswer(_NO_END)
    return unpacked


def unpack_part(headers: Mapping[str, str], body: bytes, bytes_max: int) -> bytes:
    """What there is of a body that was cut off, unpacked as far as it goes."""
    reader = unpacker(headers) if body else None
    return body if reader is None else _some(reader, body, bytes_max)


def unpack_pieces(reader: zlib._Decompress, packed: bytes) -> Iterator[bytes]:
    """The content of one compressed piece of a stream, in small parts."""
    while True:
        unpacked = _some(reader, packed, _PIECE_BYTES)
        if unpacked:
            yield unpacked
        if reader.unused_data:
            raise BadAnswer(_NO_END)
        packed = reader.unconsumed_tail
        if len(unpacked) < _PIECE_BYTES:
            return


def _some(reader: zlib._Decompress, packed: bytes, most: int) -> bytes:
    try:
        return reader.decompress(packed, most)
    except zlib.error as error:
        raise BadAnswer(f"the answer cannot be unpacked: {error}") from None
