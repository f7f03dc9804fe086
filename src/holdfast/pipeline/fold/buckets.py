"""Buckets: a table is laid out by the hash of its keys, so that a task can own a part of it.

The hash is Spark's `xxhash64` (`spark_hash.py`), so that Spark can compute a bucket as well. Tables
of older versions have `BUCKETS_COARSE` buckets, the hash modulo 64. A larger number of buckets cuts
each of these into equal parts, which are neighbours: a range of buckets is a range of buckets
whatever their number is, and so a table can be moved from one number to another range by range.

Rows are sorted by their `place`: first by bucket, then by the rest of the hash. To sort numbers
costs a small part of what it costs to sort texts, and no reader looks for a range of keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from holdfast.pipeline.fold.spark_hash import SEED, Hashes, Numbers, hashed

BUCKET: Final = "bucket"
BUCKETS_COARSE: Final = 64
"""Buckets of a table that does not say how many it has."""
_COARSE_BITS: Final = 6
_ROWS_AT_ONCE: Final = 65_536
"""Texts that are hashed together: what a step reads is then still in the processor's cache."""


def key_hashes(columns: Sequence[pa.ChunkedArray]) -> Hashes:
    """For each row the hash of its key. No text may be null."""
    hashes: Hashes = np.full(len(columns[0]), SEED, np.uint64)
    for number, column in enumerate(columns):
        begin = 0
        for chunk in _pieces(column):
            seeds = hashes[begin : begin + len(chunk)]
            seeds[:] = _hashed(chunk, seeds, same=number == 0)
            begin += len(chunk)
    return hashes


def buckets_in(hashes: Hashes, buckets: int) -> Numbers:
    """For each hash its bucket, of so many: its low bits, and then its highest ones."""
    bits = _bits(buckets)
    coarse = hashes & np.uint64(BUCKETS_COARSE - 1)
    if not bits:
        return coarse.astype(np.int64)
    return ((coarse << np.uint64(bits)) | (hashes >> np.uint64(64 - bits))).astype(np.int64)


def places_of(hashes: Hashes, buckets: int) -> Hashes:
    """For each hash the number by which its row is sorted; different hashes have different ones."""
    bits = _bits(buckets)
    bucket = buckets_in(hashes, buckets).astype(np.uint64)
    rest = (hashes << np.uint64(bits)) >> np.uint64(bits + _COARSE_BITS)
    return (bucket << np.uint64(64 - bits - _COARSE_BITS)) | rest


def scaled(span: range, buckets: int, to: int) -> range:
    """The buckets that hold the rows of a span, where there are `to` of them."""
    if to >= buckets:
        return range(span.start * (to // buckets), span.stop * (to // buckets))
    each = buckets // to
    return range(span.start // each, -(-span.stop // each))


def with_buckets(rows: pa.Table, keys: Sequence[str], buckets: int) -> pa.Table:
    """The rows with the column `bucket`."""
    numbers = buckets_in(key_hashes([rows[key] for key in keys]), buckets)
    return rows.append_column(BUCKET, pa.array(numbers.astype(np.int32)))


def _bits(buckets: int) -> int:
    """How many bits of the hash cut a coarse bucket."""
    bits = (buckets // BUCKETS_COARSE).bit_length() - 1
    assert buckets == BUCKETS_COARSE << bits, "64, or twice as many, or twice as many again …"
    return bits


def _pieces(column: pa.ChunkedArray) -> Iterable[pa.Array]:
    for chunk in column.chunks:
        for begin in range(0, len(chunk), _ROWS_AT_ONCE):
            yield chunk.slice(begin, _ROWS_AT_ONCE)


def _hashed(texts: pa.Array, seeds: Hashes, *, same: bool) -> Hashes:
    """XXH64 of each text with its seed. `same`: all seeds are equal."""
    if not isinstance(texts, pa.DictionaryArray):
        return hashed(texts, seeds)
    if not same:
        return hashed(texts.dictionary_decode(), seeds)
    known = texts.dictionary
    each = hashed(known, np.full(len(known), SEED, np.uint64))
    of_rows: Hashes = each[texts.indices.to_numpy()]
    return of_rows
