"""SQL over the lake: what may be asked, and what comes back."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast.pipeline import query
from holdfast.pipeline.fold.silver import fold_lake
from holdfast.pipeline.frames.duck import means_the_same
from holdfast.pipeline.ingest.ingest import ingest_logs
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.log import open_log
from holdfast.pipeline.spark.workers import DriverWorkers
from holdfast.rules.errors import BadInput, UnknownModel
from holdfast.rules.vectors import Model

MODEL = Model(provider="test", name="tiny", version="1", dim=2)


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("select * from state", {"state"}),
        ("SELECT * FROM `state` -- from memory", {"state"}),
        ("/* memory */ with a as (select 'insert into memory') select * from a", {"a"}),
        ("(select 1) union (select 2)", set()),
        ("values (1)", set()),
        ("select 'it''s; drop table x' as t, \"delete\" as u", set()),
        ("select `update` from facts", {"facts", "update"}),
        ("explain select * from bronze", {"bronze"}),
        ("select 'a\\'; delete from x' from tasks", {"tasks"}),
    ],
)
def test_P9_a_statement_that_looks_is_let_through(sql: str, named: set[str]) -> None:
    found = query.check(sql)
    assert found is not None
    assert named <= found
    assert "memory" not in found


@pytest.mark.parametrize("sql", ["show views", "describe state", "DESC memory"])
def test_P9_a_statement_that_lists_sees_everything(sql: str) -> None:
    assert query.check(sql) is None


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "-- select 1",
        "'select' 1",
        "`select` 1",
        "drop view state",
        "/* select */ insert into x values (1)",
        "WITH a AS (SELECT 1) INSERT INTO b SELECT * FROM a",
        "with a as (select 1) from a insert overwrite directory '/tmp/x' select *",
        "explain insert into b values (1)",
        "cache table state",
        "create table x as select 1",
        "begin select 1; end",
        "select java_method('java.lang.System', 'exit', 1)",
        "1 select",
        "; select 1",
    ],
)
def test_P9_a_statement_that_would_change_something_is_refused(sql: str) -> None:
    with pytest.raises(BadInput, match="only reads"):
        query.check(sql)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"\x00\xff", "00ff"),
        (datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC), "2026-01-02T03:04:05.678Z"),
        (datetime(2026, 1, 2, 0, 0, 0, 1, tzinfo=UTC), "2026-01-02T00:00:00.000001Z"),
        (datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=1))), "2026-01-02T02:00:00.000Z"),
        (date(2026, 1, 2), "2026-01-02"),
        (Decimal("1.50"), "1.50"),
        ([("a", b"\x01")], [["a", "01"]]),
        ({"x": [None, 1.5]}, {"x": [None, 1.5]}),
        (True, True),
    ],
)  # fmt: skip
def test_P9_values_come_back_as_json_can_hold_them(value: Any, said: Any) -> None:
    assert query.plain(value) == said


def test_P9_columns_of_one_name_are_told_apart() -> None:
    assert query._unique(["a", "a", "b", "a", "a_2"]) == ("a", "a_2", "b", "a_3", "a_2_2")


SAME = (
    "SELECT log, op, count(*) AS n FROM bronze GROUP BY ALL ORDER BY ALL",
    "select * from state order by key",
    "select mesh, key, value, updated_at, tombstone from state where not tombstone",
    "with a as (select key, max(lamport) as l from state group by key) select * from a order by l",
    "select op, sum(offset) as s, avg(offset) as m, min(id) from bronze group by op order by 1",
    "select b.offset, 'an offset' as t from bronze b order by b.offset limit 2 offset 1",
    "select owner, model from bronze order by model, owner, offset",
    "select model from bronze order by model desc limit 3",
    "select op, row_number() over (partition by op order by offset) as n from bronze order by 1, 2",
    "select upper(coalesce(null, 'x')) || lower('Y') as t, length('äb') as l, 'it''s' as q",
    "select count(*) from bronze where raw is not null",
    "select distinct family from bronze where op in ('state.set', 'vector.store') order by 1",
    "select s.key, v.embedding from state s join vectors v using (mesh) where s.key like 'b%'",
    "(select 1 as a) union all (select 2) order by a",
    "select * from findings",
)
UNLIKE = (
    "select log(10)", "select tags[0] from memory", "select cast(2.7 as int)", "select 1/0",
    "select `key` from state", 'select "key" from state', "select 'a\\n'", "show views",
    "explain select 1", "describe state", "select regexp_replace('aa', 'a', 'b')",
    "select * from read_parquet('x')", "select 5 % 2", "select value:a from state",
    "select * from state tablesample (1 rows)", "", "values (1)",
)  # fmt: skip


@pytest.mark.parametrize("sql", SAME)
def test_P9_duckdb_is_asked_what_both_engines_read_alike(sql: str) -> None:
    assert means_the_same(sql)


@pytest.mark.parametrize("sql", UNLIKE)
def test_P9_spark_is_asked_what_the_engines_read_in_two_ways(sql: str) -> None:
    assert not means_the_same(sql)


def never() -> SparkSession:
    raise AssertionError("Spark was started for nothing")


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select * from read_csv('/etc/passwd')", "nothing else"),
        ("select * from '/etc/passwd'", "passwd"),
        ("select * from read_text('/etc/passwd')", "nothing else"),
        ("select * from glob('/*')", "nothing else"),
        ("select * from lake", "lake does not exist"),
        ("select 1; select 2", "one statement"),
        ("explain select 1", "one statement"),
        ("select * form state", "not SQL"),
        ("select nothing from state", "nothing"),
        ("copy (select 1) to '/tmp/x'", "only reads"),
        ("attach '/tmp/x'", "only reads"),
        ("pragma database_list", "only reads"),
        ("install httpfs", "only reads"),
        ("set threads = 1", "only reads"),
    ],
)
def test_P9_duckdb_reads_the_tables_and_reaches_nothing_else(
    tmp_path: Path, sql: str, said: str
) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    with pytest.raises(BadInput, match=said) as refused:
        query.ask_lake(never, lake, sql, 10, query.DUCKDB)
    assert "\n" not in refused.value.message


def test_P9_a_query_of_a_lake_needs_no_java(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    answer = query.ask_lake(never, lake, "select count(*) as n, sum(offset) as s from bronze", 10)
    assert answer == query.QueryResult(("n", "s"), ((0, None),), False)
    assert query.table_rows(never, lake, "state", "team", limit=3).rows == ()


def test_P9_people_ask_the_lake_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "home", peer="ana", create=True, sync="normal") as node:
        team = node.create_mesh("team")
        team.state.set("build", {"colour": "green"})
        team.state.set("gone", 1)
        team.state.delete("gone")
        team.vectors.store("k", [1.0, 0.0], model=MODEL, content="a text")
    lake = Lake.open(tmp_path / "lake", create=True)
    ingest_logs(spark, lake, [open_log(str(tmp_path / "home"))])
    lake = lake.fresh()
    fold_lake(DriverWorkers(), lake)

    answer = query.run_query(spark, lake, "select op, raw from bronze order by offset", 2)
    assert (answer.columns, answer.more) == (("op", "raw"), True)
    assert [row[0] for row in answer.rows] == ["state.set", "state.set"]
    bytes.fromhex(answer.rows[0][1])
    joined = "select s.key, s.updated_at, v.content from state s join vectors v using (mesh)"
    both = query.run_query(spark, lake, f"{joined} where not s.tombstone", 10)
    assert [(row[0], row[2]) for row in both.rows] == [("build", "a text")]
    assert both.rows[0][1].endswith("Z")
    for sql in SAME:
        expected = query.run_query(spark, lake, sql, 100)
        assert query.ask_lake(never, lake, sql, 100) == expected, sql
    listed = query.ask_lake(lambda: spark, lake, "show views", 100)
    assert {"bronze", "state", "findings"} <= {row[1] for row in listed.rows}

    for wrong, said in (
        ("select nothing from state", "nothing"),
        ("select * from nowhere", "nowhere"),
        ("select * form state", "not SQL"),
        ("select 1; select 2", "not SQL"),
    ):
        with pytest.raises(BadInput, match=said) as refused:
            query.run_query(spark, lake, wrong, 10)
        assert "\n" not in refused.value.message

    (held,) = query.table_rows(never, lake, "state", "team", limit=10).documents()
    assert (held["key"], held["value"], held["peer"]) == ("build", {"colour": "green"}, "ana")
    assert isinstance(held["updated_at"], int)
    assert query.table_rows(never, lake, "state", "team", key="gone", limit=10).rows == ()
    for text in ("test:tiny:1", "test:tiny", MODEL.fingerprint):
        assert query.model_id(spark, lake, text) == MODEL.fingerprint
    with pytest.raises(UnknownModel):
        query.model_id(spark, lake, "test:other")
