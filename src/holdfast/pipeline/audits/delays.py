"""How long changes take from their origin into each log.

Both times are those of real clocks: one of the origin, one of the node whose log it is. A negative
delay shows that the two clocks differ, and is kept as it is.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from holdfast.pipeline.audits.shape import AuditTables, Measure
from holdfast.pipeline.lake.schema import described, joined

_ACCURACY: Final = 1000
_LOG: Final = described("log string: the log that the entries came into")
_FIGURES: Final = described(
    """
    hour timestamp: the hour in which they came
    entries bigint: how many came in that hour
    p50_s double: the median of their delays, in seconds
    p95_s double: 95 of 100 had at most this delay, in seconds
    max_s double: the longest delay, in seconds
    last_at timestamp: when the last one of the hour came
    """
)
LAG_SCHEMA: Final = joined(_LOG, _FIGURES)
STALENESS_SCHEMA: Final = joined(
    _LOG, described("origin string: the peer that wrote them"), _FIGURES
)


def _lag(tables: AuditTables) -> DataFrame:
    return _figures(tables.seen, "log")


def _staleness(tables: AuditTables) -> DataFrame:
    return _figures(tables.seen.filter("origin <> log"), "log", "origin")


def _figures(seen: DataFrame, *of: str) -> DataFrame:
    """The figures of each hour in which entries came into the log."""
    delay = F.expr("double(unix_millis(recorded_at) - unix_millis(created_at)) / 1000")
    # Computed in milliseconds: in some time zones hours begin at our half hour.
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
