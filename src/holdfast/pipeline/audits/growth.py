"""How much is written: envelopes and their bytes, per mesh, family and day."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from holdfast.pipeline.audits.shape import AuditTables, Measure

GROWTH_SCHEMA: Final = StructType(
    [
        StructField("mesh", StringType()),
        StructField("family", StringType()),
        StructField("day", DateType()),
        StructField("rows", LongType()),
        StructField("bytes", LongType()),
    ]
)


def _growth(tables: AuditTables) -> DataFrame:
    """By the day that stands in the id."""
    return tables.bronze.groupBy("mesh", "family", "day").agg(
        F.count("*").alias("rows"), F.sum(F.octet_length("raw").cast("bigint")).alias("bytes")
    )


GROWTH: Final = Measure(
    "growth", "envelopes and bytes per mesh, family and day", GROWTH_SCHEMA, _growth
)
