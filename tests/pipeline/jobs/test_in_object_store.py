"""The whole life of a lake in an object store: every job, with the packages that pip brings."""

from __future__ import annotations

import pickle
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
import polars
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast.node.library.node import open_node
from holdfast.pipeline.fold.silver import fold_lake
from holdfast.pipeline.jobs.compaction import compact
from holdfast.pipeline.jobs.run import run
from holdfast.pipeline.jobs.sources import log_source, remember, remembered
from holdfast.pipeline.jobs.status import status, tables
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.find_entries import find_entries
from holdfast.pipeline.lake.folder import Folder
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.sink import refused
from holdfast.pipeline.sink.ids import Write
from holdfast.pipeline.sink.rows import SinkRow
from holdfast.pipeline.snapshot.files import (
    TAKEN,
    SnapshotPartWritten,
    SnapshotTarget,
    write_parts,
)
from holdfast.pipeline.spark.workers import DriverWorkers
from holdfast.rules.errors import AlreadyExists, DiskFull, LakeBusy
from holdfast.rules.limits import LAKE_UNFINISHED_MS
from support.s3_server import SECRET, S3Server


def write(home: Path, key: str, value: str, *, create: bool = False) -> None:
    with open_node(home, peer=home.name, create=create) as node:
        node.mesh("site", create=create).state.set(key, value)


@pytest.fixture(scope="module")
def lake(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake that has read two homes in two runs, and folded after each."""
    ana, bob = (tmp_path_factory.mktemp("homes") / name for name in ("ana", "bob"))
    write(ana, "limit", "6", create=True)
    write(bob, "limit", "5", create=True)
    place = s3.new_place()
    lake = Lake.open(place, create=True, options=s3.options)
    remember(lake, [log_source(str(home)) for home in (ana, bob)])
    assert run(never, lake, remembered(lake), fold=False).ingest.new == 2
    fold_lake(DriverWorkers(), lake.fresh())
    write(ana, "limit", "7")
    again = Lake.open(place.replace("s3:", "s3a:"), options=s3.options)
    second = run(never, again, remembered(again), fold=False)
    assert (second.ok, second.ingest.new) == (True, 1)
    fold_lake(DriverWorkers(), again.fresh())
    return lake


def never() -> SparkSession:
    raise AssertionError("Spark was started for nothing")


def test_P2_a_lake_lives_in_an_object_store_without_spark(s3: S3Server, lake: Lake) -> None:
    state = holdfast.lake(lake.root, options=s3.options).state.polars()
    assert state.select("key", "value").rows() == [("limit", '"7"')]
    assert [log.lag for log in status(lake.fresh()).logs] == [0, 0]
    merged = compact(DriverWorkers(), lake.fresh())
    assert merged.files_before > merged.files_after
    bronze = holdfast.lake(lake.root, options=s3.options).bronze.polars()
    assert len(list(find_entries(lake.fresh(), bronze["id"].to_list()))) == 3
    removed = [path for _, table in tables(lake.fresh()) for path in table.vacuum(0, dry_run=False)]
    assert removed
    again = holdfast.lake(lake.root, options=s3.options).state.polars()
    assert again.equals(state)
    # Others read it as it is, and nothing in it is a secret.
    files = polars.read_delta(f"{lake.root}/bronze", storage_options=s3.options)
    assert files.height == 3
    for key in s3.keys(lake.folder.base):
        raw = lake.folder.read(key.removeprefix(f"{lake.folder.base}/"))
        assert raw is not None
        assert SECRET.encode() not in raw


def test_P6_a_snapshot_is_written_to_an_object_store(s3: S3Server, lake: Lake) -> None:
    target = SnapshotTarget(s3.new_place("snapshot"), s3.options)
    target.prepare()
    rows = holdfast.lake(lake.root, options=s3.options).bronze.arrow(TAKEN)
    written = [
        msgspec.msgpack.decode(raw, type=SnapshotPartWritten)
        for attempt in ("first", "second")
        for batch in write_parts(pickle.loads(pickle.dumps(target)), attempt, 1, rows.to_batches())
        for raw in batch.column(0).to_pylist()
    ]
    kept, strays = written[:3], written[3:]
    assert [one.counts for one in (*kept, *strays)] == [{"state": 1}] * 6
    target.publish(b"{}", "build")
    assert target.remove_strays({one.part.path for one in kept}) == 3
    names = sorted(f"parts/{entry.base_name}" for entry in target.entries("parts"))
    assert names == sorted(one.part.path for one in kept)
    with pytest.raises(AlreadyExists, match=target.root):
        SnapshotTarget(target.root, s3.options).prepare()


def test_P8_refused_rows_are_kept_in_an_object_store(s3: S3Server) -> None:
    folder, write = Folder(s3.new_place("refused"), s3.options), Write("w", 0, 0)
    place = refused.folder_of(folder, write)
    for part in (0, 1):
        place.write(refused.file_name(write, part), b"of an earlier attempt")
    with refused.tallying(folder, write, 0):
        pass
    row = SinkRow(pa.record_batch({"key": ["k"]}), 0, "", b"")
    with refused.tallying(folder, write, 2) as tally:
        tally.add(row, "bad_key", "no such key")
    assert place.read(refused.file_name(write, 0)) is None
    refused.remove_others(folder, write, [2])
    (entry,) = place.entries()
    raw = place.read(entry.base_name)
    assert raw is not None
    assert b'"row":{"key":"k"}' in raw


def test_P2_rows_of_a_job_that_may_live_are_left_alone_where_nothing_locks(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job has committed sightings and not yet bronze when another one starts."""
    ana, copy = tmp_path / "ana", tmp_path / "copy"
    write(ana, "limit", "6", create=True)
    shutil.copytree(ana, copy)
    lake = Lake.open(s3.new_place(), create=True, options=s3.options)
    logs = [log_source(str(ana)), log_source(str(copy), name="copy")]
    real = Table.commit

    def stopped(table: Table, *given: Any, **more: Any) -> int:
        if table.root.endswith("/bronze"):
            raise DiskFull("as good as killed")
        return real(table, *given, **more)

    monkeypatch.setattr(Table, "commit", stopped)
    with pytest.raises(DiskFull):
        run(never, lake, logs)
    monkeypatch.setattr(Table, "commit", real)
    assert lake.fresh().sightings.rows == 1
    with pytest.raises(LakeBusy, match="may still be at work"):
        run(never, lake.fresh(), logs)
    assert lake.fresh().sightings.rows == 1
    # Ten minutes later it is dead for sure: it would have given up.
    began = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: began + LAKE_UNFINISHED_MS * 1_000_000)
    report = run(never, lake.fresh(), logs)
    assert (report.ingest.new, report.ingest.again) == (1, 1)
    assert lake.fresh().sightings.rows == 1
