"""Ids of whole columns as numbers, which sort and compare as their texts do."""

from __future__ import annotations

import binascii
from typing import Any, Final

import numpy as np
import pyarrow as pa

from holdfast.rules.errors import StoreCorrupt
from holdfast.rules.limits import DAY_MS, SOURCE_TIME_MS_MAX

Bits = np.ndarray[Any, np.dtype[np.uint64]]
_TEXT_CHARS: Final = 36
_DIGITS: Final = 16
_GROUPS: Final = ((0, 8, 0), (9, 13, 8), (14, 18, 12), (19, 23, 16), (24, 36, 20))
"""Of each group of digits: where it begins and ends in the text, and its first of the 32 digits."""
_TIME_SHIFT: Final = np.uint64(16)
"""An id begins with 48 bits of time, in milliseconds."""
LAST_DAY: Final = SOURCE_TIME_MS_MAX // DAY_MS - 1
"""The last day of the year 9999, in days since 1970."""


def id_bits(ids: pa.Array | pa.ChunkedArray) -> tuple[Bits, Bits]:
    """The first and the last 64 bits of each id. StoreCorrupt if one is not a UUID."""
    flat = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    if not len(flat):
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    places = np.frombuffer(flat.buffers()[1], np.int32)[flat.offset : flat.offset + len(flat) + 1]
    if flat.null_count or not (np.diff(places) == _TEXT_CHARS).all():
        raise StoreCorrupt("a column of ids holds what is not a UUID")
    text = np.frombuffer(flat.buffers()[2], np.uint8)[places[0] : places[-1]]
    text = text.reshape(-1, _TEXT_CHARS)
    digits = np.empty((len(text), 2 * _DIGITS), np.uint8)
    for begin, end, digit in _GROUPS:
        digits[:, digit : digit + end - begin] = text[:, begin:end]
    try:
        raw = binascii.unhexlify(digits.tobytes())
    except binascii.Error:
        raise StoreCorrupt("a column of ids holds what is not a UUID") from None
    halves = np.frombuffer(raw, ">u8").reshape(-1, 2).astype(np.uint64)
    return halves[:, 0], halves[:, 1]


def times_ms(first: Bits) -> Bits:
    """The times in ids, by their first halves: milliseconds since 1970."""
    return first >> _TIME_SHIFT


def days(first: Bits) -> pa.Array:
    """The UTC days of the times in ids, by their first halves. An id of version 8 begins with any
    bits: those beyond the calendar belong to its last day.
    """
    found = np.minimum(times_ms(first) // np.uint64(DAY_MS), np.uint64(LAST_DAY))
    return pa.array(found.astype(np.int32)).cast(pa.date32())


def least_bits(text: str | None) -> int:
    """The first half of the least id that may come after this bound of a file, or be it."""
    return _padded(text, "0")


def most_bits(text: str | None) -> int:
    """The first half of the greatest id that may come before this bound of a file, or be it."""
    return _padded(text, "f")


def _padded(text: str | None, fill: str) -> int:
    """A bound as a number. Other tools may have cut it; one that cannot be read bounds nothing."""
    digits = (text or "").replace("-", "")[:_DIGITS]
    try:
        return int(digits.ljust(_DIGITS, fill), 16)
    except ValueError:
        return int(fill * _DIGITS, 16)
