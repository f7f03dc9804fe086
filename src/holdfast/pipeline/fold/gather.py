"""The second step of a fold: a task makes its span of a table of what was sent to it.

It merges the new rows with each other and, unless they become an increment, with what the table
holds of these buckets. Those rows never move between tasks: the files are sorted by bucket, and the
task reads the row groups that may have its buckets. Then it writes the files of its span.

A compaction takes the same step, with no new rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.fold.buckets import BUCKET, scaled, with_buckets
from holdfast.pipeline.fold.merge import merged, turned
from holdfast.pipeline.fold.plan import HeldFiles, Span
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.reader import OpenedFile
from holdfast.pipeline.lake.schema import KEYS, MAKES, SILVER
from holdfast.pipeline.spark.workers import Parcel, unpacked
from holdfast.rules.errors import JobFailed
from holdfast.rules.limits import LAKE_GROUP_ROWS


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """What a task made of its span."""

    arrived: int = 0
    """New rows that were sent to it."""
    made: bool = False
    """Whether it wrote its span; if not, the span stays as it is."""
    held: dict[str, int] = {}
    """By file of the table: how many rows of the span it had."""
    kept: int = 0
    """Rows of the span after the merge."""
    files: list[File] = []
    things_kept: int = 0
    things: list[File] = []


class Gather(msgspec.Struct, frozen=True, kw_only=True):
    """The step as an object that is sent to the tasks."""

    spans: Sequence[Span]

    def __call__(self, number: int, parcels: Sequence[Parcel] = ()) -> Gathered:
        span = self.spans[number]
        rows = [unpacked(parcel.blob) for parcel in parcels]
        arrived = sum(some.num_rows for some in rows)
        if arrived != sum(parcel.rows for parcel in parcels):
            raise JobFailed(f"fold {span.name}: {arrived} rows came in parcels of another size")
        held: Counter[str] = Counter()
        if span.increments is not None:
            rows += held_rows(span, span.increments, held)
        if not rows and not span.forced:
            return Gathered(arrived=arrived)
        if span.base is not None:
            rows += held_rows(span, span.base, held)
        turns, things = _Counted(), _Counted()
        files: list[File] = []
        made: list[File] = []
        if rows and span.writer is not None:
            files = span.writer.write(turns.all(merged(span.name, rows, span.buckets)))
        if rows and span.makes is not None:
            every = turned(MAKES[span.name], pa.concat_tables(rows), span.buckets)
            made = span.makes.write(things.all(every))
        return Gathered(
            arrived=arrived,
            made=True,
            held=dict(held),
            kept=turns.rows,
            files=files,
            things_kept=things.rows,
            things=made,
        )


class _Counted:
    """Counts rows on their way into files."""

    def __init__(self) -> None:
        self.rows = 0

    def all(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for rows in tables:
            self.rows += rows.num_rows
            yield rows


def held_rows(span: Span, held: HeldFiles, counts: Counter[str]) -> list[pa.Table]:
    """The rows of a span that files of the table hold."""
    stored = scaled(range(span.first, span.stop), span.buckets, held.buckets)
    names = SILVER[span.name].names
    found = []
    for file in held.files:
        counts[file.path] += 0
        if not file.may_hold(BUCKET, stored.start, stored.stop - 1):
            continue  # its footer need not be read
        with held.reader.open(file) as opened:
            groups = [at for at in range(opened.groups) if _may_hold(opened, at, stored)]
            for rows in opened.batches([*names, BUCKET], groups=groups, rows=LAKE_GROUP_ROWS):
                ours = _inside(rows, span, held)
                counts[file.path] += ours.num_rows
                if ours.num_rows:
                    found.append(ours.select(names))
    return found


def _inside(rows: pa.Table, span: Span, held: HeldFiles) -> pa.Table:
    """The rows of the span, by the number of buckets that the span has."""
    if held.buckets != span.buckets:
        rows = with_buckets(rows.drop_columns([BUCKET]), KEYS[span.name], span.buckets)
    if span.first == 0 and span.stop == span.buckets:
        return rows
    bucket = rows[BUCKET]
    inside = pc.and_(pc.greater_equal(bucket, span.first), pc.less(bucket, span.stop))
    return rows.filter(inside)


def _may_hold(opened: OpenedFile, group: int, buckets: range) -> bool:
    """Whether a row group may have rows of these buckets, as its statistics say."""
    metadata = opened.metadata
    at = metadata.schema.names.index(BUCKET)
    found = metadata.row_group(group).column(at).statistics
    if found is None or not found.has_min_max:
        return True
    return bool(found.min < buckets.stop and found.max >= buckets.start)
