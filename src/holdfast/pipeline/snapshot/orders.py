"""The orders of commits in a snapshot: all of them, from the first on.

A node that starts from a snapshot folds them as it folds pages, so it needs records with their
envelopes and no commit may be missing. What a recovery has left behind is not in them.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from uuid import uuid4

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.snapshot.files import (
    TAKEN,
    WRITTEN,
    SnapshotPartWritten,
    SnapshotTarget,
    write_parts,
)
from holdfast.rules.errors import HasVoters
from holdfast.rules.limits import SNAPSHOT_PART_BYTES


def order_ends(
    spark: SparkSession, lake: Lake, meshes: Collection[str], at_ms: int | None
) -> dict[str, int]:
    """By mesh with voters: the last commit of the snapshot. HasVoters if the lake lacks one."""
    if not lake.commits.exists:
        return {}
    rows = _standing(spark, lake, meshes)
    lasts = rows.groupBy("mesh").agg(F.max("number").alias("last")).collect()
    ends = {row.mesh: row.last for row in lasts}
    if at_ms is not None:
        # Clocks of coordinators may disagree: an order ends before the first that is later.
        late = F.col("committed_at") > F.timestamp_millis(F.lit(at_ms).cast("bigint"))
        firsts = rows.where(late).groupBy("mesh").agg(F.min("number").alias("first")).collect()
        ends |= {row.mesh: row.first - 1 for row in firsts}
    for mesh, last in ends.items():
        lacking = lake.known_commits.first_lacking(mesh, last)
        if lacking:
            raise HasVoters(
                f"the mesh {mesh!r} has voters, and the lake has no envelope of commit {lacking}",
                hint="read a node or a backup that has it into the lake; or join the mesh again, "
                "then its members bring what was committed",
            )
    return {mesh: last for mesh, last in sorted(ends.items()) if last}


def write_orders(
    spark: SparkSession, lake: Lake, target: SnapshotTarget, ends: dict[str, int]
) -> list[SnapshotPartWritten]:
    """Writes the parts of commits, mesh by mesh, in the order of their numbers."""
    rows = _standing(spark, lake, ends).where("first")
    inside = F.lit(False)
    for mesh, last in ends.items():
        inside = inside | ((F.col("mesh") == mesh) & (F.col("number") <= last))
    known = {"lamport": F.col("number"), "origin": F.col("mesh"), "family": F.lit("commit")}
    columns = [known.get(name, F.col(name)).alias(name) for name in TAKEN]
    task = partial(write_parts, target, uuid4().hex, SNAPSHOT_PART_BYTES)
    found = (
        rows.where(inside)
        .select(*columns, "record")
        .repartitionByRange("origin", "lamport")
        .sortWithinPartitions("origin", "lamport")
        .mapInArrow(task, WRITTEN)
        .collect()
    )
    written = [msgspec.msgpack.decode(row.written, type=SnapshotPartWritten) for row in found]
    return sorted(written, key=lambda one: (one.order[1], one.order[0]))


def _standing(spark: SparkSession, lake: Lake, meshes: Collection[str]) -> DataFrame:
    """The commits of these meshes that are part of their orders."""
    rows = lake.commits.read(spark).where(F.col("mesh").isin(*sorted(meshes)))
    for mesh, cuts in lake.known_commits.lost.items():
        for cut in cuts:
            gone = (F.col("incarnation") <= cut.incarnation) & (F.col("number") >= cut.first)
            rows = rows.where(~((F.col("mesh") == mesh) & gone))
    return rows
