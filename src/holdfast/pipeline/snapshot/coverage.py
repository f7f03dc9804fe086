"""How far a snapshot covers each log, and the last entries by which a link recognises the log.

A log is covered up to the last offset that bronze has of it. If the snapshot ends at a point in the
past, it is covered up to the first entry that was left out as later: a link that continues from
there reads that entry next. With each place go the last entries before it. A link compares them, to
be sure that it continues in the same log; in the snapshot itself most of them may be missing,
because newer entries have replaced them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.node.links.same_log import LOOK
from holdfast.node.snapshots.manifest import LogCoverage
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.reads import Position
from holdfast.rules.ids import parse_id


def log_coverage(
    spark: SparkSession, lake: Lake, bronze: DataFrame, later: DataFrame | None
) -> tuple[LogCoverage, ...]:
    """The coverage of each log in its latest epoch. `bronze`: the envelopes of these meshes;
    `later`: those of them that were left out as later than its point.
    """
    latest: dict[str, Position] = {}
    for position in lake.positions():
        if position.log not in latest or position.epoch > latest[position.log].epoch:
            latest[position.log] = position
    if not latest:
        return ()
    seen = bronze.select("log", "epoch", "offset", "id")
    sightings = lake.sightings.read(spark).select("log", "epoch", "offset", "id")
    ends = {name: (found.epoch, found.offset) for name, found in latest.items()}
    if later is not None:
        later = later.select("log", "epoch", "offset", "id")
        again = sightings.join(later.select("id"), "id", "left_semi")
        first = later.unionByName(again).groupBy("log", "epoch").agg(F.min("offset").alias("at"))
        for row in first.collect():
            epoch, offset = ends.get(row.log, (0, 0))
            if epoch == row.epoch:
                ends[row.log] = (epoch, min(offset, row["at"] - 1))
    tails = _tails(spark, seen.unionByName(sightings), bronze, ends)
    return tuple(
        LogCoverage(log=log, epoch=epoch, offset=offset, tail=tails.get(log, ()))
        for log, (epoch, offset) in sorted(ends.items())
        if offset > 0
    )


def _tails(
    spark: SparkSession, seen: DataFrame, bronze: DataFrame, ends: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Ids and fingerprints of the last entries of each log up to its end."""
    places: list[tuple[Any, ...]] = [(log, epoch, end) for log, (epoch, end) in ends.items()]
    wanted = spark.createDataFrame(places, "log string, epoch long, `end` long")
    last = (
        seen.join(F.broadcast(wanted), ["log", "epoch"])
        .where((F.col("offset") <= F.col("end")) & (F.col("offset") > F.col("end") - LOOK))
        .select("log", "offset", "id")
    )
    rows = bronze.select("id", "fingerprint").join(F.broadcast(last), "id").collect()
    tails: dict[str, list[tuple[int, str, str]]] = {}
    for row in rows:
        found = (row.offset, parse_id(row.id).hex(), bytes(row.fingerprint).hex())
        tails.setdefault(row.log, []).append(found)
    return {
        log: tuple((id, fingerprint) for _, id, fingerprint in sorted(found))
        for log, found in tails.items()
    }
