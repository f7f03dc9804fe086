"""A stream: reads logs into the lake as they grow, by the same steps as a run.

A stream is a loop: plan, read a batch, fold it, look again. So runs and streams can take turns on
one lake, and what one has read the other goes on from.

A stream ends cleanly on a signal: it first finishes the batch that it is committing. If it is
killed, it leaves what a killed run leaves, and the next run or stream goes on from there.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from holdfast.pipeline.fold.silver import fold_lake
from holdfast.pipeline.ingest.ingest import IngestReport, ingest_planned, next_batch, workers_for
from holdfast.pipeline.ingest.plan import IngestPlan, LogStretch, make_plan
from holdfast.pipeline.jobs.run import needs_fold, opened
from holdfast.pipeline.jobs.sources import LogSource
from holdfast.pipeline.lake.held import Key
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.log import ReadableLog
from holdfast.pipeline.spark.failures import spark_errors
from holdfast.rules.errors import HoldfastError, JobFailed, Unreachable
from holdfast.rules.limits import LAKE_BATCH_ROWS, LAKE_LOOK_MS, LAKE_TRIES_MAX, SECOND_MS

log = logging.getLogger("holdfast")

_TOO_SLOW: Final = "worker failed to connect back"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What one committed batch of a stream brought."""

    read: int
    new: int
    again: int
    quarantined: int
    lag: dict[str, int]
    """By log that answers: how many entries it has that the lake has not."""
    seconds: float


OnStep = Callable[[Step], None]


def stream(
    spark: SparkSession,
    lake: Lake,
    logs: Sequence[LogSource],
    *,
    fold: bool = True,
    every_ms: int = LAKE_LOOK_MS,
    once: bool = False,
    max_rows: int | None = None,
    on_step: OnStep | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Runs until `stop` is set or SIGTERM or SIGINT arrives; with `once`, until the lake has what
    the logs have now. After an error that may pass, as when a node restarts, it starts again a few
    times; any other error ends it. `on_step` is called after each batch.
    """
    ending = stop or threading.Event()
    with lake.working("a stream"), opened(logs, lake.consumer) as (found, failures):
        for failure in failures:
            raise failure.error
        work = _Work(spark, lake, found, fold, on_step)
        rows = max_rows or LAKE_BATCH_ROWS
        with _signals(ending):
            tries = 0
            while not ending.is_set():
                done = work.done
                try:
                    work.look(rows, ending)
                    if once:
                        return
                    tries = 0
                except (Unreachable, JobFailed) as error:
                    tries = 1 if work.done > done else tries + 1
                    if tries >= LAKE_TRIES_MAX or not _may_pass(error):
                        raise
                    log.warning("the stream starts again: %s", error.message)
                ending.wait(every_ms / SECOND_MS)


def _may_pass(error: HoldfastError) -> bool:
    """Whether a new try may succeed: a node may come back, and on a busy machine a Python worker
    may need more than the ten seconds that Spark gives it to start.
    """
    return isinstance(error, Unreachable) or _TOO_SLOW in error.message


class _Work:
    """What a stream does each time that it looks."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        logs: Sequence[ReadableLog],
        fold: bool,
        on_step: OnStep | None,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._logs = logs
        self._fold = fold
        self._on_step = on_step
        self.done = 0
        """How many batches were committed."""

    def look(self, max_rows: int, ending: threading.Event) -> None:
        """Reads what the logs have now, batch by batch, until it is to end."""
        plan = make_plan(self._lake.fresh(), self._logs)
        for failure in plan.failures:
            raise failure.error
        waiting = {key: list(parts) for key, parts in plan.stretches.items()}
        while waiting and not ending.is_set():
            self._take(plan, next_batch(waiting, max_rows))

    def _take(self, plan: IngestPlan, batch: Sequence[LogStretch]) -> None:
        began = time.monotonic()
        stretches: dict[Key, list[LogStretch]] = {}
        for part in batch:
            stretches.setdefault(part.key, []).append(part)
        now = replace(plan, stretches=stretches)
        done = ingest_planned(workers_for(self._lake, now, self._spark), self._lake, now)
        for failure in done.failures:
            raise failure.error
        if self._fold and needs_fold(self._lake.fresh()):
            with spark_errors("the stream"):
                fold_lake(self._spark, self._lake.fresh())
        self.done += 1
        if self._on_step is not None:
            self._on_step(self._step(done, time.monotonic() - began))

    def _step(self, done: IngestReport, seconds: float) -> Step:
        return Step(
            read=done.read,
            new=done.new,
            again=done.again,
            quarantined=sum(done.quarantined.values()),
            lag=self._lag(),
            seconds=seconds,
        )

    def _lag(self) -> dict[str, int]:
        lake = self._lake.fresh()
        waiting: dict[str, int] = {}
        for one in self._logs:
            try:
                place = one.place()
            except HoldfastError:
                continue  # if it lasts, the next look raises it
            waiting[place.log] = place.head - (lake.position(place.log, place.epoch) or 0)
        return waiting


@contextmanager
def _signals(ending: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set `ending` for the length of the block, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        ending.set()

    before = {which: signal.signal(which, end) for which in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
