"""The first step of a batch: tasks read logs and write what they read, sorted, judged, staged.

A task reads its ranges, holds a portion of the rows at a time, judges it by itself and against
bronze (`dedupe.py`), and writes files that no reader sees yet. It reports how many entries each
range gave and what became of them. The driver compares that with the plan before anything counts.
"""

from __future__ import annotations

import pickle
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.ingest import dedupe
from holdfast.pipeline.ingest.known import KnownRows
from holdfast.pipeline.ingest.plan import LogStretch
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.held import Key
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.writer import FileWriter
from holdfast.pipeline.logs.arrow import in_order
from holdfast.pipeline.logs.log import ReadableLog, located
from holdfast.pipeline.source.source import read_log
from holdfast.rules.errors import BadAnswer, HoldfastError, JobFailed, LogForked
from holdfast.rules.limits import INGEST_PORTION_BYTES


class TakenRange(msgspec.Struct, frozen=True):
    """What a range of a log gave."""

    key: Key
    start: int
    stop: int
    read: int
    """How many entries that were."""
    last: int
    """The last offset that had an entry; 0 if none had."""
    last_id: str


class Portion(msgspec.Struct, frozen=True):
    """The staged files of a portion."""

    bronze: tuple[File, ...]
    sightings: tuple[File, ...]
    quarantine: tuple[File, ...]
    counts: dict[tuple[Key, str], int]
    rivals: bool = False
    """Whether the files for bronze have an id twice."""


class Taken(msgspec.Struct, frozen=True):
    """What a task did."""

    ranges: list[TakenRange]
    portions: list[Portion]


class StagedWriters(msgspec.Struct, frozen=True):
    """Write into new folders of the three tables."""

    bronze: FileWriter
    sightings: FileWriter
    quarantine: FileWriter

    @classmethod
    def of(cls, lake: Lake) -> StagedWriters:
        return cls(lake.bronze.writer(), lake.sightings.writer(), lake.quarantine.writer())

    def write(self, judged: dedupe.JudgedPortion) -> Portion:
        return Portion(
            bronze=_written(self.bronze, judged.bronze),
            sightings=_written(self.sightings, judged.sightings),
            quarantine=_written(self.quarantine, judged.quarantine),
            counts=dict(dedupe.counts_of(judged)),
            rivals=judged.rivals,
        )


class _Range(msgspec.Struct, frozen=True):
    """Offsets [start, stop) of a log, for one task."""

    log: int
    """The number of the log among all that the batch reads."""
    key: Key
    start: int
    stop: int
    dense: bool


class Taking(msgspec.Struct, frozen=True):
    """The work of all tasks; Spark sends it to each of them."""

    logs: tuple[bytes, ...]
    """As bytes, so that a task opens only the logs that it reads."""
    work: tuple[tuple[_Range, ...], ...]
    known: KnownRows
    writers: StagedWriters
    batch: int

    @classmethod
    def of(cls, lake: Lake, tasks: Sequence[Sequence[LogStretch]], batch: int) -> Taking:
        logs: list[ReadableLog] = []
        work: list[tuple[_Range, ...]] = []
        for task in tasks:
            logs += [log for log in dict.fromkeys(part.log for part in task) if log not in logs]
            work.append(
                tuple(
                    _Range(logs.index(part.log), part.key, part.start, part.stop, part.log.dense)
                    for part in task
                )
            )
        packed = tuple(pickle.dumps(log) for log in logs)
        return cls(packed, tuple(work), KnownRows.of(lake.bronze), StagedWriters.of(lake), batch)

    def __call__(self, number: int) -> Taken:
        ranges: list[TakenRange] = []
        portions: list[Portion] = []
        waiting: list[pa.RecordBatch] = []
        size = 0
        for span in self.work[number]:
            reading = _Reading(span, partial(pickle.loads, self.logs[span.log]))
            for batch in reading:
                waiting.append(batch)
                size += batch.nbytes
                if size >= INGEST_PORTION_BYTES:
                    portions.append(self._portion(waiting))
                    waiting, size = [], 0
            ranges.append(reading.taken())
        if waiting:
            portions.append(self._portion(waiting))
        return Taken(ranges, portions)

    def _portion(self, batches: list[pa.RecordBatch]) -> Portion:
        rows = pa.Table.from_batches(batches)
        return self.writers.write(dedupe.judge(rows, self.known.find, self.batch))


class _Reading:
    """The batches of one range, each checked to be of it."""

    def __init__(self, span: _Range, opening: partial[ReadableLog]) -> None:
        self._span = span
        self._opening = opening
        self._where = ""
        self._read = self._last = 0
        self._last_id = ""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        span = self._span
        for batch in read_log(self._open, span.key[1], span.start, span.stop, unpack=True):
            if batch.num_rows:
                self._check(batch)
                self._read += batch.num_rows
                self._last = batch.column("offset")[-1].as_py()
                self._last_id = batch.column("id")[-1].as_py()
                yield batch

    def taken(self) -> TakenRange:
        """What was read. JobFailed if the range has ended before its end."""
        span = self._span
        if span.dense and self._read != span.stop - span.start:
            raise self._located(
                JobFailed(f"{self._read} of {span.stop - span.start} entries came; none was kept")
            )
        return TakenRange(span.key, span.start, span.stop, self._read, self._last, self._last_id)

    def _open(self) -> ReadableLog:
        log = self._opening()
        self._where = log.location
        return log

    def _check(self, batch: pa.RecordBatch) -> None:
        span = self._span
        for name, wanted in zip(("log", "epoch"), span.key, strict=True):
            found = pc.unique(batch.column(name)).to_pylist()
            if found != [wanted]:
                raise self._located(
                    LogForked(f"on {socket.gethostname()} another log lies there, of {found}")
                )
        if not in_order(batch.column("offset"), max(span.start, self._last + 1), span.stop):
            raise self._located(BadAnswer("its entries are out of order"))

    def _located(self, error: HoldfastError) -> HoldfastError:
        span = self._span
        log, epoch = span.key
        return located(error, log, self._where, epoch, span.start, span.stop)


def _written(writer: FileWriter, rows: pa.Table) -> tuple[File, ...]:
    return tuple(writer.write([rows])) if rows.num_rows else ()


def summed(portions: Sequence[Portion]) -> Counter[tuple[Key, str]]:
    """The counts of all portions."""
    found: Counter[tuple[Key, str]] = Counter()
    for portion in portions:
        found.update(portion.counts)
    return found
