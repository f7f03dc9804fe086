"""The rows of one table that fold to fewer, merged by Arrow: new ones, and those that it holds.

This is the merge of `rules.merge` on whole columns. The order of versions is that of `rules.order`,
and texts are compared by their bytes, as SQLite, Python and Spark compare them. Any split of the
rows into parts gives the same result, in any order, however often a part is repeated.

Rows are brought together by the places of their keys (`buckets.py`), which are numbers. Where two
rows have the same place, their texts are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.fold.buckets import key_hashes, places_of, with_buckets
from holdfast.pipeline.fold.columns import Flags
from holdfast.pipeline.fold.sieve import equal_at
from holdfast.pipeline.fold.spark_hash import Hashes, Numbers
from holdfast.pipeline.fold.turned import turn_fold
from holdfast.pipeline.lake.schema import FAMILY_OF, KEYS, MADE_OF, SILVER, arrow_schema
from holdfast.rules.limits import LAKE_GROUP_BYTES, LAKE_GROUP_ROWS
from holdfast.rules.merge import MERGES, Merge
from holdfast.rules.order import ORDER_COLUMNS

_PLACE: Final = "place"
_TIME: Final = ORDER_COLUMNS[0]


def merged(name: str, parts: Sequence[pa.Table], buckets: int) -> Iterator[pa.Table]:
    """The rows that these parts make together, in the order of the table's files, with their
    buckets; a table of them at a time.
    """
    assert name not in MADE_OF, "a thing is made of all of its turns"
    rows = pa.concat_tables(parts)
    if not rows.num_rows:
        return
    keys = KEYS[name]
    merge = MERGES[FAMILY_OF[name]]
    if merge is Merge.TURNS:
        yield from turned(name, rows, buckets)
        return
    places = places_of(key_hashes([rows[key] for key in keys]), buckets)
    if name == "vectors":
        chosen = with_live(rows, places, keys)
    elif merge is Merge.LAST_WRITER:
        chosen = taken(rows, newest(rows, places, keys))
    else:
        chosen = taken(rows, once(rows, places, keys))
    for some in chosen:
        yield with_buckets(some, keys, buckets)


def turned(name: str, rows: pa.Table, buckets: int) -> Iterator[pa.Table]:
    """The rows of a table of things, or of the turns themselves, that these turns make."""
    keys, how = KEYS[name], turn_fold(name)
    turns = rows.select(how.columns)
    places = places_of(key_hashes([turns[key] for key in keys]), buckets)
    ways = [(column, "ascending") for column in (_PLACE, *keys, *how.order)]
    order = _sorted(turns.select([*keys, *how.order]), places, ways)
    batches = (batch for some in taken(turns, order) for batch in some.to_batches())
    schema = arrow_schema(SILVER[name])
    for batch in how.fold(name, batches):
        yield with_buckets(pa.Table.from_batches([batch], schema), keys, buckets)


# --- which rows stay -----------------------------------------------------------------------------


def newest(rows: pa.Table, places: Hashes, keys: Sequence[str]) -> Numbers:
    """The newest row of each key, in the order of places."""
    times = rows[_TIME].to_numpy()
    order = np.lexsort((times, places))
    return _last_of_each(rows, places, order, times[order], keys, ORDER_COLUMNS)


def once(rows: pa.Table, places: Hashes, keys: Sequence[str]) -> Numbers:
    """One row of each key, in the order of places: rows of one key are equal."""
    order = np.argsort(places, kind="stable")
    return _last_of_each(rows, places, order, np.zeros(len(order), np.int64), keys, ())


def _last_of_each(
    rows: pa.Table,
    places: Hashes,
    order: Numbers,
    times: Numbers,
    keys: Sequence[str],
    versions: Sequence[str],
) -> Numbers:
    """Of rows that are sorted by place and time, the last of each place. If that is not the answer,
    because there are equal times or two keys with one place, whole keys and versions are sorted.
    """
    at = places[order]
    again = np.flatnonzero(at[1:] == at[:-1])
    last: Flags = np.ones(len(order), np.bool_)
    last[again] = False
    if not len(again):
        return order
    same_key = equal_at([rows[key] for key in keys], order[again], order[again + 1])
    tied = (times[again] == times[again + 1]) & last[again + 1]
    if same_key.all() and not tied.any():
        return order[last]
    hard_places = np.unique(at[again[~same_key | tied]])
    hard: Flags = np.isin(at, hard_places)
    few = order[hard]
    ways = [(key, "ascending") for key in keys] + [(name, "descending") for name in versions]
    narrow = rows.select([*keys, *versions]).take(pa.array(few))
    sorted_few = pc.sort_indices(narrow, sort_keys=ways).to_numpy()
    first = _begins(narrow, sorted_few, keys)
    found: Numbers = np.concatenate([order[last & ~hard], few[sorted_few[first]]])
    return found[np.argsort(places[found], kind="stable")]


def with_live(rows: pa.Table, places: Hashes, keys: Sequence[str]) -> Iterator[pa.Table]:
    """Every version once, in the order of places; the newest of a key is live unless it is a
    tombstone.
    """
    ways = [(column, "ascending") for column in (_PLACE, *keys)]
    ways += [(column, "descending") for column in ORDER_COLUMNS]
    narrow = rows.select([*keys, *ORDER_COLUMNS])
    order = _sorted(narrow, places, ways)
    kept = _begins(narrow, order, [*keys, "id"])
    first = _begins(narrow, order, keys)[kept]
    order = order[kept]
    begin = 0
    for some in taken(rows, order):
        newest_ones = pa.array(first[begin : begin + some.num_rows])
        live = pc.and_(newest_ones, pc.invert(some["tombstone"]))
        yield some.set_column(some.column_names.index("live"), "live", live)
        begin += some.num_rows


def _sorted(narrow: pa.Table, places: Hashes, ways: Sequence[tuple[str, str]]) -> Numbers:
    whole = narrow.append_column(_PLACE, pa.array(places)).combine_chunks()
    order: Numbers = pc.sort_indices(whole, sort_keys=ways).to_numpy().astype(np.int64)
    return order


def _begins(rows: pa.Table, order: Numbers, keys: Sequence[str]) -> Flags:
    """For each row in this order: whether its key is another than that of the row before."""
    flags: Flags = np.ones(len(order), np.bool_)
    flags[1:] = ~equal_at([rows[key] for key in keys], order[1:], order[:-1])
    return flags


# --- whole rows ----------------------------------------------------------------------------------


def taken(rows: pa.Table, order: Numbers) -> Iterator[pa.Table]:
    """The rows at these places in this order, in tables that fit a row group. The rows are not made
    one array first: together they may be larger than an array can be.
    """
    batches = [batch for batch in rows.to_batches() if batch.num_rows]
    if not batches or not len(order):
        return
    sizes = np.cumsum(np.concatenate([_sizes_of(batch) for batch in batches])[order])
    groups = sizes // LAKE_GROUP_BYTES + np.arange(len(order)) // LAKE_GROUP_ROWS
    for some in np.split(order, np.flatnonzero(np.diff(groups)) + 1):
        yield _taken(batches, some)


def _sizes_of(batch: pa.RecordBatch) -> Numbers:
    """About how many bytes each row has."""
    sizes: Numbers = np.full(batch.num_rows, 8 * batch.num_columns, np.int64)
    for column in batch.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            lengths = pc.fill_null(pc.binary_length(column), 0)
            sizes += lengths.to_numpy(zero_copy_only=False)
    return sizes


def _taken(batches: Sequence[pa.RecordBatch], places: Numbers) -> pa.Table:
    """The rows at these places of all batches together, in that order."""
    if len(batches) == 1:
        return pa.Table.from_batches([batches[0].take(pa.array(places))])
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
    by_batch = np.argsort(places, kind="stable")
    ascending = places[by_batch]
    cuts = np.searchsorted(ascending, starts)
    found = [
        batch.take(pa.array(ascending[begin:end] - start))
        for batch, start, begin, end in zip(batches, starts, cuts, cuts[1:], strict=False)
        if end > begin
    ]
    back: Numbers = np.empty(len(places), np.int64)
    back[by_batch] = np.arange(len(places))
    return pa.Table.from_batches(found).combine_chunks().take(pa.array(back))
