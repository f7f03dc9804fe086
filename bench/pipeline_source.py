"""Logs as tables: the source's Arrow batches, beside the same source with rows one by one.

The other side reads the same logs in the same partitions and gives Spark tuples, as a source does
that was not written with Arrow in mind: from a node, the same stream taken apart into rows; from a
home, the entries as the library gives them. Both run in one session, in turns. Every round reads
the whole logs into Spark and throws them away there.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import holdfast
from bench import _zones
from holdfast.pipeline.session import start
from holdfast.pipeline.source import HoldfastSource, LogReader, Options, register
from holdfast.pipeline.source_plan import Span
from holdfast.rules.ids import id_text
from holdfast.storage.sqlite.connection import connect

ROUNDS = 3
ENTRIES = 300_000
"""Of each of two logs."""
PLAIN_ENTRIES = 60_000
"""Read row by row: fewer, because it takes long; what is compared is rows per second."""


def run() -> Iterator[tuple[str, float, str]]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    with ExitStack() as later:
        later.callback(shutil.rmtree, folder)
        homes = [folder / peer for peer in ("ana", "bob")]
        for home in homes:
            fill(home, ENTRIES)
        nodes = [later.enter_context(_zones.up(home)).unix for home in homes]
        spark = start(master="local[2]")
        later.callback(spark.stop)
        register(spark)
        spark.dataSource.register(PlainSource)
        served = ",".join(nodes)
        lying = ",".join(map(str, homes))
        for what, logs, target in (
            ("from nodes over HTTP", served, ">= 3"),
            ("from homes on disk", lying, ">= 5"),
        ):
            ours, plain = compared(
                partial(rate, spark, "holdfast", logs, ENTRIES),
                partial(rate, spark, "plain", logs, PLAIN_ENTRIES),
            )
            print(f"  {what}: {ours:,.0f} rows/s as Arrow, {plain:,.0f} one by one")
            yield f"reading logs as Arrow {what}, to rows one by one", ours / plain, target
        both, one = compared(
            partial(rate, spark, "holdfast", lying, ENTRIES),
            partial(rate, spark, "holdfast", str(homes[0]), ENTRIES),
        )
        print(f"  homes on disk: {both:,.0f} rows/s of two logs, {one:,.0f} of one by one task")
        yield "two logs at once, to one log in one task", both / one, ">= 1.5"


def fill(home: Path, rows: int) -> None:
    """One real write, copied by SQL: so many through the library would only take longer."""
    with holdfast.open(home, peer=home.name, create=True, sync="normal") as node:
        node.mesh("team", create=True).state.set("key-0", {"note": "x" * 100})
    connection = connect(home / "data.db", sync="normal")
    with connection:
        connection.execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
            "INSERT INTO log (offset, id, mesh, op, entity, origin, lamport, recorded_at, raw) "
            "SELECT offset + i, randomblob(16), mesh, op, 'key-' || i, origin, lamport, "
            "recorded_at, raw FROM n, (SELECT * FROM log)",
            (rows - 1,),
        )
    connection.close()


def compared(ours: Callable[[], float], theirs: Callable[[], float]) -> tuple[float, float]:
    """Medians of rounds in turns, after one that warms both up."""
    rounds = [(ours(), theirs()) for _ in range(ROUNDS + 1)][1:]
    one, other = zip(*rounds, strict=True)
    return statistics.median(one), statistics.median(other)


def rate(spark: SparkSession, format: str, logs: str, rows: int) -> float:
    """Rows per second, beyond what a read of nothing costs. One task for each log."""
    idle, taken = read_s(spark, format, logs, 0), read_s(spark, format, logs, rows)
    return rows * len(logs.split(",")) / (taken - idle)


def read_s(spark: SparkSession, format: str, logs: str, rows: int) -> float:
    frame = (
        spark.read.format(format)
        .option("logs", logs)
        .option("to", rows + 1)
        .option("rowsPerPartition", max(rows, 1))
        .load()
    )
    begun = perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return perf_counter() - begun


class PlainSource(HoldfastSource):
    """The same logs, row by row."""

    @classmethod
    def name(cls) -> str:
        return "plain"

    def reader(self, schema: StructType) -> DataSourceReader:
        return PlainReader(Options(self.options))


class PlainReader(LogReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, Span):
            return
        if not partition.location.startswith("unix:"):
            yield from entries_of(partition)
            return
        for batch in super().read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def entries_of(span: Span) -> Iterator[tuple[Any, ...]]:
    with holdfast.open(span.location) as node:
        for entry in node.log.range(span.start, span.stop):
            yield (
                *(span.log, span.epoch, entry.offset, id_text(entry.id), entry.mesh, entry.op),
                *(entry.entity, entry.origin, entry.lamport),
                datetime.fromtimestamp(entry.recorded_at / 1000, UTC),
                entry.raw,
            )
