"""Spark's hash of a text, computed on whole Arrow columns.

Files of older versions were sorted into buckets by Spark itself. A key must fall into the same
bucket for ever, so this is exactly Spark's `xxhash64`: XXH64 of the bytes of each text, with the
hash of the column before it as the seed.

Texts of one length are hashed together, so that each step of the hash is one NumPy operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Hashes = np.ndarray[Any, np.dtype[np.uint64]]
_Bytes = np.ndarray[Any, np.dtype[np.uint8]]

SEED: Final = 42
"""Spark's seed."""
_STRIPE: Final = 32
_WORD: Final = 8
_HALF: Final = 4
_ONE, _TWO, _THREE, _FOUR, _FIVE = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
"""The primes of XXH64."""


def hashed(texts: pa.Array, seeds: Hashes) -> Hashes:
    """XXH64 of each text with its own seed."""
    found = np.empty(len(texts), np.uint64)
    for rows, chars in _by_length(texts):
        found[rows] = _xxh64(chars, seeds[rows])
    return found


def _by_length(texts: pa.Array) -> Iterator[tuple[Numbers, _Bytes]]:
    """For each length of text: the rows that have it, and their bytes as a matrix."""
    _, places, data = texts.buffers()
    ends = np.frombuffer(places, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    lengths = np.diff(ends)
    # If all texts are empty, there may be no buffer.
    chars = np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8)
    order = np.argsort(lengths, kind="stable")
    cuts = np.flatnonzero(np.diff(lengths[order])) + 1
    if len(order) and not len(cuts):
        # All of one length, as generated keys often are: the buffer already is the matrix.
        yield order, chars[ends[0] : ends[-1]].reshape(len(order), lengths[0])
        return
    for rows in np.split(order, cuts):
        if len(rows):
            length = int(lengths[rows[0]])
            yield rows, chars[ends[rows][:, None] + np.arange(length, dtype=np.int32)]


def _xxh64(chars: _Bytes, seeds: Hashes) -> Hashes:
    length = chars.shape[1]
    striped = length - length % _STRIPE
    worded = length - length % _WORD
    words = np.ascontiguousarray(chars[:, :worded]).view("<u8")
    found = _striped(words[:, : striped // _WORD], seeds) if striped else seeds + _FIVE
    found += np.uint64(length)
    for at in range(striped // _WORD, worded // _WORD):
        found ^= _round(np.uint64(0), words[:, at])
        found = _turned(found, 27) * _ONE + _FOUR
    rest = worded
    if length - rest >= _HALF:
        half = np.ascontiguousarray(chars[:, rest : rest + _HALF]).view("<u4")[:, 0]
        found ^= half.astype(np.uint64) * _ONE
        found = _turned(found, 23) * _TWO + _THREE
        rest += _HALF
    for at in range(rest, length):
        found ^= chars[:, at].astype(np.uint64) * _FIVE
        found = _turned(found, 11) * _ONE
    found ^= found >> np.uint64(33)
    found *= _TWO
    found ^= found >> np.uint64(29)
    found *= _THREE
    return found ^ (found >> np.uint64(32))


def _striped(words: Hashes, seeds: Hashes) -> Hashes:
    """The part of the hash that takes four words at a time."""
    lanes = [seeds + _ONE + _TWO, seeds + _TWO, seeds.copy(), seeds - _ONE]
    for at in range(words.shape[1]):
        lanes[at % 4] = _round(lanes[at % 4], words[:, at])
    turned = [_turned(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)]
    found: Hashes = turned[0] + turned[1] + turned[2] + turned[3]
    for lane in lanes:
        found = (found ^ _round(np.uint64(0), lane)) * _ONE + _FOUR
    return found


def _round(lane: Hashes | np.uint64, word: Hashes) -> Hashes:
    return _turned(lane + word * _TWO, 31) * _ONE


def _turned(value: Hashes, by: int) -> Hashes:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))
