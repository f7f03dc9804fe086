"""Following logs: whenever one of them grows, a run takes in what is new.

One thread waits at each log until the log itself says that it has grown: a node answers a long
poll, the system tells of writes to a home. Then a round begins, which is a run like any other, at
most once every `every_ms`. So whatever runs, streams and servers do on one lake takes turns, and a
round that is killed leaves what a killed run leaves.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from holdfast.pipeline.jobs.run import RunReport, run
from holdfast.pipeline.jobs.sources import LogSource
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.log import LogBounds, WakingLog, open_log
from holdfast.rules.errors import HoldfastError, JobFailed, LakeBusy, Unreachable
from holdfast.rules.limits import (
    LAKE_EVERY_MS,
    LAKE_LOOK_MS,
    LAKE_TRIES_MAX,
    LONG_POLL_MS_DEFAULT,
    SECOND_MS,
    WATCH_MS,
)

log = logging.getLogger("holdfast")

_TOO_SLOW: Final = "worker failed to connect back"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What one round brought."""

    read: int
    new: int
    again: int
    quarantined: int
    lag: dict[str, int]
    """By log that answers: how many entries it has that the lake has not."""
    seconds: float


OnStep = Callable[[Step], None]


def step_of(report: RunReport) -> Step:
    done = report.ingest
    return Step(
        read=done.read,
        new=done.new,
        again=done.again,
        quarantined=sum(done.quarantined.values()),
        lag={one.log: one.lag_after for one in done.logs},
        seconds=report.seconds,
    )


def stream(
    spark: SparkSession | Callable[[], SparkSession],
    lake: Lake,
    logs: Sequence[LogSource],
    *,
    fold: bool = True,
    every_ms: int = LAKE_EVERY_MS,
    once: bool = False,
    max_rows: int | None = None,
    on_step: OnStep | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Runs until `stop` is set or, without it, until SIGTERM or SIGINT arrives; with `once`, until
    the lake has what the logs have now. The round in progress is finished first. After an error
    that may pass, as when a node restarts, it tries again a few times; any other error ends it.
    `on_step` is called after each round that read something.
    """
    ending = stop or threading.Event()
    tries, is_at_work = 0, False
    with _signals(ending, stop is None), Watch(lake, logs, ending) as watch:
        while not ending.is_set():
            watch.take()
            began = monotonic()
            try:
                report = run(spark, lake, logs, fold=fold, max_rows=max_rows, what="a stream")
                for failure in report.failures:
                    raise failure.error
                tries = 0
            except (Unreachable, JobFailed, LakeBusy) as error:
                # Another job may take a turn between two rounds, however long that is.
                waits = is_at_work and isinstance(error, LakeBusy)
                tries = 0 if waits else tries + 1
                if tries >= LAKE_TRIES_MAX or not (waits or may_pass(error)):
                    raise
                log.warning("the stream tries again: %s", error.message)
                ending.wait(every_ms / SECOND_MS)
                continue
            is_at_work = True
            if on_step is not None and report.ingest.read:
                on_step(step_of(report))
            if once:
                return
            watch.wait(LAKE_LOOK_MS)
            ending.wait(max(0.0, began + every_ms / SECOND_MS - monotonic()))


def may_pass(error: HoldfastError) -> bool:
    """Whether a new try may succeed: a node may come back, and on a busy machine a Python worker
    may need more than the ten seconds that Spark gives it to start.
    """
    return isinstance(error, Unreachable) or _TOO_SLOW in error.message


class Watch:
    """The threads that wait at the logs, for the length of a `with` block."""

    def __init__(self, lake: Lake, logs: Sequence[LogSource], ending: threading.Event) -> None:
        self._consumer = lake.consumer
        self._logs = list(logs)
        self._ending = ending
        self._changed = threading.Condition(threading.RLock())
        self._news = False
        self._rounds = 0
        self._opened: list[WakingLog] = []
        self._over = False

    def __enter__(self) -> Watch:
        for source in self._logs:
            threading.Thread(target=self._follow, args=(source,), daemon=True).start()
        threading.Thread(target=self._follow_ending, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
            opened = list(self._opened)
        for one in opened:
            one.close()

    def take(self) -> None:
        """A round begins: what grew before is its business, what grows from now on is news."""
        with self._changed:
            self._news = False
            self._rounds += 1
            self._changed.notify_all()

    def ring(self) -> None:
        """There is something to do."""
        with self._changed:
            self._news = True
            self._changed.notify_all()

    def wait(self, patience_ms: int) -> bool:
        """True as soon as there is news; False after `patience_ms`, or when it is to end."""
        with self._changed:
            self._changed.wait_for(self._is_awake, patience_ms / SECOND_MS)
            return self._news

    def _is_awake(self) -> bool:
        return self._news or self._over or self._ending.is_set()

    def _follow_ending(self) -> None:
        while not self._over and not self._ending.wait(WATCH_MS / SECOND_MS):
            pass
        with self._changed:
            self._changed.notify_all()

    def _follow(self, source: LogSource) -> None:
        """Rings whenever the log has grown. What is wrong with the log the rounds find out."""
        seen: LogBounds | None = None
        opened: WakingLog | None = None
        while not self._over and not self._ending.is_set():
            try:
                opened = opened or self._open(source)
                place = opened.place()
                if place != seen:
                    seen = place
                    self._tell()
                opened.wait(self._consumer, place, LONG_POLL_MS_DEFAULT)
            except HoldfastError:
                self._ending.wait(LAKE_LOOK_MS / SECOND_MS)

    def _open(self, source: LogSource) -> WakingLog:
        # A log of its own: the rounds use theirs at the same time.
        opened = open_log(source.location, {**source.options(), "consumer": self._consumer})
        with self._changed:
            self._opened.append(opened)
            if self._over:
                opened.close()
        return opened

    def _tell(self) -> None:
        """Rings, and waits until a round has begun: the log need not be asked meanwhile."""
        with self._changed:
            begun = self._rounds
            self.ring()
            self._changed.wait_for(lambda: self._rounds != begun or self._over)


@contextmanager
def _signals(ending: threading.Event, wanted: bool) -> Iterator[None]:
    """SIGTERM and SIGINT set `ending` for the length of the block, if this is the main thread."""
    if not wanted or threading.current_thread() is not threading.main_thread():
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
