"""Logs into the lake: every envelope once, and nothing confirmed before it is safe.

    report = ingest(spark, lake, [open_log("/srv/ana"), open_log("http://plant:7440")])

Reading goes in batches. Each batch is read once, staged where no reader sees it, compared with what
bronze has, and made visible by at most three commits: sightings, quarantine, and bronze last. All
three note how far each log was read; what bronze says counts. What a killed run has written to the
other two is found again and not written twice. Only after the last commit is the batch confirmed to
the logs, which may then truncate it.

So a job may be killed anywhere and started again: bronze has every id once, and every place of
every log is in bronze, in sightings or in quarantine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from holdfast.pipeline.ingest import dedupe
from holdfast.pipeline.ingest.batch import BatchReport, ingest_batch
from holdfast.pipeline.ingest.plan import Gap, IngestPlan, LogStretch, UnreadableLog, make_plan
from holdfast.pipeline.ingest.read_ranges import read_stretches, tasks_of
from holdfast.pipeline.lake.held import Key
from holdfast.pipeline.lake.lake import Lake, Progress, no_progress
from holdfast.pipeline.lake.schema import GAP, UNKNOWN_OP
from holdfast.pipeline.logs.log import ReadableLog
from holdfast.pipeline.source.plan import shares
from holdfast.pipeline.spark.failures import spark_errors
from holdfast.rules.errors import DiskFull, HoldfastError, LakeMoved
from holdfast.rules.limits import LAKE_BATCH_ROWS


@dataclass
class IngestedLog:
    """What was read of one log."""

    log: str
    epoch: int
    before: int
    """The last offset that the lake had before."""
    after: int
    """The last offset that the lake has now."""
    head: int
    """The last offset that the log had when the run began."""
    head_now: int = 0
    """The last offset that the log had when the run ended."""
    read: int = 0
    new: int = 0
    again: int = 0
    quarantined: int = 0

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
    """Logs that could not be read, or that could not be sent a confirmation."""
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
            if count.what not in (UNKNOWN_OP, GAP):
                log.read += count.rows
        for key, offset in done.ends.items():
            self.of(key).after = max(self.of(key).after, offset)


def ingest_logs(
    spark: SparkSession,
    lake: Lake,
    logs: Iterable[ReadableLog],
    *,
    max_rows: int = LAKE_BATCH_ROWS,
    allow_gaps: bool = False,
    progress: Progress = no_progress,
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
    progress: Progress = no_progress,
) -> IngestReport:
    """Carries out a plan. The function `spark` is called only if there is something to read."""
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
        progress("ingest", done, total)
        batch = _next_batch(waiting, max_rows)
        for made in _carry_out(spark(), lake, plan, batch, waiting, report):
            report.add(made)
            report.failures += _confirm(lake, plan, made.ends)
        done += sum(part.rows for part in batch)
    progress("ingest", total, total)
    report.seconds = time.monotonic() - began
    return report


def _next_batch(waiting: dict[Key, list[LogStretch]], max_rows: int) -> list[LogStretch]:
    """Takes the next stretches of all logs from `waiting`, together at most `max_rows` rows."""
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
    """Reads and commits one batch. If that fails, its logs are read one by one, and those that fail
    again are left out from here on: one log that goes away must not stop the others.
    """
    gaps = [gap for gap in plan.gaps if any(_notes(part, gap) for part in batch)]
    keys = list(dict.fromkeys(part.key for part in batch))
    try:
        with spark_errors("ingest"):
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


def _notes(part: LogStretch, gap: Gap) -> bool:
    """Whether a gap is noted with this stretch, because it lies right before it or begins in it."""
    beside = part.start == gap.stop or part.start <= gap.start < part.stop
    return part.key == gap.key and beside


def _read_batch(
    spark: SparkSession, lake: Lake, batch: Sequence[LogStretch], gaps: Sequence[Gap]
) -> BatchReport:
    ends = {part.key: part.stop - 1 for part in batch}
    frame = read_stretches(spark, tasks_of(batch))
    return ingest_batch(spark, lake, frame, ends, gaps=gaps)


def _confirm(lake: Lake, plan: IngestPlan, ends: Mapping[Key, int]) -> list[UnreadableLog]:
    """Confirms to the logs what is safe in the lake. If one does not answer, the next run does."""
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
