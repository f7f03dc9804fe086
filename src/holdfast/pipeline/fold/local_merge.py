"""The fold of many changes without Spark rows, third step: one file of the table at a time.

A task takes its buckets, one after another, out of the files that `local_partition` wrote. Of the
rows of a key it keeps the newest, sorts them as the table is sorted and writes them. In memory it
has the keys and stamps of one bucket, and one portion of whole rows.

The order of versions is that of `rules.order`, and texts are compared by their bytes, as SQLite,
Python and Spark compare them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.pipeline.fold.local_partition import portions, replacing
from holdfast.pipeline.fold.local_scan import Numbers, highest, numbered
from holdfast.pipeline.fold.winners import BUCKET
from holdfast.rules.limits import FOLD_PORTION_BYTES
from holdfast.rules.order import ORDER_COLUMNS

_FEW: Final = ("mesh", "owner", "peer", "updated_at", "tombstone", BUCKET)
"""Columns with few different values: only for these a dictionary in the file saves anything."""


class LocalMerge(msgspec.Struct, frozen=True, kw_only=True):
    """The step as an object that Spark sends to the tasks."""

    schema: pa.Schema
    """The columns of the stored table."""
    keys: Sequence[str]
    shares: Sequence[str]
    """Paths of the files that `LocalPartition` wrote."""
    buckets: int
    files: int
    folder: str

    def buckets_in(self, number: int) -> range:
        """The buckets of a file: neighbours, about as many in each file."""
        begin, end = (-(-at * self.buckets // self.files) for at in (number, number + 1))
        return range(begin, end)

    def __call__(self, number: int) -> None:
        """Writes one file of the table."""
        path = f"{self.folder}/part-{number:05}.zstd.parquet"
        few = [name for name in _FEW if name in self.schema.names]
        with (
            replacing(path) as temporary,
            pq.ParquetWriter(
                temporary, self.schema, compression="zstd", use_dictionary=few, store_schema=False
            ) as file,
        ):
            # Each portion becomes a row group.
            for tables in portions(self._rows(number)):
                rows = pa.concat_tables(tables)
                file.write_table(rows, row_group_size=rows.num_rows)

    def _rows(self, number: int) -> Iterator[pa.Table]:
        """The rows of a file, in the order of the file."""
        opened = [pa.ipc.open_file(pa.memory_map(path)) for path in self.shares]
        for bucket in self.buckets_in(number):
            batches = [batch for file in opened for batch in self._of_bucket(file, bucket)]
            if batches:
                for rows in self._winners(batches):
                    numbers = pa.repeat(pa.scalar(bucket, pa.int32()), rows.num_rows)
                    yield rows.append_column(BUCKET, numbers).select(self.schema.names)

    def _of_bucket(self, file: Any, bucket: int) -> Iterator[pa.RecordBatch]:
        for at in range(bucket, file.num_record_batches, self.buckets):
            batch = file.get_batch(at)
            if batch.num_rows:
                yield batch

    def _winners(self, batches: Sequence[pa.RecordBatch]) -> Iterator[pa.Table]:
        order = winning(pa.Table.from_batches(batches), self.keys)
        sizes = np.concatenate([sizes_of(batch) for batch in batches])[order]
        portion = np.cumsum(sizes) // FOLD_PORTION_BYTES
        for places in np.split(order, np.flatnonzero(np.diff(portion)) + 1):
            yield taken(batches, places)


def winning(rows: pa.Table, keys: Sequence[str]) -> Numbers:
    """The places of the newest row of each key, sorted by key."""
    numbers = numbered([rows[key] for key in keys])
    top = np.flatnonzero(highest(numbers, rows[ORDER_COLUMNS[0]].to_numpy()))
    narrow = rows.select([*keys, *ORDER_COLUMNS]).take(pa.array(top))
    ways = [(key, "ascending") for key in keys]
    ways += [(column, "descending") for column in ORDER_COLUMNS]
    order: Numbers = top[pc.sort_indices(narrow, sort_keys=ways).to_numpy()]
    of_key = numbers[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = of_key[1:] != of_key[:-1]
    won: Numbers = order[first]
    return won


def sizes_of(batch: pa.RecordBatch) -> Numbers:
    """About how many bytes each row has."""
    sizes: Numbers = np.full(batch.num_rows, 8 * batch.num_columns, np.int64)
    for column in batch.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            lengths = pc.fill_null(pc.binary_length(column), 0)
            sizes += lengths.to_numpy(zero_copy_only=False)
    return sizes


def taken(batches: Sequence[pa.RecordBatch], places: Numbers) -> pa.Table:
    """The rows at these places of all batches together, in that order. The batches are not
    concatenated: the contents of a bucket may be larger than one array can be.
    """
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
    which = np.searchsorted(starts, places, side="right") - 1
    by_batch = np.argsort(which, kind="stable")
    found = []
    for number, batch in enumerate(batches):
        here = places[by_batch[which[by_batch] == number]] - starts[number]
        found.append(batch.take(pa.array(here)))
    back = np.empty(len(places), np.int64)
    back[by_batch] = np.arange(len(places))
    return pa.Table.from_batches(found).combine_chunks().take(pa.array(back))
