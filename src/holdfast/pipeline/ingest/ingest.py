"""Logs into the lake: every envelope once, and nothing confirmed before it is safe.

    report = ingest_logs(spark, lake, [open_log("/srv/ana"), open_log("http://plant:7440")])

Reading goes in batches. Each batch is read once, by tasks that judge and stage it where no reader
sees it, and made visible by at most three commits: sightings, quarantine, and bronze last. All
three note how far each log was read; what bronze says counts. What a killed run has written to the
other two is replaced. Only after the last commit is the batch confirmed to the logs, which may then
truncate it.

If another job commits to bronze first, the rest is planned again, as a run after a killed one does.

So a job may be killed anywhere and started again: bronze has every id once, and every place of
every log is in bronze, in sightings or in quarantine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from holdfast.pipeline.ingest import dedupe
from holdfast.pipeline.ingest.batch import BatchReport, ingest_batch
from holdfast.pipeline.ingest.plan import Gap, IngestPlan, LogStretch, UnreadableLog, make_plan
from holdfast.pipeline.lake.held import Key
from holdfast.pipeline.lake.lake import Lake, Progress, no_progress
from holdfast.pipeline.lake.schema import GAP, UNKNOWN_OP
from holdfast.pipeline.logs.log import ReadableLog
from holdfast.pipeline.source.plan import shares
from holdfast.pipeline.spark.spark_workers import SparkWorkers
from holdfast.pipeline.spark.workers import DriverWorkers, Workers
from holdfast.rules.errors import DiskFull, HoldfastError, LakeBusy, LakeMoved, LakeNotSeen
from holdfast.rules.limits import (
    LAKE_BATCH_ROWS,
    LAKE_FILE_ROWS,
    LAKE_TRIES_MAX,
    SOURCE_PARTITION_ROWS,
)


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
            elif count.what != dedupe.STORED:
                log.quarantined += count.rows
                self.quarantined[count.what] = self.quarantined.get(count.what, 0) + count.rows
            if count.what not in (UNKNOWN_OP, GAP):
                log.read += count.rows
        for key, offset in done.ends.items():
            self.of(key).after = max(self.of(key).after, offset)


def ingest_logs(
    spark: SparkSession | Callable[[], SparkSession],
    lake: Lake,
    logs: Iterable[ReadableLog],
    *,
    max_rows: int | None = None,
    allow_gaps: bool = False,
    progress: Progress = no_progress,
) -> IngestReport:
    """Reads what the lake lacks, up to the heads that the logs have now. A log that fails is in the
    report, and the others are read. `spark` may be a function that starts Spark; it is called only
    if there is much to read.
    """
    plan = make_plan(lake.fresh(), logs, allow_gaps=allow_gaps)
    workers = workers_for(lake, plan, spark)
    return ingest_planned(workers, lake, plan, max_rows=max_rows, progress=progress)


def workers_for(
    lake: Lake, plan: IngestPlan, spark: SparkSession | Callable[[], SparkSession]
) -> Callable[[], Workers]:
    """Who carries out a plan: the driver itself if it is small, else Spark."""
    if plan.rows <= LAKE_FILE_ROWS:
        return DriverWorkers
    return lambda: SparkWorkers(spark() if callable(spark) else spark, lake.proof)


def ingest_planned(
    workers: Callable[[], Workers],
    lake: Lake,
    plan: IngestPlan,
    *,
    max_rows: int | None = None,
    progress: Progress = no_progress,
) -> IngestReport:
    """Carries out a plan. The function `workers` is called only if there is something to read.
    `max_rows`: entries of all logs together in one batch; without it, so many that all workers have
    enough to do.
    """
    began = time.monotonic()
    work = _Work(lake, plan)
    total = plan.rows
    if plan.rows:
        crew = workers()
        rows = max_rows or max(LAKE_BATCH_ROWS, crew.parallelism * SOURCE_PARTITION_ROWS)
        while work.waiting:
            progress("ingest", work.done, total)
            work.carry_out(crew, rows)
    progress("ingest", total, total)
    work.report.seconds = time.monotonic() - began
    return work.report


class _Work:
    """A plan while it is carried out."""

    def __init__(self, lake: Lake, plan: IngestPlan) -> None:
        self._lake = lake
        self._moved = 0
        """How many times in a row another job was first."""
        self.done = 0
        self.report = IngestReport()
        self._begin(plan)

    def _begin(self, plan: IngestPlan) -> None:
        self._plan = plan
        self.waiting = {key: list(parts) for key, parts in plan.stretches.items()}
        self.report.failures += plan.failures
        known = {(log.log, log.epoch) for log in self.report.logs}
        self.report.logs += [
            IngestedLog(*key, before=before, after=before, head=plan.head(key))
            for key, before in sorted(plan.before.items())
            if key not in known and any(one.key == key for one in plan.found)
        ]

    def carry_out(self, workers: Workers, max_rows: int) -> None:
        """Reads and commits the next batch."""
        batch = next_batch(self.waiting, max_rows)
        try:
            for made in self._committed(workers, batch):
                self._moved = 0
                self.report.add(made)
                self.report.failures += _confirm(self._lake, self._plan, made.ends)
        except LakeMoved:
            self._moved += 1
            if self._moved >= LAKE_TRIES_MAX:
                raise LakeMoved(
                    f"other jobs changed {self._lake.root} {LAKE_TRIES_MAX} times in a row"
                ) from None
            failed = {failure.location for failure in self.report.failures}
            logs = [one.log for one in self._plan.found if one.log.location not in failed]
            self._begin(make_plan(self._lake.fresh(), logs, allow_gaps=self._plan.allow_gaps))
        else:
            self.done += sum(part.rows for part in batch)

    def _committed(self, workers: Workers, batch: Sequence[LogStretch]) -> Iterator[BatchReport]:
        """Reads and commits one batch. If that fails, its logs are read one by one, and those that
        fail again are left out from here on: one log that goes away must not stop the others.
        """
        gaps = [gap for gap in self._plan.gaps if any(_notes(part, gap) for part in batch)]
        keys = list(dict.fromkeys(part.key for part in batch))
        try:
            yield ingest_batch(workers, self._lake, batch, gaps=gaps)
            return
        except (LakeBusy, LakeMoved, LakeNotSeen, DiskFull):
            raise
        except HoldfastError as error:
            if len(keys) == 1:
                self.waiting.pop(keys[0], None)
                where = ", ".join(dict.fromkeys(part.log.location for part in batch))
                self.report.failures.append(UnreadableLog(where, error, keys[0][0]))
                return
        for key in keys:
            yield from self._committed(workers, [part for part in batch if part.key == key])


def next_batch(waiting: dict[Key, list[LogStretch]], max_rows: int) -> list[LogStretch]:
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


def _notes(part: LogStretch, gap: Gap) -> bool:
    """Whether a gap is noted with this stretch, because it lies right before it or begins in it."""
    beside = part.start == gap.stop or part.start <= gap.start < part.stop
    return part.key == gap.key and beside


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
