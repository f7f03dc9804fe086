"""Whole runs: what they report, and when they start Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from holdfast.pipeline.fold import silver
from holdfast.pipeline.jobs.run import needs_fold, run
from holdfast.pipeline.jobs.sources import LogSource, log_source
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake
from holdfast.rules.errors import (
    BadInput,
    LakeBusy,
)
from support.histories import Histories, grow


@pytest.fixture
def histories(tmp_path: Path) -> Histories:
    return grow(8, tmp_path, nodes=2, meshes=2, ops=120)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "lake", create=True)


def sources_of(histories: Histories) -> list[LogSource]:
    return [log_source(str(home)) for home in histories.homes.values()]


def ids(table: Table) -> list[str]:
    found: list[str] = DeltaTable(table.root).to_pyarrow_table(columns=["id"])["id"].to_pylist()
    return found


def never() -> SparkSession:
    raise AssertionError("Spark was started for nothing")


def test_P11_a_run_says_what_it_did_and_starts_spark_only_when_there_is_something(
    spark: SparkSession, histories: Histories, lake: Lake, tmp_path: Path
) -> None:
    ana, bob = histories.homes
    given = [*sources_of(histories), log_source(str(tmp_path / "gone"), name="gone")]
    stages: list[str] = []

    report = run(
        lambda: spark, lake, given, fold=False, progress=lambda stage, *_: stages.append(stage)
    )

    (failure,) = report.failures
    assert (failure.location, failure.log, report.ok) == (str(tmp_path / "gone"), "gone", False)
    assert isinstance(failure.error, BadInput)
    logs = {log.log: log for log in report.ingest.logs}
    for peer in (ana, bob):
        head = histories.heads[peer]
        assert (logs[peer].before, logs[peer].after, logs[peer].read) == (0, head, head)
        assert (logs[peer].head - logs[peer].before, logs[peer].lag_after) == (head, 0)
    assert report.ingest.new + report.ingest.again == sum(histories.heads.values())
    assert set(stages) == {"ingest"}
    # Nothing new: Spark is not needed to find that out, and not to fold what is folded.
    assert run(never, lake, given[:2], fold=False).ok
    assert needs_fold(lake.fresh())
    folded = run(lambda: spark, lake, given[:2])
    assert (folded.ok, folded.ingest.read) == (True, 0)
    assert folded.fold is not None
    assert folded.fold.version == lake.fresh().bronze.version
    assert not needs_fold(lake.fresh())
    again = run(never, lake, given[:2])
    assert (again.fold, again.ok) == (None, True)
    assert silver.position(lake.fresh(), "state") == lake.fresh().bronze.version
    # Somebody else works on it.
    with lake.working("a fold"), pytest.raises(LakeBusy, match="a fold"):
        run(never, lake, given[:2])
