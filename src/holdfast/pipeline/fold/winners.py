"""Which row of each key wins, found by Spark alone, without Python.

The winners of many changes are found in two steps. Most rows lose, so their bytes should never
move: the first scan finds the highest Lamport time of every key, the second keeps the rows that may
have it. What is shuffled is small, and sorting decides among the few rows that are left.

Keys are compared as whole texts. A hash only lets rows pass for this comparison: two keys with the
same hash stay two keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from holdfast.rules.order import ORDER_COLUMNS


def newest_first(keys: Sequence[str]) -> WindowSpec:
    """The versions of one key in the order of `rules.order`, the winner first."""
    return Window.partitionBy(*keys).orderBy(*(F.col(column).desc() for column in ORDER_COLUMNS))


def winners(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The winning row of each key, sorted by key."""
    place = F.row_number().over(newest_first(keys))
    return rows.withColumn("place", place).where("place = 1").drop("place")


def contenders(rows: DataFrame, keys: Sequence[str], *, spread: bool) -> DataFrame:
    """At least the winners, and few other rows. `rows` is scanned twice. With `spread` every task
    gets the hashes of all winners; without it, Spark shuffles the rows to where the hashes are.
    """
    time = ORDER_COLUMNS[0]
    highest = rows.groupBy(*keys).agg(F.max(time).alias(time))
    # The second scan compares only hashes of eight bytes.
    wanted = highest.select(F.xxhash64(*keys, time).alias("wanted"))
    if spread:
        wanted = F.broadcast(wanted)
    marked = rows.withColumn("wanted", F.xxhash64(*keys, time))
    return marked.join(wanted, "wanted", "left_semi").drop("wanted")


def with_live(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Every version once; the newest of a key is live unless it is a tombstone."""
    versions = newest_first(keys)
    placed = rows.withColumns(
        {"place": F.row_number().over(versions), "before": F.lag("id").over(versions)}
    )
    once = placed.where(F.col("before").isNull() | (F.col("before") != F.col("id")))
    live = (F.col("place") == 1) & ~F.col("tombstone")
    return once.withColumn("live", live).drop("place", "before")
