"""Which rows of a batch are new, which were seen before, and which cannot be kept in bronze.

An envelope is known by its id. Its first row goes to bronze; later rows with the same bytes go to
sightings; the same id with other bytes is a conflict, and both are kept: the first in bronze, the
other in quarantine. First is the row that bronze has; within a batch it is the row that was
recorded first, then the one with the smaller place. So the order in which tasks run does not
matter.

Only files of bronze that may have one of the batch's ids are read: by the day in the id, and by the
bounds of the ids in each file. The cost depends on the batch, not on the size of the lake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from holdfast.pipeline.lake import schema
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.held import Key
from holdfast.pipeline.lake.lake import Lake, log_app
from holdfast.pipeline.lake.schema import UNKNOWN_OP
from holdfast.rules.bodies import OPS

PLACE: Final = tuple(schema.PLACE.names)
_WHO: Final = (*PLACE, "id", "recorded_at")
"""The columns of bronze that rows of a batch are compared with, besides the bytes."""

NEW: Final = "new"
AGAIN: Final = "again"
CONFLICT: Final = "id_conflict"
UNREAD: Final = "unread"

_FIRST, _FREE, _NOTED = 0, 1, 2
"""What an interrupted run has noted of a place: it is the first of its id; nothing; it is not."""


def is_read() -> Column:
    """Of staged rows: whether the envelope could be read. One that could not has no `seq`, and its
    problem stands in the column of the family.
    """
    return F.col("seq").isNotNull()


def is_known_op() -> Column:
    return F.col("op").isin(sorted(OPS))


def after_positions(positions: Mapping[Key, int]) -> Column:
    """Of rows with a place: whether they lie after these positions, by log and epoch."""
    return ~within({key: (0, offset) for key, offset in positions.items()})


def within(ranges: Mapping[Key, tuple[int, int]]) -> Column:
    """Of rows with a place: whether it lies in (after, upto] of one of these logs."""
    inside = F.lit(False)
    for (log, epoch), (after, upto) in sorted(ranges.items()):
        here = F.col("offset").between(after + 1, upto)
        inside = inside | ((F.col("log") == log) & (F.col("epoch") == epoch) & here)
    return inside


def candidate_files(bronze: Table, staged: Iterable[File]) -> list[File]:
    """The files of bronze that may have an id of the staged files."""
    bounds: dict[str | None, list[tuple[str, str] | None]] = {}
    for file in staged:
        low, high = file.low.get("id"), file.high.get("id")
        bound = None if low is None or high is None else (low, high)
        bounds.setdefault(file.partition.get("day"), []).append(bound)

    def may_hold(file: File) -> bool:
        return any(
            bound is None or file.may_hold("id", *bound)
            for bound in bounds.get(file.partition.get("day"), ())
        )

    return bronze.files(may_hold)


def any_double(batch: DataFrame, known: DataFrame | None) -> bool:
    """Whether an id is in the batch twice, or in the batch and in `known`."""
    ids = batch.select("id", F.lit(1).alias("new"))
    if known is not None:
        ids = ids.unionAll(known.select("id", F.lit(0).alias("new")))
    counted = ids.groupBy("id").agg(F.sum("new").alias("new"), F.count("*").alias("all"))
    return not counted.where("new > 0 AND all > 1").isEmpty()


def interrupted_notes(spark: SparkSession, lake: Lake, ends: Mapping[Key, int]) -> DataFrame | None:
    """What a run that was stopped between its commits has noted of these logs, place by place;
    None, as almost always, if there is nothing of the kind.
    """
    found: list[DataFrame] = []
    for table, role in (
        (lake.sightings, F.lit(_NOTED)),
        (lake.quarantine, _role_in_quarantine()),
    ):
        ahead = {
            key: (lake.position(*key) or 0, noted)
            for key in ends
            if (noted := table.txn(log_app(*key)) or 0) > (lake.position(*key) or 0)
        }
        if ahead:
            rows = table.read_files(spark, files_about(table, ahead)).where(within(ahead))
            found.append(rows.select(*PLACE, role.alias("noted")))
    if not found:
        return None
    both = found[0] if len(found) == 1 else found[0].unionAll(found[1])
    return both.groupBy(*PLACE).agg(F.min("noted").alias("noted"))


def _role_in_quarantine() -> Column:
    return F.when(F.col("reason") == UNKNOWN_OP, _FIRST).otherwise(_NOTED)


def files_about(table: Table, ranges: Mapping[Key, tuple[int, int]]) -> list[File]:
    """Files of a table that may have places in (after, upto] of some logs."""

    def may_hold(file: File) -> bool:
        return any(
            file.may_hold("log", key[0], key[0]) and file.may_hold("offset", after + 1, upto)
            for key, (after, upto) in ranges.items()
        )

    return table.files(may_hold)


def with_verdicts(
    batch: DataFrame, known: DataFrame | None, noted: DataFrame | None, partitions: int
) -> DataFrame:
    """The batch with a `verdict` for every row, and with `noted`, which is null unless an
    interrupted run has noted the place. Each id is in one partition.
    """
    if noted is None:
        batch = batch.withColumn("noted", F.lit(None).cast("int"))
    else:
        batch = batch.join(F.broadcast(noted), list(PLACE), "left")
    both = batch.where(is_read()).withColumns({"digest": F.sha2("raw", 256), "old": F.lit(False)})
    if known is not None:
        both = both.unionByName(_compared(known))
    both = both.coalesce(1) if partitions == 1 else both.repartitionByRange(partitions, "id")
    in_turn = Window.partitionBy("id").orderBy(
        F.desc("old"), F.coalesce("noted", F.lit(_FREE)), "recorded_at", *PLACE
    )
    verdict = (
        F.when(F.row_number().over(in_turn) == 1, NEW)
        .when(F.col("digest") == F.first("digest").over(in_turn), AGAIN)
        .otherwise(CONFLICT)
    )
    names = [*schema.BRONZE.names, "noted", "verdict"]
    ranked = both.withColumn("verdict", verdict).where(~F.col("old")).select(*names)
    unread = batch.where(~is_read()).withColumn("verdict", F.lit(UNREAD)).select(*names)
    return ranked.unionAll(unread)


def _compared(known: DataFrame) -> DataFrame:
    """Rows of bronze for the comparison with a batch; all other columns are null."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.BRONZE.fields}
    nothing = {name: F.lit(None).cast(kind) for name, kind in kinds.items() if name not in _WHO}
    digest = F.sha2("raw", 256)
    more = {"digest": digest, "old": F.lit(True), "noted": F.lit(None).cast("int")}
    return known.withColumns(more).withColumns(nothing)


