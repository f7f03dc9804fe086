"""Spark writes to nodes: batch and stream, each row once, nothing lost silently."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import current_timestamp

from holdfast.node.settings import Settings
from holdfast.pipeline.source.source import register
from holdfast.rules.ids import id_time_ms
from support.daemon import UpInThread, make_home, running


@pytest.fixture
def up(tmp_path: Path, spark: SparkSession) -> Iterator[UpInThread]:
    register(spark)
    home = make_home(tmp_path / "home", "ana", "team")
    with running(home, Settings(tcp="127.0.0.1:0")) as up:
        yield up


def write(frame: DataFrame, path: str, **options: str) -> None:
    said = {"op": "state.set", "mesh": "team", "writeId": "prices-2026-11-15", **options}
    frame.write.format("holdfast").mode("append").options(**said).save(path)


def head(up: UpInThread) -> int:
    return up.daemon.api.node.log.head().offset


def state(up: UpInThread) -> dict[str, Any]:
    return {entry.key: entry.value for entry in up.daemon.api.node.mesh("team").state.list()}


def test_P8_a_table_is_written_once_however_often_it_is_written(
    spark: SparkSession, up: UpInThread, tmp_path: Path
) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(up.daemon.api.trust.add_token("sink") + "\n")
    frame = spark.range(0, 5000, 1, 3).selectExpr(
        "concat('k', id) key", "named_struct('n', id, 'half', id / 2) value"
    )
    write(frame, up.tcp, key="key", token_file=str(token_file))
    assert head(up) == 5000
    assert state(up)["k4999"] == {"n": 4999, "half": 2499.5}
    # In other parts, through the home itself, and one row more: the others are there already.
    # A row of this write that says something else now is not lost, nor does it pass for the old.
    other = frame.coalesce(2).selectExpr(
        "if(key = 'k17', 'one more', key) key", "if(key = 'k18', null, value) value"
    )
    said = "JobFailed: 1 rows are new, 4998 were there, 1 were refused: id_reused 1 "
    with pytest.raises(PySparkException, match=said + r'.*"key":"k18"'):
        write(other, str(up.home), key="key")
    assert head(up) == 5001


def test_P8_refused_rows_are_told_and_the_others_are_in(
    spark: SparkSession, up: UpInThread, tmp_path: Path
) -> None:
    frame = spark.range(0, 100, 1, 2).selectExpr(
        "if(id % 10 = 0, '', concat('k', id)) key", "id value"
    )
    said = r"JobFailed: 90 rows are new, 0 were there, 10 were refused: bad_key 10 \(the key is"
    with pytest.raises(PySparkException, match=said):
        write(frame, up.unix)
    assert head(up) == 90
    folder = tmp_path / "refused"
    write(frame, up.unix, refused=str(folder))
    assert head(up) == 90
    files = sorted(folder.rglob("*.jsonl"))
    assert len(files) == 2  # one of each part
    kept = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    found = [(line["reason"], line["row"]["value"]) for line in kept]
    assert sorted(found) == [("bad_key", n) for n in range(0, 100, 10)]
    with pytest.raises(PySparkException, match="BadInput: a batch write needs the option writeId"):
        write(frame, up.unix, writeId="")


def test_P8_a_stream_that_is_restarted_writes_nothing_twice(
    spark: SparkSession, up: UpInThread, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    frame = spark.readStream.schema("key string, value long, mesh string").parquet(str(source))
    stream = (
        frame.withColumn("time", current_timestamp())
        .writeStream.format("holdfast")
        .option("checkpointLocation", str(checkpoint))
        .option("op", "state.set")
        .option("path", up.unix)
        .trigger(availableNow=True)
    )

    def add(file: str, *rows: tuple[str, str]) -> None:
        listed = [{"key": key, "value": 1, "mesh": mesh} for key, mesh in rows]
        pq.write_table(pa.Table.from_pylist(listed), source / file)

    def run() -> dict[str, bytes]:
        """The newest entry of each key, after all that is there was written."""
        stream.start().awaitTermination()
        return {entry.entity: entry.id for entry in up.daemon.api.node.log.range()}

    add("1.parquet", ("a", "team"), ("b", "team"))
    first = run()
    # As if Spark had died after the rows were sent and before it noted so.
    for file in (checkpoint / "commits").iterdir():
        file.unlink()
    assert run() == first
    assert head(up) == 2
    # The same row in a later batch is a new one. The other finds no mesh: the batch is not done.
    add("2.parquet", ("a", "team"), ("c", "later"))
    with pytest.raises(PySparkException, match=r"1 rows are new.*unknown_mesh 1"):
        run()
    assert head(up) == 3
    up.daemon.api.node.create_mesh("later")
    second = run()
    assert head(up) == 4
    assert second["b"] == first["b"]
    # The time of a batch stands in the checkpoint, so even the clock may be a part of an id.
    times = {key: id_time_ms(id) for key, id in second.items()}
    assert times["b"] < times["a"] == times["c"] <= up.daemon.api.engine.ctx.now_ms()
    assert times["b"] == id_time_ms(first["a"]) > up.daemon.api.engine.ctx.now_ms() - 3_600_000
