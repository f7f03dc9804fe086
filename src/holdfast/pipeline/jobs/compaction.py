"""Compaction: many small files become few large ones.

Rows stay as they are, so readers and later folds notice nothing: one commit replaces the files and
says that no data changed. Each task reads some files that lie beside each other, and writes their
rows sorted into one; all tables are done side by side.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from holdfast.pipeline.audits.gold import gold_tables
from holdfast.pipeline.fold import silver
from holdfast.pipeline.fold.merge import taken
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.lake import Lake, Progress, no_progress
from holdfast.pipeline.lake.reader import FileReader
from holdfast.pipeline.lake.schema import SILVER
from holdfast.pipeline.lake.writer import FileWriter
from holdfast.pipeline.spark.spark_workers import workers_of
from holdfast.pipeline.spark.workers import Workers
from holdfast.rules.errors import JobFailed
from holdfast.rules.limits import LAKE_FILE_BYTES, LAKE_GROUP_ROWS

_ENOUGH: Final = 2
"""A file of half the largest size or more is left alone."""
_ORDER: Final = "id"
"""By this column files of bronze, sightings, quarantine and commits are sorted, within their
partition.
"""


class CompactReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction did."""

    silver: list[str]
    """Tables whose increments were merged."""
    files_before: int
    """Small files of the other tables that were replaced."""
    files_after: int
    described: int = 0
    """Columns and tables of older versions that got their comments."""


def compact(
    spark: SparkSession | Workers, lake: Lake, *, progress: Progress = no_progress
) -> CompactReport:
    """Merges the increments of a lake into silver, and the small files of its other tables."""
    workers = workers_of(spark, lake.proof)
    merged = silver.compact(workers, lake, progress=progress)
    lake = lake.fresh()
    progress("compact small files", 0, 1)
    tables = (lake.bronze, lake.sightings, lake.quarantine, lake.commits)
    before, after = compact_files(workers, tables)
    described = sum(table.describe() for table in _stored(lake))
    return CompactReport(silver=merged, files_before=before, files_after=after, described=described)


def _stored(lake: Lake) -> Iterator[Table]:
    yield from (lake.bronze, lake.sightings, lake.quarantine, lake.reads, lake.commits)
    for name in SILVER:
        yield from (lake.silver(name), lake.increments(name))
    yield from gold_tables(lake).values()


def compact_files(workers: Workers, tables: Sequence[Table]) -> tuple[int, int]:
    """Merges the small files of each partition of some tables; returns how many there were and how
    many there are now.
    """
    old = [small_files(table.files()) for table in tables]
    pieces = [
        _piece(table, files) for table, groups in zip(tables, old, strict=True) for files in groups
    ]
    found = iter(workers.run("compact small files", _Join(pieces=pieces), len(pieces)))
    before = after = 0
    for table, groups in zip(tables, old, strict=True):
        new = [file for _ in groups for file in next(found)]
        gone = [file for group in groups for file in group]
        if gone:
            _check_rows(table, gone, new)
            table.commit(new, gone, data_change=False)
        before, after = before + len(gone), after + len(new)
    return before, after


def small_files(files: Sequence[File]) -> list[list[File]]:
    """The small files of each partition, those together whose rows make about one file of the
    largest size and lie beside each other.
    """

    def place(file: File) -> str:
        return json.dumps(dict(file.partition), sort_keys=True)

    small = [file for file in files if file.size * _ENOUGH < LAKE_FILE_BYTES]
    groups = [list(group) for _, group in groupby(sorted(small, key=place), key=place)]
    cut = [piece for group in groups for piece in _cut(group)]
    return [piece for piece in cut if len(piece) > 1]


def _cut(files: Sequence[File]) -> Iterator[list[File]]:
    piece: list[File] = []
    size = 0
    for file in sorted(files, key=lambda file: (file.low.get(_ORDER, ""), file.path)):
        if piece and size + file.size > LAKE_FILE_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(file)
        size += file.size
    yield piece


class _Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Files that become one."""

    reader: FileReader
    writer: FileWriter
    files: Sequence[File]


def _piece(table: Table, files: Sequence[File]) -> _Piece:
    return _Piece(reader=table.reader(), writer=table.writer(), files=files)


class _Join(msgspec.Struct, frozen=True, kw_only=True):
    """Makes one file of the files of a piece, in a task."""

    pieces: Sequence[_Piece]

    def __call__(self, number: int) -> list[File]:
        piece = self.pieces[number]
        parts: list[pa.Table] = []
        for file in piece.files:
            with piece.reader.open(file) as opened:
                parts += opened.batches(rows=LAKE_GROUP_ROWS)
        if not parts:
            return []
        rows = pa.concat_tables(parts)
        order = pc.sort_indices(rows[_ORDER]).to_numpy().astype("int64")
        return piece.writer.write(
            _placed(some, piece.files[0], piece.writer) for some in taken(rows, order)
        )


def _placed(rows: pa.Table, file: File, writer: FileWriter) -> pa.Table:
    """The rows with the columns that name their folder, which the files do not hold."""
    for name in writer.partitions:
        value = pa.scalar(file.partition.get(name), pa.string())
        kind = writer.schema.field(name).type
        rows = rows.append_column(name, pa.repeat(value, rows.num_rows).cast(kind))
    return rows


def _check_rows(table: Table, old: Sequence[File], new: Sequence[File]) -> None:
    """A commit that brings fewer rows than it removes would lose them."""
    were, are = (sum(file.rows for file in files) for files in (old, new))
    if were != are:
        raise JobFailed(
            f"{were} rows of {table.root} became {are} when files were put together; nothing was "
            "changed"
        )
