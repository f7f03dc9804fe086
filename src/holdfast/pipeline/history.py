"""The past: the state as of a stamp, a time or a place in a log, and lakes made of a range.

Bronze keeps every envelope for good. So any state that ever was is the fold of a part of it, by the
same code that folds the present.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.fold.fold import fold_family
from holdfast.pipeline.fold.silver import FoldReport, Progress, fold
from holdfast.pipeline.ingest import dedupe
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import ID_DAY, Lake, log_app
from holdfast.pipeline.lake.schema import ENVELOPE, LOG, QUARANTINE, SIGHTINGS
from holdfast.pipeline.logs.unpack import decode_header
from holdfast.pipeline.verify.expected import read_spans, spans_of
from holdfast.rules.errors import BadInput, BadPath, PastEnd

_HINT: Final = "give one of: lamport; at; log and at; log and offset"
_START: Final = datetime(1970, 1, 1, tzinfo=UTC)

When = datetime | int
"""A time with its zone, or milliseconds since 1970."""


def state_as_of(
    spark: SparkSession,
    lake: Lake,
    name: str,
    mesh: str,
    *,
    lamport: int | None = None,
    at: When | None = None,
    log: str | None = None,
    offset: int | None = None,
) -> DataFrame:
    """The rows of one table of a mesh as they were: of all changes up to a stamp; of all that had
    been recorded anywhere, or in one log, by a time; or of those that one log held at an offset.
    """
    lake = lake.fresh()
    bronze = lake.bronze.read(spark)
    if name != "models":  # which are of no mesh
        bronze = bronze.where(F.col("mesh") == mesh)
    if lamport is not None and at is None and log is None and offset is None:
        then = bronze.where(F.col("lamport") <= lamport)
    elif at is not None and lamport is None and offset is None:
        seen = F.col("recorded_at") <= _time(at)
        then = _seen(spark, lake, bronze, seen if log is None else seen & (F.col("log") == log))
    elif log is not None and offset is not None and lamport is None and at is None:
        then = _seen(spark, lake, bronze, _held(spark, lake, log, offset))
    else:
        raise BadInput("this is not one point in the past", hint=_HINT)
    return fold_family(name, then, lake.bronze.rows)


def _seen(spark: SparkSession, lake: Lake, bronze: DataFrame, where: Column) -> DataFrame:
    """Envelopes that were seen in such a place, first or again."""
    if not lake.sightings.files():
        return bronze.where(where)
    ids = lake.sightings.read(spark).where(where).select("id")
    again = bronze.where(~where).join(ids, "id", "left_semi")
    return bronze.where(where).unionByName(again)


def _held(spark: SparkSession, lake: Lake, log: str, offset: int) -> Column:
    """The places that a log consisted of when an offset was its last, in its newest epoch."""
    read = read_spans(spark, lake, [log])[log]
    if not read:
        known = ", ".join(sorted({position.log for position in lake.positions()}))
        raise BadInput(f"the lake has no log {log!r}", hint=f"it has: {known}")
    spans, lacking = spans_of(
        read, max(read), min(reached.first for reached in read.values()), offset
    )
    if lacking:
        raise PastEnd(f"log {log!r} as of offset {offset}: {lacking}")
    inside = [
        (F.col("epoch") == span.epoch) & F.col("offset").between(span.first, span.last)
        for span in spans
    ]
    return (F.col("log") == log) & reduce(Column.__or__, inside)


def _time(at: When) -> Column:
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise BadInput(f"the time {at} has no zone", hint="give one, as in …+00:00")
        at = (at - _START) // timedelta(milliseconds=1)
    return F.timestamp_millis(F.lit(at).cast("bigint"))


# --- a lake made of a range ----------------------------------------------------------------------


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """A part of bronze: everything, unless told otherwise."""

    since: When | None = None
    """First recorded then or later."""
    until: When | None = None
    """First recorded before."""
    mesh: str | None = None
    log: str | None = None
    """Only what this log held,"""
    first: int | None = None
    """from this offset"""
    last: int | None = None
    """to this one, included."""

    @property
    def is_all(self) -> bool:
        return self == Range()

    def check(self) -> Range:
        if self.log is None and (self.first is not None or self.last is not None):
            raise BadInput("offsets are those of a log", hint="name the log, too")
        return self

    def of_place(self) -> Column:
        """Whether a place is in the range."""
        inside = F.lit(True)
        if self.log is not None:
            inside = inside & (F.col("log") == self.log)
        if self.first is not None:
            inside = inside & (F.col("offset") >= self.first)
        if self.last is not None:
            inside = inside & (F.col("offset") <= self.last)
        return inside

    def of_time(self) -> Column:
        inside = F.lit(True)
        if self.since is not None:
            inside = inside & (F.col("recorded_at") >= _time(self.since))
        if self.until is not None:
            inside = inside & (F.col("recorded_at") < _time(self.until))
        return inside


class BackfillReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a backfill made."""

    envelopes: int
    quarantined: int
    fold: FoldReport


