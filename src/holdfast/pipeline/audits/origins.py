"""The numbers and stamps that each origin gave its envelopes: gaps, repeats, wrong stamps.

An origin numbers its envelopes of a mesh without gaps. After a restore it counts in a new epoch and
goes on from where the backup stood, so that a number may come again in another epoch, never in the
same one. Two ids with one number of one epoch mean that two homes claim to be one origin.

What a gap means depends on what the lake has read. If the origin's own log was read on both sides
of it, the entry is lost: a finding. Otherwise it may be on its way, or a filter may have kept it
out of the logs that were read: then all gaps of an origin are one notice.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from holdfast.pipeline.audits.shape import (
    FINDING,
    NOTICE,
    PLACE,
    Audit,
    AuditTables,
    as_findings,
    is_own,
    sentence,
)
from holdfast.pipeline.lake.schema import GAP, LOST
from holdfast.rules.limits import LAMPORT_LEAP_MAX

_COUNTED: Final = ("mesh", "origin", "origin_epoch")


def _in_order(tables: AuditTables) -> DataFrame:
    """Every envelope with its neighbours in the order of its origin. `*_1` is the one before, `*_2`
    the one before that; both may be of an earlier epoch.
    """
    order = Window.partitionBy("mesh", "origin").orderBy("origin_epoch", "seq", "lamport", "id")
    return tables.bronze.select(
        *PLACE, *_COUNTED, "seq", "lamport", "id", "entity", "created_at", "base_lamport"
    ).select(
        "*",
        F.lag("origin_epoch").over(order).alias("epoch_1"),
        F.lag("seq").over(order).alias("seq_1"),
        F.lag("lamport").over(order).alias("lamport_1"),
        F.lag("id").over(order).alias("id_1"),
        F.lag("origin_epoch", 2).over(order).alias("epoch_2"),
        F.lag("seq", 2).over(order).alias("seq_2"),
        F.lead("origin_epoch").over(order).alias("epoch_after"),
        F.lead("seq").over(order).alias("seq_after"),
        F.lead("id").over(order).alias("id_after"),
    )


def _same_as_before() -> Column:
    return F.expr("coalesce(epoch_1 = origin_epoch and seq_1 = seq, false)")


def _same_as_after() -> Column:
    return F.expr("coalesce(epoch_after = origin_epoch and seq_after = seq, false)")


def _repeats(tables: AuditTables) -> DataFrame:
    rows = _in_order(tables).filter(_same_as_before() | _same_as_after())
    other = F.when(_same_as_before(), F.col("id_1")).otherwise(F.col("id_after"))
    detail = sentence(
        "number {} of epoch {} is also that of {}: two homes claim to be {}",
        "seq",
        "origin_epoch",
        other,
        "origin",
    )
    return as_findings(rows, REPEATS.name, FINDING, detail, at="created_at")


def _gaps(tables: AuditTables) -> DataFrame:
    holes = (
        _in_order(tables)
        .withColumn("inside", F.expr("epoch_1 <=> origin_epoch"))
        .withColumn("begin", F.expr("coalesce(seq_1, 0) + 1"))
        .filter("seq > begin")
        .join(F.broadcast(_own_spans(tables)), list(_COUNTED), "left")
    )
    # Whether the origin's own log was read before the gap and after it.
    surely = F.expr(
        "coalesce(own_last >= seq and case when inside then own_first <= seq_1"
        " else epoch_1 is null and log_first = 1 end, false)"
    )
    holes = holes.withColumn("lost", surely)
    # One row for each finding, and one for all other gaps of an origin.
    one_by_one = F.when(F.col("lost"), F.col("seq"))
    ranges = holes.groupBy(*_COUNTED, "lost", one_by_one.alias("number")).agg(
        F.count("*").alias("holes"),
        F.sum(F.expr("seq - begin")).alias("missing"),
        F.min("begin").alias("begin"),
        F.max(F.expr("seq - 1")).alias("end"),
        F.min(F.when(F.col("lost"), F.col("id"))).alias("id"),
        F.max("created_at").alias("at"),
    )
    detail = F.when(
        F.col("lost"),
        sentence(
            "numbers {} to {} of epoch {} are missing, and the origin's own log was read past them",
            "begin",
            "end",
            "origin_epoch",
        ),
    ).otherwise(
        sentence(
            "{} numbers of epoch {} between {} and {} are missing (holes: {}); the origin's own "
            "log was not read there",
            "missing",
            "origin_epoch",
            "begin",
            "end",
            "holes",
        )
    )
    return as_findings(ranges, GAPS.name, F.when(F.col("lost"), FINDING).otherwise(NOTICE), detail)


def _own_spans(tables: AuditTables) -> DataFrame:
    """The first and last number that were read of each origin's own log, and its first offset."""
    spans = (
        tables.seen.filter(is_own())
        .groupBy(*_COUNTED)
        .agg(F.min("seq").alias("own_first"), F.max("seq").alias("own_last"))
    )
    # The entry at offset 1 may be of another origin, or unreadable.
    begins = (
        tables.seen.select(*PLACE)
        .unionByName(tables.quarantine.filter(~F.col("reason").isin(GAP, LOST)).select(*PLACE))
        .groupBy(F.col("log").alias("origin"), F.col("epoch").alias("origin_epoch"))
        .agg(F.min("offset").alias("log_first"))
    )
    return spans.join(begins, ["origin", "origin_epoch"], "left")


