"""Compaction: many small files become few large ones.

Rows stay as they are, so readers and later folds notice nothing: one commit replaces the files and
says that no data changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from holdfast.pipeline.audits.gold import gold_tables
from holdfast.pipeline.fold import silver
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.files import File, Staged
from holdfast.pipeline.lake.lake import Lake, Progress, no_progress
from holdfast.pipeline.lake.schema import SILVER
from holdfast.rules.errors import JobFailed
from holdfast.rules.limits import LAKE_FILE_BYTES

_ENOUGH: Final = 2
"""A file of half the largest size or more is left alone."""


class CompactReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction did."""

    silver: list[str]
    """Tables whose increments were merged."""
    files_before: int
    """Small files of the other tables that were replaced."""
    files_after: int
    described: int = 0
    """Columns and tables of older versions that got their comments."""


def compact(spark: SparkSession, lake: Lake, *, progress: Progress = no_progress) -> CompactReport:
    """Merges the increments of a lake into silver, and the small files of its other tables."""
    merged = silver.compact(spark, lake, progress=progress)
    lake = lake.fresh()
    before = after = 0
    tables: tuple[tuple[Table, Sequence[str]], ...] = (
        (lake.bronze, ("day", "id")),
        (lake.sightings, ("id",)),
        (lake.quarantine, ("id",)),
    )
    for number, (table, order) in enumerate(tables):
        progress("compact small files", number, len(tables))
        old, new = compact_files(spark, table, order)
        before, after = before + old, after + new
    described = sum(table.describe() for table in _stored(lake))
    return CompactReport(silver=merged, files_before=before, files_after=after, described=described)


def _stored(lake: Lake) -> Iterator[Table]:
    yield from (lake.bronze, lake.sightings, lake.quarantine, lake.reads)
    for name in SILVER:
        yield from (lake.silver(name), lake.increments(name))
    yield from gold_tables(lake).values()


def compact_files(spark: SparkSession, table: Table, order: Sequence[str]) -> tuple[int, int]:
    """Merges the small files of each partition, sorted; returns how many there were and how many
    there are now.
    """
    chosen = small_files(table.files())
    if not chosen:
        return 0, 0
    staged: list[Staged] = []
    for group in chosen:
        rows = table.read_files(spark, group)
        parts = -(-sum(file.size for file in group) // LAKE_FILE_BYTES)
        spread = rows.coalesce(1) if parts == 1 else rows.repartitionByRange(parts, *order)
        staged.append(table.stage(spread, sort_by=order))
    old = [file for group in chosen for file in group]
    new = [file for part in staged for file in part.files]
    _check_rows(table, old, new)
    table.commit(new, old, data_change=False)
    return len(old), len(new)


def small_files(files: Sequence[File]) -> list[list[File]]:
    """The small files of each partition that has more than one."""

    def place(file: File) -> str:
        return json.dumps(dict(file.partition), sort_keys=True)

    small = [file for file in files if file.size * _ENOUGH < LAKE_FILE_BYTES]
    groups = [list(group) for _, group in groupby(sorted(small, key=place), key=place)]
    return [group for group in groups if len(group) > 1]


def _check_rows(table: Table, old: Sequence[File], new: Sequence[File]) -> None:
    """Spark can be set to skip files that it cannot read, which would lose their rows here."""
    were, are = (sum(file.rows for file in files) for files in (old, new))
    if were != are:
        raise JobFailed(
            f"{were} rows of {table.root} became {are} when files were put together; nothing was "
            "changed",
            hint="spark.sql.files.ignoreCorruptFiles and ignoreMissingFiles must be off; look for "
            "a damaged file",
        )
