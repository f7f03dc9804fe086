"""The tables of a lake as frames: every engine shows what Spark shows, and what nodes hold."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession, datasource
from pyspark.sql import functions as F

import holdfast
from holdfast.pipeline.fold import silver
from holdfast.pipeline.frames import overlay
from holdfast.pipeline.frames.catalog import register_tables
from holdfast.pipeline.frames.catalog_sql import Dialect, merged, quoting
from holdfast.pipeline.frames.changes import CHANGE, TableChanges, changes
from holdfast.pipeline.frames.frame import LakeFrame, LakeFrames, dataset
from holdfast.pipeline.frames.table_source import LakeTableSource, SiftingReader
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import KEYS, SILVER, comments
from holdfast.pipeline.spark.workers import DriverWorkers
from holdfast.rules.errors import BadInput, NoSpark, UnknownKey
from support.histories import Histories, grow
from support.lake_rows import STAMPED, Row, Rows, bronze_of, held, silver_rows

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Histories:
    return grow(31, tmp_path_factory.mktemp("homes"), nodes=2, meshes=6, ops=260, message_watch=40)


@pytest.fixture(scope="module")
def node_rows(histories: Histories) -> Rows:
    with histories.open(histories.peers[0]) as node:
        return held(node._engine.store)


@pytest.fixture(scope="module")
def patched() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def lake(
    spark: SparkSession,
    histories: Histories,
    patched: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Lake:
    """Half of all envelopes in the base of silver, the other half in increments."""
    patched.setattr(silver, "SILVER_SMALL_ROWS", 0)
    patched.setattr(silver, "SILVER_BEHIND_PERCENT_MAX", 10_000)
    lake = Lake.open(tmp_path_factory.mktemp("lake") / "lake", create=True)
    whole = bronze_of(spark, histories.homes.values()).cache()
    for half in (0, 1):
        rows = whole.where(F.pmod(F.xxhash64("id"), F.lit(2)) == half)
        staged = lake.bronze.stage(rows.withColumn("batch", F.lit(half).cast("bigint")).coalesce(1))
        lake.bronze.commit(staged.files)
        lake = lake.fresh()
        silver.fold_lake(DriverWorkers(), lake)
        lake = lake.fresh()
    assert all(lake.increments(name).files() for name in ("state", "vectors", "task_events"))
    return lake


def rows_of(name: str, table: pa.Table) -> list[Row]:
    """As `silver_rows` gives them."""
    assert table.schema.names == SILVER[name].names
    columns = [
        column.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
        if pa.types.is_timestamp(column.type)
        else column
        for column in table.columns
    ]
    lists = (column.to_pylist() for column in columns)
    return sorted(zip(*lists, strict=True), key=repr)


def frames(lake: Lake) -> LakeFrames:
    return holdfast.lake(lake.root)


def test_P2_every_engine_shows_what_spark_shows_and_nodes_hold(
    spark: SparkSession, lake: Lake, node_rows: Rows
) -> None:
    with duckdb.connect() as connection:
        for name in STAMPED:
            frame = frames(lake)[name]
            expected = node_rows[name]
            assert silver_rows(name, frame.spark(spark)) == expected, name
            assert rows_of(name, frame.arrow()) == expected, name
            assert rows_of(name, pa.Table.from_batches(frame.batches())) == expected, name
            there = frame.duckdb(connection).to_arrow_table().cast(frame.schema)
            assert rows_of(name, there) == expected, name
            polars = frame.polars().to_arrow().cast(frame.schema)
            assert rows_of(name, polars) == expected, name
            assert frame.pandas().shape == (len(expected), len(SILVER[name])), name
    for name in ("bronze", "sightings", "quarantine", "findings", "lag"):
        table = frames(lake)[name].arrow()
        assert table.num_rows == frames(lake)[name].spark(spark).count()
        assert table.schema.names == frames(lake)[name].spark(spark).columns


def test_P2_columns_and_conditions_mean_the_same_everywhere(
    spark: SparkSession, lake: Lake
) -> None:
    state = frames(lake).state
    some = sorted(set(state.arrow()["lamport"].to_pylist()))
    middle, peers = some[len(some) // 2], state.arrow()["peer"].unique().to_pylist()
    for filters in (
        [("lamport", ">=", middle)],
        [("lamport", "<", middle), ("peer", "=", peers[0])],
        [("peer", "in", peers[:1]), ("tombstone", "==", False)],
        [("peer", "not in", peers[:1]), ("key", "!=", "k0")],
    ):
        columns = ["key", "lamport"]
        found = state.arrow(columns, filters)
        assert found.schema.names == columns
        ours = sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))
        theirs = sorted(tuple(row) for row in state.spark(spark, columns, filters).collect())
        assert ours == theirs
        assert 0 < len(ours) < state.arrow().num_rows
        assert state.polars(columns, filters).height == len(state.pandas(columns, filters))
    wrong: Any
    for wrong in ([("nothing", "=", 1)], [("key", "~", "a")], ["key"], [("lamport", "=", "a")]):
        with pytest.raises(BadInput):
            state.arrow(filters=wrong)
    with pytest.raises(BadInput, match="nothing"):
        state.arrow(["nothing"])


# --- what has changed since ----------------------------------------------------------------------


def replaced(held: list[dict[str, Any]], told: TableChanges) -> list[dict[str, Any]]:
    """What a consumer holds after it has replaced the rows of every key that it was given."""
    new = told.arrow().drop_columns([CHANGE]).to_pylist()
    keys = {tuple(row[name] for name in told.key) for row in new}
    kept = [row for row in held if tuple(row[name] for name in told.key) not in keys]
    return sorted(kept + new, key=repr)


def test_P4_whoever_takes_in_the_changes_has_what_the_table_has(
    spark: SparkSession, lake: Lake
) -> None:
    first, last = 0, 1
    for name in STAMPED:
        whole = sorted(frames(lake)[name].arrow().to_pylist(), key=repr)
        told = changes(lake, name, since=first)
        assert (told.since, told.upto) == (first, last)
        then = dataset(lake.silver(name)).to_table(columns=SILVER[name].names).to_pylist()
        after = replaced(then, told)
        assert after == whole, name
        assert after == replaced(after, told), "a step that is repeated changes nothing"
        assert replaced([], changes(lake, name)) == whole, name
        assert changes(lake, name, since=last).arrow().num_rows == 0
        if name in ("state", "tasks"):  # by id, and by key
            theirs = told.spark(spark).toArrow().select(told.schema.names).cast(told.schema)
            ours = sorted(told.arrow().to_pylist(), key=repr)
            assert sorted(theirs.to_pylist(), key=repr) == ours, name
        if name in ("state", "memory", "files", "facts", "messages"):
            before = {row["id"] for row in then}
            other = {row["id"] for row in whole if row["id"] not in before}
            assert {row["id"] for row in told.arrow().to_pylist()} == other, "nothing but changes"
            assert 0 < len(other) < len(whole), name


def test_P4_changes_name_deletions_and_refuse_what_nobody_can_know(lake: Lake) -> None:
    rows = changes(lake, "state").arrow().to_pylist()
    assert {row["change"] for row in rows} == {"set", "deleted"}
    assert all((row["change"] == "deleted") is row["tombstone"] for row in rows)
    with pytest.raises(BadInput, match="nobody"):
        changes(lake, "state", since=2)
    with pytest.raises(UnknownKey):
        changes(lake, "bronze")


# --- for other engines ---------------------------------------------------------------------------


def planned(lake: Lake, name: str, *filters: datasource.Filter) -> pa.Table:
    """What the tasks of the Spark format read, one after another."""
    frame = LakeFrames(lake)[name]
    reader = SiftingReader(lake, frame, frame.columns)
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark filters again"
    parts = reader.partitions()
    tasks = pickle.loads(pickle.dumps(reader))
    return pa.Table.from_batches(
        (batch for part in parts for batch in tasks.read(part)), frame.schema
    )


def test_P2_the_format_for_catalogs_reads_what_frames_show(lake: Lake) -> None:
    for name in LakeFrames(lake).tables:
        ours = frames(lake)[name].arrow().to_pylist()
        theirs = planned(lake, name).to_pylist()
        assert sorted(theirs, key=repr) == sorted(ours, key=repr), name
    batch = ("batch",)
    whole = lake.bronze.rows
    assert 0 < planned(lake, "bronze", datasource.EqualTo(batch, 1)).num_rows < whole
    assert 0 < planned(lake, "bronze", datasource.GreaterThanOrEqual(batch, 1)).num_rows < whole
    assert planned(lake, "bronze", datasource.In(batch, (7, 8))).num_rows == 0
    assert planned(lake, "bronze", datasource.LessThan(("id",), "0")).num_rows == 0
    odd = (datasource.IsNull(batch), datasource.EqualTo(batch, "1"))
    assert planned(lake, "bronze", *odd).num_rows == whole
    for options in ({"path": lake.root}, {"table": "state"}):
        with pytest.raises(BadInput, match="needs the option"):
            LakeTableSource(options).schema()
    with pytest.raises(UnknownKey):
        LakeTableSource({"path": lake.root, "table": "nothing"}).schema()


def test_P2_a_catalog_of_spark_shows_the_current_state_to_every_session(
    spark: SparkSession, lake: Lake
) -> None:
    schema = f"of_{lake.id}"
    names = register_tables(spark, lake, ["state", "quarantine"], schema=schema)
    assert names == [f"{schema}.state", f"{schema}.quarantine"]
    other = spark.newSession()
    told = other.sql(f"DESCRIBE {schema}.state").collect()
    assert {row["col_name"]: row["comment"] for row in told} == comments(SILVER["state"])
    ours = frames(lake).state
    theirs = other.table(f"{schema}.state").toArrow().cast(ours.schema).to_pylist()
    assert sorted(theirs, key=repr) == sorted(ours.arrow().to_pylist(), key=repr)

    # Never stale: what is committed afterwards is there, without another word to the catalog.
    quarantine = lake.quarantine.fresh()
    columns = LakeFrames(lake)["quarantine"].columns
    odd = spark.createDataFrame([("ana", 1, 9, None, "odd", None, None, None, 0)], columns)
    quarantine.commit(quarantine.stage(odd.coalesce(1)).files)
    seen = other.sql(f"SELECT reason FROM {schema}.quarantine WHERE log = 'ana'").collect()
    assert [row.reason for row in seen] == ["odd"]

    # Nothing that belongs to others is replaced.
    spark.sql(f"CREATE VIEW {schema}.facts AS SELECT 1 AS one")
    with pytest.raises(BadInput, match="facts is there already"):
        register_tables(spark, lake, ["facts"], schema=schema)
    with pytest.raises(UnknownKey):
        register_tables(spark, lake, ["nothing"], schema=schema)
    assert register_tables(spark, lake, ["state"], schema=schema) == names[:1]
    spark.sql(f"DROP SCHEMA {schema} CASCADE")


def test_P3_the_views_for_other_engines_merge_as_nodes_do(spark: SparkSession, lake: Lake) -> None:
    for name in STAMPED:
        base = dataset(lake.silver(name)).to_table()
        since = dataset(lake.increments(name)).to_table()
        query = merged(name, "the_base", "the_since", quoting(Dialect.DUCKDB))
        with duckdb.connect() as connection:
            connection.register("the_base", base)
            connection.register("the_since", since)
            found = connection.sql(query).to_arrow_table()
        wanted = frames(lake)[name].arrow()
        got = found.select(wanted.schema.names).cast(wanted.schema)
        if name == "tasks":
            assert got.num_rows == base.num_rows, "tasks are those of the last compaction"
            continue
        if name == "task_events":  # SQL has all turns; what came of some of them it cannot say
            got, wanted = got.select(["id"]), wanted.select(["id"])
        assert sorted(got.to_pylist(), key=repr) == sorted(wanted.to_pylist(), key=repr), name
        if name == "vectors":  # the hardest of them, as Spark writes it
            spark.createDataFrame(base).createOrReplaceTempView("the_base")
            spark.createDataFrame(since).createOrReplaceTempView("the_since")
            query = merged(name, "the_base", "the_since", quoting(Dialect.DELTA))
            assert spark.sql(query).where("live").count() == wanted["live"].to_pylist().count(True)


def test_P2_a_base_that_has_its_increments_already_is_shown_once(
    spark: SparkSession, lake: Lake, node_rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(silver, "_drop", killed)
    for name in ("memory", "vectors", "task_events", "facts"):
        with pytest.raises(KeyboardInterrupt):
            silver.compact(DriverWorkers(), lake, [name])
    assert not silver.things_are_current(lake.fresh(), "tasks")
    for name in ("memory", "vectors", "task_events", "facts", "tasks"):
        assert rows_of(name, frames(lake)[name].arrow()) == node_rows[name], name


def test_P2_only_the_batches_that_are_asked_for_are_in_memory(lake: Lake) -> None:
    state = frames(lake).state
    _, over = state.parts()
    assert 0 < over.rows.num_rows < state.arrow().num_rows
    first = next(state.batches(["value"]))
    assert first.schema.names == ["value"]
    assert first.num_rows < state.arrow().num_rows


def test_P2_a_lake_names_its_tables_and_says_what_is_missing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = frames(lake)
    assert {"bronze", "state", "tasks", "messages", "findings", "growth"} <= set(dir(whole))
    assert repr(whole.state).startswith("LakeFrame('state': mesh, key")
    with pytest.raises(AttributeError, match="nowhere"):
        whole.nowhere.arrow()
    for name in ("polars", "duckdb", "pandas"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(NoSpark, match=name) as missing:
            getattr(LakeFrame(lake, "state", None), name)()
        assert missing.value.hint == f"pip install {name}"


# --- the overlay itself -----------------------------------------------------------------------


def test_P3_keys_that_share_a_part_are_not_mixed_up() -> None:
    batch = pa.record_batch({"mesh": ["a", "a", "b", "b"], "key": ["x", "y", "x", "y"]})
    hidden = pa.table({"mesh": ["a", "b"], "key": ["y", "x"]})
    shown = overlay.Overlay(pa.table(batch.slice(0, 0)), hidden).shown(batch).to_pylist()
    assert shown == [{"mesh": "a", "key": "x"}, {"mesh": "b", "key": "y"}]


def test_P3_a_row_that_came_late_does_not_replace_a_newer_one_of_the_base() -> None:
    def state(*rows: tuple[str, str, int]) -> pa.Table:
        return pa.Table.from_pylist(
            [
                {"mesh": "m", "key": key, "value": value, "lamport": at, "peer": "p", "id": "i"}
                for key, value, at in rows
            ],
            LakeFrame(Lake("lake", ""), "state", None).schema,
        )

    base = ds.dataset(state(("old", "1", 1), ("new", "1", 9), ("alone", "1", 5)))
    over = overlay.overlaid(
        "state", base, state(("old", "2", 2), ("new", "2", 8), ("more", "2", 1))
    )
    assert sorted(over.rows["key"].to_pylist()) == ["more", "old"]
    assert over.keys is not None
    assert sorted(over.keys["key"].to_pylist()) == ["more", "old"]
    kept = over.shown(base.to_table().combine_chunks().to_batches()[0])
    assert kept["key"].to_pylist() == ["new", "alone"]
    assert pc.all(pc.equal(kept["value"], "1")).as_py()
    assert KEYS["state"] == ("mesh", "key")
