"""Which rows of a batch are new, which were seen before, and which cannot be kept in bronze.

An envelope is known by its id. Its first sighting goes to bronze; later ones, of the same bytes,
are sightings; the same id with other bytes is a conflict, and both are kept: one in bronze, the
other in quarantine. The first is the one that bronze has; within a batch it is the one that was
recorded first, then the lesser place. So it does not matter in which order tasks happen to run.

Only files of bronze that may hold one of the batch's ids are looked at: by the day in the id, and
by the bounds of the ids in each file. The cost follows the batch and not the lake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from holdfast.pipeline.ingest.plan import Key
from holdfast.pipeline.lake import schema
from holdfast.pipeline.lake.delta import File, Table
from holdfast.pipeline.lake.lake import Lake, log_app
from holdfast.rules.bodies import OPS

PLACE: Final = tuple(schema.PLACE.names)
_WHO: Final = (*PLACE, "id", "recorded_at")
"""What is needed of a row of bronze to compare with."""

NEW: Final = "new"
AGAIN: Final = "again"
CONFLICT: Final = "id_conflict"
UNREAD: Final = "unread"
UNKNOWN_OP: Final = "unknown_op"

_FIRST, _FREE, _NOTED = 0, 1, 2
"""What an interrupted run has said of a place: it was the first of its id; nothing; it was not."""


def is_read() -> Column:
    """Of staged rows: could the envelope be read? One that could not has no number, and its problem
    stands where its family would.
    """
    return F.col("seq").isNotNull()


def is_known_op() -> Column:
    return F.col("op").isin(sorted(OPS))


def after_positions(positions: Mapping[Key, int]) -> Column:
    """Rows that lie after the place where the lake is."""
    seen = F.lit(False)
    for (log, epoch), offset in sorted(positions.items()):
        seen = seen | (
            (F.col("log") == log) & (F.col("epoch") == epoch) & (F.col("offset") <= offset)
        )
    return ~seen


def candidate_files(bronze: Table, staged: Iterable[File]) -> list[File]:
    """The files of bronze that may hold an id of staged files."""
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
    """Is an id of the batch in it twice, or known already?"""
    ids = batch.select("id", F.lit(1).alias("new"))
    if known is not None:
        ids = ids.unionAll(known.select("id", F.lit(0).alias("new")))
    counted = ids.groupBy("id").agg(F.sum("new").alias("new"), F.count("*").alias("all"))
    return not counted.where("new > 0 AND all > 1").isEmpty()


def interrupted_notes(spark: SparkSession, lake: Lake, ends: Mapping[Key, int]) -> DataFrame | None:
    """What a run that was stopped halfway has written of these rows, place by place. None, as
    almost always, if there is nothing of the kind.
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
            found.append(_places(spark, table, ahead).select(*PLACE, role.alias("noted")))
    if not found:
        return None
    both = found[0] if len(found) == 1 else found[0].unionAll(found[1])
    return both.groupBy(*PLACE).agg(F.min("noted").alias("noted"))


def _role_in_quarantine() -> Column:
    return F.when(F.col("reason") == UNKNOWN_OP, _FIRST).otherwise(_NOTED)


def files_about(table: Table, ranges: Mapping[Key, tuple[int, int]]) -> list[File]:
    """Files that may have places in (after, upto] of some logs."""

    def may_hold(file: File) -> bool:
        return any(
            file.may_hold("log", key[0], key[0]) and file.may_hold("offset", after + 1, upto)
            for key, (after, upto) in ranges.items()
        )

    return table.files(may_hold)


def _places(spark: SparkSession, table: Table, ranges: Mapping[Key, tuple[int, int]]) -> DataFrame:
    """Rows of a table with places in (after, upto] of some logs."""
    wanted = F.lit(False)
    for (log, epoch), (after, upto) in sorted(ranges.items()):
        wanted = wanted | (
            (F.col("log") == log)
            & (F.col("epoch") == epoch)
            & F.col("offset").between(after + 1, upto)
        )
    return table.read_files(spark, files_about(table, ranges)).where(wanted)


def with_verdicts(
    batch: DataFrame, known: DataFrame | None, noted: DataFrame | None, partitions: int
) -> DataFrame:
    """The batch with a `verdict` on every row, and `noted`: null unless an interrupted run has
    written of it. Each id is in one partition.
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
    """Rows of bronze with what a batch is compared by, and nothing else."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.BRONZE.fields}
    nothing = {name: F.lit(None).cast(kind) for name, kind in kinds.items() if name not in _WHO}
    digest = F.sha2("raw", 256)
    more = {"digest": digest, "old": F.lit(True), "noted": F.lit(None).cast("int")}
    return known.withColumns(more).withColumns(nothing)


# --- the three tables ----------------------------------------------------------------------------


def for_bronze(rows: DataFrame) -> DataFrame:
    return rows.where(F.col("verdict") == NEW)


def now_first(rows: DataFrame) -> DataFrame:
    """Places that a run which was stopped noted as others than the first of their id, and that are
    the first after all: the log that was to have it did not answer this time.
    """
    return rows.where(_is_turned()).select(*PLACE)


def _is_turned() -> Column:
    return (F.col("verdict") == NEW) & F.coalesce(F.col("noted") == _NOTED, F.lit(False))


def for_sightings(rows: DataFrame) -> DataFrame:
    wanted = rows.where((F.col("verdict") == AGAIN) & F.col("noted").isNull())
    return wanted.select(*schema.SIGHTINGS.names)


def for_quarantine(rows: DataFrame) -> DataFrame:
    """What could not be read, what has the id of another, and ops that are not known."""
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
    untold = F.col("noted").isNull() | _is_turned()
    return found.where(F.col("reason").isNotNull() & untold).select(*schema.QUARANTINE.names)


class Count(NamedTuple):
    """So many rows of a log came to this. A row of an op that is not known counts as new and, under
    its reason, once more.
    """

    key: Key
    what: str
    rows: int
    end: int
    """The last of their offsets, and the id there."""
    id: str
    ids: int
    """Different ones."""


def counts_of(rows: DataFrame) -> list[Count]:
    """What became of the batch, by log; unread rows are counted by their problem."""
    unread = F.col("verdict") == UNREAD
    problem = F.substring_index(F.col("family"), ": ", 1)
    what = F.when(unread, problem).otherwise(F.col("verdict"))
    grouped = rows.groupBy("log", "epoch", what.alias("what")).agg(
        F.count("*").alias("rows"),
        F.max("offset").alias("end"),
        F.max_by("id", "offset").alias("id"),
        F.count_distinct("id").alias("ids"),
        F.count_if((F.col("verdict") == NEW) & ~is_known_op()).alias("strange"),
    )
    found: list[Count] = []
    for row in grouped.collect():
        key = (row["log"], row["epoch"])
        count = Count(key, row["what"], row["rows"], row["end"], row["id"], row["ids"])
        found.append(count)
        if row["strange"]:
            found.append(count._replace(what=UNKNOWN_OP, rows=row["strange"]))
    return found
