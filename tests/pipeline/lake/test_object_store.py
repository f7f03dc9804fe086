"""A lake in an object store: the client for its files, commits in order, and errors that say what
is wrong. The store is a server of S3 in another process.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.folder import FILE, FOLDER, MISSING, Folder
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import columns
from holdfast.pipeline.spark.hadoop import reads_scheme
from holdfast.rules.errors import (
    HoldfastError,
    LakeMoved,
    NoBucket,
    NoLake,
    PlaceDenied,
    StoreCorrupt,
    Unreachable,
)
from support.s3_server import SECRET, S3Server

SCHEMA = columns("id string, n bigint, day date")
KILLED = """
import json, os, sys
import pyarrow as pa
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.schema import columns

table = Table(sys.argv[1], columns("id string, n bigint, day date"), options=json.load(sys.stdin))
table.writer().write([pa.table({"id": ["lost"], "n": [1]})])
draft = table.folder.system.handler.draft(table.folder.path("data-half/x.parquet"))
draft.write(bytes(6_000_000))
print("staged", flush=True)
sys.stdin.close()
os.read(1, 1)
"""


def rows(*ids: str) -> pa.Table:
    return pa.table({"id": list(ids), "n": list(range(len(ids)))})


def table_in(s3: S3Server) -> Table:
    return Table(s3.new_place("t"), SCHEMA, options=s3.options)


def held(table: Table) -> list[str]:
    delta = table.fresh().delta
    assert delta is not None
    return sorted(delta.to_pyarrow_table()["id"].to_pylist())


def test_P10_a_folder_of_a_store_behaves_like_one_on_a_disk(s3: S3Server, tmp_path: Path) -> None:
    for folder in (Folder(s3.new_place(), s3.options), Folder(str(tmp_path / "lake"))):
        assert (folder.kind(), folder.entries(), folder.read("a")) == (MISSING, [], None)
        folder.write("a", b"one")
        folder.write("b/c", b"three")
        folder.write("a", b"two")
        again = pickle.loads(pickle.dumps(folder))
        assert (again.root, again.read("a"), again.read("b/c")) == (folder.root, b"two", b"three")
        assert (folder.kind(), folder.kind("a"), folder.kind("b")) == (FOLDER, FILE, FOLDER)
        assert sorted(entry.base_name for entry in folder.entries()) == ["a", "b"]
        every = folder.entries(recursive=True)
        assert sorted(folder.name(entry.path) for entry in every) == ["a", "b", "b/c"]
        assert folder.sizes(["a", "b/c", "d", "b/d"]) == {"a": 3, "b/c": 5}
        with folder.writing("d") as write:
            write(b"1")
            assert folder.kind("d") == MISSING
            write(b"2")
        with pytest.raises(ZeroDivisionError), folder.writing("d") as write:
            write(bytes(6_000_000 // (write(b"3") - write(b"3"))))
        assert folder.read("d") == b"12"
        for name in ("a", "a"):
            folder.delete(name)
        for name in ("b", "b"):
            folder.delete_folder(name)
        assert [entry.base_name for entry in folder.entries()] == ["d"]


def test_P10_arrow_reads_and_writes_large_files_of_a_store(s3: S3Server) -> None:
    folder = Folder(s3.new_place(), s3.options)
    noise = pa.table({"n": range(40_000), "raw": [os.urandom(300) for _ in range(40_000)]})
    with folder.system.open_output_stream(folder.path("x.parquet")) as out:
        with pq.ParquetWriter(out, noise.schema) as writer:
            for at in range(0, 40_000, 8000):
                writer.write_table(noise.slice(at, 8000))
                out.flush()  # must not upload a part that is too small for S3
        size = out.tell()
    assert size > 12_000_000
    assert folder.sizes(["x.parquet"]) == {"x.parquet": size}
    path, system = folder.path("x.parquet"), pickle.loads(pickle.dumps(folder.system))
    assert pq.read_table(path, filesystem=system).equals(noise)
    few = pq.ParquetFile(system.open_input_file(path)).read_row_group(3, columns=["n"])
    assert few["n"].to_pylist() == list(range(24_000, 32_000))
    place = pyarrow.fs.SubTreeFileSystem(folder.base, system)
    with place.open_input_file("x.parquet") as file:
        file.seek(-4, 2)
        assert file.read() == b"PAR1"


def test_P2_of_two_commits_on_one_version_the_second_is_refused(s3: S3Server) -> None:
    table = table_in(s3)
    one, two = table.fresh(), table.fresh()
    assert not two.exists
    one.commit(one.writer().write([rows("a")]), txns={"log": 1})
    with pytest.raises(LakeMoved):
        two.commit(two.writer().write([rows("b")]), txns={"log": 1})
    three, four = table.fresh(), table.fresh()
    staged = four.writer().write([rows("d")])
    assert three.version == four.version == 0
    three.commit(three.writer().write([rows("c")]), txns={"log": 2})
    with pytest.raises(LakeMoved):
        four.commit(staged, txns={"log": 2})
    assert held(table) == ["a", "c"]
    again = table.fresh()
    again.commit(staged, txns={"log": 3})
    assert (held(table), table.fresh().txn("log")) == (["a", "c", "d"], 3)


def test_P2_of_two_commits_at_the_same_moment_the_store_takes_one(s3: S3Server) -> None:
    def race(place: str) -> tuple[list[str], list[str]]:
        """The ids that were committed without an error, and those that the table holds."""
        table = Table(place, SCHEMA, options=s3.options)
        table.commit([])
        jobs = {name: table.fresh() for name in ("a", "b")}
        staged = {name: job.writer().write([rows(name)]) for name, job in jobs.items()}

        def commit(name: str) -> bool:
            try:
                return jobs[name].commit(staged[name]) == 1
            except LakeMoved:
                return False

        with ThreadPoolExecutor(2) as pool:
            done = dict(zip(jobs, pool.map(commit, jobs), strict=True))
        return [name for name, ok in done.items() if ok], held(table)

    confirmed, there = race(s3.new_place("racing"))
    assert (len(confirmed), confirmed) == (1, there)
    # The control: without the condition of the write both would be confirmed, and one lost.
    confirmed, there = race(s3.new_place("racing/careless"))
    assert (len(confirmed), len(there)) == (2, 1)


def test_P11_a_job_that_is_killed_before_its_commit_leaves_only_what_vacuum_removes(
    s3: S3Server,
) -> None:
    table = table_in(s3)
    table.commit(table.writer().write([rows("a")]))
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, table.root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child, child.stdin, child.stdout:
        child.stdin.write(str(s3.options).replace("'", '"'))
        child.stdin.close()
        assert child.stdout.readline() == "staged\n"
        child.send_signal(signal.SIGKILL)
    prefix = f"{table.folder.base}/"
    assert held(table) == ["a"]
    left = [key for key in s3.keys(prefix) if key.endswith(".parquet")]
    assert len(left) == 2, "one is committed, one was staged, the half one never appeared"
    (removed,) = table.fresh().vacuum(0, dry_run=False)
    assert f"{prefix}{removed}" in left
    assert held(table) == ["a"]


def test_P2_a_file_of_a_store_that_is_gone_or_cut_is_an_error(s3: S3Server) -> None:
    table = table_in(s3)
    (file,) = table.writer().write([rows("a", "b")])
    table.commit([file])
    s3.put(table.folder.path(file.path), b"PAR1")
    with pytest.raises(StoreCorrupt, match="cannot be read"), table.reader().open(file):
        pass
    table.folder.delete(file.path)
    with pytest.raises(StoreCorrupt, match="not found"), table.reader().open(file):
        pass


def test_P11_a_store_that_refuses_says_what_is_wrong_and_shows_no_secret(s3: S3Server) -> None:
    place = s3.new_place()
    lake = Lake.open(place, create=True, options=s3.options)
    with pytest.raises(NoLake):
        Lake.open(place + "-2", options=s3.options)
    told: list[HoldfastError] = []
    for create in (False, True):
        with pytest.raises(NoBucket, match="nowhere") as no_bucket:
            Lake.open("s3://nowhere/lake", create=create, options=s3.options)
        told.append(no_bucket.value)
    dead = {**s3.options, "aws_endpoint": "http://127.0.0.1:1", "max_retries": "0"}
    calls: list[Callable[[], object]] = [
        partial(Lake.open, place, options=dead),
        partial(getattr, Lake(place, lake.id, dead).sightings, "version"),
        Lake(place, lake.id, dead).proof,
    ]
    for call in calls:
        with pytest.raises(Unreachable, match="Connection refused") as away:
            call()
        told.append(away.value)
    with s3.checking_keys() as allowed:
        right = Lake.open(place, options=allowed)
        right.bronze.commit([], txns={"log": 1})
        wrong = {**allowed, "aws_secret_access_key": "a-wrong-secret"}
        for options in (s3.options, wrong):
            denied = Lake(place, lake.id, options)
            calls = [
                partial(Lake.open, place, create=True, options=options),
                partial(getattr, denied.sightings, "exists"),
                denied.folder.entries,
                partial(denied.sightings.writer().write, [rows("x")]),
            ]
            for call in calls:
                with pytest.raises(PlaceDenied) as refusal:
                    call()
                told.append(refusal.value)
    for error in told:
        shown = f"{error.message} {error.hint} {error!r}"
        assert SECRET not in shown
        assert "a-wrong-secret" not in shown
        assert "\n" not in shown
        assert "\x1b" not in shown


def test_P10_spark_reads_a_store_by_python_where_its_java_cannot(
    s3: S3Server, spark: SparkSession
) -> None:
    assert reads_scheme(spark, "file")
    assert not reads_scheme(spark, "s3a"), "the jars of hadoop-aws are here: try a native scan too"
    table = Table(
        s3.new_place("t"), SCHEMA, partitions={"day": "date '2026-11-16'"}, options=s3.options
    )
    assert table.read(spark).collect() == []
    table.commit(
        table.stage(spark.sql("select 'a' as id, 1L as n, date '2026-11-16' as day")).files
    )
    more = table.fresh()
    more.commit(
        more.writer().write([rows("b", "c").append_column("day", pa.nulls(2, pa.date32()))])
    )
    frame = table.fresh().read(spark)
    assert frame.dtypes == [("id", "string"), ("n", "bigint"), ("day", "date")]
    assert sorted((row.id, row.n, str(row.day)) for row in frame.collect()) == [
        ("a", 1, "2026-11-16"),
        ("b", 0, "2026-11-16"),
        ("c", 1, "2026-11-16"),
    ]
    assert SECRET not in frame._jdf.queryExecution().toString()
    assert SECRET not in str(spark.sparkContext.getConf().getAll())
