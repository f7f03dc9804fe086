"""Logs into the lake: every envelope once, and nothing confirmed before it is safe.

    report = ingest(spark, lake, [open_log("/srv/ana"), open_log("http://plant:7440")])

Reading goes in batches. Each batch is read once, written into a folder where nobody looks, compared
with what bronze has, and made true by at most three commits: sightings, quarantine, and bronze
last. All three say up to where each log was read; what counts is what bronze says, and what a run
that was stopped in between has written to the other two is found again and not written twice. Only
after the last commit the logs are told that they may forget.

So a job may be killed anywhere and started again: bronze has every id once, and every place of
every log is in bronze, in sightings or in quarantine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from holdfast.pipeline.ingest import dedupe
from holdfast.pipeline.ingest.batch import GAP, BatchReport, ingest_batch
from holdfast.pipeline.ingest.plan import Gap, IngestPlan, Key, LogStretch, UnreadableLog, make_plan
from holdfast.pipeline.ingest.read_ranges import read_pieces, tasks_of
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.log import ReadableLog
from holdfast.pipeline.source.plan import shares
from holdfast.pipeline.spark.failures import told_plainly
from holdfast.rules.errors import DiskFull, HoldfastError, LakeMoved
from holdfast.rules.limits import LAKE_BATCH_ROWS

Progress = Callable[[str, int, int], None]
"""What is going on, how much of it is done, and how much there is."""


@dataclass
class IngestedLog:
    """What became of the rows of one log."""

    log: str
    epoch: int
    before: int
    """The last offset that the lake had."""
    after: int
    head: int
    """The last offset that the log had when the run began."""
    head_now: int = 0
    """And when it ended."""
    read: int = 0
    new: int = 0
    again: int = 0
    quarantined: int = 0

    @property
    def lag_before(self) -> int:
        return self.head - self.before

    @property
    def lag_after(self) -> int:
        return max(self.head, self.head_now) - self.after


@dataclass
class IngestReport:
    logs: list[IngestedLog] = field(default_factory=list)
    batches: int = 0
    quarantined: dict[str, int] = field(default_factory=dict)
    """Rows by reason."""
    failures: list[UnreadableLog] = field(default_factory=list)
    """Logs that could not be read, or told."""
    seconds: float = 0.0

    @property
    def read(self) -> int:
        return sum(log.read for log in self.logs)

    @property
    def new(self) -> int:
        return sum(log.new for log in self.logs)

    @property
    def again(self) -> int:
        return sum(log.again for log in self.logs)

    def of(self, key: Key) -> IngestedLog:
        return next(log for log in self.logs if (log.log, log.epoch) == key)

    def add(self, done: BatchReport) -> None:
        self.batches += 1
        for count in done.counts:
            log = self.of(count.key)
            if count.what == dedupe.NEW:
                log.new += count.rows
            elif count.what == dedupe.AGAIN:
                log.again += count.rows
            else:
                log.quarantined += count.rows
                self.quarantined[count.what] = self.quarantined.get(count.what, 0) + count.rows
            if count.what not in (dedupe.UNKNOWN_OP, GAP):
                log.read += count.rows
        for key, offset in done.ends.items():
            self.of(key).after = max(self.of(key).after, offset)


def ingest(
    spark: SparkSession,
    lake: Lake,
    logs: Iterable[ReadableLog],
    *,
    max_rows: int = LAKE_BATCH_ROWS,
    allow_gaps: bool = False,
    progress: Progress | None = None,
) -> IngestReport:
    """Reads what the lake lacks, up to the heads that the logs have now. A log that fails is in the
    report, and the others are read.
    """
    plan = make_plan(lake.fresh(), logs, allow_gaps=allow_gaps)
    return ingest_planned(lambda: spark, lake, plan, max_rows=max_rows, progress=progress)


def ingest_planned(
    spark: Callable[[], SparkSession],
    lake: Lake,
    plan: IngestPlan,
    *,
    max_rows: int = LAKE_BATCH_ROWS,
    progress: Progress | None = None,
) -> IngestReport:
    """Carries out a plan. Spark is asked for only if there is something to read."""
    began = time.monotonic()
    report = IngestReport(failures=list(plan.failures))
    report.logs = [
        IngestedLog(*key, before=before, after=before, head=plan.head(key))
        for key, before in sorted(plan.before.items())
        if any(one.key == key for one in plan.found)
    ]
    total, done = plan.rows, 0
    waiting = {key: list(parts) for key, parts in plan.stretches.items()}
    while waiting:
        if progress is not None:
            progress("ingest", done, total)
        batch = _next_batch(waiting, max_rows)
        for made in _carry_out(spark(), lake, plan, batch, waiting, report):
            report.add(made)
            report.failures += _confirm(lake, plan, made.ends)
        done += sum(part.rows for part in batch)
    if progress is not None:
        progress("ingest", total, total)
    report.seconds = time.monotonic() - began
    return report


def _next_batch(waiting: dict[Key, list[LogStretch]], max_rows: int) -> list[LogStretch]:
    """Takes the next stretches of every log, so many rows together."""
    rows = {str(key): sum(part.rows for part in parts) for key, parts in waiting.items()}
    given = shares(rows, max(1, max_rows))
    batch: list[LogStretch] = []
    for key in list(waiting):
        left = given[str(key)]
        parts = waiting[key]
        while left and parts:
            part = parts[0].upto(left)
            batch.append(part)
            left -= part.rows
            if part.stop == parts[0].stop:
                parts.pop(0)
            else:
                parts[0] = LogStretch(part.log, key, part.stop, parts[0].stop)
        if not parts:
            del waiting[key]
    return batch


def _carry_out(
    spark: SparkSession,
    lake: Lake,
    plan: IngestPlan,
    batch: Sequence[LogStretch],
    waiting: dict[Key, list[LogStretch]],
    report: IngestReport,
) -> list[BatchReport]:
    """One batch. If it fails, its logs are read one by one, and those that fail again are left out
    from here on: one log that goes away must not keep the others.
    """
    gaps = [gap for gap in plan.gaps if any(_tells_of(part, gap) for part in batch)]
    keys = list(dict.fromkeys(part.key for part in batch))
    try:
        with told_plainly("ingest"):
            return [_read_batch(spark, lake, batch, gaps)]
    except (LakeMoved, DiskFull):
        raise
    except HoldfastError as error:
        if len(keys) == 1:
            waiting.pop(keys[0], None)
            where = ", ".join(dict.fromkeys(part.log.location for part in batch))
            report.failures.append(UnreadableLog(where, error, keys[0][0]))
            return []
    done: list[BatchReport] = []
    for key in keys:
        alone = [part for part in batch if part.key == key]
        done += _carry_out(spark, lake, plan, alone, waiting, report)
    return done


def _tells_of(part: LogStretch, gap: Gap) -> bool:
    """Is a gap noted with this stretch: because it lies right before it, or begins in it?"""
    beside = part.start == gap.stop or part.start <= gap.start < part.stop
    return part.key == gap.key and beside


def _read_batch(
    spark: SparkSession, lake: Lake, batch: Sequence[LogStretch], gaps: Sequence[Gap]
) -> BatchReport:
    ends = {part.key: part.stop - 1 for part in batch}
    frame = read_pieces(spark, tasks_of(batch))
    return ingest_batch(spark, lake, frame, ends, gaps=gaps)


def _confirm(lake: Lake, plan: IngestPlan, ends: Mapping[Key, int]) -> list[UnreadableLog]:
    """What is in the lake for good. A log that cannot be told now is told at the next run."""
    failures: list[UnreadableLog] = []
    for one in plan.found:
        offset = min(ends.get(one.key, 0), one.place.head)
        if not offset:
            continue
        try:
            one.log.confirm(lake.consumer, one.place.epoch, offset)
        except HoldfastError as error:
            failures.append(UnreadableLog(one.log.location, error, one.place.log))
    return failures


__all__ = [
    "BatchReport",
    "IngestReport",
    "IngestedLog",
    "Progress",
    "ingest",
    "ingest_batch",
    "ingest_planned",
]
