"""One run: read what is new in every log, fold it into the state, and report what was done.

    report = run(start, lake, [log_source("/srv/ana"), log_source("https://plant:7440")])

If no log has anything new, Spark is not even started; a few new entries the driver reads and folds
itself. A log that cannot be reached is in the report and does not stop the others. A run may be
stopped at any point, and the next one goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache

from pyspark.sql import SparkSession

from holdfast.pipeline.fold.silver import (
    FOLDED,
    FoldReport,
    fold_lake,
    is_current,
    is_little,
    things_are_current,
)
from holdfast.pipeline.ingest.commits import ingest_commits
from holdfast.pipeline.ingest.ingest import IngestReport, ingest_planned, workers_for
from holdfast.pipeline.ingest.plan import IngestPlan, UnreadableLog, make_plan
from holdfast.pipeline.jobs.sources import LogSource
from holdfast.pipeline.lake.lake import Lake, Progress, no_progress
from holdfast.pipeline.lake.schema import MADE_OF
from holdfast.pipeline.logs.log import ReadableLog, open_log
from holdfast.pipeline.spark.failures import spark_errors
from holdfast.pipeline.spark.spark_workers import SparkWorkers
from holdfast.pipeline.spark.workers import DriverWorkers
from holdfast.rules.errors import HoldfastError, LakeMoved
from holdfast.rules.limits import LAKE_TRIES_MAX

Starting = Callable[[], SparkSession]


@dataclass
class RunReport:
    """What a run did."""

    ingest: IngestReport
    fold: FoldReport | None = None
    """None if there was nothing to fold."""
    seconds: float = 0.0

    @property
    def failures(self) -> list[UnreadableLog]:
        return self.ingest.failures

    @property
    def ok(self) -> bool:
        return not self.failures


def run(
    spark: SparkSession | Starting,
    lake: Lake,
    logs: Sequence[LogSource | ReadableLog],
    *,
    fold: bool = True,
    max_rows: int | None = None,
    allow_gaps: bool = False,
    progress: Progress = no_progress,
    what: str = "a run",
) -> RunReport:
    """Makes one run. `spark` may be a function that starts Spark; it is called only if needed.
    `what`: what others are told who find the lake busy.
    """
    began = time.monotonic()
    start = cache(lambda: spark() if callable(spark) else spark)
    with lake.working(what), opened(logs, lake.consumer) as (found, failures):
        plan = _planned(lake, found, allow_gaps)
        lake = lake.fresh()
        plan.failures += failures
        workers = workers_for(lake, plan, start)
        ingested = ingest_planned(workers, lake, plan, max_rows=max_rows, progress=progress)
        ingested.failures += ingest_commits(lake, plan)
        report = RunReport(ingested)
        if fold and needs_fold(lake := lake.fresh()):
            crew = DriverWorkers() if is_little(lake) else SparkWorkers(start(), lake.proof)
            with spark_errors("fold"):
                report.fold = fold_lake(crew, lake, progress=progress)
        _update_heads(plan, ingested)
    report.seconds = time.monotonic() - began
    return report


def _planned(lake: Lake, logs: Sequence[ReadableLog], allow_gaps: bool) -> IngestPlan:
    """The plan. Another job in an object store may commit while it is made: then once more."""
    for left in reversed(range(LAKE_TRIES_MAX)):
        try:
            return make_plan(lake.fresh(), logs, allow_gaps=allow_gaps)
        except LakeMoved:
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


def needs_fold(lake: Lake) -> bool:
    """Whether there is something that silver has not taken in. Reads only commits of tables."""
    made = all(things_are_current(lake, name) for name in MADE_OF)
    return not (made and all(is_current(lake, name) for name in FOLDED))


@contextmanager
def opened(
    logs: Sequence[LogSource | ReadableLog], consumer: str
) -> Iterator[tuple[list[ReadableLog], list[UnreadableLog]]]:
    """Opens logs, to be read under the name `consumer`; gives those that could be opened, and why
    the others could not.
    """
    found: list[ReadableLog] = []
    failures: list[UnreadableLog] = []
    with ExitStack() as stack:
        for one in logs:
            if not isinstance(one, LogSource):
                found.append(one)
                continue
            try:
                log = open_log(one.location, {**one.options(), "consumer": consumer})
            except HoldfastError as error:
                failures.append(UnreadableLog(one.location, error, one.name or ""))
                continue
            stack.callback(log.close)
            found.append(log)
        yield found, failures


def _update_heads(plan: IngestPlan, report: IngestReport) -> None:
    """Asks the logs for their heads again, for the report: they grow while the run reads them."""
    failed = {failure.location for failure in report.failures}
    for one in plan.found:
        if one.log.location in failed:
            continue
        try:
            place = one.log.place()
        except HoldfastError as error:
            report.failures.append(UnreadableLog(one.log.location, error, one.place.log))
            continue
        if place.epoch == one.place.epoch:
            log = report.of(one.key)
            log.head_now = max(log.head_now, place.head)
