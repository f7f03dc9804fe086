"""The rows of bronze that have one of the ids of a portion.

Ids begin with a time and files are sorted by id, so the bounds of files and of their row groups
tell which of them may have an id. The cost depends on the portion, not on the size of the lake.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.ingest.dedupe import PLACE
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.id_bits import LAST_DAY, Bits, least_bits, most_bits
from holdfast.pipeline.lake.reader import FileReader, OpenedFile
from holdfast.rules.limits import DAY_MS

_ROWS: Final = ("id", *PLACE, "raw")
_EPOCH_DAY: Final = date(1970, 1, 1)


class KnownRows(msgspec.Struct, frozen=True):
    """The files of bronze, for tasks that look for ids in them."""

    reader: FileReader
    files: tuple[File, ...]

    @classmethod
    def of(cls, bronze: Table) -> KnownRows:
        return cls(bronze.reader(), tuple(map(_slim, bronze.files())))

    def find(self, ids: pa.Array, first: Bits) -> pa.Table | None:
        """The rows that have one of these ids, which are sorted; `first` are their first halves."""
        found: list[pa.Table] = []
        for file in self.files:
            if _span(first, *file_bits(file)) is None:
                continue
            with self.reader.open(file) as opened:
                for group in range(opened.groups):
                    span = _span(first, *group_bits(opened, group))
                    if span is None:
                        continue
                    mask = pc.is_in(_ids(opened, group), value_set=ids[span])
                    if pc.any(mask).as_py():
                        found.append(opened.group(group, _ROWS).filter(mask))
        return pa.concat_tables(found).combine_chunks() if found else None


def file_bits(file: File) -> tuple[int, int]:
    """Between which first halves of ids a file lies, both included."""
    low, high = least_bits(file.low.get("id")), most_bits(file.high.get("id"))
    day = file.partition.get("day")
    if day is not None:
        number = (date.fromisoformat(day) - _EPOCH_DAY).days
        low = max(low, (number * DAY_MS) << 16)
        if number < LAST_DAY:  # the last one has all that is beyond it too
            high = min(high, (((number + 1) * DAY_MS) << 16) - 1)
    return low, high


def group_bits(opened: OpenedFile, group: int) -> tuple[int, int]:
    """Between which first halves of ids a row group lies, both included."""
    known = opened.metadata.row_group(group)
    for column in _id_columns(known):
        stats = column.statistics
        if stats is not None and stats.has_min_max:
            return least_bits(_text(stats.min)), most_bits(_text(stats.max))
    return least_bits(None), most_bits(None)


def _id_columns(group: Any) -> Iterator[Any]:
    columns: Iterable[Any] = (group.column(at) for at in range(group.num_columns))
    return (column for column in columns if column.path_in_schema == "id")


def _text(bound: object) -> str | None:
    return bound if isinstance(bound, str) else None


def _ids(opened: OpenedFile, group: int) -> pa.Array:
    return opened.group(group, ["id"]).column("id").combine_chunks()


def _span(first: Bits, low: int, high: int) -> slice | None:
    """The sorted ids that lie between two bounds; None if there is none."""
    begin = int(np.searchsorted(first, np.uint64(low), "left"))
    end = int(np.searchsorted(first, np.uint64(high), "right"))
    return slice(begin, end) if begin < end else None


def _slim(file: File) -> File:
    """Only what is needed to find ids: tasks get the list of all files."""
    low, high = file.low.get("id"), file.high.get("id")
    bounded = low is not None and high is not None
    return File(
        path=file.path,
        size=file.size,
        rows=file.rows,
        partition=file.partition,
        low={"id": low} if bounded else {},
        high={"id": high} if bounded else {},
    )
