"""The past: the state as of a stamp, a time, a place in a log or a commit, and copies of a part of
a lake.

Bronze keeps every envelope, and commits every decision of a quorum. So every past state is the fold
of a part of both, by the same code that folds the present. Where a quorum decides, a stamp is no
point in the past: its place is the number of a commit, or the time at which it was made.
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

from holdfast.pipeline.fold.columns import ops_of
from holdfast.pipeline.fold.committed import CommittedFrame
from holdfast.pipeline.fold.fold import fold_family
from holdfast.pipeline.fold.silver import FoldReport, fold_lake
from holdfast.pipeline.fold.turned import turns_table
from holdfast.pipeline.lake.checked import checked
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import ID_DAY, Lake, Progress, no_progress
from holdfast.pipeline.lake.reads import PART, replace_reads
from holdfast.pipeline.lake.schema import (
    COMMITS,
    COMMITTED,
    ENVELOPE,
    LOG,
    QUARANTINE,
    SIGHTINGS,
)
from holdfast.pipeline.logs.unpack import decode_header
from holdfast.pipeline.spark.spark_workers import SparkWorkers
from holdfast.pipeline.verify.expected import ranges_of, read_ranges
from holdfast.rules.errors import BadInput, BadPath, PastEnd

_HINT: Final = "give one of: commit; lamport; at; log and at; log and offset"
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
    commit: int | None = None,
) -> DataFrame:
    """The rows of a table of a mesh at one point in the past. `lamport`: of all changes up to this
    stamp. `at`: of all that was recorded by this time, in any log or in `log`; of what a quorum
    decides, all that was committed by then. `log` and `offset`: of what this log held when this
    offset was its last. `commit`: of tasks and entities of a mesh with voters, after this commit.
    """
    lake = lake.fresh()
    if commit is not None and (lamport, at, log, offset) != (None,) * 4:
        raise BadInput("these are not one point in the past", hint=_HINT)
    decided = None
    if turns_table(name) in COMMITTED:
        decided = _committed(spark, lake, name, mesh, at=at, commit=commit, other=lamport or log)
    bronze = lake.bronze.read(spark)
    if name != "models":  # models belong to no mesh
        bronze = bronze.where(F.col("mesh") == mesh)
    if lamport is not None and at is None and log is None and offset is None:
        then = bronze.where(F.col("lamport") <= lamport)
    elif at is not None and lamport is None and offset is None:
        seen = F.col("recorded_at") <= _time(at)
        then = _seen(spark, lake, bronze, seen if log is None else seen & (F.col("log") == log))
    elif commit is not None and decided is not None:
        then = bronze  # what stamps decided stood before the first commit
    elif log is not None and offset is not None and lamport is None and at is None:
        then = _seen(spark, lake, bronze, _held(spark, lake, log, offset))
    else:
        raise BadInput("these are not one point in the past", hint=_HINT)
    return fold_family(name, then, lake.bronze.rows, decided)


def _committed(
    spark: SparkSession,
    lake: Lake,
    name: str,
    mesh: str,
    *,
    at: When | None,
    commit: int | None,
    other: object,
) -> CommittedFrame:
    """What a quorum of the mesh had committed then. BadInput for a point that is none in the order
    of commits.
    """
    rows = lake.commits.read(spark).where(F.col("mesh") == mesh)
    lost = lake.known_commits.lost
    if commit is not None:
        return CommittedFrame(rows.where(F.col("number") <= commit), lost)
    if at is not None and other is None:
        return CommittedFrame(rows.where(F.col("committed_at") <= _time(at)), lost)
    if not ops_of(name) or not rows.isEmpty():
        raise BadInput(
            f"commit order decides {name} of {mesh}, and neither stamps nor logs are places in it",
            hint="give the number of a commit, or a time",
        )
    return CommittedFrame(rows, lost)


def _seen(spark: SparkSession, lake: Lake, bronze: DataFrame, where: Column) -> DataFrame:
    """The envelopes that were seen at a place that fulfils `where`, first or again."""
    if not lake.sightings.files():
        return bronze.where(where)
    ids = lake.sightings.read(spark).where(where).select("id")
    again = bronze.where(~where).join(ids, "id", "left_semi")
    return bronze.where(where).unionByName(again)


def _held(spark: SparkSession, lake: Lake, log: str, offset: int) -> Column:
    """Whether a place belonged to a log when `offset` was its last, in its newest epoch."""
    read = read_ranges(SparkWorkers(spark, lake.proof), lake, [log])[log]
    if not read:
        known = ", ".join(sorted({position.log for position in lake.positions()}))
        raise BadInput(f"the lake has no log {log!r}", hint=f"it has: {known}")
    spans, lacking = ranges_of(
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


# --- a copy of a lake ----------------------------------------------------------------------------


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """A part of bronze; without any field, all of it."""

    since: When | None = None
    """Only what was first recorded then or later."""
    until: When | None = None
    """Only what was first recorded before."""
    mesh: str | None = None
    log: str | None = None
    """Only what this log held."""
    first: int | None = None
    """The first offset of that log."""
    last: int | None = None
    """The last offset of that log, included."""

    @property
    def is_all(self) -> bool:
        return self == Range()

    def check(self) -> Range:
        if self.log is None and (self.first is not None or self.last is not None):
            raise BadInput("offsets need a log", hint="name the log, too")
        return self

    def of_place(self) -> Column:
        """Whether the place of a row is in the range."""
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
    """What a backfill copied."""

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
    progress: Progress = no_progress,
) -> BackfillReport:
    """Copies envelopes of one lake into an empty one and folds them there. With `redecode` every
    envelope is read again from its bytes by this version of Holdfast: columns that an older version
    did not know are filled, and what cannot be read goes to quarantine.

    A copy of everything can go on reading where the source is; a copy of a part has no positions.
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
    _copy_commits(spark, source, target, range, copied)
    _copy_sightings(spark, source, target, range, copied)
    bad = _copy_quarantine(spark, source, target, range, rows if redecode else None)
    if not range.is_all:
        target.reads.commit([], txns={PART: 1})
    target.bronze.commit(staged.files)
    if range.is_all:
        _copy_reads(source, target.fresh())
    folded = fold_lake(SparkWorkers(spark, target.proof), target, full=True, progress=progress)
    return BackfillReport(envelopes=staged.rows, quarantined=bad, fold=folded)


