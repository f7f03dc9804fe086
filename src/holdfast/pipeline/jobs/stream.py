"""The lake kept up as logs grow: a stream over the same source and the same step as a run.

Where to begin is what bronze says, each time: Spark's own checkpoint only has to live as long as
one stream. So runs and streams can be used in turn on one lake, and a batch that is read twice is
known.

A stream ends cleanly on a signal: the batch that is being made true is finished first. Killed, it
leaves what a killed run leaves, and the next one goes on from there.
"""

from __future__ import annotations

import json
import logging
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from types import FrameType
from typing import Any, Final
from uuid import uuid4

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.pipeline.ingest import dedupe
from holdfast.pipeline.ingest.batch import BatchReport, ingest_batch
from holdfast.pipeline.ingest.plan import LocatedLog, make_plan
from holdfast.pipeline.jobs.run import behind, opened
from holdfast.pipeline.jobs.sources import LogSource
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.source.source import register
from holdfast.pipeline.spark.failures import told_plainly
from holdfast.rules.errors import HoldfastError, JobFailed, Unreachable
from holdfast.rules.limits import LAKE_BATCH_ROWS, LAKE_LOOK_MS, LAKE_TRIES_MAX, SECOND_MS

log = logging.getLogger("holdfast")

_FOLDER: Final = "_checkpoints/stream"
_WAKE_S: Final = 0.2
_TOO_SLOW: Final = "worker failed to connect back"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that a stream has made true."""

    read: int
    new: int
    again: int
    quarantined: int
    lag: dict[str, int]
    """Entries that wait, by log, of those that answer."""
    seconds: float


Told = Callable[[Step], None]


def stream(
    spark: SparkSession,
    lake: Lake,
    logs: Sequence[LogSource],
    *,
    fold: bool = True,
    every_ms: int = LAKE_LOOK_MS,
    once: bool = False,
    max_rows: int | None = None,
    told: Told | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Runs until `stop` is set or a signal to end comes; with `once`, until the heads that the logs
    have now are in. What may pass, as a node that is restarted, is tried again for a while; any
    other error ends it.
    """
    ending = stop or threading.Event()
    with lake.working("a stream"), opened(logs, lake.consumer) as (found, failures):
        plan = make_plan(lake.fresh(), found)
        for failure in (*failures, *plan.failures):
            raise failure.error
        work = _Work(lake, plan.found, fold, told)
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
                    log.warning("the stream begins again: %s", error.message)
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
    """From where the lake is until it is to end."""
    with _checkpoint(lake) as folder, told_plainly("the stream"):
        work.begin()
        frame = _frame(spark, lake, logs, max_rows)
        writer = frame.writeStream.foreachBatch(work.take).option("checkpointLocation", folder)
        work.watch(writer.trigger(**trigger).start(), ending)


def _may_pass(error: HoldfastError) -> bool:
    """A node may come back; and Spark allows a process ten seconds to start, which a machine that
    is busy may need.
    """
    return isinstance(error, Unreachable) or _TOO_SLOW in error.message


class _Ended(Exception):
    """A batch came after the end."""


class _Work:
    """What is done with each batch."""

    def __init__(
        self, lake: Lake, found: Sequence[LocatedLog], fold: bool, told: Told | None
    ) -> None:
        self._lake = lake
        self._found = found
        self._fold = fold
        self._told = told
        self._busy = threading.Lock()
        self._ended = False
        self.done = 0
        """Batches."""
        self._error: BaseException | None = None

    def begin(self) -> None:
        self._error = None

    def take(self, frame: DataFrame, number: int) -> None:
        with self._busy:
            if self._ended:
                # Not to be done, so it must not look done: its source would be told.
                raise _Ended
            began = time.monotonic()
            try:
                spark = frame.sparkSession
                done = ingest_batch(spark, self._lake, frame)
                if self._fold and behind(self._lake.fresh()):
                    from holdfast.pipeline.fold import silver

                    silver.fold(spark, self._lake.fresh())
            except BaseException as error:
                # Through Spark only its text would come back.
                self._error = error
                raise
            self.done += 1
            if self._told is not None and done.ends:
                self._told(self._step(done, time.monotonic() - began))

    def watch(self, query: StreamingQuery, ending: threading.Event) -> None:
        """Until it is to end, or ends by itself. A batch that is being done is finished."""
        while query.isActive and not ending.wait(_WAKE_S):
            pass
        with self._busy:
            self._ended = ending.is_set()
        # Not under the lock: it waits for the batch that may wait for the lock.
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
            read=rows(*({count.what for count in done.counts} - {dedupe.UNKNOWN_OP})),
            new=rows(dedupe.NEW),
            again=rows(dedupe.AGAIN),
            quarantined=rows(*aside),
            lag=self._lag(),
            seconds=seconds,
        )

    def _lag(self) -> dict[str, int]:
        lake = self._lake.fresh()
        found: dict[str, int] = {}
        for one in self._found:
            try:
                place = one.log.place()
            except HoldfastError:
                continue  # the next batch says so, if it lasts
            found[place.log] = place.head - (lake.position(place.log, place.epoch) or 0)
        return found


def _frame(spark: SparkSession, lake: Lake, logs: Sequence[LogSource], max_rows: int) -> DataFrame:
    """All logs as one stream. Those that are reached in the same way are read together."""
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
def _checkpoint(lake: Lake) -> Iterator[str]:
    """A fresh folder for what Spark notes of this stream. Of older streams nothing is needed."""
    folder = f"{lake.root}/{_FOLDER}"
    if "://" not in lake.root and Path(folder).exists():
        shutil.rmtree(folder)
    yield f"{folder}/{uuid4().hex}"


@contextmanager
def _signals(ending: threading.Event) -> Iterator[None]:
    """Signals to end are heard while this lasts, where that is possible: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        ending.set()

    before: dict[signal.Signals, Any] = {
        one: signal.signal(one, end) for one in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
