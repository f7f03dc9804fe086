"""Logs as tables: the source's Arrow batches, beside the same source with rows one by one.

The other side reads the same logs in the same partitions and gives Spark tuples, as a source does
that was not written with Arrow in mind: from a node, the same stream taken apart into rows; from a
home, the entries as the library gives them. Both run in one session, in turns. Every round reads
the whole logs into Spark and throws them away there.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
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
from holdfast.pipeline.source.plan import LogRange
from holdfast.pipeline.source.source import BatchReader, HoldfastSource, Options, register
from holdfast.pipeline.spark.session import start
from holdfast.rules.ids import id_text
from holdfast.storage.sqlite.connection import connect

WARMING = 3
"""Rounds until Java has compiled what both sides run."""
ROUNDS = 5
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
            rounds = compared(
                partial(cost, spark, "holdfast", logs, ENTRIES),
                partial(cost, spark, "plain", logs, PLAIN_ENTRIES),
            )
            ours, plain = (statistics.median(side.rows_s for side in sides) for sides in rounds)
            print(f"  {what}: {ours:,.0f} rows/s as Arrow, {plain:,.0f} one by one")
            by_time = [one.rows_s / other.rows_s for one, other in zip(*rounds, strict=True)]
            yield f"logs as Arrow {what}, to rows one by one", statistics.median(by_time), target
            by_cpu = [one.rows_cpu_s / other.rows_cpu_s for one, other in zip(*rounds, strict=True)]
            # What else runs on the machine bends the clock's figure, and hardly this one.
            yield "  the same, by CPU seconds", statistics.median(by_cpu), target
        busy = [cost(spark, "holdfast", lying, ENTRIES).cores for _ in range(ROUNDS)]
        yield "cores that two logs keep busy", statistics.median(busy), ">= 1.5 of 2"


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


@dataclass(frozen=True, slots=True)
class Cost:
    """What a read took, of the clock and of all cores together."""

    rows: int
    seconds: float
    cpu_s: float
    idle_s: float
    """What a read of nothing takes by the clock, and is in neither rate."""
    idle_cpu_s: float

    @property
    def rows_s(self) -> float:
        return self.rows / (self.seconds - self.idle_s)

    @property
    def rows_cpu_s(self) -> float:
        return self.rows / (self.cpu_s - self.idle_cpu_s)

    @property
    def cores(self) -> float:
        return (self.cpu_s - self.idle_cpu_s) / (self.seconds - self.idle_s)


def compared(ours: Callable[[], Cost], theirs: Callable[[], Cost]) -> tuple[list[Cost], list[Cost]]:
    """Rounds in turns, after some that warm both up."""
    rounds = [(ours(), theirs()) for _ in range(WARMING + ROUNDS)][WARMING:]
    return [one for one, _ in rounds], [other for _, other in rounds]


def cost(spark: SparkSession, format: str, logs: str, rows: int) -> Cost:
    """One task for each log."""
    idle_s, idle_cpu_s = read_s(spark, format, logs, 0)
    return Cost(rows * len(logs.split(",")), *read_s(spark, format, logs, rows), idle_s, idle_cpu_s)


def read_s(spark: SparkSession, format: str, logs: str, rows: int) -> tuple[float, float]:
    """Seconds by the clock, and seconds of CPU."""
    frame = (
        spark.read.format(format)
        .option("logs", logs)
        .option("to", rows + 1)
        .option("rowsPerPartition", max(rows, 1))
        .load()
    )
    begun, used = perf_counter(), cpu_s()
    frame.write.format("noop").mode("overwrite").save()
    return perf_counter() - begun, cpu_s() - used


def cpu_s() -> float:
    """Of all processes below this one: Java, the workers that it starts, and the nodes."""
    used: dict[int, float] = {}
    below: dict[int, list[int]] = {}
    for found in Path("/proc").glob("[0-9]*"):
        try:
            fields = (found / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        pid = int(found.name)
        below.setdefault(int(fields[1]), []).append(pid)
        # Its own, and of its children that ended.
        used[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total, waiting = 0.0, list(below.get(os.getpid(), ()))
    while waiting:
        pid = waiting.pop()
        total += used[pid]
        waiting += below.get(pid, ())
    return total


class PlainSource(HoldfastSource):
    """The same logs, row by row."""

    @classmethod
    def name(cls) -> str:
        return "plain"

    def reader(self, schema: StructType) -> DataSourceReader:
        return PlainReader(Options(self.options))


class PlainReader(BatchReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, LogRange):
            return
        if not partition.location.startswith("unix:"):
            yield from entries_of(partition)
            return
        for batch in super().read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def entries_of(span: LogRange) -> Iterator[tuple[Any, ...]]:
    with holdfast.open(span.location) as node:
        for entry in node.log.range(span.start, span.stop):
            yield (
                *(span.log, span.epoch, entry.offset, id_text(entry.id), entry.mesh, entry.op),
                *(entry.entity, entry.origin, entry.lamport),
                datetime.fromtimestamp(entry.recorded_at / 1000, UTC),
                entry.raw,
            )
