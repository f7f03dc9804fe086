"""The fold of many changes without Spark's rows, second half: one file of the table at a time.

A task takes its buckets, one after the other, out of what all shares have let pass (see `scatter`).
Of the rows of a key the newest stays, by the one order. Then they are sorted as the table is and
written. What is held in memory is the keys and stamps of one bucket, and a portion of whole rows.

The order is that of `rules.order`, and texts are compared by their bytes, as SQLite, Python's code
points and Spark do it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.pipeline.fold.local_partition import replacing
from holdfast.pipeline.fold.local_scan import Numbers, highest, numbered
from holdfast.pipeline.fold.winners import BUCKET
from holdfast.rules.limits import FOLD_PORTION_BYTES
from holdfast.rules.order import ORDER_COLUMNS

_FEW: Final = ("mesh", "owner", "peer", "updated_at", "tombstone", BUCKET)
"""Columns whose values come again and again: only there a dictionary is worth its making."""


class LocalMerge(msgspec.Struct, frozen=True, kw_only=True):
    """What the files of a table are made of: it travels to the tasks."""

    schema: pa.Schema
    """As the table is stored."""
    keys: Sequence[str]
    shares: Sequence[str]
    """Paths of what `Scatter` wrote."""
    buckets: int
    files: int
    folder: str

    def __call__(self, tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes the files whose numbers come in, and gives the batches back."""
        for batch in tasks:
            for number in batch.column(0).to_pylist():
                self._write(number)
            yield batch

    def buckets_in(self, number: int) -> range:
        """Neighbours, about as many in each file."""
        begin, end = (-(-at * self.buckets // self.files) for at in (number, number + 1))
        return range(begin, end)

    def _write(self, number: int) -> None:
        path = f"{self.folder}/part-{number:05}.zstd.parquet"
        few = [name for name in _FEW if name in self.schema.names]
        with (
            replacing(path) as passing,
            pq.ParquetWriter(
                passing, self.schema, compression="zstd", use_dictionary=few, store_schema=False
            ) as file,
        ):
            for rows in joined(self._rows(number)):
                file.write_table(rows, row_group_size=rows.num_rows)

    def _rows(self, number: int) -> Iterator[pa.Table]:
        """The rows of a file, in its order."""
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
    """Where the newest row of each key stands, sorted by key."""
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
    """The bytes of each row, about."""
    sizes: Numbers = np.full(batch.num_rows, 8 * batch.num_columns, np.int64)
    for column in batch.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            lengths = pc.fill_null(pc.binary_length(column), 0)
            sizes += lengths.to_numpy(zero_copy_only=False)
    return sizes


def taken(batches: Sequence[pa.RecordBatch], places: Numbers) -> pa.Table:
    """The rows at these places of all batches together, in that order. No column is put together
    whole: the contents of a bucket may be more than one array can hold.
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


def joined(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in portions: each becomes a row group."""
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        held.append(table)
        size += table.nbytes
        if size >= FOLD_PORTION_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)
