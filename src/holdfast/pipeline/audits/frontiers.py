"""Whether logs kept what their readers had not confirmed, and whether readers confirmed only what
is there.

A log may truncate what all its readers have confirmed, and the lake confirms what it has committed.
So a log begins at most one place after the lowest frontier, no frontier is past the end of its log,
and no frontier of the lake is past what bronze has. Only nodes that were asked are judged.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holdfast.pipeline.audits.shape import (
    FINDING,
    NOTICE,
    Audit,
    AuditTables,
    all_of,
    as_findings,
    sentence,
)


def _forgotten(tables: AuditTables) -> DataFrame:
    rows = tables.logs.filter("first > frontier + 1")
    detail = sentence(
        "the log begins at {}, but its reader {} has confirmed only up to {}",
        "first",
        "consumer",
        "frontier",
    )
    return as_findings(rows, FRONTIERS.name, FINDING, detail, offset="first")


def _past_end(tables: AuditTables) -> DataFrame:
    rows = tables.logs.filter("frontier > head")
    detail = sentence(
        "its reader {} has confirmed up to {}, but the log ends at {}: it went back in time",
        "consumer",
        "frontier",
        "head",
    )
    return as_findings(rows, FRONTIERS.name, FINDING, detail, offset="frontier")


def _unread(tables: AuditTables) -> DataFrame:
    """Entries that were truncated before the lake read them; one row for each log."""
    logs = tables.logs.groupBy("log", "epoch").agg(F.min("first").alias("first"))
    known = tables.positions.withColumnRenamed("offset", "read")
    in_epoch = logs.join(known, ["log", "epoch"], "left")
    gone = in_epoch.filter("first > coalesce(read, 0) + 1").withColumn(
        "began", F.col("read").isNull()
    )
    # A lake that starts to read a log late cannot have what was truncated before: only a notice.
    detail = F.when(
        F.col("began"),
        sentence("the log begins at {}, and nothing of this epoch was read before", "first"),
    ).otherwise(
        sentence("offsets {} to {} are gone unread", F.expr("read + 1"), F.expr("first - 1"))
    )
    severity = F.when(F.col("began"), NOTICE).otherwise(FINDING)
    return as_findings(gone, FRONTIERS.name, severity, detail, offset="first")


def _confirmed_unread(tables: AuditTables) -> DataFrame:
    ours = tables.logs.filter(F.col("consumer").endswith(tables.consumer))
    known = tables.positions.withColumnRenamed("offset", "read")
    rows = ours.join(known, ["log", "epoch"]).filter("frontier > read")
    detail = sentence(
        "the lake has confirmed up to {} and holds the log only up to {}", "frontier", "read"
    )
    return as_findings(rows, FRONTIERS.name, FINDING, detail, offset="frontier")


def _confirmed_lost(tables: AuditTables) -> DataFrame:
    """Places up to which a node may forget, and which the lake does not hold."""
    rows = tables.lost.filter("offset <= confirmed")
    detail = sentence("the lake has confirmed up to {}, but {}", "confirmed", "detail")
    return as_findings(rows, FRONTIERS.name, FINDING, detail)


FRONTIERS: Final = Audit(
    "frontiers",
    "logs that forgot too much, readers that confirmed too much",
    all_of(_forgotten, _past_end, _unread, _confirmed_unread, _confirmed_lost),
)
