"""The fold: a lake of many changes into its state, against bare Spark SQL and DuckDB that only pick
the winners; and what a little more costs, on a smaller and a larger lake.

Sizes come from the environment: HOLDFAST_BENCH_FOLD_OPS (10 000 000; a tenth as many keys). With
50 000 000 or more only the full fold is run, in a JVM of 5 GB: whether it fits is the question.
Lakes are made once and kept in HOLDFAST_BENCH_CACHE, or beside other temporary files.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import duckdb
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.fold.silver import fold_lake
from holdfast.pipeline.lake.lake import ID_DAY, Lake
from holdfast.pipeline.lake.schema import BRONZE
from holdfast.pipeline.spark import session
from holdfast.pipeline.spark.spark_workers import SparkWorkers
from holdfast.rules.bodies import NOTHING, StateSet, encode_body
from holdfast.rules.envelope import Envelope, encode

OPS = int(os.environ.get("HOLDFAST_BENCH_FOLD_OPS", "10000000"))
MEMORY_OPS = 50_000_000
OPS_PER_KEY = 10
NEW_OPS = 10_000
ROUNDS = 3
START_MS = 1_760_000_000_000
LAMPORT = 1 << 40
"""Stamps and counts begin here, so that all take as many bytes."""
KEY_CHARS, VALUE_CHARS, PEER_CHARS = 24, 48, 6


def run() -> Iterator[tuple[str, float, str]]:
    cache = Path(
        os.environ.get("HOLDFAST_BENCH_CACHE", Path(tempfile.gettempdir()) / "holdfast-bench-lakes")
    )
    cache.mkdir(parents=True, exist_ok=True)
    spark = session.start(master="local[2]", conf={"spark.driver.memory": "5g"})
    work = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        lake = prepared(spark, cache, OPS, OPS // OPS_PER_KEY)
        if OPS >= MEMORY_OPS:
            took = timed(lambda: fold_lake(SparkWorkers(spark, lake.proof), lake, full=True))
            say("full fold", took, OPS)
            yield f"full fold of {OPS:,} changes in 5 GB, million rows/s", OPS / took / 1e6, "-"
            return
        ours = yield from against_others(spark, lake, work)
        yield from increments(spark, lake, prepared(spark, cache, OPS, OPS), ours)
    finally:
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)


def timed(act: Callable[[], object]) -> float:
    began = perf_counter()
    act()
    return perf_counter() - began


def say(what: str, seconds: float, rows: int) -> None:
    print(f"    {what}: {seconds:.2f} s, {rows / seconds / 1e6:.3f} million rows/s", flush=True)


# --- lakes ---------------------------------------------------------------------------------------


def prepared(spark: SparkSession, cache: Path, ops: int, keys: int) -> Lake:
    """A lake with so many changes, made by Spark alone. One with a change per key gets its silver
    right away: to fold it is not measured.
    """
    folder = cache / f"lake-{ops}-{keys}"
    if (folder / "ready").exists():
        return Lake.open(folder)
    shutil.rmtree(folder, ignore_errors=True)
    lake = Lake.open(folder, create=True)
    print(f"    making a lake of {ops:,} changes on {keys:,} keys …", flush=True)
    add(spark, lake, 0, ops, keys)
    if ops == keys:
        fold_lake(SparkWorkers(spark, lake.proof), lake)
    (folder / "ready").touch()
    return lake.fresh()


def add(spark: SparkSession, lake: Lake, first: int, ops: int, keys: int) -> None:
    lake = lake.fresh()
    rows = changes(spark, first, ops, keys)
    numbered = rows.withColumn("batch", F.lit(lake.bronze.version + 1).cast("bigint"))
    staged = lake.bronze.stage(numbered.select(*BRONZE.names))
    lake.bronze.commit(staged.files)


def changes(spark: SparkSession, first: int, ops: int, keys: int) -> DataFrame:
    """Rows of bronze whose bytes are real envelopes: two made by us, with other ids, keys, stamps
    and values put into their places.
    """
    parts = max(2, ops // 500_000)
    n = F.col("n")
    chance = F.xxhash64(n)
    hexed = F.concat(
        big_endian(n / 20 + START_MS, 12),
        F.lit("7"),
        big_endian(n % 4096, 3),
        F.lit("8"),
        big_endian(F.shiftrightunsigned(chance, 4), 15),
    )
    key = n if keys == ops else F.pmod(F.xxhash64(n, F.lit(1)), F.lit(keys))
    rows = (
        spark.range(first, first + ops, 1, parts)
        .select(F.col("id").alias("n"))
        .select(
            "n",
            hexed.alias("hexed"),
            F.format_string("service/%02d/key-%09d", key % 100, key).alias("entity"),
            F.format_string("peer-%d", n % 7).alias("origin"),
            (F.floor(n / 3) + LAMPORT).alias("lamport"),
            (F.floor(n / 7) + LAMPORT).alias("seq"),
            F.floor(n / 20 + START_MS).alias("ms"),
            F.format_string(
                '{"value":%010d,"text":"some words %07d"}', n + 1_000_000_000, n % 9973
            ).alias("value"),
            (n % 20 == 0).alias("deletes"),
        )
    )
    raw = F.when(F.col("deletes"), raw_of(delete=True)).otherwise(raw_of(delete=False))
    known: dict[str, Column] = {
        "log": F.lit("hub"),
        "epoch": F.lit(1).cast("bigint"),
        "offset": n + 1,
        "id": dashed(F.col("hexed")),
        "mesh": F.lit("team"),
        "op": F.when(F.col("deletes"), "state.delete").otherwise("state.set"),
        "recorded_at": F.timestamp_millis("ms"),
        "created_at": F.timestamp_millis("ms"),
        "raw": raw,
        "owner": F.lit(""),
        "origin_epoch": F.lit(1).cast("bigint"),
        "write_class": F.lit("queued"),
        "state": F.lit("committed"),
        "base_lamport": F.lit(None).cast("bigint"),
        "base_peer": F.lit(None).cast("string"),
        "fingerprint": F.unhex(F.sha2("id", 256)),
        "meta": F.lit(None).cast("string"),
        "model": F.lit(""),
        "family": F.lit("state"),
        "batch": F.lit(0).cast("bigint"),
    }
    full = rows.withColumns(known).withColumn("day", F.expr(ID_DAY))
    return full.select(*BRONZE.names)


def raw_of(*, delete: bool) -> Column:
    """The bytes of an envelope: what is the same in all, with the other columns in between."""
    value = "V" * VALUE_CHARS
    marks: dict[str, bytes] = {
        "hexed": b"I" * 16,
        "entity": b"E" * KEY_CHARS,
        "origin": b"O" * PEER_CHARS,
        "seq": b"\x21" * 8,
        "lamport": b"\x22" * 8,
        "ms": b"\x23" * 8,
    }
    if not delete:
        marks["value"] = value.encode()
    model = Envelope(
        id=marks["hexed"],
        mesh="team",
        op="state.delete" if delete else "state.set",
        entity=marks["entity"].decode(),
        origin=marks["origin"].decode(),
        epoch=1,
        seq=int.from_bytes(marks["seq"], "big"),
        lamport=int.from_bytes(marks["lamport"], "big"),
        created_at=int.from_bytes(marks["ms"], "big"),
        fingerprint=bytes(32),
        body=NOTHING if delete else encode_body(StateSet(value.encode())),
    )
    rest, parts = encode(model), list[Column]()
    for name, mark in marks.items():
        before, rest = rest.split(mark, 1)
        parts += [F.lit(before), as_bytes(name)]
    return F.concat(*parts, F.lit(rest))


def as_bytes(name: str) -> Column:
    if name == "hexed":
        return F.unhex(name)
    if name in ("entity", "origin", "value"):
        return F.encode(name, "UTF-8")
    return F.unhex(big_endian(F.col(name), 16))


def big_endian(number: Column, digits: int) -> Column:
    return F.lpad(F.lower(F.hex(F.floor(number).cast("bigint"))), digits, "0")


def dashed(hexed: Column) -> Column:
    cuts = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
    return F.concat_ws("-", *(F.substring(hexed, at, length) for at, length in cuts))


# --- others --------------------------------------------------------------------------------------

BY_HASH = """
SELECT b.mesh, b.entity, b.lamport, b.origin, b.id, b.created_at, b.raw
FROM bronze b LEFT SEMI JOIN (
  SELECT /*+ BROADCAST */ id FROM (
    SELECT id, row_number() OVER (
      PARTITION BY h, mesh, entity ORDER BY lamport DESC, origin DESC, id DESC) AS place
    FROM (SELECT *, xxhash64(mesh, entity) AS h FROM bronze)
  ) WHERE place = 1) w ON b.id = w.id
