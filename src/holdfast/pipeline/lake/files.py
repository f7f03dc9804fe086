"""The files of a table, and what a commit says about each of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Any, Final

import msgspec
import pyarrow.parquet as pq

_STAT_BYTES_MAX: Final = 64
"""Longer texts get no bounds in the statistics, which would otherwise grow as long as the table."""


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file of a table, with what the commit says about it."""

    path: str
    """Relative to the table."""
    size: int
    rows: int
    partition: Mapping[str, str | None] = {}
    low: Mapping[str, Any] = {}
    high: Mapping[str, Any] = {}
    nulls: Mapping[str, int] = {}
    stats: str = ""
    """Bounds and null counts as the JSON that the commit holds."""

    def may_hold(self, column: str, low: Any, high: Any) -> bool:
        """Whether the file may have a value of the column between two bounds, both included."""
        least, most = self.low.get(column), self.high.get(column)
        return least is None or most is None or (least <= high and most >= low)

    def only(self, column: str) -> Any:
        """The value of the column if all rows have the same one; None if there may be others."""
        least, most = self.low.get(column), self.high.get(column)
        return least if least == most and self.nulls.get(column) == 0 else None


class Staged(msgspec.Struct, frozen=True):
    """Files that Spark has written and no commit names yet."""

    folder: str
    files: tuple[File, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def file_written(
    path: str, size: int, metadata: pq.FileMetaData, partition: Mapping[str, str | None]
) -> File:
    """A new file, with the statistics in its footer."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for column in range(metadata.num_columns):
        bounds = _bounds(metadata, column)
        if bounds is not None:
            name, low[name], high[name], nulls[name] = bounds
    low = {name: value for name, value in low.items() if value is not None}
    high = {name: high[name] for name in low}
    return File(
        path=path,
        size=size,
        rows=metadata.num_rows,
        partition=dict(partition),
        low=low,
        high=high,
        nulls=nulls,
        stats=_stats(metadata.num_rows, low, high, nulls),
    )


def _stats(
    rows: int, low: Mapping[str, Any], high: Mapping[str, Any], nulls: Mapping[str, int]
) -> str:
    """Statistics of a file as Delta writes them into a commit."""
    stats = {
        "numRecords": rows,
        "minValues": {name: _delta_json(value) for name, value in low.items()},
        "maxValues": {name: _delta_json(_next_ms(value)) for name, value in high.items()},
        "nullCount": nulls,
    }
    return json.dumps(stats, sort_keys=True)


def _bounds(metadata: pq.FileMetaData, column: int) -> tuple[str, Any, Any, int] | None:
    """Name, least, greatest and count of nulls of a column; None if the footer does not give them
    or they are too long to keep.
    """
    name = metadata.schema.column(column).path
    low: Any = None
    high: Any = None
    nulls = 0
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(column)
        found = chunk.statistics
        if "." in name or found is None or not found.has_null_count:
            return None
        nulls += found.null_count
        if found.null_count == chunk.num_values and not found.has_min_max:
            continue
        if not found.has_min_max or not _is_short(found.min) or not _is_short(found.max):
            return None
        low = found.min if low is None else min(low, found.min)
        high = found.max if high is None else max(high, found.max)
    return name, low, high, nulls


def _is_short(value: Any) -> bool:
    if isinstance(value, str):
        return len(value.encode()) <= _STAT_BYTES_MAX
    return isinstance(value, int | date | datetime)


def _next_ms(value: Any) -> Any:
    """The value itself; a time with microseconds is raised by a millisecond, since Delta writes
    bounds in milliseconds and no time in the file may lie beyond its bound.
    """
    if isinstance(value, datetime) and value.microsecond % 1000:
        return value + timedelta(milliseconds=1)
    return value


def _delta_json(value: Any) -> Any:
    """A bound as Delta writes it in JSON."""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03}Z"
    return value.isoformat() if isinstance(value, date) else value


def file_committed(row: Mapping[str, Any]) -> File:
    """A file as the commits of the table describe it."""

    def of(prefix: str) -> dict[str, Any]:
        return {
            name.removeprefix(prefix): value
            for name, value in row.items()
            if name.startswith(prefix) and value is not None
        }

    low, high, nulls = of("min."), of("max."), of("null_count.")
    partition = {
        name: value.isoformat() if isinstance(value, date) else str(value)
        for name, value in of("partition.").items()
    }
    return File(
        path=row["path"],
        size=row["size_bytes"],
        rows=row["num_records"],
        partition=partition,
        low=low,
        high=high,
        nulls=nulls,
        stats=_stats(row["num_records"], low, high, nulls),
    )
