"""Tables that Spark writes and a Delta commit makes true."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from holdfast.pipeline.lake.delta import Table
from holdfast.rules.errors import LakeMoved

SCHEMA = StructType(
    [
        StructField("id", StringType()),
        StructField("n", LongType()),
        StructField("at", TimestampType()),
        StructField("day", StringType()),
    ]
)
DAYS = {"day": "substr(id, 1, 1)"}


def table_in(folder: Path) -> Table:
    return Table(str(folder / "table"), SCHEMA, partitions=DAYS)


def put(spark: SparkSession, table: Table, ids: str, version: int) -> Table:
    rows = [f"('{id}', {n}L, timestamp_millis({n}))" for n, id in enumerate(ids.split())]
    frame = spark.sql(
        f"SELECT *, substr(id, 1, 1) AS day FROM VALUES {','.join(rows)} t(id, n, at)"
    )
    staged = table.stage(frame.coalesce(1), sort_by=("id",))
    assert staged.rows == len(rows)
    assert table.commit(staged.files, txns={"app": version}, info={"k": [version]}) >= 0
    return table.fresh()


def ids(spark: SparkSession, table: Table) -> list[str]:
    return sorted(row.id for row in table.read(spark).select("id").collect())


def test_P2_a_table_keeps_what_is_committed_and_outsiders_read_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = table_in(tmp_path)
    assert (table.exists, table.version, table.txn("app"), table.files()) == (False, -1, None, [])
    assert ids(spark, table) == []
    table = put(spark, table, "a1 a2 b1", 1)
    assert (table.version, table.txn("app")) == (0, 1)
    table = put(spark, table, "b2 c1", 2)
    assert (table.version, table.txn("app"), table.rows) == (1, 2, 5)
    assert table.info["k"] == "[2]"
    assert ids(spark, table) == ["a1", "a2", "b1", "b2", "c1"]
    assert ids(spark, table.at(0)) == ["a1", "a2", "b1"]
    # What the commit says of each file can be used to leave files out.
    found = {(file.partition["day"], file.low["id"], file.high["id"]) for file in table.files()}
    assert found == {("a", "a1", "a2"), ("b", "b1", "b1"), ("b", "b2", "b2"), ("c", "c1", "c1")}
    pruned = table.files(lambda file: file.may_hold("id", "b2", "b9"))
    assert {file.low["id"] for file in pruned} == {"b2"}
    days = table.read(spark).select("id", "day").collect()
    assert all(row.day == row.id[0] for row in days)
    # Others read the same as it is.
    assert sorted(polars.read_delta(table.root)["id"]) == ["a1", "a2", "b1", "b2", "c1"]
    assert sorted(DeltaTable(table.root).to_pandas()["day"]) == ["a", "a", "b", "b", "c"]
    with duckdb.connect() as other:
        other.register("delta", DeltaTable(table.root).to_pyarrow_dataset())
        assert other.execute("SELECT max(n), min(day) FROM delta").fetchall() == [(2, "a")]


def test_P2_files_are_replaced_in_one_commit(spark: SparkSession, tmp_path: Path) -> None:
    table = put(spark, put(spark, table_in(tmp_path), "a1", 1), "a2", 2)
    staged = table.stage(table.read(spark).coalesce(1), sort_by=("id",))
    table.commit(staged.files, table.files(), info={"k": 0}, data_change=False)
    after = table.fresh()
    assert len(after.files()) == 1
    assert ids(spark, after) == ["a1", "a2"]
    assert after.txn("app") == 2
    assert ids(spark, after.at(0)) == ["a1"]


def test_P2_only_one_of_two_jobs_makes_the_next_version(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, second = table_in(tmp_path), table_in(tmp_path)
    assert not second.exists
    put(spark, first, "a1", 1)
    with pytest.raises(LakeMoved):
        put(spark, second, "a2", 1)
    one, two = first.fresh(), first.fresh()
    assert (one.version, two.version) == (0, 0)
    put(spark, one, "b1", 2)
    with pytest.raises(LakeMoved):
        put(spark, two, "b2", 2)
    assert ids(spark, first.fresh()) == ["a1", "b1"]


def test_P2_what_no_commit_names_is_vacuumed(spark: SparkSession, tmp_path: Path) -> None:
    table = put(spark, table_in(tmp_path), "a1", 1)
    left = table.stage(spark.sql("SELECT 'x1' AS id, 1L AS n, now() AS at, 'x' AS day"))
    scratch = tmp_path / "table" / left.folder / "share-00000.arrow"
    scratch.write_bytes(b"what a fold that was killed had on its way")
    assert ids(spark, table.fresh()) == ["a1"]
    gone = table.fresh().vacuum(0, dry_run=False)
    assert any(left.folder in path for path in gone)
    assert not list((tmp_path / "table" / left.folder).rglob("*.parquet"))
    assert not scratch.exists()
    assert ids(spark, table.fresh()) == ["a1"]
