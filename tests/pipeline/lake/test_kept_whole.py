"""The lake against what sessions, tools and luck do to it: no row is lost, none is there twice."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType, TimestampType

from holdfast.pipeline import history
from holdfast.pipeline.audits.gold import run_audits
from holdfast.pipeline.fold import silver
from holdfast.pipeline.fold.merge import taken
from holdfast.pipeline.ingest.ingest import ingest_logs
from holdfast.pipeline.jobs import compaction
from holdfast.pipeline.jobs.compaction import compact
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.log import ReadableLog, open_log
from holdfast.pipeline.snapshot.build import build_snapshot
from holdfast.pipeline.spark.workers import DriverWorkers
from holdfast.pipeline.verify.verify import verify_nodes
from holdfast.rules.errors import JobFailed, StoreCorrupt
from support.histories import Histories, grow

OTHER_ZONES = ("Pacific/Kiritimati", "America/Los_Angeles", "Asia/Kolkata")
"""Days that begin earlier and later than those of UTC, and hours that begin at the half."""


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Histories:
    """Three nodes that know the same."""
    return grow(11, tmp_path_factory.mktemp("whole"), meshes=2, ops=90)


@pytest.fixture
def logs(grown: Histories, tmp_path: Path) -> list[ReadableLog]:
    homes = []
    for number, home in enumerate(grown.homes.values()):
        homes.append(tmp_path / f"home-{number}")
        shutil.copytree(home, homes[-1])
    return [open_log(str(home)) for home in homes]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "lake", create=True)


@contextmanager
def set_to(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            spark.conf.unset(name) if was is None else spark.conf.set(name, was)


def _struct(name: str, kind: DataType) -> StructType:
    return StructType([StructField(name, kind)])


def ids(table: Table) -> list[str]:
    """As an outsider reads them."""
    if not table.fresh().exists:
        return []
    found: list[str] = (
        DeltaTable(table.root).to_pyarrow_table(columns=["id"]).column("id").to_pylist()
    )
    return found


def places_of(table: Table) -> list[tuple[Any, ...]]:
    rows = DeltaTable(table.root).to_pyarrow_table(columns=["log", "epoch", "offset"]).to_pylist()
    return [tuple(row.values()) for row in rows]


def check_once(lake: Lake, log: ReadableLog) -> None:
    place = log.place()
    found = ids(lake.bronze)
    assert len(found) == len(set(found)) == place.head


def test_P2_a_session_of_another_zone_knows_the_envelopes_again(
    spark: SparkSession, logs: list[ReadableLog], lake: Lake
) -> None:
    """The day that bronze is parted by stands in the id, and in no time zone."""
    ingest_logs(spark, lake, logs[:1])
    for zone, log in zip(OTHER_ZONES, logs[1:], strict=False):
        other = {
            "spark.sql.session.timeZone": zone,
            "spark.sql.ansi.enabled": "false",
            "spark.sql.caseSensitive": "true",
            "spark.sql.parquet.outputTimestampType": "INT96",
        }
        with set_to(spark, other):
            report = ingest_logs(spark, lake, [log])
        assert (report.new, report.again) == (0, log.place().head)
    check_once(lake, logs[0])
    # And those that such a session was the first to bring.
    elsewhere = Lake.open(f"{lake.root}-2", create=True)
    with set_to(spark, {"spark.sql.session.timeZone": OTHER_ZONES[0]}):
        ingest_logs(spark, elsewhere, logs[:1])
    assert ingest_logs(spark, elsewhere, logs[1:2]).new == 0
    days = [
        sorted(file.partition["day"] or "" for file in one.fresh().bronze.files())
        for one in (lake, elsewhere)
    ]
    assert days[0] == days[1]


def test_P1_a_vacuum_leaves_the_lake_knowing_how_far_it_has_read(
    spark: SparkSession, logs: list[ReadableLog], lake: Lake
) -> None:
    ingest_logs(spark, lake, logs[:1])
    ingest_logs(spark, lake, logs[1:2])
    before = lake.fresh().positions()
    assert len(before) == 2
    staged = lake.fresh().bronze.stage(lake.fresh().bronze.read(spark))
    removed = lake.fresh().bronze.vacuum(0, dry_run=False)
    assert {file.path for file in staged.files} <= set(removed)
    assert "VACUUM" in str(lake.fresh().bronze.info["operation"])

    assert lake.fresh().positions() == before
    report = ingest_logs(spark, lake, logs[:2])
    assert (report.read, report.failures) == (0, [])
    compact(DriverWorkers(), lake)
    ingest_logs(spark, lake, logs[2:])
    known = lake.fresh().positions()
    assert {at.log for at in known} == {log.place().log for log in logs}
    assert all(at.id for at in known)
    assert len(ids(lake.sightings)) == 2 * logs[0].place().head
    check_once(lake, logs[0])


def test_P6_a_snapshot_covers_only_what_it_holds_while_others_write(
    spark: SparkSession, logs: list[ReadableLog], lake: Lake, tmp_path: Path
) -> None:
    ingest_logs(spark, lake, logs[:1])
    looked = lake.fresh()
    version = looked.bronze.version
    ingest_logs(spark, lake, logs[1:])
    assert lake.fresh().bronze.version > version
    # What was looked at does not learn of what came since.
    assert [at.log for at in looked.positions()] == [logs[0].place().log]
    assert len(lake.fresh().positions()) == len(logs)
    report = build_snapshot(spark, lake, str(tmp_path / "snapshot"))
    assert set(report.logs) == {log.place().log for log in logs}


def test_P2_a_commit_that_was_made_though_it_seemed_to_fail_keeps_its_files(
    spark: SparkSession, logs: list[ReadableLog], lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store that is asked a second time says that somebody else was first."""
    real = Table._commit
    lies: list[str] = []

    def commit(table: Table, *args: Any) -> None:
        real(table, *args)
        if table.root.endswith("bronze") and not lies:
            lies.append(table.root)
            raise CommitFailedError("version 0 already exists")

    monkeypatch.setattr(Table, "_commit", commit)
    report = ingest_logs(spark, lake, logs[:1])
    assert lies
    assert report.failures == []
    check_once(lake, logs[0])
    assert ingest_logs(spark, lake, logs[:1]).read == 0
    check_once(lake, logs[0])


