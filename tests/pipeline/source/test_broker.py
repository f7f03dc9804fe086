"""A broker as a source of the lake: what it has is what its members have, and together they are
every envelope once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.audits.live_facts import ask_logs
from holdfast.pipeline.fold.current import current
from holdfast.pipeline.jobs import run
from holdfast.pipeline.jobs.follow import stream
from holdfast.pipeline.jobs.sources import LogSource, log_source
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import SILVER
from holdfast.pipeline.source.source import register
from support.audited import AWAITED_MS, Audited, audited
from support.lake_rows import STAMPED, Rows, held, silver_rows
from support.live_broker import MESH
from support.nodes import team
from support.used_homes import some_rows

pytestmark = pytest.mark.timeout(400)  # many jobs, on a machine that may be busy

NAME = f"hub/{MESH}"


@contextmanager
def busy(folder: Path, store: str) -> Iterator[Audited]:
    """All families and all kinds of messages, written on both sides of the broker."""
    with audited(folder, store) as there:
        with there.node(0) as ana:
            some_rows(ana)
        there.sync()
        with there.node(1) as bob:
            (task,) = team(bob).tasks.list()
            team(bob).tasks.claim(task.task)
            team(bob).state.set("old", "bob's")
            bob.mesh(MESH).facts.append("pump:7", "pressure", 4.2)
            bob.mesh(MESH).send("to all", topic="news")
        with there.node(0) as ana:
            team(ana).state.set("old", "ana's")
            team(ana).memory.forget("old")
        for kind, ref in (("topic", "news"), ("dm", "bob"), ("queue", "jobs")):
            there.send(kind, ref, kind.encode())
        there.sync()
        yield there


def members(there: Audited) -> list[Rows]:
    found = []
    for at in (0, 1):
        with there.node(at) as node:
            found.append(held(node._engine.store))
    return found


def broker(there: Audited) -> LogSource:
    return log_source(there.location, key_file=str(there.homes[1]))


def check_silver(spark: SparkSession, lake: Lake, there: Audited) -> None:
    ana, bob = members(there)
    for name in SILVER:
        rows = silver_rows(name, current(spark, lake.fresh(), name))
        if name == "messages":  # each member has those that concern it
            assert rows == sorted({*ana[name], *bob[name]}, key=repr)
            assert len(rows) == 4
        else:
            assert rows == ana[name] == bob[name], name
            assert bool(rows) == (name in STAMPED), name


def test_P3_silver_of_a_broker_is_what_its_members_hold_and_with_them_all_is_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    with busy(tmp_path, "postgres") as there:
        lake = Lake.open(tmp_path / "lake", create=True)
        report = run.run(spark, lake, [broker(there)])
        assert report.ok
        (log,) = report.ingest.logs
        assert (log.log, log.new, log.again, log.quarantined) == (NAME, log.head, 0, 0)
        check_silver(spark, lake, there)
        # It was told, and keeps nothing for the lake any more.
        with closing(there.log()) as served:
            assert served.readers()[lake.consumer] == log.head
        homes = [log_source(str(home)) for home in there.homes]
        again = run.run(spark, lake, [*homes, broker(there)])
        assert (again.ok, again.ingest.new) == (True, 0)
        heads = {one.log: one.head for one in again.ingest.logs}
        assert set(heads) == {"ana", "bob", NAME}
        assert again.ingest.again == heads["ana"] + heads["bob"]
        check_silver(spark, lake, there)
        # All at once gives the same.
        other = Lake.open(tmp_path / "other", create=True)
        whole = run.run(spark, other, [*homes, broker(there)], fold=False)
        assert (whole.ok, whole.ingest.new) == (True, log.head)
        assert envelopes(spark, other) == envelopes(spark, lake)


def envelopes(spark: SparkSession, lake: Lake) -> list[tuple[str, bytes]]:
    rows = lake.fresh().bronze.read(spark).select("id", "raw").collect()
    return sorted((row.id, bytes(row.raw)) for row in rows)


def test_P1_spark_reads_a_broker_in_ranges_and_as_a_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    with audited(tmp_path) as there:
        there.write(0, **{f"k{n}": n for n in range(10)})
        there.send("topic", "news")
        register(spark)
        reader = spark.read.format("holdfast").option("key_file", str(there.homes[1]))
        rows = reader.option("rowsPerPartition", 4).load(there.location)
        assert rows.rdd.getNumPartitions() == 3
        found = rows.groupBy("log").agg(F.count("*"), F.max("offset")).collect()
        assert [tuple(row) for row in found] == [(NAME, 11, 11)]
        assert str(there.homes[1]) not in rows._jdf.queryExecution().toString()
        lake = Lake.open(tmp_path / "lake", create=True)
        stream(spark, lake, [broker(there)], once=True, fold=False)
        assert lake.fresh().position(NAME, 1) == 11
        assert lake.fresh().bronze.read(spark).count() == 11
        with closing(there.log()) as log:
            facts = ask_logs([log]).logs[0]
        assert (facts.log, facts.head, facts.whole) == (NAME, 11, False)
        # Spark tells a source of a batch when the next one begins: a run tells the rest.
        assert set(facts.readers) == {lake.consumer}
        assert run.run(spark, lake, [broker(there)], fold=False).ok
        assert there.sweep_later(AWAITED_MS) == 1
        with closing(there.log(consumer=lake.consumer)) as log:
            assert (log.readers(), log.place().lost) == ({lake.consumer: 11}, None)


def test_P1_a_run_goes_on_without_what_a_broker_lost_only_if_told_so_and_notes_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    with audited(tmp_path) as there:
        there.write(0, a=1)
        lake = Lake.open(tmp_path / "lake", create=True)
        assert run.run(spark, lake, [broker(there)], fold=False).ok
        there.send("topic", "news")
        there.write(0, b=2)
        there.sweep_later(AWAITED_MS)
        refused = run.run(spark, lake, [broker(there)], fold=False)
        assert [failure.error.code for failure in refused.failures] == ["truncated"]
        assert lake.fresh().position(NAME, 1) == 1
        assert run.run(spark, lake, [broker(there)], fold=False, allow_gaps=True).ok
        lake = lake.fresh()
        assert lake.position(NAME, 1) == 3
        assert lake.bronze.read(spark).count() == 2
        (noted,) = lake.quarantine.read(spark).collect()
        assert (noted.log, noted.offset, noted.reason) == (NAME, 2, "gap")
        assert "1 of the offsets 2 to 2" in noted.detail
        assert run.run(spark, lake, [broker(there)], fold=False).ok
