"""Which changes of a share of bronze may win, seen by their keys and Lamport times alone.

Where the last writer wins, most changes of a long history lose. To move and decode them all, only
to drop them then, would be most of the cost of a fold. So a task lets only those pass that have the
highest time of their key in its share: at least the winners, and few others. The merge (`merge.py`)
joins the shares and settles ties.

Keys are numbered by their hashes, which is much cheaper than by their texts. But a row is dropped
only if its key is, as a text, that of a row with a higher time: a peer may choose keys whose hashes
are the same, and both stay.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.fold.columns import Flags
from holdfast.pipeline.fold.spark_hash import Hashes, Numbers


def passing(hashes: Hashes, times: Numbers, keys: Sequence[pa.ChunkedArray]) -> Flags:
    """The rows that have the highest time of their key."""
    numbers = pa.array(hashes).dictionary_encode()
    of_row = numbers.indices.to_numpy()
    top: Numbers = np.full(len(numbers.dictionary), np.iinfo(np.int64).min)
    np.maximum.at(top, of_row, times)
    flags: Flags = times == top[of_row]
    highest: Numbers = np.empty(len(top), np.int64)
    rows = np.flatnonzero(flags)
    highest[of_row[rows]] = rows
    lost = np.flatnonzero(~flags)
    beaten = equal_at(keys, lost, highest[of_row[lost]])
    flags[lost[~beaten]] = True
    return flags


def equal_at(columns: Sequence[pa.ChunkedArray], some: Numbers, others: Numbers) -> Flags:
    """For each pair of rows: whether they have the same texts in all columns."""
    same: Flags = np.ones(len(some), np.bool_)
    if not len(some):
        return same
    for column in columns:
        if pa.types.is_dictionary(column.type):
            codes = column.unify_dictionaries().combine_chunks().indices.to_numpy()
            same &= codes[some] == codes[others]
            continue
        whole = column.combine_chunks()
        found = pc.equal(whole.take(pa.array(some)), whole.take(pa.array(others)))
        same &= pc.fill_null(found, False).to_numpy(zero_copy_only=False)
    return same
