"""How much is written: envelopes and their bytes, per mesh, family and day."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holdfast.pipeline.audits.shape import AuditTables, Measure
from holdfast.pipeline.lake.schema import described

GROWTH_SCHEMA: Final = described(
    """
    mesh string: the mesh
    family string: the family of the envelopes
    day date: the UTC day of the times inside their ids
    rows bigint: how many envelopes there are of that day
    bytes bigint: how many bytes these envelopes have
    """
)


def _growth(tables: AuditTables) -> DataFrame:
    """Counted by the day of the time inside the id."""
    return tables.bronze.groupBy("mesh", "family", "day").agg(
        F.count("*").alias("rows"), F.sum(F.octet_length("raw").cast("bigint")).alias("bytes")
    )


GROWTH: Final = Measure(
    "growth", "envelopes and bytes per mesh, family and day", GROWTH_SCHEMA, _growth
)