# --- the rows of each of the three tables --------------------------------------------------------


def for_bronze(rows: DataFrame) -> DataFrame:
    return rows.where(F.col("verdict") == NEW)


def now_first(rows: DataFrame) -> DataFrame:
    """Places that an interrupted run noted as not the first of their id, and that are the first
    now, because the log that had the first did not answer this time.
    """
    return rows.where(_is_revised()).select(*PLACE)


def _is_revised() -> Column:
    return (F.col("verdict") == NEW) & F.coalesce(F.col("noted") == _NOTED, F.lit(False))


def for_sightings(rows: DataFrame) -> DataFrame:
    wanted = rows.where((F.col("verdict") == AGAIN) & F.col("noted").isNull())
    return wanted.select(*schema.SIGHTINGS.names)


def for_quarantine(rows: DataFrame) -> DataFrame:
    """Rows that could not be read, rows with the id of another, and rows with an unknown op."""
    problem = F.col("family")
    reason = (
        F.when(F.col("verdict") == UNREAD, F.substring_index(problem, ": ", 1))
        .when(F.col("verdict") == CONFLICT, CONFLICT)
        .when((F.col("verdict") == NEW) & ~is_known_op(), UNKNOWN_OP)
    )
    detail = (
        F.when(
            F.col("verdict") == UNREAD,
            problem.substr(F.instr(problem, ": ") + 2, F.length(problem)),
        )
        .when(F.col("verdict") == CONFLICT, F.lit("another envelope with this id was first"))
        .otherwise(F.concat(F.lit("op "), "op", F.lit(" is not known to this version")))
    )
    found = rows.withColumns({"reason": reason, "detail": detail})
    unnoted = F.col("noted").isNull() | _is_revised()
    return found.where(F.col("reason").isNotNull() & unnoted).select(*schema.QUARANTINE.names)


class Count(NamedTuple):
    """How many rows of a log got one verdict. A row with an unknown op counts as new and once more
    as `UNKNOWN_OP`.
    """

    key: Key
    what: str
    """The verdict; for unreadable rows the code of their problem."""
    rows: int
    end: int
    """The last offset of these rows."""
    id: str
    """The id at that offset."""
    ids: int
    """How many different ids these rows have."""
    begin: int
    """The first offset of these rows."""


def counts_of(rows: DataFrame) -> list[Count]:
    """The counts of a judged batch, by log and verdict."""
    unread = F.col("verdict") == UNREAD
    problem = F.substring_index(F.col("family"), ": ", 1)
    what = F.when(unread, problem).otherwise(F.col("verdict"))
    grouped = rows.groupBy("log", "epoch", what.alias("what")).agg(
        F.count("*").alias("rows"),
        F.max("offset").alias("end"),
        F.min("offset").alias("begin"),
        F.max_by("id", "offset").alias("id"),
        F.count_distinct("id").alias("ids"),
        F.count_if((F.col("verdict") == NEW) & ~is_known_op()).alias("strange"),
    )
    found: list[Count] = []
    for row in grouped.collect():
        key = (row["log"], row["epoch"])
        count = Count(
            key, row["what"], row["rows"], row["end"], row["id"], row["ids"], row["begin"]
        )
        found.append(count)
        if row["strange"]:
            found.append(count._replace(what=UNKNOWN_OP, rows=row["strange"]))
    return found
