"""Which envelopes of the lake one node must have: those that its log held up to an offset.

The lake knows every place where an envelope was seen: the first in bronze, later ones in
`sightings`, and those where its id came with other bytes in `quarantine`. For a log that was never
restored, the places of its one epoch count.

A log that was restored has a new epoch, keeps its entries up to the point of the backup, and is
read again from the first entry that it still has. From there on only the places of the new epoch
count: this node has lost what the old epoch had beyond that point. Below it, where the log had been
truncated already, the places of the epoch before count: they were the same in both epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.fold.fold import fold_family
from holdfast.pipeline.ingest.dedupe import CONFLICT
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import GAP, LOST
from holdfast.rules import digests as rules


class OffsetRange(NamedTuple):
    """Offsets of one epoch, both ends included."""

    epoch: int
    first: int
    last: int


class Reached(NamedTuple):
    """How much of one log's epoch the lake has read."""

    first: int
    last: int
    gaps: tuple[int, ...] = ()
    """The first offsets of ranges that were truncated before the lake could read them."""


ReadRanges = Mapping[str, Mapping[int, Reached]]
"""By log and epoch."""


def read_ranges(spark: SparkSession, lake: Lake, logs: Sequence[str]) -> ReadRanges:
    """What the lake has of some logs, by one small job."""
    is_gap = F.col("reason").isin(GAP, LOST)
    kept = [table.read(spark) for table in (lake.bronze, lake.sightings)]
    places = [*(rows.withColumn("reason", F.lit("")) for rows in kept), lake.quarantine.read(spark)]
    narrow = [rows.select("log", "epoch", "offset", "reason") for rows in places]
    reached = (
        reduce(DataFrame.unionByName, narrow)
        .where(F.col("log").isin(list(logs)))
        .groupBy("log", "epoch")
        .agg(
            F.min(F.when(~is_gap, F.col("offset"))).alias("first"),
            F.max(F.when(~is_gap, F.col("offset"))).alias("last"),
            F.collect_set(F.when(is_gap, F.col("offset"))).alias("gaps"),
        )
    )
    found: dict[str, dict[int, Reached]] = {log: {} for log in logs}
    for row in reached.where(F.col("first").isNotNull()).collect():
        log, epoch = row["log"], row["epoch"]
        # The lake may not be allowed to read the last entries; its position counts them.
        last = max(row["last"], lake.position(log, epoch) or 0)
        found[log][epoch] = Reached(row["first"], last, tuple(sorted(row["gaps"])))
    return found


def ranges_of(
    read: Mapping[int, Reached], epoch: int, first: int, head: int
) -> tuple[list[OffsetRange], str]:
    """The ranges of offsets that count for a log with these bounds, newest first, and a sentence
    about what the lake has not read, or an empty text. Without ranges the node cannot be judged.
    """
    current = read.get(epoch)
    if current is None and first > head:
        # The log is empty in this epoch.
        current = Reached(first, head)
    if current is None or current.last < head:
        last = 0 if current is None else current.last
        return [], f"of epoch {epoch} the lake has read up to offset {last}, the log ends at {head}"
    spans = [OffsetRange(epoch, min(current.first, head + 1), head)]
    gaps = [at for at in current.gaps if current.first < at <= head]
    for before in sorted((known for known in read if known < epoch), reverse=True):
        below = spans[-1].first - 1
        earlier = read[before]
        if earlier.first <= below:
            spans.append(OffsetRange(before, earlier.first, min(earlier.last, below)))
            if earlier.last < below:
                gaps.append(earlier.last + 1)
            gaps += [at for at in earlier.gaps if earlier.first < at <= below]
    if spans[-1].first > 1:
        gaps.append(1)
    if not gaps:
        return spans, ""
    return spans, f"the lake has gaps in this log, from offset {', '.join(map(str, sorted(gaps)))}"


class Scope(NamedTuple):
    """What one node must hold, of the envelopes that the lake has."""

    number: int
    log: str
    spans: Sequence[OffsetRange]
    first: int
    """The first offset that its log still has."""
    forgotten: Mapping[str, int]
    """By mesh: the stamp up to which the node may have forgotten deleted rows."""

    def tag(self, mesh: str) -> str:
        """The name of a mesh with the number of this node, to keep it apart from other nodes."""
        return f"{self.number}/{mesh}"


def untagged(tag: str) -> str:
    return tag.partition("/")[2]


def envelopes_of(spark: SparkSession, lake: Lake, scopes: Sequence[Scope]) -> DataFrame:
    """The rows of bronze that count for each scope, with the offset that they have in its log.
    Their meshes have the tag of the scope, so that one fold can serve all nodes.
    """
    bronze = lake.bronze.read(spark)
    again = [
        lake.sightings.read(spark),
        lake.quarantine.read(spark).where(F.col("reason") == CONFLICT),
    ]
    places = [
        _scoped(frame, scopes).select("id", "scope", F.col("offset").alias("seen"))
        for frame in again
    ]
    first = _scoped(bronze, scopes).withColumn("seen", F.col("offset"))
    later = bronze.join(reduce(DataFrame.unionByName, places), "id")
    mesh = F.concat(F.col("scope").cast("string"), F.lit("/"), F.col("mesh"))
    return first.unionByName(later).withColumn("mesh", mesh)


def expected(held: DataFrame, scopes: Sequence[Scope]) -> dict[str, DataFrame]:
    """By table: the rows that the nodes must hold, which are the fold of the envelopes that count
    for each; and as `log` the entries that its log still has.
    """
    about = rows_of(scopes)
    frames = {table: fold_family(table, held, about) for table in rules.TABLES if table != "log"}
    still = _any(
        (F.col("scope") == scope.number) & (F.col("seen") >= scope.first) for scope in scopes
    )
    return {**frames, "log": held.where(still).select("mesh", "id", "raw")}


def rows_of(scopes: Sequence[Scope]) -> int:
    """About how many envelopes count."""
    return sum(span.last - span.first + 1 for scope in scopes for span in scope.spans)


def _scoped(places: DataFrame, scopes: Sequence[Scope]) -> DataFrame:
    """The places, each once for every scope for which it counts."""
    inside = [F.when(_at(scope), F.lit(scope.number)) for scope in scopes]
    found = places.where(_any(_at(scope) for scope in scopes))
    return found.withColumn("scope", F.explode(F.array_compact(F.array(*inside))))


def _at(scope: Scope) -> Column:
    spans = (
        (F.col("epoch") == span.epoch) & F.col("offset").between(span.first, span.last)
        for span in scope.spans
    )
    return (F.col("log") == scope.log) & _any(spans)


def _any(conditions: Iterable[Column]) -> Column:
    return reduce(lambda one, other: one | other, conditions, F.lit(False))
