"""The source: logs as tables."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as spark_filters
from pyspark.sql.functions import spark_partition_id

import holdfast
from holdfast.node.exchange.export import export
from holdfast.pipeline.lake import schema
from holdfast.pipeline.logs.log import LogBounds
from holdfast.pipeline.source.filters import SourceFilter
from holdfast.pipeline.source.plan import LogRange, interleaved, shares, split
from holdfast.pipeline.source.source import BatchReader, FilteringReader, HoldfastSource, register
from holdfast.rules.errors import BadInput, EpochChanged, HoldfastError, Truncated, Unreachable
from holdfast.rules.filters import EVERYTHING, Filter
from holdfast.rules.ids import id_text
from holdfast.rules.rows import Entry
from support.daemon import UpInThread, process, running
from support.keeping import fill, make_home, team

BULK = "x" * 60_000


@dataclass
class Two:
    """Two logs, one of them served."""

    up: UpInThread
    bob: Path
    export: Path
    entries: dict[str, list[Entry]]

    @property
    def logs(self) -> str:
        return f"{self.up.unix},\n {self.bob}"

    def rows(self) -> list[tuple[str, int, str, bytes]]:
        return [
            (log, entry.offset, id_text(entry.id), entry.raw)
            for log, entries in sorted(self.entries.items())
            for entry in entries
        ]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    folder = tmp_path_factory.mktemp("two")
    entries = {}
    for peer, count in (("ana", 4), ("bob", 3)):
        with make_home(folder / peer, peer) as node:
            fill(team(node), count)
            entries[peer] = list(node.log.range())
            with (folder / f"{peer}.jsonl").open("wb") as out:
                export(node, out)
    with running(folder / "ana") as up:
        yield Two(up, folder / "bob", folder / "bob.jsonl", entries)


def load(spark: SparkSession, *paths: str, **options: Any) -> DataFrame:
    register(spark)
    reader = spark.read.format("holdfast").options(**options)
    return reader.load(*paths)


def plan(**options: Any) -> tuple[BatchReader, list[LogRange]]:
    """What Spark does first, without Spark."""
    given = {name: str(value) for name, value in options.items()}
    source = HoldfastSource(given)
    reader = source.reader(source.schema())
    assert isinstance(reader, BatchReader)
    parts = [part for part in reader.partitions() if isinstance(part, LogRange)]
    # It travels to another process before anything is read.
    return pickle.loads(pickle.dumps((reader, parts)))  # type: ignore[no-any-return]


def offsets(reader: BatchReader, parts: list[LogRange]) -> list[tuple[str, int]]:
    return [
        (row["log"], row["offset"])
        for part in parts
        for batch in reader.read(part)
        for row in batch.select(["log", "offset"]).to_pylist()
    ]


# --- With Spark --------------------------------------------------------------------------------


def test_P1_two_logs_in_many_partitions_are_one_table(spark: SparkSession, two: Two) -> None:
    frame = load(spark, logs=two.logs, rowsPerPartition=7, token="s3cret")
    assert frame.schema == schema.LOG
    found = frame.withColumn("part", spark_partition_id()).collect()
    rows = sorted((row.log, row.offset, row.id, bytes(row.raw)) for row in found)
    assert rows == two.rows()
    parts = {row.part for row in found}
    assert len(parts) == sum(-(-len(entries) // 7) for entries in two.entries.values())
    assert all(len({row.log for row in found if row.part == part}) == 1 for part in parts)


def test_P1_envelopes_of_an_export_are_unpacked_in_the_tasks(spark: SparkSession, two: Two) -> None:
    frame = load(spark, str(two.export), columns="envelope", rowsPerPartition=10)
    assert frame.schema == schema.ENVELOPE
    found = frame.select("offset", "seq", "owner", "problem", "recorded_at").collect()
    assert sorted(row.offset for row in found) == [entry.offset for entry in two.entries["bob"]]
    assert {row.problem for row in found} == {None}
    assert all(row.recorded_at is not None for row in found)


def test_P1_filters_are_pushed_and_the_result_is_the_same(spark: SparkSession, two: Two) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, logs=two.logs, pushFilters="true").where(
            "op = 'state.set' and entity like 'key-%' and offset between 3 and 15"
        )
        found = sorted((row.log, row.offset) for row in frame.select("log", "offset").collect())
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert found == [
        (log, entry.offset)
        for log, entries in sorted(two.entries.items())
        for entry in entries[2:15]
        if entry.op == "state.set" and entry.entity.startswith("key-")
    ]
    assert found


def test_P1_what_fails_says_where_and_never_the_token(
    spark: SparkSession, two: Two, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = load(spark, f"unix:{tmp_path}/none.sock", token="s3cret", retries=0)
    gone.explain(True)
    assert "s3cret" not in capsys.readouterr().out
    with pytest.raises(PySparkException) as error:
        gone.count()
    text = str(error.value)
    assert f"{tmp_path}/none.sock" in text
    assert "Unreachable" in text
    assert "s3cret" not in text
    with pytest.raises(PySparkException, match="there is no log at"):
        load(spark, str(tmp_path / "nothing")).count()


# --- What is planned ---------------------------------------------------------------------------


def test_P1_sql_reads_a_log_as_a_view_and_makes_no_table_that_cannot_be_read(
    spark: SparkSession, two: Two
) -> None:
    register(spark)
    given = f"USING holdfast OPTIONS (path '{two.bob}')"
    with pytest.raises(AnalysisException, match=r"cannot be a table.*create temporary view"):
        spark.sql(f"CREATE TABLE bobs {given}")
    assert not spark.catalog.tableExists("bobs")
    spark.sql(f"CREATE TEMPORARY VIEW bobs {given}")
    try:
        (row,) = spark.sql("SELECT log, max(offset) AS head FROM bobs GROUP BY log").collect()
    finally:
        spark.catalog.dropTempView("bobs")
    assert (row.log, row.head) == ("bob", len(two.entries["bob"]))
    # With columns of its own a table is made before the source is asked.
    with pytest.raises(BadInput, match=r"handed over no options.*create temporary view"):
        HoldfastSource({}).reader(HoldfastSource({}).schema()).partitions()


def test_P1_a_part_of_every_log_can_be_asked_for(two: Two) -> None:
    whole = [(log, offset) for log, offset, _, _ in two.rows()]
    for options, expected in (
        ({"from": 5, "to": 9}, [row for row in whole if 5 <= row[1] < 9]),
        ({"from": '{"ana": 30}'}, [row for row in whole if row[0] == "bob" or row[1] >= 30]),
        ({"to": '{"bob": 1, "ana": 3}'}, [("ana", 1), ("ana", 2)]),
        ({"to": 10**9}, whole),
        ({"from": 10**9}, []),
    ):
        reader, parts = plan(logs=two.logs, rowsPerPartition=4, **options)
        assert sorted(offsets(reader, parts)) == expected, options


def test_P1_tasks_take_turns_among_the_logs(two: Two) -> None:
    _, parts = plan(logs=two.logs, rowsPerPartition=10)
    assert [part.log for part in parts[:4]] == ["ana", "bob", "ana", "bob"]


def test_P1_an_empty_log_is_an_empty_table(tmp_path: Path) -> None:
    with make_home(tmp_path / "home"):
        pass
    reader, parts = plan(path=tmp_path / "home")
    assert parts == []
    assert list(reader.read(spark_filters.InputPartition(None))) == []


def test_P1_options_that_mean_nothing_are_refused(two: Two) -> None:
    for options in (
        {},
        {"path": two.bob, "columns": "some"},
        {"path": two.bob, "rowsPerPartition": "0"},
        {"path": two.bob, "rowsPerPartition": "-3"},
        {"path": two.bob, "from": "0"},
        {"path": two.bob, "from": "x"},
        {"path": two.bob, "to": '{"bob": "1"}'},
        {"path": two.bob, "pushFilters": "maybe"},
        {"logs": two.logs, "name": "both"},
        {"logs": f"{two.bob},{two.export}"},
    ):
        with pytest.raises(BadInput) as error:
            plan(**options)
        assert error.value.message
    source = HoldfastSource({"path": str(two.bob)})
    with pytest.raises(BadInput, match="columns of a log cannot be changed"):
        source.reader(schema.ENVELOPE)
    paths = f'["{two.bob}", "{two.up.unix}"]'
    assert {part.log for part in plan(paths=paths)[1]} == {"ana", "bob"}


def test_P1_nothing_that_travels_or_is_shown_holds_a_token(two: Two) -> None:
    reader, parts = plan(path=two.up.unix, token="s3cret")
    assert "s3cret" not in repr(reader) + repr(parts) + repr(reader._options)


# --- What goes wrong ---------------------------------------------------------------------------


def test_P1_a_truncated_range_is_an_error_that_names_what_is_missing(tmp_path: Path) -> None:
    with make_home(tmp_path / "home") as node:
        for n in range(20):
            team(node).state.set("k", n)
        reader, parts = plan(path=node.home, rowsPerPartition=10)
        engine, now = node._engine, node._engine.ctx.now_ms()
        engine.write("sweep.log", lambda tx: tx.log_truncate(8, 8, now))
        with pytest.raises(Truncated, match=r"offsets 1 to 10 in epoch 1 of log 'ana' at .*is 8"):
            offsets(reader, parts)
        assert offsets(reader, parts[1:]) == [("ana", n) for n in range(11, 21)]
        with pytest.raises(Truncated, match=r"offsets 5 to 7 .*the first that is still there is 8"):
            plan(**{"path": node.home, "from": 5})
        assert offsets(*plan(path=node.home)) == [("ana", n) for n in range(8, 21)]


def test_P1_a_log_that_was_restored_meanwhile_is_not_mixed_up(tmp_path: Path) -> None:
    from holdfast.node.recovery.backup import backup, restore

    with make_home(tmp_path / "home") as node:
        team(node).state.set("k", 1)
        backup(node, tmp_path / "backup")
    reader, parts = plan(path=tmp_path / "home")
    restore(tmp_path / "backup", tmp_path / "home", force=True)
    with pytest.raises(EpochChanged, match=r"in epoch 1 of log 'ana' at .*counts in epoch 2"):
        offsets(reader, parts)


def test_P1_a_node_that_goes_away_fails_the_task_and_a_rerun_reads_the_same(
    tmp_path: Path,
) -> None:
    with holdfast.open(tmp_path / "home", peer="ana", create=True, sync="full") as node:
        node.create_mesh("team")
        for n in range(300):
            team(node).state.set("k", [n, BULK])
    full = {"HOLDFAST_STORE_SYNC": "full"}
    with process(tmp_path / "home", env=full) as up:
        reader, parts = plan(path=up.unix, rowsPerPartition=1000, retries=0)
        batches = reader.read(parts[0])
        first = next(batches)
        up.kill()
        given = [first]
        with pytest.raises(Unreachable) as error:
            given.extend(batches)
    begun = given[-1].column("offset")[-1].as_py() + 1
    said = error.value.message
    assert "to 300 in epoch 1 of log 'ana' at unix:" in said
    assert said.startswith(f"offsets {begun} ")
    with process(tmp_path / "home", env=full):
        again = list(reader.read(parts[0]))
    assert again[0] == first
    assert sum(batch.num_rows for batch in again) == 300


def test_P1_hints_reach_whoever_sees_only_the_message(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError) as error:
        plan(path=tmp_path / "nothing")
    assert error.value.hint in str(error.value)


# --- The plan itself ---------------------------------------------------------------------------


@given(st.integers(1, 50), st.integers(0, 300), st.integers(1, 60))
def test_P1_parts_cover_a_range_once(start: int, count: int, rows: int) -> None:
    parts = split("l", LogBounds("ana", 1, 1, 400), start, start + count, rows)
    covered = [offset for part in parts for offset in range(part.start, part.stop)]
    assert covered == list(range(start, start + count))
    assert all(0 < part.stop - part.start <= rows for part in parts)


@given(st.dictionaries(st.text(max_size=2), st.integers(0, 40), max_size=6), st.integers(1, 100))
def test_P1_rows_are_shared_fairly_and_none_is_wasted(waiting: dict[str, int], most: int) -> None:
    given = shares(waiting, most)
    assert all(0 <= given[log] <= waiting[log] for log in waiting)
    assert sum(given.values()) == min(most, sum(waiting.values()))
    short = [given[log] for log in waiting if given[log] < waiting[log]]
    assert not short or max(given.values()) - min(short) <= 1


def test_P1_parts_of_logs_of_different_lengths_are_interleaved() -> None:
    a, b, c = (LogRange("l", "ana", 1, n, n + 1) for n in (1, 2, 3))
    assert interleaved([[a, b], [c]]) == [a, c, b]
    assert interleaved([]) == []


def test_P1_filters_become_what_a_log_understands_and_no_more() -> None:
    f = spark_filters
    at = LogBounds("ana", 1, 1, 50)
    for terms, filter, span in (
        ([f.EqualTo(("mesh",), "team")], Filter(meshes=("team",)), (1, 51)),
        ([f.In(("origin",), ("ana", "bob"))], Filter(origins=("ana", "bob")), (1, 51)),
        ([f.StringStartsWith(("entity",), "pump")], Filter(subjects=("pump",)), (1, 51)),
        ([f.EqualTo(("op",), "fact.append")], Filter(classes=("facts",)), (1, 51)),
        ([f.EqualTo(("op",), "later.op")], EVERYTHING, (1, 51)),
        ([f.In(("op",), ("fact.append", "later.op"))], EVERYTHING, (1, 51)),
        ([f.EqualTo(("mesh",), "NO MESH")], EVERYTHING, (1, 51)),
        ([f.EqualTo(("mesh",), None)], EVERYTHING, (1, 51)),
        ([f.Not(f.EqualTo(("mesh",), "team"))], EVERYTHING, (1, 51)),
        ([f.StringStartsWith(("mesh",), "te")], EVERYTHING, (1, 51)),
        ([f.EqualTo(("a", "mesh"), "team")], EVERYTHING, (1, 51)),
        ([f.IsNotNull(("mesh",))], EVERYTHING, (1, 51)),
        (
            [f.EqualTo(("mesh",), "a"), f.EqualTo(("mesh",), "b")],
            Filter(meshes=("a",)),
            (1, 51),
        ),
        ([f.GreaterThan(("offset",), 7), f.LessThan(("offset",), 9)], EVERYTHING, (8, 9)),
        ([f.GreaterThanOrEqual(("offset",), 7)], EVERYTHING, (7, 51)),
        ([f.LessThanOrEqual(("offset",), 7)], EVERYTHING, (1, 8)),
        ([f.EqualTo(("offset",), 7)], EVERYTHING, (7, 8)),
        ([f.In(("offset",), (7, 9))], EVERYTHING, (1, 51)),
        ([f.EqualTo(("log",), "ana")], EVERYTHING, (1, 51)),
        ([f.EqualTo(("log",), "bob")], EVERYTHING, (1, 1)),
    ):
        wanted = SourceFilter.of(terms)
        assert (wanted.filter, wanted.within(at, 1, 51)) == (filter, span), terms


def test_P1_spark_looks_at_every_row_again(two: Two) -> None:
    source = HoldfastSource({"path": str(two.bob), "pushfilters": "true"})
    reader = source.reader(source.schema())
    assert isinstance(reader, FilteringReader)
    terms: list[spark_filters.Filter] = [
        spark_filters.EqualTo(("op",), "task.create"),
        spark_filters.IsNull(("raw",)),
    ]
    assert list(reader.pushFilters(terms)) == terms
    reader = pickle.loads(pickle.dumps(reader))
    ops = {
        op
        for part in reader.partitions()
        for batch in reader.read(part)
        for op in batch.column("op").to_pylist()
    }
    assert "task.create" in ops
    assert all(op.startswith("task.") for op in ops)
