"""Silver is kept up in pieces, and is at every moment the fold of all that bronze has."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import polars
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.fold import silver, winners
from holdfast.pipeline.fold.silver import FOLDED, compact, current, files_for, fold_lake, is_behind
from holdfast.pipeline.jobs import compaction, run
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import SILVER
from holdfast.rules.limits import (
    FOLD_BUCKETS,
    FOLD_FILE_ROWS,
    LAKE_FILE_BYTES,
    SILVER_BEHIND_ROWS_MAX,
    SILVER_SMALL_ROWS,
)
from support.histories import Histories, grow
from support.lake_rows import Rows, bronze_of, held, silver_rows

pytestmark = pytest.mark.timeout(400)  # many jobs, on a machine that may be busy

SPLITS = 3


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Histories:
    return grow(23, tmp_path_factory.mktemp("homes"), nodes=3, meshes=12, ops=900, message_watch=60)


@pytest.fixture(scope="module")
def node_rows(histories: Histories) -> Rows:
    with histories.open(histories.peers[1]) as node:
        return held(node._engine.store)


@pytest.fixture(scope="module")
def bronze(spark: SparkSession, histories: Histories) -> DataFrame:
    return bronze_of(spark, histories.homes.values()).cache()


def put(lake: Lake, rows: DataFrame) -> Lake:
    """Adds a batch, as an ingest does."""
    lake = lake.fresh()
    numbered = rows.withColumn("batch", F.lit(lake.bronze.version + 1).cast("bigint"))
    staged = lake.bronze.stage(numbered.coalesce(1), sort_by=("day", "id"))
    lake.bronze.commit(staged.files)
    return lake.fresh()


def part(bronze: DataFrame, number: int) -> DataFrame:
    """A random one of several, whatever order things happened in."""
    return bronze.where(F.pmod(F.xxhash64("id", F.lit(5)), F.lit(SPLITS)) == number)


def assert_current(spark: SparkSession, lake: Lake, rows: Rows) -> None:
    for name in SILVER:
        assert silver_rows(name, current(spark, lake, name)) == rows[name], name


def stored(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    """The base as outsiders read it."""
    return lake.silver(name).read(spark).drop("bucket")


def test_P4_a_table_that_an_older_version_did_not_know_is_made_of_all_that_bronze_has(
    spark: SparkSession, bronze: DataFrame, node_rows: Rows, tmp_path: Path
) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    lake = put(lake, bronze.where("family = 'message'"))
    assert [table.name for table in fold_lake(spark, lake).tables] == ["messages"]
    for kind in ("silver", "increments"):
        shutil.rmtree(tmp_path / "lake" / kind / "messages", ignore_errors=True)
    lake = lake.fresh()
    assert run.needs_fold(lake)
    assert [table.name for table in fold_lake(spark, lake).tables] == ["messages"]
    lake = lake.fresh()
    assert not run.needs_fold(lake)
    assert silver_rows("messages", current(spark, lake, "messages")) == node_rows["messages"]


def test_P4_a_large_table_gets_increments_and_is_what_nodes_hold_all_the_time(
    spark: SparkSession,
    bronze: DataFrame,
    node_rows: Rows,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(silver, "SILVER_SMALL_ROWS", 0)
    monkeypatch.setattr(silver, "SILVER_BEHIND_PERCENT_MAX", 10_000)
    monkeypatch.setattr(silver, "FOLD_FILE_ROWS", 20)
    for module in (silver, winners):
        monkeypatch.setattr(module, "FOLD_BUCKETS", 3)
    lake = Lake.open(tmp_path / "lake", create=True)
    numbers = random.Random(1).sample(range(SPLITS), SPLITS)
    for step, number in enumerate(numbers):
        lake = put(lake, part(bronze, number))
        report = fold_lake(spark, lake)
        assert {table.how for table in report.tables} == {"rebuilt" if step == 0 else "appended"}
        assert [table.name for table in report.tables] == list(FOLDED)
        assert report.version == step
    assert report.changes == part(bronze, numbers[-1]).count()
    assert len(lake.increments("state").files()) >= SPLITS - 1
    assert_current(spark, lake, node_rows)
    # Nothing new: not even a session is needed.
    assert fold_lake(None, lake).tables == []  # type: ignore[arg-type]

    # Killed after the merge, before the increments were dropped: both are there for a while.
    with monkeypatch.context() as killed:
        killed.setattr(silver, "_drop", _killed)
        for name in ("vectors", "task_events", "memory"):
            with pytest.raises(KeyboardInterrupt):
                compact(spark, lake, [name])
    for name in ("vectors", "tasks", "task_events", "memory"):
        assert silver_rows(name, current(spark, lake, name)) == node_rows[name], name
    assert compact(spark, lake) == list(FOLDED)
    assert not any(lake.increments(name).files() for name in FOLDED)
    for name in SILVER:
        assert silver_rows(name, stored(spark, lake, name)) == node_rows[name], name
    buckets = [(f.low["bucket"], f.high["bucket"]) for f in lake.silver("state").files()]
    assert len(buckets) > 1
    assert all(
        one[1] < other[0] for one, other in zip(sorted(buckets), sorted(buckets)[1:], strict=False)
    )
    # Whoever does not know us finds the same, without asking for increments.
    assert polars.read_delta(lake.silver("tasks").root).height == len(node_rows["tasks"])

    report = fold_lake(spark, lake, full=True)
    assert {table.how for table in report.tables} == {"rebuilt"}
    for name in ("state", "tasks", "vectors"):
        assert silver_rows(name, stored(spark, lake, name)) == node_rows[name], name


def _killed(*arguments: Any) -> None:
    raise KeyboardInterrupt


def test_P4_a_small_table_is_current_as_it_is(
    spark: SparkSession, bronze: DataFrame, node_rows: Rows, tmp_path: Path
) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    # First a part in which some families do not occur.
    early = bronze.where("family IN ('state', 'task') AND lamport % 2 = 0")
    lake = put(lake, early)
    assert [table.name for table in fold_lake(spark, lake).tables] == ["state", "task_events"]
    assert all(lake.silver(name).exists for name in SILVER)
    lake = put(lake, bronze.join(early, "id", "left_anti").select(*bronze.columns))
    before = lake.silver("state").version
    report = fold_lake(spark, lake)
    assert {table.how for table in report.tables} == {"merged"}
    assert lake.silver("state").version == before + 1
    for name in SILVER:
        assert silver_rows(name, stored(spark, lake, name)) == node_rows[name], name

    # Small files are put together, and neither rows nor positions nor the next fold notice.
    ids = sorted(row.id for row in lake.bronze.read(spark).select("id").collect())
    done = compaction.compact(spark, lake)
    after = lake.fresh()
    assert done.files_before > done.files_after > 0
    assert len(after.bronze.files()) < len(lake.bronze.files())
    assert after.positions() == lake.positions() != []
    rows = after.bronze.read(spark).select("id", "batch").collect()
    assert sorted(row.id for row in rows) == ids
    assert {row.batch for row in rows} == {0, 1}
    assert fold_lake(spark, after).tables == []


# --- what needs no Spark -------------------------------------------------------------------------


def test_P4_increments_wait_until_they_are_a_share_of_their_table() -> None:
    large = SILVER_SMALL_ROWS * 20
    assert is_behind(SILVER_SMALL_ROWS, 1)
    assert not is_behind(large, 1)
    assert not is_behind(large, large // 10)
    assert is_behind(large, large // 10 + 1)
    assert is_behind(1 << 40, SILVER_BEHIND_ROWS_MAX + 1)


def test_P4_files_grow_in_number_up_to_one_per_bucket() -> None:
    assert [files_for(rows) for rows in (0, 1, FOLD_FILE_ROWS, FOLD_FILE_ROWS + 1)] == [1, 1, 1, 2]
    assert files_for(1 << 40) == FOLD_BUCKETS


def test_P4_only_small_neighbours_are_put_together() -> None:
    def file(path: str, size: int, day: str) -> File:
        return File(path=path, size=size, rows=1, partition={"day": day})

    files = [
        file("a", 10, "1"),
        file("b", LAKE_FILE_BYTES, "1"),
        file("c", 10, "2"),
        file("d", 11, "1"),
    ]
    groups = compaction.small_files(files)
    assert [[file.path for file in group] for group in groups] == [["a", "d"]]
