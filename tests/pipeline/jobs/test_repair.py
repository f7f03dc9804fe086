"""A repair brings back what a lake has lost, and names what nobody has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from holdfast.pipeline.ingest.plan import make_plan
from holdfast.pipeline.jobs import repair as job
from holdfast.pipeline.jobs.repair import RepairReport, repair
from holdfast.pipeline.jobs.sources import log_source
from holdfast.pipeline.lake.checked import checked
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import LOST
from holdfast.pipeline.logs.log import open_log
from support.read_in_turns import (
    ReadInTurns,
    forget_before,
    held_places,
    read_in_turns,
    table_of,
)
from support.set_back import Harm, lost_file, put_back, restored, vacuumed


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> ReadInTurns:
    return read_in_turns(tmp_path_factory.mktemp("grown"))


@pytest.fixture
def filled(grown: ReadInTurns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReadInTurns:
    """The same, to be harmed. Silver has tests of its own."""
    monkeypatch.setattr(job, "needs_fold", lambda lake: False)
    return grown.copied(tmp_path)


def contents(lake: Lake) -> dict[str, list[Any]]:
    """What the lake holds, without the numbers of batches, which are new after a repair."""
    found: dict[str, list[Any]] = {}
    for name in ("bronze", "sightings", "quarantine"):
        rows = DeltaTable(table_of(lake, name).root).to_pyarrow_table().drop_columns(["batch"])
        found[name] = sorted((list(row.items()) for row in rows.to_pylist()), key=repr)
    return found


def repaired(
    spark: SparkSession, filled: ReadInTurns, *, dry_run: bool = False, allow_gaps: bool = False
) -> RepairReport:
    logs = [log_source(str(home)) for home in filled.histories.homes.values()]
    return repair(spark, filled.lake, logs, dry_run=dry_run, allow_gaps=allow_gaps)


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("bronze", restored),
        ("sightings", put_back),
        ("quarantine", vacuumed),
        ("bronze", lost_file),
    ],
)
def test_P2_after_a_repair_the_lake_is_what_it_was(
    spark: SparkSession, filled: ReadInTurns, name: str, harm: Harm
) -> None:
    lake = filled.lake
    before, places, known = contents(lake), held_places(lake), lake.fresh().positions()
    harm(table_of(lake, name), filled.older / name)
    lost = places - held_places(lake)
    shown = repaired(spark, filled, dry_run=True)
    assert sum(log.missing for log in shown.logs) == len(lost) > 0
    assert {
        (log.log, log.epoch, offset)
        for log in shown.logs
        for first, last in log.left
        for offset in range(first, last + 1)
    } == lost
    version = lake.fresh().bronze.version

    report = repaired(spark, filled)

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
    # A second repair has nothing to do, and starts no Spark.
    again = repaired(None, filled)  # type: ignore[arg-type]
    assert (again.logs, again.files) == ((), 0)
    logs = [open_log(str(home)) for home in filled.histories.homes.values()]
    assert make_plan(lake.fresh(), logs).failures == []


def test_P2_what_no_log_has_any_more_is_named_once_it_is_given_up(
    spark: SparkSession, filled: ReadInTurns
) -> None:
    lake = filled.lake
    places = held_places(lake)
    restored(table_of(lake, "bronze"), filled.older / "bronze")
    lost = places - held_places(lake)
    for home in filled.histories.homes.values():
        forget_before(home, 26)

    report = repaired(spark, filled)

    gone = {place for place in lost if place[2] < 26}
    assert gone
    assert report.left
    assert sum(last - first + 1 for log in report.logs for first, last in log.left) == len(gone)
    assert places - held_places(lake) == gone
    _, missing = checked(lake.fresh())
    assert sum(one.rows for one in missing.values()) == len(gone)

    given_up = repaired(None, filled, allow_gaps=True)  # type: ignore[arg-type]

    assert not given_up.left
    assert sum(log.lost for log in given_up.logs) == len(gone)
    table = table_of(lake, "quarantine")
    rows = table.load(table.files(), ["log", "offset", "reason", "detail"])[0].to_pylist()
    named = [row for row in rows if row["reason"] == LOST]
    assert {(row["log"], row["offset"]) for row in named} <= {(p[0], p[2]) for p in gone}
    assert all("no log has them any more" in row["detail"] for row in named)
    assert checked(lake.fresh())[1] == {}
    assert repaired(None, filled).logs == ()  # type: ignore[arg-type]
    logs = [open_log(str(home)) for home in filled.histories.homes.values()]
    assert make_plan(lake.fresh(), logs).failures == []
