"""What every audit is: a pure function from the lake's tables to rows of one shape.

An audit gives a row for each thing that is wrong. A **finding** is something that the rules of
Holdfast exclude: if the lake saw it, something is broken or a peer has cheated. A **notice** is
something that may rightly happen and that a person may want to know.

A measure gives a table of figures over time, and judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from holdfast.pipeline.lake import schema as schemas
from holdfast.pipeline.lake.schema import arrow_schema, columns, described

FINDING: Final = "finding"
NOTICE: Final = "notice"

FINDINGS: Final = described(
    """
    audit string: the audit that found it
    severity string: `finding` for what the rules exclude, `notice` for what may be
    mesh string: the mesh that it is about
    log string: the log in which it was seen
    epoch bigint: the epoch of that log
    offset bigint: the place in that epoch of the log
    origin string: the peer that wrote what it is about
    entity string: the key, path or task that it is about
    id string: the envelope that it is about
    detail string: what is wrong, in a sentence
    at timestamp: when it was recorded, by the clock of the node that recorded it
    """
)
"""What is wrong, where it was seen, and when; columns that do not apply are null."""

LOGS: Final = columns(
    "log string, epoch bigint, first bigint, head bigint, whole boolean, consumer string, "
    "frontier bigint"
)
"""What nodes said about their logs: a row for each reader of each log, or one without a reader."""

POSITIONS: Final = schemas.PLACE
"""How far the lake has read each log."""

PLACE: Final = tuple(POSITIONS.names)
_HEADER: Final = ("mesh", "origin", "origin_epoch", "seq", "lamport", "created_at")


@dataclass(frozen=True, kw_only=True)
class AuditTables:
    """The tables that audits read."""

    bronze: DataFrame
    sightings: DataFrame
    quarantine: DataFrame
    seen: DataFrame
    """Every place where an envelope of bronze was read, made by `sighted`."""
    strong: DataFrame
    """The rows of bronze that are strong writes: the only ones whose bytes are opened."""
    tasks: DataFrame
    task_events: DataFrame
    logs: DataFrame
    """`LOGS`; empty if no node was asked."""
    positions: DataFrame
    """`POSITIONS`."""
    lost: DataFrame
    """`LOST_PLACES`: what was read and is not there."""
    consumer: str
    """The name by which the lake reads logs."""


@dataclass(frozen=True)
class Audit:
    """One audit: `find` gives rows with the columns of `FINDINGS`."""

    name: str
    about: str
    find: Callable[[AuditTables], DataFrame]


@dataclass(frozen=True)
class Measure:
    """One measure: `take` gives the rows of its table."""

    name: str
    about: str
    schema: StructType
    take: Callable[[AuditTables], DataFrame]


def all_of(*finds: Callable[[AuditTables], DataFrame]) -> Callable[[AuditTables], DataFrame]:
    """One audit made of several: the rows of all of them."""
    return lambda tables: reduce(DataFrame.unionByName, [find(tables) for find in finds])


def sighted(bronze: DataFrame, sightings: DataFrame) -> DataFrame:
    """All places where envelopes were read, with the few columns that audits compare."""
    first = bronze.select(*PLACE, "id", "recorded_at", *_HEADER)
    again = sightings.select(*PLACE, "id", "recorded_at").join(
        bronze.select("id", *_HEADER), on="id"
    )
    return first.unionByName(again)


def small_table(
    spark: SparkSession, rows: Sequence[Sequence[Any]], schema: StructType
) -> DataFrame:
    """A frame of a few rows that the driver has. As Arrow they become part of the plan, and no job
    has to fetch them.
    """
    named = [dict(zip(schema.names, row, strict=True)) for row in rows]
    return spark.createDataFrame(pa.Table.from_pylist(named, schema=arrow_schema(schema)), schema)


def settled(rows: DataFrame, positions: DataFrame) -> DataFrame:
    """The rows up to the positions of bronze. Sightings and quarantine are committed before bronze,
    so they may be ahead after a job was killed; the next job puts that right.
    """
    read = F.broadcast(positions.withColumnRenamed("offset", "read"))
    reached = (rows["log"] == read["log"]) & (rows["epoch"] == read["epoch"])
    return rows.join(read, reached & (rows["offset"] <= read["read"]), "left_semi")


def is_own() -> Column:
    """Of rows of `seen`: whether it is the origin's own log, in the epoch in which the origin wrote
    the envelope. There its envelopes lie in the order in which they were written. After a restore
    the log may also hold older ones that came back from other nodes.
    """
    return (F.col("log") == F.col("origin")) & (F.col("epoch") == F.col("origin_epoch"))


def as_findings(
    frame: DataFrame, audit: str, severity: str | Column, detail: Column, **known: Column | str
) -> DataFrame:
    """Rows as findings. Columns come from `known`, else from the frame by name, else are null."""
    given: dict[str, Column] = {
        "audit": F.lit(audit),
        "severity": F.lit(severity) if isinstance(severity, str) else severity,
        "detail": detail,
        **{name: F.col(of) if isinstance(of, str) else of for name, of in known.items()},
    }
    here = set(frame.columns)
    columns = []
    for field in FINDINGS.fields:
        if field.name in given:
            column = given[field.name]
        else:
            column = F.col(field.name) if field.name in here else F.lit(None)
        columns.append(column.cast(field.dataType).alias(field.name))
    return frame.select(*columns)


def sentence(text: str, *parts: Column | str) -> Column:
    """The text with the parts in the places of `{}`; a part that is null is written as `?`."""
    pieces = text.split("{}")
    assert len(pieces) == len(parts) + 1, text
    columns = [F.lit(pieces[0])]
    for part, piece in zip(parts, pieces[1:], strict=True):
        column = F.col(part) if isinstance(part, str) else part
        columns += [F.coalesce(column.cast("string"), F.lit("?")), F.lit(piece)]
    return F.concat(*columns)
