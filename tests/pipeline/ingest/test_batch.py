"""Batches in their corners: rows that share a fate, places that are read again, tasks of Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from holdfast.pipeline.ingest import divide, doubles, take
from holdfast.pipeline.ingest import ingest as ingesting
from holdfast.pipeline.ingest.batch import ingest_batch
from holdfast.pipeline.ingest.ingest import ingest_logs, ingest_planned
from holdfast.pipeline.ingest.plan import LogStretch, make_plan
from holdfast.pipeline.lake.checked import checked
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.reader import OpenedFile
from holdfast.pipeline.logs.log import open_log
from holdfast.pipeline.spark.workers import DriverWorkers
from support import envelopes
from support.histories import grow
from support.list_log import ListedEntry, ListLog
from support.source import START_MS

Place = tuple[str, int, int]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "lake", create=True)


def entry(offset: int, number: int, value: str = "", recorded_at: int = 5) -> ListedEntry:
    id = envelopes.make_id(number, START_MS + number)
    raw = envelopes.state_set("k", value, lamport=1 + number, id=id)
    return ListedEntry(offset, raw, recorded_at, raw)


def ingest(lake: Lake, *logs: ListLog) -> None:
    plan = make_plan(lake.fresh(), logs)
    assert plan.failures == []
    assert ingest_planned(DriverWorkers, lake, plan).failures == []


def rows_of(table: Table) -> list[dict[str, Any]]:
    if not table.fresh().exists:
        return []
    found: list[dict[str, Any]] = DeltaTable(table.root).to_pyarrow_table().to_pylist()
    return found


def verdicts(lake: Lake) -> Counter[tuple[Place, str]]:
    def place(row: dict[str, Any]) -> Place:
        return row["log"], row["epoch"], row["offset"]

    found = Counter((place(row), "new") for row in rows_of(lake.bronze))
    found.update((place(row), "again") for row in rows_of(lake.sightings))
    found.update((place(row), row["reason"]) for row in rows_of(lake.quarantine))
    return found


def test_P2_a_row_that_follows_another_shares_its_fate(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third row was recorded first, has other bytes, and is in another portion."""
    monkeypatch.setattr(take, "INGEST_PORTION_BYTES", 1)
    first, second, third = entry(1, 1, "x"), entry(2, 1, "x", 6), entry(3, 1, "y", 4)
    ingest(lake, ListLog("ana", (first, second, third), batch_rows=2))
    assert verdicts(lake) == {
        (("ana", 1, 1), "id_conflict"): 1,
        (("ana", 1, 2), "id_conflict"): 1,
        (("ana", 1, 3), "new"): 1,
    }
    assert {row["raw"] for row in rows_of(lake.quarantine)} == {first.raw}


def test_P2_of_three_with_one_id_in_one_portion_two_conflict(lake: Lake) -> None:
    log = ListLog(
        "ana", (entry(1, 1, "x"), entry(2, 1, "y"), entry(3, 1, "y", 9), entry(4, 1, "x"))
    )
    ingest(lake, log)
    assert {place[2]: what for place, what in verdicts(lake)} == {
        1: "new",
        2: "id_conflict",
        3: "id_conflict",
        4: "again",
    }


def test_P2_files_that_share_no_ids_are_committed_as_they_are(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(take, "INGEST_PORTION_BYTES", 1)
    monkeypatch.setattr(doubles, "id_bits", None)  # nothing is read again
    ingest(lake, ListLog("ana", tuple(entry(n, n) for n in range(1, 10))))
    assert len(lake.fresh().bronze.files()) == 3
    assert lake.fresh().bronze.rows == 9


def test_P4_only_files_that_may_have_an_id_are_read(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(lake, ListLog("ana", tuple(entry(n, 2 * n) for n in range(1, 20))))
    ingest(lake, ListLog("bob", (entry(1, 90), entry(2, 92))))
    read: list[tuple[str, ...]] = []
    real = OpenedFile.group

    def group(file: OpenedFile, number: int, columns: Sequence[str] | None = None) -> Any:
        read.append(tuple(columns or ()))
        return real(file, number, columns)

    monkeypatch.setattr(OpenedFile, "group", group)
    ingest(lake, ListLog("cat", (entry(1, 50), entry(2, 93))))
    assert read == [], "no file has ids between its bounds"
    ingest(lake, ListLog("dan", (entry(1, 91),)))
    assert read == [("id",)] * 2, "of bob and of cat; their bytes are not needed"
    ingest(lake, ListLog("eve", (entry(1, 90),)))
    assert sorted(read[2:]) == [("id",), ("id",), ("id", "log", "epoch", "offset", "raw")]


def test_P2_places_that_are_read_again_bring_only_what_the_lake_lacks(lake: Lake) -> None:
    """As a repair does it, after a table was set back."""
    ana = ListLog("ana", tuple(entry(n, n) for n in range(1, 7)))
    broken = ListedEntry(4, ana.entries[3].envelope, 7, b"x")
    bob = ListLog("bob", (*(entry(n, n, recorded_at=6) for n in range(1, 4)), broken))
    ingest(lake, ana)
    kept = lake.fresh().bronze.files()
    ingest(lake, bob)
    whole = verdicts(lake)
    positions = lake.fresh().positions()
    # Nothing is missing: nothing changes, however often it is read.
    parts = [LogStretch(ana, ("ana", 1), 2, 6), LogStretch(bob, ("bob", 1), 1, 5)]
    done = ingest_batch(DriverWorkers(), lake, parts, again=True)
    assert verdicts(lake) == whole
    assert {count.what: count.rows for count in done.counts} == {
        "stored": 4,
        "again": 3,
        "bad_envelope": 1,
    }
    # Bronze has lost everything, and sightings speak of what is not there.
    fresh = lake.fresh()
    fresh.bronze.commit([], fresh.bronze.files())
    assert {at.path for at in kept} & {at.path for at in lake.fresh().bronze.files()} == set()
    before = lake.fresh().next_batch
    ingest_batch(DriverWorkers(), lake, [LogStretch(ana, ("ana", 1), 1, 7), parts[1]], again=True)
    assert verdicts(lake) == whole
    assert {row["batch"] for row in rows_of(lake.bronze)} == {before}
    assert lake.fresh().positions() == positions
    again, missing = checked(lake.fresh())
    assert missing == {}
    assert again.is_whole()


def test_P10_tasks_of_spark_read_cut_compare_and_write(
    spark: SparkSession, tmp_path: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done with millions of rows, on a few."""
    histories = grow(3, tmp_path, nodes=2, meshes=2, ops=120)
    logs = [open_log(str(home)) for home in histories.homes.values()]
    monkeypatch.setattr(divide, "LAKE_FILE_ROWS", 20)
    monkeypatch.setattr(divide, "SOURCE_PARTITION_ROWS", 60)
    monkeypatch.setattr(divide, "SOURCE_BATCH_ROWS", 10)
    expected = Lake.open(tmp_path / "other", create=True)
    assert ingest_logs(spark, expected, logs).failures == []
    monkeypatch.setattr(ingesting, "LAKE_FILE_ROWS", 0)
    report = ingest_logs(spark, lake, logs)
    assert (report.failures, report.read) == ([], sum(histories.heads.values()))
    assert verdicts(lake) == verdicts(expected)
    assert report.again > 0
    assert len(lake.fresh().bronze.files()) > 1
    # A second run finds in bronze what a third node holds too.
    assert ingest_logs(spark, lake, logs).read == 0
