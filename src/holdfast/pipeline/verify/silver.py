"""Compares silver with what the log of each node makes.

Changes reach a node with a delay. So silver, which is made of all logs, may have rows that a node
does not have yet, or newer versions of its rows. They are counted as `behind`. The other way round
must not happen: whatever a log makes, silver has it, or something that replaced it. If not
(`astray`), silver has not been folded since the log was read, or is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.fold.silver import current
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import KEYS
from holdfast.rules import digests as rules
from holdfast.rules.order import ORDER_COLUMNS

_EACH_VERSION: Final = frozenset({"vectors", "task_events"})
"""Tables that keep every version of a row; only its outcome (live or not, the event) may change."""


class SilverGap(NamedTuple):
    """Differences in one table, of one mesh of one node."""

    behind: int
    """Rows of silver that the node does not have, or not in that version."""
    astray: int
    """Rows that the node's log makes, and silver has in an older version or not at all."""


def compare_with_silver(
    spark: SparkSession, lake: Lake, held: Mapping[str, DataFrame], meshes: Mapping[str, str]
) -> dict[tuple[str, str], SilverGap]:
    """By tagged mesh and table. `held`: what the logs make; `meshes`: the meshes by their tags."""
    tags = spark.createDataFrame(list(meshes.items()), "tag string, mesh string")
    counts = [
        _counted(
            _side(_tagged(current(spark, lake, table), tags), table), _side(rows, table), table
        )
        for table, rows in held.items()
        if table != "log"
    ]
    rows = reduce(DataFrame.unionByName, counts).collect()
    return {(row["mesh"], row["table"]): SilverGap(row["behind"], row["astray"]) for row in rows}


def _tagged(rows: DataFrame, tags: DataFrame) -> DataFrame:
    """Each row once for every node that has its mesh."""
    return rows.join(F.broadcast(tags), "mesh").withColumn("mesh", F.col("tag")).drop("tag")


def _key(table: str) -> list[str]:
    return [*KEYS[table], *(ORDER_COLUMNS if table in _EACH_VERSION else ())]


def _side(rows: DataFrame, table: str) -> DataFrame:
    """The columns that are compared: the key, the version, and a hash of all columns."""
    columns = [column.name for column in rules.columns_of(table)]
    return rows.select(
        *_key(table),
        F.struct(*ORDER_COLUMNS).alias("version"),
        F.xxhash64(*columns).alias("hash"),
    )


def _counted(silver: DataFrame, held: DataFrame, table: str) -> DataFrame:
    both = silver.alias("silver").join(held.alias("held"), _key(table), "full_outer")
    same = F.col("silver.hash") == F.col("held.hash")
    ahead = F.coalesce(_ahead(table), F.col("held.hash").isNull())
    apart = ~F.coalesce(same, F.lit(False))
    return both.groupBy("mesh").agg(
        F.lit(table).alias("table"),
        F.count_if(apart & ahead).alias("behind"),
        F.count_if(apart & ~ahead).alias("astray"),
    )


def _ahead(table: str) -> Column:
    """Of a row that both have: whether silver may have another one. Null if one side has no row."""
    ours, theirs = F.col("held.version"), F.col("silver.version")
    if table == "tasks":
        # A late turn with an earlier stamp changes a task, but not its last version.
        return theirs >= ours
    return theirs == ours if table in _EACH_VERSION else theirs > ours