def backfill(
    spark: SparkSession,
    source: Lake,
    target: Lake,
    range: Range | None = None,
    *,
    redecode: bool = False,
    progress: Progress | None = None,
) -> BackfillReport:
    """Copies a range of one lake's envelopes into an empty one and folds them there. With
    `redecode` everything is read anew from the bytes, as this version of Holdfast reads them: what
    an older one could not tell apart gets its columns, and what cannot be read goes to quarantine.

    A copy of everything goes on where the source is; a copy of a part says nothing about how far
    any log was read.
    """
    range = Range() if range is None else range.check()
    source, target = source.fresh(), target.fresh()
    if target.bronze.exists:
        raise BadPath(f"the lake {target.root} is not empty", hint="name a new folder")
    rows = source.bronze.read(spark).where(range.of_time())
    if range.mesh is not None:
        rows = rows.where(F.col("mesh") == range.mesh)
    if range.log is not None:
        rows = _seen(spark, source, rows, range.of_place())
    if redecode:
        rows = _redecoded(rows)
    fine = rows.where("problem IS NULL") if redecode else rows
    fine = fine.withColumns({"batch": F.lit(0).cast("bigint"), "day": F.expr(ID_DAY)})
    staged = target.bronze.stage(fine, sort_by=("day", "id"))
    copied = target.bronze.read_files(spark, staged.files)
    _copy_sightings(spark, source, target, range, copied)
    bad = _copy_quarantine(spark, source, target, range, rows if redecode else None)
    positions = source.positions() if range.is_all else []
    txns = {log_app(known.log, known.epoch): known.offset for known in positions}
    target.bronze.commit(staged.files, txns=txns, info=target.moved(positions))
    folded = fold(spark, target, full=True, progress=progress)
    return BackfillReport(envelopes=staged.rows, quarantined=bad, fold=folded)


def _redecoded(rows: DataFrame) -> DataFrame:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return map(decode_header, batches)

    read_anew = rows.select(*LOG.names).mapInArrow(read, ENVELOPE)
    return read_anew.withColumn("family", F.substring_index("op", ".", 1))


def _copy_sightings(
    spark: SparkSession, source: Lake, target: Lake, range: Range, copied: DataFrame
) -> None:
    if not source.sightings.files():
        return
    seen = _reached(source, source.sightings.read(spark))
    if not range.is_all:
        seen = seen.where(range.of_place()).join(copied.select("id"), "id", "left_semi")
    _replace(target.sightings, _numbered(seen, SIGHTINGS.names))


def _copy_quarantine(
    spark: SparkSession, source: Lake, target: Lake, range: Range, read: DataFrame | None
) -> int:
    """What was in quarantine in the range, and what has got there by reading anew."""
    parts = []
    if range.mesh is None and source.quarantine.files():  # nobody knows of which mesh it is
        there = range.of_place() & range.of_time()
        aside = _reached(source, source.quarantine.read(spark).where(there))
        parts.append(_numbered(aside, QUARANTINE.names))
    if read is not None:
        told = {
            "reason": F.substring_index("problem", ": ", 1),
            "detail": F.regexp_replace("problem", "^[a-z_]+: ", ""),
        }
        bad = read.where("problem IS NOT NULL").withColumns(told)
        parts.append(_numbered(bad, QUARANTINE.names))
    if not parts:
        return 0
    return _replace(target.quarantine, reduce(DataFrame.unionByName, parts))


def _reached(source: Lake, rows: DataFrame) -> DataFrame:
    """Without what a run has said of places that bronze has not come to. It was stopped, or is at
    work; the copy would not know, and say it once more when it reads on.
    """
    known = {(at.log, at.epoch): at.offset for at in source.positions()}
    return rows.where(~dedupe.after_positions(known)) if known else rows


def _numbered(rows: DataFrame, columns: list[str]) -> DataFrame:
    return rows.withColumn("batch", F.lit(0).cast("bigint")).select(*columns)


def _replace(table: Table, rows: DataFrame) -> int:
    """An attempt that was stopped may have left its own."""
    staged = table.stage(rows, sort_by=("id",))
    table.commit(staged.files, table.files())
    return staged.rows
