"""A repair brings back what a lake has lost, and names what nobody has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from holdfast.pipeline.fold.silver import fold_lake
from holdfast.pipeline.frames.frame import LakeFrames
from holdfast.pipeline.ingest.plan import make_plan
from holdfast.pipeline.jobs import repair as job
from holdfast.pipeline.jobs.repair import LakeRepairReport, repair
from holdfast.pipeline.jobs.run import needs_fold
from holdfast.pipeline.jobs.sources import log_source
from holdfast.pipeline.lake.checked import checked
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import LOST
from holdfast.pipeline.logs.log import open_log
from holdfast.pipeline.spark.workers import DriverWorkers
from support.read_in_turns import (
    ReadInTurns,
    forget_before,
    held_places,
    read_in_turns,
    table_of,
)
from support.set_back import Harm, lost_file, put_back, removed, restored, vacuumed


class Killed(BaseException):
    """As a signal that nothing can catch."""


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> ReadInTurns:
    return read_in_turns(tmp_path_factory.mktemp("grown"))


@pytest.fixture
def filled(grown: ReadInTurns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReadInTurns:
    """The same, to be harmed. Silver has tests of its own."""
    monkeypatch.setattr(job, "needs_fold", lambda lake: False)
    return grown.copied(tmp_path)


def no_spark() -> SparkSession:
    raise AssertionError("so few rows need no Spark")


def contents(lake: Lake) -> dict[str, list[Any]]:
    """What the lake holds, without the numbers of batches, which are new after a repair."""
    found: dict[str, list[Any]] = {}
    for name in ("bronze", "sightings", "quarantine"):
        rows = DeltaTable(table_of(lake, name).root).to_pyarrow_table().drop_columns(["batch"])
        found[name] = sorted((list(row.items()) for row in rows.to_pylist()), key=repr)
    return found


def repaired(
    filled: ReadInTurns, *, dry_run: bool = False, allow_gaps: bool = False
) -> LakeRepairReport:
    logs = [log_source(str(home)) for home in filled.histories.homes.values()]
    return repair(no_spark, filled.lake, logs, dry_run=dry_run, allow_gaps=allow_gaps)


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("bronze", restored),
        ("bronze", lost_file),
        ("bronze", removed),
        ("sightings", vacuumed),
        ("quarantine", put_back),
    ],
)
def test_P2_after_a_repair_the_lake_is_what_it_was(
    filled: ReadInTurns, name: str, harm: Harm
) -> None:
    lake = filled.lake
    before, places, known = contents(lake), held_places(lake), lake.fresh().positions()
    harm(table_of(lake, name), filled.older / name)
    lost = places - held_places(lake)
    shown = repaired(filled, dry_run=True)
    assert sum(log.missing for log in shown.logs) == len(lost) > 0
    assert {
        (log.log, log.epoch, offset)
        for log in shown.logs
        for first, last in log.left
        for offset in range(first, last + 1)
    } == lost
    version = lake.fresh().bronze.version

    report = repaired(filled)

    assert [(log.read, log.lost, log.left) for log in report.logs] == [
        (log.missing, 0, ()) for log in shown.logs
    ]
    assert contents(lake) == before
    assert lake.fresh().positions() == known
    assert lake.fresh().is_whole()
    assert checked(lake.fresh())[1] == {}
    # What came back has new numbers, so that silver takes it in.
    files = [file for file in lake.fresh().bronze.files() if file.only("batch") is not None]
    assert name != "bronze" or max(file.only("batch") for file in files) > version
    # A second repair has nothing to do.
    again = repaired(filled)
    assert (again.logs, again.files) == ((), 0)
    logs = [open_log(str(home)) for home in filled.histories.homes.values()]
    assert make_plan(lake.fresh(), logs).failures == []


def test_P2_what_no_log_has_any_more_is_named_once_it_is_given_up(
    filled: ReadInTurns,
) -> None:
    lake = filled.lake
    places = held_places(lake)
    restored(table_of(lake, "bronze"), filled.older / "bronze")
    lost = places - held_places(lake)
    for home in filled.histories.homes.values():
        forget_before(home, 26)

    report = repaired(filled)

    gone = {place for place in lost if place[2] < 26}
    assert gone
    assert report.left
    assert sum(last - first + 1 for log in report.logs for first, last in log.left) == len(gone)
    assert places - held_places(lake) == gone
    _, missing = checked(lake.fresh())
    assert sum(one.rows for one in missing.values()) == len(gone)

    given_up = repaired(filled, allow_gaps=True)

    assert not given_up.left
    assert sum(log.lost for log in given_up.logs) == len(gone)
    table = table_of(lake, "quarantine")
    rows = table.load(table.files(), ["log", "offset", "reason", "detail"])[0].to_pylist()
    named = [row for row in rows if row["reason"] == LOST]
    assert {(row["log"], row["offset"]) for row in named} <= {(p[0], p[2]) for p in gone}
    assert all("no log has them any more" in row["detail"] for row in named)
    assert checked(lake.fresh())[1] == {}
    assert repaired(filled).logs == ()
    logs = [open_log(str(home)) for home in filled.histories.homes.values()]
    assert make_plan(lake.fresh(), logs).failures == []


def test_P3_a_repair_folds_again_what_silver_has_taken_from_a_bronze_that_was_set_back(
    grown: ReadInTurns, tmp_path: Path
) -> None:
    copy = grown.copied(tmp_path)
    fold_lake(DriverWorkers(), copy.lake.fresh())
    before = LakeFrames(copy.lake.fresh()).state.arrow().to_pylist()
    restored(table_of(copy.lake, "bronze"), copy.older / "bronze")

    report = repaired(copy)

    assert not report.left
    assert "state" in report.rebuilt
    after = LakeFrames(copy.lake.fresh()).state.arrow().to_pylist()
    assert sorted(map(repr, after)) == sorted(map(repr, before))
    assert not needs_fold(copy.lake.fresh())


def test_R2_a_repair_that_is_killed_between_any_two_commits_is_finished_by_the_next(
    grown: ReadInTurns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "needs_fold", lambda lake: False)
    before = contents(grown.lake)
    real = Table.commit
    left = -1

    def commit(table: Table, *given: Any, **more: Any) -> int:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        return real(table, *given, **more)

    lives = 0
    while True:
        copy = grown.copied(tmp_path / str(lives))
        for name in ("bronze", "sightings", "quarantine"):
            restored(table_of(copy.lake, name), copy.older / name)
        with monkeypatch.context() as patch:
            patch.setattr(Table, "commit", commit)
            left = lives
            try:
                repaired(copy)
                break
            except Killed:
                lives += 1
        left = -1
        assert not repaired(copy).left
        assert contents(copy.lake) == before
        assert checked(copy.lake.fresh())[1] == {}
    assert lives >= 3
