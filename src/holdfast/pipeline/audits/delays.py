"""How long changes take from the clock of whoever made them into each log.

Both times are those of real clocks, one of the origin, one of the node whose log it is. A delay
below zero says that the two clocks are apart, and stays as it is.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.pipeline.audits.shape import AuditTables, Measure

_ACCURACY: Final = 1000
_FIGURES: Final = (
    StructField("hour", TimestampType()),
    StructField("entries", LongType()),
    StructField("p50_s", DoubleType()),
    StructField("p95_s", DoubleType()),
    StructField("max_s", DoubleType()),
    StructField("last_at", TimestampType()),
)
LAG_SCHEMA: Final = StructType([StructField("log", StringType()), *_FIGURES])
STALENESS_SCHEMA: Final = StructType(
    [StructField("log", StringType()), StructField("origin", StringType()), *_FIGURES]
)


def _lag(tables: AuditTables) -> DataFrame:
    return _figures(tables.seen, "log")


def _staleness(tables: AuditTables) -> DataFrame:
    return _figures(tables.seen.filter("origin <> log"), "log", "origin")


def _figures(seen: DataFrame, *of: str) -> DataFrame:
    """Per hour in which entries came into the log."""
    delay = F.expr("double(unix_millis(recorded_at) - unix_millis(created_at)) / 1000")
    # By milliseconds, of no time zone: in some, hours begin at the half of ours.
    hour = F.expr("timestamp_millis(unix_millis(recorded_at) div 3600000 * 3600000)")
    timed = seen.select(*of, hour.alias("hour"), "recorded_at", delay.alias("delay"))
    return (
        timed.groupBy(*of, "hour")
        .agg(
            F.count("*").alias("entries"),
            F.percentile_approx("delay", [0.5, 0.95], _ACCURACY).alias("shares"),
            F.max("delay").alias("max_s"),
            F.max("recorded_at").alias("last_at"),
        )
        .select(*of, "hour", "entries", _share(0, "p50_s"), _share(1, "p95_s"), "max_s", "last_at")
    )


def _share(place: int, name: str) -> Column:
    return F.col("shares")[place].alias(name)


LAG: Final = Measure("lag", "delay of all entries of a log, per hour of arrival", LAG_SCHEMA, _lag)
STALENESS: Final = Measure(
    "staleness",
    "delay of each origin's entries in the logs of others",
    STALENESS_SCHEMA,
    _staleness,
)
