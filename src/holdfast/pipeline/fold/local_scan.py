"""The fold of many changes without Spark rows, first step: the winners of one share of bronze.

Where the last writer wins, most changes of a long history lose. Bringing them all into Spark, only
to drop them there, would be most of the cost of a fold. So a task reads its files itself, and first
only the narrow columns. It numbers the keys and finds the highest Lamport time of each. Then it
reads and decodes the bytes of the rows that have this time. These are at least the winners of the
share, and few others; `fold.merged` or `local_merge` joins the shares and settles ties.

Keys are compared as whole texts. Their numbers come from Arrow's dictionaries, which compare texts
and not only hashes of them: two keys never get the same number, whatever a peer has written.

A task keeps narrow columns up to a number of bytes. Beyond that it handles the rows so far and
starts again with the rest: more rows pass, and the result is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.pipeline.fold.decode import body_columns
from holdfast.rules.limits import FOLD_PORTION_BYTES, FOLD_SIEVE_BYTES_MAX, FOLD_SIEVE_ROWS_AT_ONCE
from holdfast.rules.merge import DELETES

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

_TIME: Final = "lamport"
_FEW: Final = ("mesh", "owner", "op", "origin")
"""Columns of few different values, which Arrow reads as dictionaries."""
_SPARSE: Final = 4
"""The range of the key numbers may be so many times the number of rows before it is made dense."""


class LocalScan(msgspec.Struct, frozen=True, kw_only=True):
    """The step as an object that Spark sends to the tasks."""

    name: str
    """The silver table."""
    schema: pa.Schema
    keys: Sequence[str]
    """The columns of bronze that make the key."""
    taken: Mapping[str, str]
    """By column of the table: the column of bronze that it comes from."""
    ops: Sequence[str]
    since: int
    """Batches of bronze up to this one are folded already."""
    shares: Sequence[Sequence[str]]
    """For each task: the paths of its files."""

    def __call__(self, tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: the rows of the shares whose numbers come in."""
        for batch in tasks:
            for number in batch.column(0).to_pylist():
                yield from self.share(self.shares[number])

    def share(self, paths: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """The rows of the table that these files make, at least the winners."""
        held: list[_Group] = []
        size = 0
        for path in paths:
            for group in self._narrow(path):
                held.append(group)
                size += group.rows.nbytes
                if size > FOLD_SIEVE_BYTES_MAX:
                    yield from self._kept(held)
                    held, size = [], 0
        yield from self._kept(held)

    def _narrow(self, path: str) -> Iterator[_Group]:
        columns = [*self.keys, _TIME, "op", "batch"]
        with _opened(path) as file:
            for number in range(file.num_row_groups):
                rows = file.read_row_group(number, columns=columns, use_threads=False)
                group = self._wanted(path, number, rows)
                if group.rows.num_rows:
                    yield group

    def _wanted(self, path: str, number: int, rows: pa.Table) -> _Group:
        ours = among(rows["op"], self.ops) & (rows["batch"].to_numpy() > self.since)
        rows = rows.select([*self.keys, _TIME])
        return _Group(path, number, ours, rows if ours.all() else rows.filter(pa.array(ours)))

    def _kept(self, held: Sequence[_Group]) -> Iterator[pa.RecordBatch]:
        if not held:
            return
        rows = pa.concat_tables([group.rows for group in held])
        keep = highest(numbered([rows[key] for key in self.keys]), rows[_TIME].to_numpy())
        ends = np.cumsum([group.rows.num_rows for group in held])
        for group, flags in zip(held, np.split(keep, ends[:-1]), strict=True):
            yield from self._whole(group, flags)

    def _whole(self, group: _Group, flags: Flags) -> Iterator[pa.RecordBatch]:
        """The rows of a group that pass, with the columns that were not read yet."""
        wanted = group.ours.copy()
        wanted[group.ours] = flags
        known = group.rows.filter(pa.array(flags))
        if not known.num_rows:
            return
        others = sorted({*self.taken.values(), "op", "raw"} - set(known.column_names))
        with _opened(group.path) as file:
            for rows in file.iter_batches(
                _at_once(file.metadata.row_group(group.number)),
                row_groups=[group.number],
                columns=others,
                use_threads=False,
            ):
                here, wanted = wanted[: rows.num_rows], wanted[rows.num_rows :]
                few = rows.filter(pa.array(here))
                if few.num_rows:
                    yield self._silver(known.slice(0, few.num_rows).combine_chunks(), few)
                    known = known.slice(few.num_rows)

    def _silver(self, known: pa.Table, others: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the table, as `fold.changes_of` and `decode.with_body` make them."""
        rows = {name: known[name].chunk(0) for name in known.column_names}
        rows |= {name: others[name] for name in others.schema.names}
        found = {column: rows[source] for column, source in self.taken.items()}
        found |= body_columns(self.name, rows["raw"])
        found["tombstone"] = pa.array(among(pa.chunked_array([rows["op"]]), sorted(DELETES)))
        arrays = [found[field.name].cast(field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class _Group(msgspec.Struct, frozen=True):
    """A row group whose narrow columns were read."""

    path: str
    """Not the open file: there may be more files than a process may have open."""
    number: int
    ours: Flags
    """For each row of the group: whether it is new and of an op that makes this table."""
    rows: pa.Table
    """The narrow columns of those rows."""


def _opened(path: str) -> pq.ParquetFile:
    return pq.ParquetFile(path, read_dictionary=list(_FEW))


def _at_once(group: pq.RowGroupMetaData) -> int:
    """How many rows of a group are read together: fewer if they are large."""
    row: int = max(1, group.total_byte_size // max(1, group.num_rows))
    return max(1, min(FOLD_SIEVE_ROWS_AT_ONCE, FOLD_PORTION_BYTES // row))


def numbered(columns: Sequence[pa.ChunkedArray]) -> Numbers:
    """For each row the number of its key; two keys never have the same number."""
    numbers: Numbers = np.zeros(len(columns[0]), np.int64)
    most = _SPARSE * len(numbers)
    count = 1
    for column in columns:
        texts = column.unify_dictionaries().combine_chunks()
        if not isinstance(texts, pa.DictionaryArray):
            texts = texts.dictionary_encode()
        numbers = numbers * len(texts.dictionary) + texts.indices.to_numpy()
        count *= len(texts.dictionary)
        if count > most:
            # Made dense, so that they do not overflow and `highest` needs no huge array.
            again = pa.array(numbers).dictionary_encode()
            numbers, count = again.indices.to_numpy().astype(np.int64), len(again.dictionary)
    return numbers


def highest(keys: Numbers, times: Numbers) -> Flags:
    """The rows that have the highest time of their key."""
    top: Numbers = np.full(int(keys.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(top, keys, times)
    flags: Flags = times == top[keys]
    return flags


def among(column: pa.ChunkedArray, values: Sequence[str]) -> Flags:
    """For each row of a dictionary column: whether it has one of these values."""
    wanted = pa.array(values, pa.string())
    flags: list[Flags] = [np.zeros(0, np.bool_)]
    for chunk in column.chunks:
        known = pc.is_in(chunk.dictionary, value_set=wanted).to_numpy(zero_copy_only=False)
        flags.append(known[chunk.indices.to_numpy()])
    return np.concatenate(flags)
