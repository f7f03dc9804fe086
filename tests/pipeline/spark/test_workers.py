"""Tasks on Spark and in the driver: the same reports, every row counted on its way."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark import spark_workers
from holdfast.pipeline.spark.spark_workers import SparkWorkers
from holdfast.pipeline.spark.workers import (
    DriverWorkers,
    Parcel,
    Scattering,
    Workers,
    packed,
    unpacked,
)
from holdfast.rules.errors import JobFailed, LakeNotSeen

ROWS = 1000


def _nothing_to_prove() -> None:
    pass


@pytest.fixture(params=["spark", "driver"])
def workers(request: pytest.FixtureRequest) -> Workers:
    if request.param == "driver":
        return DriverWorkers()
    return SparkWorkers(request.getfixturevalue("spark"), _nothing_to_prove)


def scatter(gathers: int, number: int) -> Scattering[int]:
    """Sends the numbers of a task to the targets that they leave as a remainder."""
    mine = range(number * ROWS, (number + 1) * ROWS)
    for target in range(gathers):
        rows = [value for value in mine if value % gathers == target]
        if rows:
            yield Parcel(target, len(rows), packed(pa.table({"value": rows})))
    return len(mine)


def gather(target: int, parcels: Sequence[Parcel]) -> tuple[int, list[int]]:
    values = [value for one in parcels for value in unpacked(one.blob)["value"].to_pylist()]
    return target, sorted(values)


def test_P10_every_task_reports_once_in_order(workers: Workers) -> None:
    assert workers.run("square", lambda number: number * number, 5) == [0, 1, 4, 9, 16]
    assert workers.run("nothing", lambda number: number, 0) == []
    assert workers.parallelism >= 1


def test_P10_rows_reach_the_task_that_they_are_for(workers: Workers) -> None:
    done = workers.exchange("deal", partial(scatter, 3), 4, gather, 3)
    assert done.scattered == [ROWS] * 4
    expected = [(at, [v for v in range(4 * ROWS) if v % 3 == at]) for at in range(3)]
    assert done.gathered == expected


def test_P10_a_target_without_rows_is_called_too(workers: Workers) -> None:
    done = workers.exchange("deal", partial(scatter, 1), 2, gather, 4)
    assert [len(values) for _, values in done.gathered] == [2 * ROWS, 0, 0, 0]


def test_P11_an_error_of_a_task_comes_back_as_itself(workers: Workers) -> None:
    def fail(number: int) -> int:
        raise JobFailed("the third wheel is off")

    with pytest.raises(JobFailed, match="the third wheel is off"):
        workers.run("roll", fail, 1)


def test_P2_rows_that_do_not_arrive_end_the_job(spark: SparkSession) -> None:
    reports = [
        spark_workers._Gathered(3, [spark_workers._Tally(0, {0: 3, 1: 2}, None)], None),
        spark_workers._Gathered(1, [], None),
    ]
    with pytest.raises(JobFailed, match="5 rows were sent between tasks and 4 arrived"):
        spark_workers._checked("fold", reports, 1)
    with pytest.raises(JobFailed):
        spark_workers._checked("fold", reports[:1], 2)


def test_P10_a_task_that_sees_another_lake_does_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    other = Lake.open(tmp_path / "other", create=True)
    wrong = other.proof.__class__(lake.root, other.id)
    ran = tmp_path / "ran"
    with pytest.raises(LakeNotSeen, match=f"there is another lake, {lake.id}"):
        SparkWorkers(spark, wrong).run("touch", lambda number: ran.touch(), 1)
    missing = other.proof.__class__(str(tmp_path / "nowhere"), other.id)
    with pytest.raises(LakeNotSeen, match="there is no lake"):
        SparkWorkers(spark, missing).run("touch", lambda number: ran.touch(), 1)
    assert not ran.exists()
    SparkWorkers(spark, lake.proof).run("touch", lambda number: ran.touch(), 1)
    assert ran.exists()
