"""The tables of a lake in a catalog of Spark: the Hive metastore, or any other that has views.

    register_tables(spark, lake, schema="plants")
    spark.sql("SELECT * FROM plants.state")

Each table becomes a view over the format `holdfast_lake`, which reads the lake when it is asked: so
a view is never stale, needs no jars, and shows the current state. Who asks it needs Holdfast where
their Python runs, and the right to read the lake; a view holds no credentials.

Spark does not hand the options of a table to a Python format, but it does hand over those in a
query. So there is a table without options, `NAME__source`, and the view over it gives the options.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from holdfast.pipeline.frames.catalog_sql import (
    Dialect,
    chosen_tables,
    described_view,
    quoting,
    text,
)
from holdfast.pipeline.frames.frame import LakeFrames
from holdfast.pipeline.frames.table_source import NAME, LakeTableSource
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.failures import spark_errors
from holdfast.rules.errors import BadInput

SOURCE: Final = "__source"
_OURS: Final = "holdfast.lake"
_quote: Final = quoting(Dialect.DELTA)


def register_tables(
    spark: SparkSession, lake: Lake, tables: Sequence[str] = (), *, schema: str = "holdfast"
) -> list[str]:
    """Makes or renews views of these tables, or of all; returns the names of the views. BadInput if
    there is something else under one of the names: nothing is changed then.
    """
    names = chosen_tables(lake, tables)
    spark.dataSource.register(LakeTableSource)
    with spark_errors("register", passing=(AnalysisException,)):
        for name in names:
            _refuse_other(spark, lake, schema, name)
        for statement in view_statements(lake, schema, names):
            spark.sql(statement)
    return [f"{schema}.{name}" for name in names]


def view_statements(lake: Lake, schema: str, tables: Sequence[str] = ()) -> Iterator[str]:
    """The statements that do it, in order."""
    frames = LakeFrames(lake)
    inside = _qualified(schema)
    yield f"CREATE SCHEMA IF NOT EXISTS {inside}"
    for name in chosen_tables(lake, tables):
        columns = frames[name].columns
        source, view = (f"{inside}.{_quote(name + end)}" for end in (SOURCE, ""))
        typed = ", ".join(f"{_quote(f.name)} {f.dataType.simpleString()}" for f in columns.fields)
        yield f"DROP TABLE IF EXISTS {source}"
        yield f"CREATE TABLE {source} ({typed}) USING {NAME}"
        head = described_view(view, columns, frames[name].about)
        chosen = ", ".join(map(_quote, columns.names))
        given = f"`path` = {text(lake.root)}, `table` = {text(name)}"
        yield (
            f"{head} TBLPROPERTIES ({text(_OURS)} = {text(lake.id)}) AS "
            f"SELECT {chosen} FROM {source} WITH ({given})"
        )


def _refuse_other(spark: SparkSession, lake: Lake, schema: str, name: str) -> None:
    """Only a view of this lake may be replaced."""
    where = f"{_qualified(schema)}.{_quote(name)}"
    if not spark.catalog.tableExists(where):
        return
    noted = spark.sql(f"SHOW TBLPROPERTIES {where} ({text(_OURS)})").collect()
    if not noted or noted[0]["value"] != lake.id:
        raise BadInput(
            f"{schema}.{name} is there already and is not of this lake",
            hint="name another schema, or drop it",
        )


def _qualified(name: str) -> str:
    return ".".join(map(_quote, name.split(".")))
