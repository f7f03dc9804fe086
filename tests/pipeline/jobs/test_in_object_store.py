"""The whole life of a lake in an object store: every job, with the packages that pip brings."""

from __future__ import annotations

from pathlib import Path

import polars
import pyarrow as pa
from pyspark.sql import SparkSession

import holdfast
from holdfast.node.library.node import open_node
from holdfast.pipeline.audits.gold import run_audits
from holdfast.pipeline.fold.silver import current
from holdfast.pipeline.jobs.compaction import compact
from holdfast.pipeline.jobs.run import run
from holdfast.pipeline.jobs.sources import log_source, remember, remembered
from holdfast.pipeline.jobs.status import status, tables
from holdfast.pipeline.lake.find_entries import find_entries
from holdfast.pipeline.lake.folder import Folder
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.query import run_query
from holdfast.pipeline.sink import refused
from holdfast.pipeline.sink.ids import Write
from holdfast.pipeline.sink.rows import SinkRow
from holdfast.pipeline.snapshot.build import build_snapshot
from holdfast.pipeline.spark.spark_workers import SparkWorkers
from support.s3_server import SECRET, S3Server


def write(home: Path, key: str, value: str, *, create: bool = False) -> None:
    with open_node(home, peer=home.name, create=create) as node:
        node.mesh("site", create=create).state.set(key, value)


def states(spark: SparkSession, lake: Lake) -> dict[str, str]:
    return {row.key: row.value for row in current(spark, lake.fresh(), "state").collect()}


def test_P2_a_lake_lives_in_an_object_store(
    s3: S3Server, spark: SparkSession, tmp_path: Path
) -> None:
    ana, bob = tmp_path / "ana", tmp_path / "bob"
    write(ana, "limit", "6", create=True)
    write(bob, "limit", "5", create=True)
    place = s3.new_place()
    lake = Lake.open(place, create=True, options=s3.options)
    remember(lake, [log_source(str(home)) for home in (ana, bob)])
    assert run(spark, lake, remembered(lake)).ingest.new == 2
    write(ana, "limit", "7")
    again = Lake.open(place.replace("s3:", "s3a:"), options=s3.options)
    second = run(spark, again, remembered(again))
    assert (second.ok, second.ingest.new) == (True, 1)
    assert states(spark, lake) == {"limit": '"7"'}
    assert [log.lag for log in status(again).logs] == [0, 0]

    merged = compact(SparkWorkers(spark, lake.proof), lake.fresh())
    assert merged.files_before > merged.files_after
    (audit,) = run_audits(spark, lake.fresh(), ["orphans"]).audits
    assert (audit.findings, audit.notices) == (0, 0)
    found = run_query(spark, lake.fresh(), "select count(*) as n from bronze", 9)
    assert found.rows == ((3,),)
    frame = holdfast.lake(place, options=s3.options).state.polars()
    assert frame.select("key", "value").rows() == [("limit", '"7"')]
    ids = holdfast.lake(place, options=s3.options).bronze.polars()["id"].to_list()
    assert len(list(find_entries(lake.fresh(), ids))) == 3

    target = Folder(s3.new_place("snapshot"), s3.options)
    built = build_snapshot(spark, lake, target.root, mesh="site")
    assert (built.rows, built.target) == (1, target.root)
    assert [entry.base_name for entry in target.entries("parts")] != []
    removed = [path for _, table in tables(lake.fresh()) for path in table.vacuum(0, dry_run=False)]
    assert removed
    assert states(spark, lake) == {"limit": '"7"'}
    # Others read it as it is, and nothing in it is a secret.
    files = polars.read_delta(f"{place}/bronze", storage_options=s3.options)
    assert files.height == 3
    for key in s3.keys(lake.folder.base):
        raw = lake.folder.read(key.removeprefix(f"{lake.folder.base}/"))
        assert raw is not None
        assert SECRET.encode() not in raw


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
