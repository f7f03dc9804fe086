"""Whether two commits were made under one fence.

A strong write carries its fence: the lease epoch, the coordinator and the sequence number under
which it was decided. One lease epoch of a mesh has one coordinator, and one sequence number decides
one write. The fence stands only in the bytes of the envelope, so the bytes of strong writes, and of
no others, are decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from holdfast.pipeline.audits.shape import FINDING, PLACE, Audit, AuditTables, as_findings, sentence
from holdfast.rules.envelope import decode_trusted

_CARRIED: Final = (*PLACE, "mesh", "origin", "entity", "id", "created_at")
_FENCED: Final = (
    "log string, epoch bigint, offset bigint, mesh string, origin string, entity string, "
    "id string, created_at timestamp, lease_epoch bigint, coordinator string, sequence bigint"
)


def _fences(tables: AuditTables) -> DataFrame:
    committed = tables.strong.filter(F.col("state") == "committed")
    fenced = committed.select(*_CARRIED, "raw").mapInArrow(open_fences, _FENCED)
    lease = Window.partitionBy("mesh", "lease_epoch")
    decided = lease.partitionBy("mesh", "lease_epoch", "coordinator", "sequence")
    rows = fenced.select(
        "*",
        F.min("coordinator").over(lease).alias("least"),
        F.max("coordinator").over(lease).alias("most"),
        F.count("*").over(decided).alias("times"),
    ).filter("least <> most or times > 1")
    under = sentence(
        "sequence {} of {} in lease epoch {}", "sequence", "coordinator", "lease_epoch"
    )
    detail = F.when(
        F.col("times") > 1, sentence("{} writes were committed under {}", "times", under)
    ).otherwise(
        sentence("{}, which has another coordinator too: {} and {}", under, "least", "most")
    )
    return as_findings(rows, FENCES.name, FINDING, detail, at="created_at")


def open_fences(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows that carry a fence, with its three parts as columns."""
    for batch in batches:
        fences = [decode_trusted(raw).fence for raw in batch.column("raw").to_pylist()]
        kept = pa.array([fence is not None for fence in fences], pa.bool_())
        there = [fence for fence in fences if fence is not None]
        carried = batch.select(list(_CARRIED)).filter(kept)
        yield pa.RecordBatch.from_arrays(
            [
                *carried.columns,
                pa.array([fence.lease_epoch for fence in there], pa.int64()),
                pa.array([fence.coordinator for fence in there], pa.string()),
                pa.array([fence.sequence for fence in there], pa.int64()),
            ],
            names=[*_CARRIED, "lease_epoch", "coordinator", "sequence"],
        )


FENCES: Final = Audit("fences", "two commits, or two coordinators, under one fence", _fences)
