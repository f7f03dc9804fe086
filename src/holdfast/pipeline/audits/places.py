"""Whether the lake has each envelope once and each place of a log once, and left none out.

Bronze has every envelope once, sightings the places where it was seen again, quarantine what could
not be kept. Together they have every place of every log that was read.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from holdfast.pipeline.audits.shape import (
    FINDING,
    NOTICE,
    PLACE,
    Audit,
    AuditTables,
    all_of,
    as_findings,
    sentence,
)
from holdfast.pipeline.ingest.dedupe import CONFLICT
from holdfast.pipeline.lake.schema import GAP, LOST


def _rows(tables: AuditTables) -> DataFrame:
    """Every place in bronze and sightings with its id; `kept` is 1 in bronze and 0 in sightings."""
    kept = tables.bronze.select(*PLACE, "id", "recorded_at", F.lit(1).alias("kept"))
    again = tables.sightings.select(*PLACE, "id", "recorded_at", F.lit(0).alias("kept"))
    return kept.unionByName(again)


def _wrong_ids(tables: AuditTables) -> DataFrame:
    """Ids that bronze has twice, or that only sightings have."""
    rows = _rows(tables)
    wrong = rows.groupBy("id").agg(F.sum("kept").alias("times")).filter("times <> 1")
    listed = rows.join(F.broadcast(wrong), "id")
    detail = F.when(
        F.col("times") == 0, F.lit("it was seen again here, and bronze does not have it")
    ).otherwise(sentence("bronze has it {} times", "times"))
    return as_findings(listed, ORPHANS.name, FINDING, detail, at="recorded_at")


def _places_twice(tables: AuditTables) -> DataFrame:
    rows = _rows(tables)
    twice = rows.groupBy(*PLACE).agg(F.count("*").alias("times")).filter("times > 1")
    listed = rows.join(F.broadcast(twice), list(PLACE))
    detail = sentence("this place was read {} times", "times")
    return as_findings(listed, ORPHANS.name, FINDING, detail, at="recorded_at")


def _conflicts(tables: AuditTables) -> DataFrame:
    other = tables.quarantine.filter(F.col("reason") == CONFLICT)
    kept = tables.bronze.select(
        "id",
        "mesh",
        "origin",
        "entity",
        sentence(" was seen first at offset {} of log {}", "offset", "log").alias("first"),
    )
    # Conflicts are few, so they are sent to all tasks and bronze is not shuffled.
    kept = kept.join(F.broadcast(other.select("id")), "id", "left_semi")
    rows = other.join(F.broadcast(kept), "id", "left")
    before = F.coalesce(F.col("first"), F.lit(" is known"))
    detail = sentence("the same id with other bytes{}: {}", before, "detail")
    return as_findings(rows, ORPHANS.name, FINDING, detail, at="recorded_at")


def _offsets(tables: AuditTables) -> DataFrame:
    """Gaps between the places that were read of a log, and ranges that were truncated before the
    lake could read them.
    """
    read = tables.bronze.select(*PLACE).unionByName(tables.sightings.select(*PLACE))
    known_gap = F.when(F.col("reason").isin(GAP, LOST), F.col("detail"))
    everywhere = read.withColumn("gap", F.lit(None).cast("string")).unionByName(
        tables.quarantine.select(*PLACE, known_gap.alias("gap"))
    )
    order = Window.partitionBy("log", "epoch").orderBy("offset")
    holes = everywhere.select(
        "*",
        F.lag("offset").over(order).alias("before"),
        F.lag("gap").over(order).alias("gap_before"),
    ).filter("gap is not null or (gap_before is null and offset > before + 1)")
    # A reader that may read only some meshes does not get the places of the others, and a broker's
    # log lacks what had expired before. What ingest noted as a gap is missing in any case.
    partly = tables.logs.filter("not whole").select("log").distinct().withColumn("partly", F.lit(1))
    holes = holes.join(F.broadcast(partly), "log", "left")
    # What was truncated before the lake first read the log is no fault.
    excused = F.expr("(partly = 1 and gap is null) or before is null")
    severity = F.when(excused, NOTICE).otherwise(FINDING)
    hole = sentence("offsets {} to {} were not read", F.expr("before + 1"), F.expr("offset - 1"))
    return as_findings(holes, OFFSETS.name, severity, F.coalesce(F.col("gap"), hole))


def _lost(tables: AuditTables) -> DataFrame:
    """What `reads` says was read and no table has."""
    return as_findings(tables.lost, OFFSETS.name, FINDING, F.col("detail"))


ORPHANS: Final = Audit(
    "orphans",
    "ids that bronze has not or has twice, places read twice, one id with two contents",
    all_of(_wrong_ids, _places_twice, _conflicts),
)
OFFSETS: Final = Audit(
    "offsets",
    "holes in what was read of a log, and what was read and is not there",
    all_of(_offsets, _lost),
)