def _copy_reads(source: Lake, target: Lake) -> None:
    """Copies what was read of each log. What went where is counted again in the copy."""
    rows = source.claims
    at = rows.schema.get_field_index("batch")
    batch = pa.array([0] * rows.num_rows, pa.int64())
    replace_reads(target.reads, rows.set_column(at, rows.schema.field(at), batch))
    checked(target.fresh())


def _redecoded(rows: DataFrame) -> DataFrame:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return map(decode_header, batches)

    decoded = rows.select(*LOG.names).mapInArrow(read, ENVELOPE)
    return decoded.withColumn("family", F.substring_index("op", ".", 1))


def _copy_commits(
    spark: SparkSession, source: Lake, target: Lake, range: Range, copied: DataFrame
) -> None:
    """Copies the commits of the envelopes that are copied, as all logs have them."""
    if not source.commits.files():
        return
    rows = source.commits.read(spark)
    if not range.is_all:
        rows = rows.join(copied.select("id"), "id", "left_semi")
    _replace(target.commits, _numbered(rows, COMMITS.names))


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
    """Copies the quarantine of the range, and adds what could not be read again; counts both."""
    parts = []
    if range.mesh is None and source.quarantine.files():  # its rows have no mesh
        there = range.of_place() & range.of_time()
        aside = _reached(source, source.quarantine.read(spark).where(there))
        parts.append(_numbered(aside, QUARANTINE.names))
    if read is not None:
        why = {
            "reason": F.substring_index("problem", ": ", 1),
            "detail": F.regexp_replace("problem", "^[a-z_]+: ", ""),
        }
        bad = read.where("problem IS NOT NULL").withColumns(why)
        parts.append(_numbered(bad, QUARANTINE.names))
    if not parts:
        return 0
    return _replace(target.quarantine, reduce(DataFrame.unionByName, parts))


def _reached(source: Lake, rows: DataFrame) -> DataFrame:
    """Without the rows that a run has noted of places after the positions of bronze. That run was
    stopped or is still at work; the copy would note them once more when it reads on.
    """
    reached = F.lit(False)
    for (log, epoch), offset in sorted(source.offsets.items()):
        here = (F.col("log") == log) & (F.col("epoch") == epoch)
        reached = reached | (here & (F.col("offset") <= offset))
    return rows.where(reached) if source.offsets else rows


def _numbered(rows: DataFrame, columns: list[str]) -> DataFrame:
    return rows.withColumn("batch", F.lit(0).cast("bigint")).select(*columns)


def _replace(table: Table, rows: DataFrame) -> int:
    """Replaces all rows, also those that an earlier stopped attempt has left; counts them."""
    staged = table.stage(rows, sort_by=("id",))
    table.commit(staged.files, table.files())
    return staged.rows
