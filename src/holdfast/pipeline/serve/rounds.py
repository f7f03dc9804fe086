"""The rounds of a server: whenever a log grows or somebody asks, a run; now and then a compaction.

Nothing that goes wrong ends it. A round that fails is noted for the status, and the next one comes
when a log grows again, somebody asks, or after a while.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from pyspark.sql import SparkSession

from holdfast.pipeline.jobs.compaction import compact, small_files
from holdfast.pipeline.jobs.follow import Watch
from holdfast.pipeline.jobs.run import RunReport, run
from holdfast.pipeline.jobs.sources import LogSource, remembered
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.spark_workers import SparkWorkers
from holdfast.rules.errors import HoldfastError, StoreClosed
from holdfast.rules.limits import (
    LAKE_EVERY_MS,
    LAKE_LOOK_MS,
    LAKE_SMALL_FILES_MAX,
    SECOND_MS,
)

log = logging.getLogger("holdfast")

OnReport = Callable[[RunReport], None]


class LakeRounds:
    """Follows all logs that a lake remembers, in the thread that calls `run`."""

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        lake: Lake,
        *,
        every_ms: int = LAKE_EVERY_MS,
        on_report: OnReport = lambda report: None,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._every_ms = every_ms
        self._on_report = on_report
        self._lock = threading.Lock()
        self._asked: list[tuple[bool, Future[RunReport]]] = []
        self._watch: Watch | None = None
        self.ending = threading.Event()
        self.done = 0
        """How many rounds took in something."""
        self.last_at = 0
        """When the last of them was committed."""
        self.trouble: str | None = None
        """What went wrong in the last round; None if nothing did."""

    def run(self) -> None:
        """Until `ending` is set; the round in progress is finished."""
        while not self.ending.is_set():
            logs = remembered(self._lake)
            with Watch(self._lake, logs, self.ending) as watch:
                with self._lock:
                    self._watch = watch
                while not self.ending.is_set() and remembered(self._lake) == logs:
                    self._turn(watch, logs)
        for _, future in self._take_asked():
            future.set_exception(StoreClosed("the server of the lake ends"))

    def ask(self, *, allow_gaps: bool = False) -> RunReport:
        """The report of a round that begins from now on; raises what ends it."""
        future: Future[RunReport] = Future()
        with self._lock:
            if self.ending.is_set():
                raise StoreClosed("the server of the lake ends")
            self._asked.append((allow_gaps, future))
            if self._watch is not None:
                self._watch.ring()
        return future.result()

    def stop(self) -> None:
        self.ending.set()

    def _turn(self, watch: Watch, logs: Sequence[LogSource]) -> None:
        watch.take()
        asked = self._take_asked()
        began = time.monotonic()
        # What came with a question may be a log that was remembered just now.
        logs = remembered(self._lake) if asked else logs
        gaps = any(allowed for allowed, _ in asked)
        patience_ms = LAKE_LOOK_MS
        try:
            report = self._round(logs, gaps)
        except Exception as error:
            self._failed(error, asked)
            patience_ms = self._every_ms
        else:
            for _, future in asked:
                future.set_result(report)
        watch.wait(patience_ms)
        if not self._is_asked():
            self.ending.wait(max(0.0, began + self._every_ms / SECOND_MS - time.monotonic()))

    def _round(self, logs: Sequence[LogSource], allow_gaps: bool) -> RunReport:
        report = run(self._spark, self._lake, logs, allow_gaps=allow_gaps, what="a server")
        failed = [f"{one.log or one.location}: {one.error.message}" for one in report.failures]
        self.trouble = "; ".join(failed) or None
        if report.ingest.read:
            self.done += 1
            self.last_at = time.time_ns() // 1_000_000
            self._on_report(report)
        self._compact_if_due()
        return report

    def _compact_if_due(self) -> None:
        waiting = sum(map(len, small_files(self._lake.fresh().bronze.files())))
        if waiting >= LAKE_SMALL_FILES_MAX and not self.ending.is_set():
            with self._lake.working("a compaction"):
                compact(SparkWorkers(self._spark(), self._lake.proof), self._lake)

    def _failed(self, error: Exception, asked: Sequence[tuple[bool, Future[RunReport]]]) -> None:
        self.trouble = error.message if isinstance(error, HoldfastError) else repr(error)
        for _, future in asked:
            future.set_exception(error)
        if not isinstance(error, HoldfastError):
            log.error("a round met a fault of Holdfast", exc_info=error)
        elif not asked:
            log.warning("a round failed and is tried again: %s", error.message)

    def _take_asked(self) -> list[tuple[bool, Future[RunReport]]]:
        with self._lock:
            asked, self._asked = self._asked, []
        return asked

    def _is_asked(self) -> bool:
        with self._lock:
            return bool(self._asked)
