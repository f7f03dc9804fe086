"""How jobs that look at the whole lake divide it among tasks: by ranges of ids.

All that the lake knows of one envelope has its id: the row of bronze, the places where it was seen
again, the other bytes that came under its id. So a task that has all rows of a range of ids can
join them by itself, and nothing is moved between tasks for that. Ids begin with a time, and so most
files hold a narrow range of them; the bounds in the commits say which files a task has to open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.reader import OpenedFile

Flags = np.ndarray[Any, np.dtype[np.bool_]]

_CHARS = 12
"""Hex digits of the time in an id."""


class IdRange(msgspec.Struct, frozen=True, kw_only=True):
    """The ids of one task, as text, and the files that may have them."""

    low: str
    """The first id that belongs to it."""
    high: str | None
    """The first id that does not any more; None for the last range."""
    bronze: Sequence[File]
    sightings: Sequence[File]
    quarantine: Sequence[File]


def id_ranges(lake: Lake, count: int) -> list[IdRange]:
    """At most so many ranges with about the same number of rows; they have all ids."""
    tables = (lake.bronze, lake.sightings, lake.quarantine)
    bounds = cuts([file for table in tables[:2] for file in table.files()], count)
    ends: list[str | None] = ["", *bounds, None]
    ranges: list[IdRange] = []
    for low, high in pairwise(ends):
        assert low is not None
        held = [
            [_slim(file) for file in table.files() if touches(file, low, high)] for table in tables
        ]
        ranges.append(
            IdRange(low=low, high=high, bronze=held[0], sightings=held[1], quarantine=held[2])
        )
    return ranges


def cuts(files: Iterable[File], count: int) -> list[str]:
    """Ids that cut the rows of these files into at most `count` parts of about the same size. The
    rows of a file are taken to be spread evenly over the times of its ids.
    """
    spans = []
    for file in files:
        low, high = _time(file.low.get("id")), _time(file.high.get("id"))
        if low is not None and high is not None:
            spans.append((low, max(high, low) + 1, file.rows))
    if not spans or count < 2:
        return []
    lows, highs, rows = (np.array(part, np.float64) for part in zip(*spans, strict=True))
    edges = np.unique(np.concatenate([lows, highs]))
    # Rows for each unit of time between one edge and the next, summed up over all files.
    density = np.zeros(len(edges))
    np.add.at(density, np.searchsorted(edges, lows), rows / (highs - lows))
    np.add.at(density, np.searchsorted(edges, highs), -rows / (highs - lows))
    passed = np.append(0.0, np.cumsum(np.cumsum(density)[:-1] * np.diff(edges)))
    wanted = passed[-1] * np.arange(1, count) / count
    times = np.unique(np.interp(wanted, passed, edges).astype(np.int64))
    return [_id_at(time) for time in times.tolist() if edges[0] < time < edges[-1]]


def touches(file: File, low: str, high: str | None) -> bool:
    """Whether a file may have an id of the range."""
    least, most = file.low.get("id"), file.high.get("id")
    if least is None or most is None:
        return True
    return bool(most >= low and (high is None or least < high))


def groups_in(opened: OpenedFile, ids: IdRange) -> Iterator[int]:
    """The row groups that may have ids of the range, by the bounds in the footer."""
    names = opened.metadata.schema.to_arrow_schema().names
    place = names.index("id")
    for group in range(opened.groups):
        bounds = opened.metadata.row_group(group).column(place).statistics
        known = bounds is not None and bounds.has_min_max
        low, high = (bounds.min, bounds.max) if known else ("", ids.low)
        if high >= ids.low and (ids.high is None or low < ids.high):
            yield group


def inside(rows: pa.Table, ids: IdRange) -> Flags | None:
    """Which rows have an id of the range; None if all have. A row without an id is in the first."""
    texts = pc.fill_null(rows["id"], "")
    found = pc.greater_equal(texts, ids.low)
    if ids.high is not None:
        found = pc.and_(found, pc.less(texts, ids.high))
    return None if pc.all(found).as_py() else found.to_numpy()


def _time(id: object) -> int | None:
    """The time in an id; None if it has none."""
    digits = id.replace("-", "")[:_CHARS] if isinstance(id, str) else ""
    try:
        return int(digits, 16) if len(digits) == _CHARS else None
    except ValueError:
        return None


def _id_at(time: int) -> str:
    """The least id with this time."""
    digits = f"{time:0{_CHARS}x}"
    return f"{digits[:8]}-{digits[8:]}-"


def _slim(file: File) -> File:
    """What a task needs to know of a file."""
    return File(path=file.path, size=file.size, rows=file.rows)
