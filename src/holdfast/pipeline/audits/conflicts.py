"""Where peers write over each other without knowing it.

Of two neighbouring versions of a key, the later one overrides the earlier if it is of another peer
and does not name it as its base: the rule of `rules.ledger`, for two versions that follow each
other. Each override counts once, on the day of the later one. The ledger of a node says what is
lost now: what a later version has seen after all is not in it any more, and what is lost with a
whole branch is. Vectors are left out, because all of them are kept, and tasks, because they have a
rule of their own.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from holdfast.pipeline.audits.shape import (
    NOTICE,
    Audit,
    AuditTables,
    Measure,
    as_findings,
    sentence,
)
from holdfast.pipeline.lake.schema import described
from holdfast.rules.limits import HOT_SPOT_OVERRIDES

FAMILIES: Final = ("state", "memory", "file")
_KEY: Final = ("mesh", "family", "owner", "entity")

CONFLICTS_SCHEMA: Final = described(
    """
    mesh string: the mesh of the key
    family string: state, memory or file
    owner string: whose memory or file it is; empty for state
    entity string: the key or path
    day date: the UTC day of the overriding versions
    overrides bigint: how many versions replaced one that their writer had not seen
    peers bigint: how many peers wrote these versions
    last_at timestamp: when the last of them was written, by the clock of its writer
    """
)


def overrides(bronze: DataFrame) -> DataFrame:
    """The versions that replaced a version which their writer had not seen."""
    lww = bronze.filter(F.col("family").isin(*FAMILIES)).select(
        *_KEY, "lamport", "origin", "id", "base_lamport", "base_peer", "created_at"
    )
    # With the hash of the key first: Spark sorts one number much faster than four texts.
    hashed = lww.withColumn("hash", F.xxhash64(*_KEY))
    order = Window.partitionBy("hash", *_KEY).orderBy("lamport", "origin", "id")
    return hashed.select(
        *_KEY,
        "origin",
        "id",
        "created_at",
        F.lag("origin").over(order).alias("lost"),
        "base_lamport",
        "base_peer",
        F.lag("lamport").over(order).alias("lost_lamport"),
    ).filter("lost <> origin and not (base_lamport <=> lost_lamport and base_peer <=> lost)")


def _per_day(tables: AuditTables) -> DataFrame:
    found = overrides(tables.bronze)
    # The UTC day, whatever the time zone of the session.
    day = F.expr("date_from_unix_date(int(unix_millis(created_at) div 86400000))")
    return found.groupBy(*_KEY, day.alias("day")).agg(
        F.count("*").alias("overrides"),
        F.count_distinct("origin").alias("peers"),
        F.max("created_at").alias("last_at"),
    )


def _hot_spots(tables: AuditTables) -> DataFrame:
    spots = (
        overrides(tables.bronze)
        .groupBy(*_KEY)
        .agg(
            F.count("*").alias("times"),
            F.count_distinct("origin").alias("peers"),
            F.max("created_at").alias("at"),
        )
        .filter(F.col("times") >= HOT_SPOT_OVERRIDES)
    )
    detail = sentence(
        "{}: {} writes of {} peers replaced one that they had not seen", "family", "times", "peers"
    )
    # The owner of the memory or file; state has none.
    owner = F.expr("nullif(owner, '')")
    return as_findings(spots, HOT_SPOTS.name, NOTICE, detail, origin=owner)


HOT_SPOTS: Final = Audit(
    "hot_spots", "keys that peers keep writing over without having seen each other", _hot_spots
)
CONFLICTS: Final = Measure("conflicts", "overrides per key and day", CONFLICTS_SCHEMA, _per_day)
