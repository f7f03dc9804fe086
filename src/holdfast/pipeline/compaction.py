"""Fewer and larger files: what many small runs leave behind, put together.

Rows stay as they are, so readers and later folds notice nothing: files are replaced by one commit
that says that no data changed, and the positions of the logs are carried on in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

import msgspec
from pyspark.sql import SparkSession

from holdfast.pipeline import silver
from holdfast.pipeline.delta import File, Staged, Table
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.silver import Progress
from holdfast.rules.limits import LAKE_FILE_BYTES

_OURS: Final = "holdfast."
_ENOUGH: Final = 2
"""So full a file need not be touched: half of what it may hold."""


class CompactReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was put together."""

    silver: list[str]
    """Tables whose increments were merged."""
    files_before: int
    """Small files of the other tables that were replaced."""
    files_after: int


def compact(spark: SparkSession, lake: Lake, *, progress: Progress | None = None) -> CompactReport:
    """All of a lake: increments into silver, and the small files of the other tables."""
    merged = silver.compact(spark, lake, progress=progress)
    lake = lake.fresh()
    before = after = 0
    tables = ((lake.bronze, ("day", "id")), (lake.sightings, ("id",)), (lake.quarantine, ("id",)))
    for number, (table, order) in enumerate(tables):
        if progress is not None:
            progress("compact small files", number, len(tables))
        old, new = compact_files(spark, table, order)
        before, after = before + old, after + new
    return CompactReport(silver=merged, files_before=before, files_after=after)


def compact_files(spark: SparkSession, table: Table, order: Sequence[str]) -> tuple[int, int]:
    """Puts the small files of each partition together, sorted; how many there were and are."""
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
    table.commit(new, old, info=_said(table), data_change=False)
    return len(old), len(new)


def small_files(files: Sequence[File]) -> list[list[File]]:
    """By partition: files that are worth putting together."""

    def place(file: File) -> str:
        return json.dumps(dict(file.partition), sort_keys=True)

    small = [file for file in files if file.size * _ENOUGH < LAKE_FILE_BYTES]
    groups = [list(group) for _, group in groupby(sorted(small, key=place), key=place)]
    return [group for group in groups if len(group) > 1]


def _said(table: Table) -> dict[str, Any]:
    """What the last commit said of the table stays true."""
    return {key: json.loads(value) for key, value in table.info.items() if key.startswith(_OURS)}
