"""A stream: reads logs into the lake as they grow, with the same step for each batch as a run.

Each stream begins where bronze is, so Spark's own checkpoint only has to live as long as one
stream. So runs and streams can take turns on one lake, and a batch that is read twice does no harm.

A stream ends cleanly on a signal: it first finishes the batch that it is committing. If it is
killed, it leaves what a killed run leaves, and the next run or stream goes on from there.
"""

from __future__ import annotations

import json
import logging
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from types import FrameType
from typing import Any, Final
from uuid import uuid4

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.pipeline.fold.silver import fold_lake
from holdfast.pipeline.ingest import dedupe
from holdfast.pipeline.ingest.batch import BatchReport, ingest_batch
from holdfast.pipeline.ingest.plan import LocatedLog, make_plan
from holdfast.pipeline.jobs.run import needs_fold, opened
from holdfast.pipeline.jobs.sources import LogSource
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import UNKNOWN_OP
from holdfast.pipeline.lake.storage_options import hadoop_settings
from holdfast.pipeline.source.source import register
from holdfast.pipeline.spark.failures import spark_errors
from holdfast.pipeline.spark.hadoop import reads_scheme, set_hadoop
from holdfast.rules.errors import HoldfastError, JobFailed, Unreachable
from holdfast.rules.limits import LAKE_BATCH_ROWS, LAKE_LOOK_MS, LAKE_TRIES_MAX, SECOND_MS

log = logging.getLogger("holdfast")

_FOLDER: Final = "_checkpoints/stream"
_WAKE_S: Final = 0.2
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
        plan = make_plan(lake.fresh(), found)
        for failure in (*failures, *plan.failures):
            raise failure.error
        work = _Work(lake, plan.found, fold, on_step)
        rows = max_rows or LAKE_BATCH_ROWS
        every: dict[str, Any] = {"processingTime": f"{every_ms} milliseconds"}
        trigger = {"availableNow": True} if once else every
        with _signals(ending):
            tries = 0
            while not ending.is_set():
                done = work.done
                try:
                    _query(spark, lake, logs, rows, work, trigger, ending)
                    return
                except (Unreachable, JobFailed) as error:
                    tries = 1 if work.done > done else tries + 1
                    if tries >= LAKE_TRIES_MAX or not _may_pass(error):
                        raise
                    log.warning("the stream starts again: %s", error.message)
                    ending.wait(every_ms / SECOND_MS)


def _query(
    spark: SparkSession,
    lake: Lake,
    logs: Sequence[LogSource],
    max_rows: int,
    work: _Work,
    trigger: dict[str, Any],
    ending: threading.Event,
) -> None:
    """Runs one Spark query from where the lake is, until it is to end."""
    with _checkpoint(spark, lake) as folder, spark_errors("the stream"):
        work.begin()
        frame = _frame(spark, lake, logs, max_rows)
        writer = frame.writeStream.foreachBatch(work.take).option("checkpointLocation", folder)
        work.watch(writer.trigger(**trigger).start(), ending)


def _may_pass(error: HoldfastError) -> bool:
    """Whether a new try may succeed: a node may come back, and on a busy machine a Python worker
    may need more than the ten seconds that Spark gives it to start.
    """
    return isinstance(error, Unreachable) or _TOO_SLOW in error.message


class _Ended(Exception):
    """Raised for a batch that comes after the stream was stopped."""


class _Work:
    """What a stream does with each batch."""

    def __init__(
        self, lake: Lake, logs: Sequence[LocatedLog], fold: bool, on_step: OnStep | None
    ) -> None:
        self._lake = lake
        self._logs = logs
        self._fold = fold
        self._on_step = on_step
        self._busy = threading.Lock()
        self._ended = False
        self.done = 0
        """How many batches were committed."""
        self._error: BaseException | None = None

    def begin(self) -> None:
        self._error = None

    def take(self, frame: DataFrame, number: int) -> None:
        with self._busy:
            if self._ended:
                # It must fail, or Spark would commit it and the source would confirm it.
                raise _Ended
            began = time.monotonic()
            try:
                spark = frame.sparkSession
                done = ingest_batch(spark, self._lake, frame)
                if self._fold and needs_fold(self._lake.fresh()):
                    fold_lake(spark, self._lake.fresh())
            except BaseException as error:
                # Kept here, because Spark passes on only the text of an error.
                self._error = error
                raise
            self.done += 1
            if self._on_step is not None and done.ends:
                self._on_step(self._step(done, time.monotonic() - began))

    def watch(self, query: StreamingQuery, ending: threading.Event) -> None:
        """Waits until the query ends or `ending` is set; a batch in progress is finished first."""
        while query.isActive and not ending.wait(_WAKE_S):
            pass
        with self._busy:
            self._ended = ending.is_set()
        # Outside the lock: `stop` waits for a batch that may be waiting for the lock.
        query.stop()
        try:
            query.awaitTermination()
        except StreamingQueryException:
            if isinstance(self._error, HoldfastError):
                raise self._error from None
            if not self._ended or self._error is not None:
                raise

    def _step(self, done: BatchReport, seconds: float) -> Step:
        def rows(*what: str) -> int:
            return sum(count.rows for count in done.counts if count.what in what)

        aside = {count.what for count in done.counts} - {dedupe.NEW, dedupe.AGAIN}
        return Step(
            read=rows(*({count.what for count in done.counts} - {UNKNOWN_OP})),
            new=rows(dedupe.NEW),
            again=rows(dedupe.AGAIN),
            quarantined=rows(*aside),
            lag=self._lag(),
            seconds=seconds,
        )

    def _lag(self) -> dict[str, int]:
        lake = self._lake.fresh()
        waiting: dict[str, int] = {}
        for one in self._logs:
            try:
                place = one.log.place()
            except HoldfastError:
                continue  # if it lasts, reading the next batch raises it
            waiting[place.log] = place.head - (lake.position(place.log, place.epoch) or 0)
        return waiting


def _frame(spark: SparkSession, lake: Lake, logs: Sequence[LogSource], max_rows: int) -> DataFrame:
    """All logs as one stream. Logs with the same options are read by one source."""
    register(spark)
    alike: dict[str, list[LogSource]] = {}
    for one in logs:
        alike.setdefault(json.dumps(one.options(), sort_keys=True), []).append(one)
    begin = {at.log: [at.epoch, at.offset] for at in lake.fresh().positions()}
    frames = []
    for group in alike.values():
        options = {
            **group[0].options(),
            "logs": "\n".join(one.location for one in group),
            "columns": "envelope",
            "consumer": lake.consumer,
            "maxRowsPerBatch": str(max(1, max_rows // len(alike))),
        }
        if begin:
            options["startingOffsets"] = json.dumps(begin)
        frames.append(spark.readStream.format("holdfast").options(**options).load())
    return reduce(DataFrame.unionAll, frames)


@contextmanager
def _checkpoint(spark: SparkSession, lake: Lake) -> Iterator[str]:
    """A new folder for Spark's checkpoint; those of older streams are removed. No stream needs the
    one of another, since the lake itself knows how far it is: so where Spark's Java cannot write to
    the lake's place, a folder of this machine does.
    """
    place = lake.folder.location
    if reads_scheme(spark, place.scheme):
        set_hadoop(spark, hadoop_settings(place, lake.options))
        lake.folder.delete_folder(_FOLDER)
        yield f"{place.spark}/{_FOLDER}/{uuid4().hex}"
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-stream-") as folder:
        yield f"file://{folder}"


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