"""
BY_TIME = """
SELECT mesh, entity, lamport, origin, id, created_at, raw FROM (
  SELECT b.*, row_number() OVER (
    PARTITION BY mesh, entity ORDER BY lamport DESC, origin DESC, id DESC) AS place
  FROM bronze b LEFT SEMI JOIN (
    SELECT /*+ BROADCAST(t) */ xxhash64(mesh, entity, lamport) AS h
    FROM (SELECT mesh, entity, max(lamport) AS lamport FROM bronze GROUP BY mesh, entity) t) w
  ON xxhash64(b.mesh, b.entity, b.lamport) = w.h
) WHERE place = 1
"""
DUCK = """
SELECT b.mesh, b.entity, b.lamport, b.origin, b.id, b.created_at, b.raw
FROM bronze b SEMI JOIN (
  SELECT arg_max(id, (lamport, origin, id)) AS id FROM bronze GROUP BY mesh, entity) w
USING (id)
"""


def against_others(
    spark: SparkSession, lake: Lake, work: Path
) -> Generator[tuple[str, float, str], None, float]:
    """Everyone in turn, twice: whoever comes first finds everything cold."""
    bronze = lake.fresh().bronze
    bronze.read(spark).createOrReplaceTempView("bronze")
    files = [bronze.uri(file) for file in bronze.files()]
    by_hash, by_time, duck = (str(work / name) for name in ("by-hash", "by-time", "duck.parquet"))
    contest: dict[str, Callable[[], object]] = {
        "full fold": lambda: fold_lake(SparkWorkers(spark, lake.proof), lake, full=True),
        "bare Spark SQL, window by hash": lambda: in_spark(spark, BY_HASH, by_hash),
        "bare Spark SQL, highest time first": lambda: in_spark(spark, BY_TIME, by_time),
        "DuckDB, two threads": lambda: in_duck(files, duck),
    }
    best: dict[str, float] = {}
    for _ in range(2):
        for what, act in contest.items():
            took = timed(act)
            best[what] = min(took, best.get(what, took))
            say(what, took, OPS)
    rows, expected = lake.silver("state").rows, duckdb.read_parquet(duck).count("*").fetchall()
    assert expected == [(rows,)], f"{rows} keys here, {expected} there"
    ours, *bare, other = best.values()
    yield "full fold, to bare Spark SQL's best plan", min(bare) / ours, ">= 1.5"
    yield "full fold, to DuckDB on two threads", other / ours, ">= 0.6"
    return ours


def in_spark(spark: SparkSession, query: str, into: str) -> None:
    spark.sql(query).write.mode("overwrite").parquet(into)


def in_duck(files: list[str], into: str) -> None:
    with duckdb.connect(config={"threads": 2}) as duck:
        duck.read_parquet(files, hive_partitioning=False).create_view("bronze")
        duck.execute(f"COPY ({DUCK}) TO '{into}' (COMPRESSION zstd)")


def increments(
    spark: SparkSession, small: Lake, large: Lake, full: float
) -> Iterator[tuple[str, float, str]]:
    took: list[float] = []
    for lake in (small, large):
        keys = lake.silver("state").rows
        fold_lake(SparkWorkers(spark, lake.proof), lake)
        times: list[float] = []
        for _ in range(ROUNDS + 1):
            add(spark, lake, lake.fresh().bronze.rows, NEW_OPS, keys)
            times.append(timed(partial(_appended, spark, lake)))
        took.append(statistics.median(times[1:]))
        say(f"{NEW_OPS:,} more on {keys:,} keys", took[-1], NEW_OPS)
        yield f"{NEW_OPS:,} more on {keys:,} keys, to a full fold", took[-1] / full, "< 0.05"
    yield "increment on the larger lake, to the smaller", took[1] / took[0], "<= 1.25"


def _appended(spark: SparkSession, lake: Lake) -> Any:
    report = fold_lake(SparkWorkers(spark, lake.proof), lake)
    assert [table.how for table in report.tables] in (["appended"], ["merged"]), report
    return report
