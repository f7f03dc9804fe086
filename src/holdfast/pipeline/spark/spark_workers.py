"""Tasks on Spark: on a cluster, on the cores of this machine, or by Spark Connect.

Only `mapInArrow` is used, which all of these have. Rows move between tasks by Spark's own shuffle,
as few large blobs: Spark handles some thousand of them where it would else handle millions of rows.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.utils import is_remote

from holdfast.pipeline.spark.failures import spark_errors
from holdfast.pipeline.spark.workers import Exchanged, Parcel, Scattering, Workers
from holdfast.rules.errors import JobFailed
from holdfast.rules.limits import EXCHANGE_BATCH_BYTES

S = TypeVar("S")
T = TypeVar("T")

Proof = Callable[[], None]
"""Raises unless the process that calls it sees the same lake as the driver."""

_REPORT: Final = "number bigint, report binary"
_PARCEL: Final = "target int, rows bigint, blob binary, tally binary"
_REPORT_ARROW: Final = pa.schema([("number", pa.int64()), ("report", pa.binary())])
_PARCEL_ARROW: Final = pa.schema(
    [("target", pa.int32()), ("rows", pa.int64()), ("blob", pa.binary()), ("tally", pa.binary())]
)
_SETTINGS: Final = {
    "spark.sql.execution.arrow.maxBytesPerBatch": str(EXCHANGE_BATCH_BYTES),
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    # Parcels are as large as they should be: nothing is gained by planning their move again.
    "spark.sql.adaptive.enabled": "false",
}
"""Settings of a session of our own, so that those of the user's session cannot change results."""


class SparkWorkers:
    """Runs tasks on Spark. Every task first proves that it sees the lake."""

    def __init__(self, spark: SparkSession, proof: Proof) -> None:
        self._given = spark
        self._proof = proof

    @cached_property
    def _spark(self) -> SparkSession:
        own = self._given.newSession()
        for name, value in _SETTINGS.items():
            own.conf.set(name, value)
        return own

    @cached_property
    def parallelism(self) -> int:
        if not is_remote():
            return max(1, int(self._given.sparkContext.defaultParallelism))
        # A client of Spark Connect is not told, so it looks how Spark divides a table by itself.
        parts = self._spark.range(1 << 20).select(F.spark_partition_id().alias("part"))
        with spark_errors("Spark"):
            return max(1, parts.distinct().count())

    def run(self, what: str, work: Callable[[int], T], count: int) -> list[T]:
        if not count:
            return []
        proof = self._proof

        def act(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            proof()
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield _report(number, work(number))

        return self._reports(what, self._numbers(count).mapInArrow(act, _REPORT), count)

    def exchange(
        self,
        what: str,
        scatter: Callable[[int], Scattering[S]],
        scatters: int,
        gather: Callable[[int, Sequence[Parcel]], T],
        gathers: int,
    ) -> Exchanged[S, T]:
        if not scatters:
            return Exchanged([], [])
        proof = self._proof

        def send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            proof()
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from _sent(number, scatter(number), gathers)

        def take(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            proof()
            for target, (parcels, tallies) in _arrived(batches).items():
                arrived = sum(parcel.rows for parcel in parcels)
                yield _report(target, _Gathered(arrived, tallies, gather(target, parcels)))

        sent = self._numbers(scatters).mapInArrow(send, _PARCEL)
        moved = sent.repartitionById(gathers, F.col("target")).mapInArrow(take, _REPORT)
        reports: list[_Gathered] = self._reports(what, moved, gathers)
        return _checked(what, reports, scatters)

    def _numbers(self, count: int) -> DataFrame:
        """The numbers below `count`, each in a partition of its own."""
        return self._spark.range(0, count, 1, count)

    def _reports(self, what: str, frame: DataFrame, count: int) -> list[Any]:
        with spark_errors(what), named(self._spark, what):
            found = frame.toArrow()
        numbers = found.column("number").to_pylist()
        if sorted(numbers) != list(range(count)):
            raise JobFailed(
                f"{what}: {len(numbers)} of {count} tasks reported; nothing was changed"
            )
        reports = dict(zip(numbers, found.column("report").to_pylist(), strict=True))
        return [pickle.loads(reports[number]) for number in range(count)]


def workers_of(spark: SparkSession | Workers, proof: Proof) -> Workers:
    """The workers that a caller has given, or those of a session."""
    return SparkWorkers(spark, proof) if isinstance(spark, SparkSession) else spark


@contextmanager
def named(spark: SparkSession, what: str) -> Iterator[None]:
    """Jobs of the block have this name in Spark's pages."""
    if is_remote():
        tag = what.replace(",", ";")
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
        return
    context = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(what)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", before)  # type: ignore[arg-type]


# --- on the executors ----------------------------------------------------------------------------


class _Tally(NamedTuple):
    """What one task has sent."""

    number: int
    sent: dict[int, int]
    """Rows by target."""
    report: Any


class _Gathered(NamedTuple):
    """The report of a task of the second step, with what it needs to be checked."""

    arrived: int
    tallies: list[_Tally]
    report: Any


def _report(number: int, report: object) -> pa.RecordBatch:
    rows = {"number": [number], "report": [pickle.dumps(report)]}
    return pa.RecordBatch.from_pydict(rows, schema=_REPORT_ARROW)


def _sent(number: int, parcels: Scattering[Any], gathers: int) -> Iterator[pa.RecordBatch]:
    """The parcels of a task as rows for Spark, and its tally as the last one."""
    if number == 0:
        # Every target gets something, so that its task runs also if no row is for it.
        yield _row(range(gathers), 0, None, None)
    sent: Counter[int] = Counter()
    while True:
        try:
            parcel = next(parcels)
        except StopIteration as end:
            tally = _Tally(number, dict(sent), end.value)
            break
        sent[parcel.target] += parcel.rows
        yield _row([parcel.target], parcel.rows, parcel.blob, None)
    yield _row([number % gathers], 0, None, pickle.dumps(tally))


def _row(
    targets: Sequence[int], rows: int, blob: bytes | pa.Buffer | None, tally: bytes | None
) -> pa.RecordBatch:
    count = len(targets)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(targets, pa.int32()),
            pa.array([rows] * count, pa.int64()),
            _binary(blob) if isinstance(blob, pa.Buffer) else pa.array([blob] * count, pa.binary()),
            pa.array([tally] * count, pa.binary()),
        ],
        schema=_PARCEL_ARROW,
    )


