"""Rows of several kinds on their way between the tasks of an audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa

from holdfast.pipeline.audits.arrays import Numbers, whole
from holdfast.pipeline.spark.workers import Parcel, packed, unpacked
from holdfast.rules.limits import AUDIT_PARCEL_ROWS

_KIND: Final = b"holdfast.kind"


def targets_of(column: pa.ChunkedArray, count: int) -> Numbers:
    """For each row the task that gets it: the same for the same text."""
    if count == 1:
        return np.zeros(len(column), np.int64)
    texts = whole(column)
    if not pa.types.is_dictionary(texts.type):
        return _hashed(texts, count)
    found: Numbers = _hashed(texts.dictionary, count)[texts.indices.to_numpy()]
    return found


def _hashed(texts: pa.Array, count: int) -> Numbers:
    values = texts.to_numpy(zero_copy_only=False)
    # The same in every process, unlike Python's own hash.
    hashes: np.ndarray[Any, np.dtype[np.uint64]] = pd.util.hash_array(values, categorize=False)
    return (hashes % np.uint64(count)).astype(np.int64)


def parcels_of(kind: str, rows: pa.Table, targets: Numbers) -> Iterator[Parcel]:
    """The rows as parcels for their targets."""
    if not rows.num_rows:
        return
    named = rows.replace_schema_metadata({_KIND: kind.encode()})
    first = int(targets[0])
    if (targets == first).all():
        yield from _cut(named, first)
        return
    order = np.argsort(targets, kind="stable")
    ordered = named.take(pa.array(order))
    ends = np.searchsorted(targets[order], np.arange(int(targets.max()) + 2))
    for target, (begin, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
        if end > begin:
            yield from _cut(ordered.slice(begin, end - begin), target)


def _cut(rows: pa.Table, target: int) -> Iterator[Parcel]:
    for begin in range(0, rows.num_rows, AUDIT_PARCEL_ROWS):
        part = rows.slice(begin, AUDIT_PARCEL_ROWS).combine_chunks()
        yield Parcel(target, part.num_rows, packed(part))


def by_kind(parcels: Sequence[Parcel]) -> dict[str, pa.Table]:
    """All rows that have arrived, by their kind."""
    found: dict[str, list[pa.Table]] = {}
    for parcel in parcels:
        rows = unpacked(parcel.blob)
        found.setdefault(rows.schema.metadata[_KIND].decode(), []).append(rows)
    return {kind: pa.concat_tables(tables) for kind, tables in found.items()}
