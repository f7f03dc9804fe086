"""Whole runs: read what is new in every log, bring the state up to it, and say what was done.

    report = run(start, lake, [source("/srv/ana"), source("https://plant:7440")])

With nothing new anywhere Spark is not even started. A log that cannot be reached is in the report
and does not keep the others; whoever asked exits with an error then. A run may be stopped at any
point, and the next one goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from holdfast.pipeline.ingest.ingest import IngestReport, Progress, ingest_planned
from holdfast.pipeline.ingest.plan import IngestPlan, UnreadableLog, make_plan
from holdfast.pipeline.jobs.sources import LogSource
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.log import ReadableLog, open_log
from holdfast.pipeline.spark.failures import told_plainly
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import LAKE_BATCH_ROWS, LAMPORT_MAX

if TYPE_CHECKING:
    from holdfast.pipeline.fold.silver import FoldReport

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
    progress: Progress | None = None,
) -> RunReport:
    """One run. `spark` may be a function that starts it: it is called when it is needed."""
    began = time.monotonic()
    with lake.working("a run"), opened(logs, lake.consumer) as (found, failures):
        lake = lake.fresh()
        plan = make_plan(lake, found, allow_gaps=allow_gaps)
        plan.failures += failures
        session = _Session(spark)
        rows = max_rows or LAKE_BATCH_ROWS
        ingested = ingest_planned(session.start, lake, plan, max_rows=rows, progress=progress)
        report = RunReport(ingested)
        if fold and behind(lake.fresh()):
            from holdfast.pipeline.fold import silver

            with told_plainly("fold"):
                report.fold = silver.fold(session.start(), lake.fresh(), progress=progress)
        _look_again(plan, ingested)
    report.seconds = time.monotonic() - began
    return report


def behind(lake: Lake) -> bool:
    """Has bronze got anything that silver has not? Nothing but commits is looked at."""
    from holdfast.pipeline.fold import silver

    if not lake.bronze.exists:
        return False
    folded = min(silver.position(lake, name) for name in silver.FOLDED)
    return bool(lake.bronze.files(lambda file: file.may_hold("batch", folded + 1, LAMPORT_MAX)))


@contextmanager
def opened(
    logs: Sequence[LogSource | ReadableLog], consumer: str
) -> Iterator[tuple[list[ReadableLog], list[UnreadableLog]]]:
    """Those that can be opened, to be read under this name, and why the others cannot."""
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


class _Session:
    """Spark, when it is needed."""

    def __init__(self, given: SparkSession | Starting) -> None:
        self._given = given
        self._started: SparkSession | None = None

    def start(self) -> SparkSession:
        if self._started is None:
            self._started = self._given() if callable(self._given) else self._given
        return self._started


def _look_again(plan: IngestPlan, report: IngestReport) -> None:
    """How far the logs are by now, for those who still answer: others write while we read."""
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
