"""What every audit is: a pure function from the lake's tables to rows of one shape.

An audit gives a row for each thing that is wrong, and none when nothing is. A **finding** is
something that the rules of Holdfast exclude: if the lake saw it, something broke or somebody
cheated. A **notice** is something that may happen in good order and that a person may want to know.

A measure gives a table of figures over time, and judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.pipeline.lake.delta import arrow_schema

FINDING: Final = "finding"
NOTICE: Final = "notice"

_TEXT: Final = StringType()
_LONG: Final = LongType()

FINDINGS: Final = StructType(
    [
        StructField("audit", _TEXT),
        StructField("severity", _TEXT),
        StructField("mesh", _TEXT),
        StructField("log", _TEXT),
        StructField("epoch", _LONG),
        StructField("offset", _LONG),
        StructField("origin", _TEXT),
        StructField("entity", _TEXT),
        StructField("id", _TEXT),
        StructField("detail", _TEXT),
        StructField("at", TimestampType()),
    ]
)
"""What is wrong, where it was seen, and when; a column that has nothing to say is null."""

LOGS: Final = StructType(
    [
        StructField("log", _TEXT),
        StructField("epoch", _LONG),
        StructField("first", _LONG),
        StructField("head", _LONG),
        StructField("whole", BooleanType()),
        StructField("consumer", _TEXT),
        StructField("frontier", _LONG),
    ]
)
"""What nodes said of their logs: a row for each reader of each, or one without a reader."""

POSITIONS: Final = StructType(
    [StructField("log", _TEXT), StructField("epoch", _LONG), StructField("offset", _LONG)]
)
"""How far the lake has read each log."""

PLACE: Final = ("log", "epoch", "offset")
_HEADER: Final = ("mesh", "origin", "origin_epoch", "seq", "lamport", "created_at")


@dataclass(frozen=True, kw_only=True)
class AuditTables:
    """What audits look at."""

    bronze: DataFrame
    sightings: DataFrame
    quarantine: DataFrame
    seen: DataFrame
    """Every place where an envelope of bronze was read, as `sighted` makes it."""
    strong: DataFrame
    """The rows of bronze that are strong writes: the only ones whose bytes are opened."""
    tasks: DataFrame
    task_events: DataFrame
    logs: DataFrame
    """`LOGS`; empty if no node was asked."""
    positions: DataFrame
    """`POSITIONS`."""
    consumer: str
    """The name by which the lake reads logs."""


@dataclass(frozen=True)
class Audit:
    """One question. Its answer has the columns of `FINDINGS`."""

    name: str
    about: str
    find: Callable[[AuditTables], DataFrame]


@dataclass(frozen=True)
class Measure:
    """One table of figures."""

    name: str
    about: str
    schema: StructType
    take: Callable[[AuditTables], DataFrame]


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
    """A few rows that the driver knows. As Arrow they become part of the plan, and no job has to
    fetch them.
    """
    named = [dict(zip(schema.names, row, strict=True)) for row in rows]
    return spark.createDataFrame(pa.Table.from_pylist(named, schema=arrow_schema(schema)), schema)


def settled(rows: DataFrame, positions: DataFrame) -> DataFrame:
    """Those that bronze has come to. Sightings and quarantine are committed before it, so after a
    job was killed they may be ahead; the next job puts that right.
    """
    read = F.broadcast(positions.withColumnRenamed("offset", "read"))
    reached = (rows["log"] == read["log"]) & (rows["epoch"] == read["epoch"])
    return rows.join(read, reached & (rows["offset"] <= read["read"]), "left_semi")


def is_own() -> Column:
    """Of `seen`: an origin's own log, in the generation in which it wrote this. There everything
    that it wrote lies in the order in which it was written. After a restore the log may hold
    older entries of the same origin that came back to it by other ways.
    """
    return (F.col("log") == F.col("origin")) & (F.col("epoch") == F.col("origin_epoch"))


def told(
    frame: DataFrame, audit: str, severity: str | Column, detail: Column, **known: Column | str
) -> DataFrame:
    """Rows as findings. Columns come from the frame by their names, from `known`, or are null."""
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
    """A text with `{}` in the places of the parts; a part that is null is written as `?`."""
    pieces = text.split("{}")
    assert len(pieces) == len(parts) + 1, text
    columns = [F.lit(pieces[0])]
    for part, piece in zip(parts, pieces[1:], strict=True):
        column = F.col(part) if isinstance(part, str) else part
        columns += [F.coalesce(column.cast(_TEXT), F.lit("?")), F.lit(piece)]
    return F.concat(*columns)