def _stamps(tables: AuditTables) -> DataFrame:
    rows = _in_order(tables)
    # Next to a number that two homes claim, the order is not known.
    alone = ~_same_as_before() & ~_same_as_after()
    alone &= ~F.expr("coalesce(epoch_2 = epoch_1 and seq_2 = seq_1, false)")
    back = alone & F.expr("epoch_1 = origin_epoch and lamport <= lamport_1")
    leap = F.expr(f"lamport - coalesce(lamport_1, 0) > {LAMPORT_LEAP_MAX}")
    wrong = F.concat_ws(
        "; ",
        F.when(
            back,
            sentence(
                "number {} has stamp {}, not after stamp {} of number {}",
                "seq",
                "lamport",
                "lamport_1",
                "seq_1",
            ),
        ),
        F.when(
            F.expr("base_lamport >= lamport"),
            sentence("stamp {} replaces {}, which is not older", "lamport", "base_lamport"),
        ),
        F.when(
            leap,
            sentence("stamp {} is over 2^48 ahead of {}", "lamport", F.expr("nvl(lamport_1, 0)")),
        ),
    )
    found = rows.withColumn("wrong", wrong).filter("wrong <> ''")
    return as_findings(found, STAMPS.name, FINDING, F.col("wrong"), at="created_at").unionByName(
        _own_order(tables)
    )


def _own_order(tables: AuditTables) -> DataFrame:
    """Entries of an origin's own log that are not in the order in which it wrote them."""
    order = Window.partitionBy("log", "epoch", "mesh").orderBy("offset")
    rows = (
        tables.seen.filter(is_own())
        .withColumn("seq_1", F.lag("seq").over(order))
        .withColumn("offset_1", F.lag("offset").over(order))
    )
    # The same number at two places is found by the audit `orphans`.
    found = rows.filter("seq < seq_1")
    detail = sentence(
        "number {} lies at offset {} of the origin's own log, after number {} at offset {}",
        "seq",
        "offset",
        "seq_1",
        "offset_1",
    )
    return as_findings(found, STAMPS.name, FINDING, detail, at="created_at")


GAPS: Final = Audit("gaps", "numbers that an origin gave and no log had", _gaps)
REPEATS: Final = Audit("repeats", "numbers that an origin gave twice", _repeats)
STAMPS: Final = Audit("stamps", "stamps that do not grow, or leap, or replace newer ones", _stamps)
