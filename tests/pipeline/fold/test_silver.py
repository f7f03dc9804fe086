"""Silver is kept up in pieces, and is at every moment the fold of all that bronze has."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.fold import plan, silver
from holdfast.pipeline.fold.current import current
from holdfast.pipeline.fold.silver import FOLDED, compact, fold_lake, is_behind
from holdfast.pipeline.frames.frame import LakeFrames
from holdfast.pipeline.jobs import compaction, run
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import SILVER
from holdfast.pipeline.spark.spark_workers import SparkWorkers
from holdfast.pipeline.spark.workers import DriverWorkers
from holdfast.rules.limits import LAKE_FILE_BYTES, SILVER_BEHIND_ROWS_MAX, SILVER_SMALL_ROWS
from support.histories import Histories, grow
from support.lake_rows import STAMPED, Rows, arrow_rows, bronze_table, held, put_bronze, silver_rows

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
def bronze(histories: Histories) -> pa.Table:
    return bronze_table(histories.homes.values())


def stored(lake: Lake, name: str) -> pa.Table:
    """The base as outsiders read it."""
    return lake.silver(name).delta.to_pyarrow_table()  # type: ignore[union-attr]


def of_families(bronze: pa.Table, *families: str) -> pa.Array:
    return pc.is_in(bronze["family"], value_set=pa.array(families))


def test_P4_a_table_that_an_older_version_did_not_know_is_made_of_all_that_bronze_has(
    bronze: pa.Table, node_rows: Rows, tmp_path: Path
) -> None:
    workers = DriverWorkers()
    lake = Lake.open(tmp_path / "lake", create=True)
    lake = put_bronze(lake, bronze.filter(of_families(bronze, "message")))
    assert [table.name for table in fold_lake(workers, lake).tables] == ["messages"]
    for kind in ("silver", "increments"):
        shutil.rmtree(tmp_path / "lake" / kind / "messages", ignore_errors=True)
    lake = lake.fresh()
    assert run.needs_fold(lake)
    assert [table.name for table in fold_lake(workers, lake).tables] == ["messages"]
    lake = lake.fresh()
    assert not run.needs_fold(lake)
    assert arrow_rows("messages", stored(lake, "messages")) == node_rows["messages"]


def test_P4_a_large_table_gets_increments_and_is_what_nodes_hold_all_the_time(
    spark: SparkSession,
    bronze: pa.Table,
    node_rows: Rows,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(silver, "SILVER_SMALL_ROWS", 0)
    monkeypatch.setattr(silver, "SILVER_BEHIND_PERCENT_MAX", 10_000)
    monkeypatch.setattr(silver, "FOLD_FILE_ROWS", 0)
    monkeypatch.setattr(plan, "FOLD_TASK_ROWS_MIN", 20)
    lake = Lake.open(tmp_path / "lake", create=True)
    workers = SparkWorkers(spark, lake.proof)
    numbers = random.Random(1).sample(range(SPLITS), SPLITS)
    for step, number in enumerate(numbers):
        lake = put_bronze(lake, bronze.take(pa.array(range(number, len(bronze), SPLITS))), files=2)
        report = fold_lake(workers, lake)
        assert {table.how for table in report.tables} == {"rebuilt" if step == 0 else "appended"}
        assert [table.name for table in report.tables] == [
            name for name in FOLDED if name in STAMPED
        ]
        assert report.version == step
    assert report.changes == len(range(numbers[-1], len(bronze), SPLITS))
    assert len(lake.increments("state").files()) >= SPLITS - 1
    for name in SILVER:
        assert silver_rows(name, current(spark, lake, name)) == node_rows[name], name
    # Nothing new: not even a session is needed.
    assert fold_lake(None, lake).tables == []  # type: ignore[arg-type]

    # Killed after the merge, before the increments were dropped: both are there for a while.
    with monkeypatch.context() as killed:
        killed.setattr(silver, "_drop", _killed)
        for name in ("vectors", "task_events", "memory"):
            with pytest.raises(KeyboardInterrupt):
                compact(DriverWorkers(), lake, [name])
    frames = LakeFrames(lake.fresh())
    for name in ("vectors", "tasks", "task_events", "memory"):
        assert arrow_rows(name, frames[name].arrow()) == node_rows[name], name
    assert silver_rows("tasks", current(spark, lake.fresh(), "tasks")) == node_rows["tasks"]
    assert compact(workers, lake) == [name for name in FOLDED if name in STAMPED]
    assert not any(lake.increments(name).files() for name in FOLDED)
    for name in SILVER:
        assert arrow_rows(name, stored(lake, name)) == node_rows[name], name
    buckets = [(f.low["bucket"], f.high["bucket"]) for f in lake.silver("state").files()]
    assert len(buckets) > 1
    assert all(
        one[1] < other[0] for one, other in zip(sorted(buckets), sorted(buckets)[1:], strict=False)
    )
    # Whoever does not know us finds the same, without asking for increments.
    assert polars.read_delta(lake.silver("tasks").root).height == len(node_rows["tasks"])

    report = fold_lake(DriverWorkers(), lake, full=True)
    assert {table.how for table in report.tables} == {"rebuilt"}
    for name in ("state", "tasks", "vectors"):
        assert arrow_rows(name, stored(lake, name)) == node_rows[name], name


def _killed(*arguments: Any) -> None:
    raise KeyboardInterrupt


def test_P4_a_small_table_is_current_as_it_is(
    bronze: pa.Table, node_rows: Rows, tmp_path: Path
) -> None:
    workers = DriverWorkers()
    lake = Lake.open(tmp_path / "lake", create=True)
    # First a part in which some families do not occur.
    even = pc.equal(pc.bit_wise_and(bronze["lamport"], 1), 0)
    early = pc.and_(of_families(bronze, "state", "task"), even)
    lake = put_bronze(lake, bronze.filter(early))
    assert [table.name for table in fold_lake(workers, lake).tables] == ["state", "task_events"]
    assert all(lake.silver(name).exists for name in SILVER)
    lake = put_bronze(lake, bronze.filter(pc.invert(early)))
    before = lake.silver("state").version
    report = fold_lake(workers, lake)
    assert {table.how for table in report.tables} == {"merged"}
    assert lake.silver("state").version == before + 1
    for name in SILVER:
        assert arrow_rows(name, stored(lake, name)) == node_rows[name], name

    # Small files are put together, and neither rows nor positions nor the next fold notice.
    rows = lake.bronze.delta.to_pyarrow_table().sort_by("id")  # type: ignore[union-attr]
    done = compaction.compact(workers, lake)
    after = lake.fresh()
    assert done.files_before > done.files_after > 0
    assert len(after.bronze.files()) < len(lake.bronze.files())
    assert after.positions() == lake.positions() != []
    assert after.bronze.delta is not None
    assert after.bronze.delta.to_pyarrow_table().sort_by("id").equals(rows)
    assert fold_lake(workers, after).tables == []


def test_P4_a_table_in_which_nothing_changed_keeps_its_files(
    bronze: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a small table that has nothing new, and of the spans of a large one."""
    monkeypatch.setattr(plan, "FOLD_FILE_ROWS", 20)
    lake = put_bronze(Lake.open(tmp_path / "lake", create=True), bronze)
    fold_lake(DriverWorkers(), lake)
    before = {name: {file.path for file in lake.silver(name).files()} for name in SILVER}
    assert len(before["state"]) > 2
    one = bronze.filter(pc.equal(bronze["op"], "state.set")).slice(0, 1)
    at = bronze.column_names.index
    one = one.set_column(at("id"), "id", pa.array(["ffffffff-ffff-7fff-8fff-ffffffffffff"]))
    one = one.set_column(at("lamport"), "lamport", pa.array([1 << 50]))
    lake = put_bronze(lake, one)
    report = fold_lake(DriverWorkers(), lake)
    assert [(table.name, table.changes, table.how) for table in report.tables] == [
        ("state", 1, "merged")
    ]
    after = {name: {file.path for file in lake.silver(name).files()} for name in SILVER}
    assert {name for name in SILVER if after[name] != before[name]} == {"state"}
    assert len(after["state"] - before["state"]) == 1
    assert after["state"] & before["state"]


# --- what needs no Spark -------------------------------------------------------------------------


def test_P4_increments_wait_until_they_are_a_share_of_their_table() -> None:
    large = SILVER_SMALL_ROWS * 20
    assert is_behind(SILVER_SMALL_ROWS, 1)
    assert not is_behind(large, 1)
    assert not is_behind(large, large // 10)
    assert is_behind(large, large // 10 + 1)
    assert is_behind(1 << 40, SILVER_BEHIND_ROWS_MAX + 1)


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