def test_P2_a_file_that_is_gone_is_never_passed_over(
    spark: SparkSession, logs: list[ReadableLog], lake: Lake
) -> None:
    """A compaction that read on without it would make that true."""
    for log in logs:
        ingest_logs(spark, lake, [log], max_rows=20)
    bronze = lake.fresh().bronze
    version, files = bronze.version, bronze.files()
    spoiled = Path(bronze.uri(files[0]))
    spoiled.write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(StoreCorrupt, match="cannot be read"):
        compact(DriverWorkers(), lake)
    spoiled.unlink()
    with pytest.raises(StoreCorrupt, match="cannot be read"):
        compact(DriverWorkers(), lake)
    assert lake.fresh().bronze.version == version
    assert lake.fresh().bronze.files() == files


def test_P2_rows_that_do_not_add_up_stop_a_compaction(
    spark: SparkSession, logs: list[ReadableLog], lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest_logs(spark, lake, logs[:1], max_rows=20)
    files = lake.fresh().bronze.files()
    monkeypatch.setattr(compaction, "taken", lambda rows, order: taken(rows, order[1:]))
    with pytest.raises(JobFailed, match=r"rows of .* became"):
        compact(DriverWorkers(), lake)
    assert lake.fresh().bronze.files() == files


def test_P3_what_silver_lost_is_found_also_when_bronze_has_moved_on_without_rows(
    spark: SparkSession, logs: list[ReadableLog], lake: Lake
) -> None:
    ingest_logs(spark, lake, logs[:1])
    silver.fold_lake(DriverWorkers(), lake)
    base = lake.silver("state")
    rows = base.read(spark)
    lost = rows.orderBy("mesh", "key").first()
    assert lost is not None
    less = rows.where((F.col("key") != lost["key"]) | (F.col("mesh") != lost["mesh"]))
    base.commit(base.stage(less).files, base.files())
    lake.fresh().bronze.commit([])

    (report,) = verify_nodes(spark, lake.fresh(), logs[:1]).logs

    assert report.astray["state"] == 1
    assert (report.status, report.differences) == ("differs", ())
    assert "silver lacks" in report.reason


class Stopped(BaseException):
    """As a signal that nothing can catch."""


def test_P2_a_place_that_a_stopped_run_has_noted_is_kept_once(
    spark: SparkSession, logs: list[ReadableLog], lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Table.commit

    def commit(table: Table, *args: Any, **options: Any) -> int:
        if table.root.endswith("bronze"):
            raise Stopped
        return real(table, *args, **options)

    monkeypatch.setattr(Table, "commit", commit)
    with pytest.raises(Stopped):
        ingest_logs(spark, lake, logs)
    monkeypatch.setattr(Table, "commit", real)
    # Of every envelope one log was to be the first. Now each is read alone.
    noted = (
        DeltaTable(lake.sightings.root).to_pyarrow_table(columns=["log"]).column("log").to_pylist()
    )
    assert len(set(noted)) > 1
    assert ingest_logs(spark, lake, logs[2:]).failures == []
    assert ingest_logs(spark, lake, logs).failures == []
    check_once(lake, logs[0])
    places = [place for table in (lake.bronze, lake.sightings) for place in places_of(table)]
    assert len(places) == len(set(places)) == sum(log.place().head for log in logs)


def test_P9_a_copy_of_a_lake_whose_last_run_was_stopped_goes_on_without_doubles(
    spark: SparkSession, logs: list[ReadableLog], lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest_logs(spark, lake, logs[:1])
    real = Table.commit

    def commit(table: Table, *args: Any, **options: Any) -> int:
        if table.root.endswith("bronze"):
            raise Stopped
        return real(table, *args, **options)

    monkeypatch.setattr(Table, "commit", commit)
    with pytest.raises(Stopped):
        ingest_logs(spark, lake, logs[1:2])
    monkeypatch.setattr(Table, "commit", real)
    assert ids(lake.sightings)
    copy = Lake.open(f"{lake.root}-2", create=True)
    folded = silver.FoldReport(version=0, tables=[], seconds=0.0)
    monkeypatch.setattr(
        history, "fold_lake", lambda *_, **__: folded
    )  # takes long and is not asked for
    history.backfill(spark, lake, copy)
    assert ingest_logs(spark, copy, logs[:2]).failures == []
    check_once(copy, logs[0])
    places = [place for table in (copy.bronze, copy.sightings) for place in places_of(table)]
    assert len(places) == len(set(places)) == sum(log.place().head for log in logs[:2])


def test_P5_figures_are_of_the_same_hours_and_days_in_every_zone(
    spark: SparkSession, logs: list[ReadableLog], lake: Lake
) -> None:
    ingest_logs(spark, lake, logs)
    found = []
    for zone in ("UTC", "Asia/Kolkata"):
        with set_to(spark, {"spark.sql.session.timeZone": zone}):
            run_audits(None, lake, ["lag", "conflicts"])
        tables = [DeltaTable(f"{lake.root}/gold/{name}") for name in ("lag", "conflicts")]
        found.append([sorted(map(repr, one.to_pyarrow_table().to_pylist())) for one in tables])
    assert all(found[0])
    assert found[0] == found[1]


def test_P2_bounds_of_times_hold_what_lies_between_two_milliseconds(
    spark: SparkSession, tmp_path: Path
) -> None:
    time = datetime(2026, 11, 15, 10, 0, 0, 1999, tzinfo=UTC)
    table = Table(str(tmp_path / "table"), _struct("at", TimestampType()))
    table.commit(table.stage(spark.createDataFrame([(time,)], table.schema)).files)
    actions = pa.table(DeltaTable(table.root).get_add_actions(flatten=True)).to_pylist()
    low, high = actions[0]["min.at"], actions[0]["max.at"]
    assert low <= time <= high
    assert high - low <= timedelta(milliseconds=1)