def _binary(blob: pa.Buffer) -> pa.Array:
    """A buffer as an array with one value, which is not copied."""
    ends = pa.array([0, blob.size], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), 1, [None, ends, blob])


def _arrived(
    batches: Iterable[pa.RecordBatch],
) -> dict[int, tuple[list[Parcel], list[_Tally]]]:
    """By target: its parcels and the tallies that came with them."""
    found: dict[int, tuple[list[Parcel], list[_Tally]]] = {}
    for batch in batches:
        targets, rows = batch.column("target").to_pylist(), batch.column("rows").to_pylist()
        for at, target in enumerate(targets):
            parcels, tallies = found.setdefault(target, ([], []))
            blob, tally = batch.column("blob")[at], batch.column("tally")[at]
            if blob.is_valid:
                parcels.append(Parcel(target, rows[at], blob.as_buffer()))
            if tally.is_valid:
                tallies.append(pickle.loads(tally.as_py()))
    return found


def _checked(what: str, reports: Sequence[_Gathered], scatters: int) -> Exchanged[Any, Any]:
    """The reports of an exchange, if every row that was sent has arrived."""
    tallies = sorted(tally for report in reports for tally in report.tallies)
    sent: Counter[int] = Counter()
    for tally in tallies:
        sent.update(tally.sent)
    arrived = [report.arrived for report in reports]
    if [tally.number for tally in tallies] != list(range(scatters)) or [
        sent[target] for target in range(len(reports))
    ] != arrived:
        raise JobFailed(
            f"{what}: {sum(sent.values())} rows were sent between tasks and {sum(arrived)} "
            "arrived; nothing was changed",
            hint="run it again; if it happens again, look at the storage of Spark's shuffle",
        )
    return Exchanged([tally.report for tally in tallies], [report.report for report in reports])
