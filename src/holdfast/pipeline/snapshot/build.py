"""Snapshots of the lake: what a new node needs to begin, and where it goes on.

    report = build_snapshot(spark, lake, "/backups/team", mesh="team", sign=signer_of(home))

A snapshot holds the envelopes that make the state of a mesh: of memory, state and files the one
that wins, of tasks every turn, of vectors all or the newest, and facts unless they are left out. It
holds their own bytes, so a node that starts from it (`holdfast restore --snapshot`) takes them in
as if they had come from a peer. Of a mesh with voters it holds the whole order of commits besides
(`orders.py`), and of strong envelopes nothing else. Messages are never in it: they are no state,
and their receivers get them from a broker.

Which envelopes win is found on narrow columns; their bytes then go from the lake's files straight
into the snapshot's, written by the executors. The driver gets one row for each part.

Blobs are not in the lake, so they are not in a snapshot: rows name them, nodes have them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Final
from uuid import uuid4

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.node.snapshots.manifest import MeshPoint, Signer, SnapshotManifest, VotedManifest
from holdfast.node.snapshots.parts import sum_text
from holdfast.pipeline.fold.columns import STRONG
from holdfast.pipeline.fold.winners import winners
from holdfast.pipeline.lake.lake import Lake, Progress, no_progress
from holdfast.pipeline.snapshot.coverage import log_coverage
from holdfast.pipeline.snapshot.files import (
    TAKEN,
    WRITTEN,
    SnapshotPartWritten,
    SnapshotTarget,
    write_parts,
)
from holdfast.pipeline.snapshot.orders import order_ends, write_orders
from holdfast.pipeline.spark.failures import spark_errors
from holdfast.rules.bodies import family_of
from holdfast.rules.errors import BadInput, UnknownMesh
from holdfast.rules.limits import SNAPSHOT_PART_BYTES
from holdfast.rules.message import MESSAGE
from holdfast.rules.order import ORDER_COLUMNS

VECTORS: Final = ("all", "newest")
_STEPS: Final = 4
_ONE_WINS: Final = ("state", "memory", "file")
_NEVER: Final = family_of(MESSAGE)
_DELETIONS: Final = ("state.delete", "memory.forget", "file.delete", "vector.delete")
_KEY: Final = ("mesh", "family", "owner", "entity", "model")


class SnapshotBuilt(msgspec.Struct, frozen=True, kw_only=True):
    """What a build has written."""

    target: str
    digest: str
    meshes: tuple[str, ...]
    rows: int
    counts: dict[str, int]
    parts: int
    bytes: int
    logs: dict[str, tuple[int, int]]
    """How far each log is covered: epoch and offset."""
    signed_by: str
    strays: int
    """How many files of repeated tasks and killed builds were removed."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot contains, and as of when."""

    mesh: str | None = None
    lamport: int | None = None
    at_ms: int | None = None
    facts: bool = True
    vectors: str = "all"
    deletions_since_ms: int | None = None

    def check(self) -> Point:
        if self.vectors not in VECTORS:
            raise BadInput(f"vectors are {' or '.join(VECTORS)}, not {self.vectors!r}")
        if self.lamport is not None and self.mesh is None:
            raise BadInput(
                "each mesh has a clock of its own", hint="name the mesh whose lamport it is"
            )
        if self.lamport is not None and self.at_ms is not None:
            raise BadInput("a snapshot ends at a lamport or at a time, not at both")
        return self


def build_snapshot(
    spark: SparkSession,
    lake: Lake,
    target: str,
    *,
    mesh: str | None = None,
    lamport: int | None = None,
    at: datetime | int | None = None,
    facts: bool = True,
    vectors: str = "all",
    deletions_since: datetime | int | None = None,
    sign: Signer | None = None,
    progress: Progress = no_progress,
) -> SnapshotBuilt:
    """Makes a snapshot of a mesh, or of all meshes, in a new folder, on a disk or in an object
    store that the lake's options reach: as of now, of all changes to
    the stamp `lamport`, or of what any log had recorded by `at` (milliseconds, or a time).

    `deletions_since` leaves out what was deleted before that time. A node that starts from such a
    snapshot refuses older writes, as a node does that has forgotten its deletions itself.
    """
    point = Point(
        mesh=mesh,
        lamport=lamport,
        at_ms=_ms(at),
        facts=facts,
        vectors=vectors,
        deletions_since_ms=_ms(deletions_since),
    ).check()
    with spark_errors("the snapshot"):
        return _build(spark, lake.fresh(), target, point, sign, progress)


def _build(
    spark: SparkSession,
    lake: Lake,
    target: str,
    point: Point,
    sign: Signer | None,
    progress: Progress,
) -> SnapshotBuilt:
    progress(f"snapshot: look at {lake.bronze.rows} envelopes", 0, _STEPS)
    place = SnapshotTarget(target, lake.options)
    bronze = lake.bronze.read(spark)
    if point.mesh is not None:
        bronze = bronze.where(F.col("mesh") == point.mesh)
    clocks, origins = _known(bronze)
    if not clocks:
        what = "yet" if point.mesh is None else f"of a mesh {point.mesh!r}"
        raise UnknownMesh(f"the lake holds nothing {what}", hint="fill it: holdfast pipeline run")
    ends = order_ends(spark, lake, clocks, point.at_ms)
    if ends and point.lamport is not None:
        raise BadInput(
            f"commit order decides in {min(ends)}, and a lamport is no place in it",
            hint="give a time, or take it as it is now",
        )
    place.prepare()
    progress("snapshot: what each log had", 1, _STEPS)
    entries, later = split_at(spark, lake, bronze, point)
    logs = log_coverage(spark, lake, bronze, later)
    progress("snapshot: what stays", 2, _STEPS)
    kept, dropped = _kept(entries, point)
    progress("snapshot: write the parts", 3, _STEPS)
    plain = _write(kept, place)
    written = plain + (write_orders(spark, lake, place, ends) if ends else [])
    counts: Counter[str] = Counter()
    for one in written:
        counts.update(one.counts)
    make = partial(VotedManifest, plain=len(plain), commits=ends) if ends else SnapshotManifest
    manifest = make(
        lake=lake.id,
        created_at=time.time_ns() // 1_000_000,
        meshes={
            slug: MeshPoint(clock=clock, forgotten=dropped.get(slug, 0))
            for slug, clock in sorted(clocks.items())
        },
        lamport=point.lamport,
        at=point.at_ms,
        facts=point.facts,
        vectors=point.vectors,
        counts=dict(sorted(counts.items())),
        rows=counts.total(),
        content=sum_text(sum(int(one.content, 16) for one in written)),
        logs=logs,
        origins=origins,
        parts=tuple(one.part for one in written),
    ).sealed(sign)
    place.publish(manifest.encode(), uuid4().hex)
    strays = place.remove_strays({part.path for part in manifest.parts})
    return _reported(place.root, manifest, strays)


def _reported(target: str, manifest: SnapshotManifest, strays: int) -> SnapshotBuilt:
    return SnapshotBuilt(
        target=target,
        digest=manifest.digest,
        meshes=tuple(manifest.meshes),
        rows=manifest.rows,
        counts=manifest.counts,
        parts=len(manifest.parts),
        bytes=manifest.total_bytes,
        logs={found.log: (found.epoch, found.offset) for found in manifest.logs},
        signed_by=manifest.signer,
        strays=strays,
    )


def _ms(at: datetime | int | None) -> int | None:
    if not isinstance(at, datetime):
        return at
    if at.tzinfo is None:
        raise BadInput(f"{at} does not say in which time zone", hint="add one, as +00:00")
    return int(at.timestamp() * 1000)


def _known(bronze: DataFrame) -> tuple[dict[str, int], dict[str, int]]:
    """The highest stamp of each mesh and the highest epoch of each origin in the lake, also after
    the point: a node that starts from the snapshot must be past them.
    """
    rows = (
        bronze.groupBy("mesh", "origin")
        # A strong envelope counts in no epoch of its origin.
        .agg(
            F.max("lamport").alias("clock"),
            F.max(F.when(F.col("write_class") != STRONG, F.col("origin_epoch"))).alias("counted"),
        )
        .collect()
    )
    clocks: dict[str, int] = {}
    origins: dict[str, int] = {}
    for row in rows:
        clocks[row.mesh] = max(clocks.get(row.mesh, 0), row.clock)
        origins[row.origin] = max(origins.get(row.origin, 0), row.counted or 0)
    return clocks, dict(sorted(origins.items()))


# --- which envelopes -----------------------------------------------------------------------------


def split_at(
    spark: SparkSession, lake: Lake, bronze: DataFrame, point: Point
) -> tuple[DataFrame, DataFrame | None]:
    """The envelopes up to the point and those after it; None for the latter if the point is now."""
    if point.lamport is not None:
        early = F.col("lamport") <= point.lamport
        return bronze.where(early), bronze.where(~early)
    if point.at_ms is None:
        return bronze, None
    early = F.col("recorded_at") <= F.timestamp_millis(F.lit(point.at_ms).cast("bigint"))
    # Bronze has the time of the log that was read first; another log may have been earlier.
    known = lake.sightings.read(spark).where(early).select("id").distinct()
    rest = bronze.where(~early)
    inside = bronze.where(early).unionByName(rest.join(known, "id", "left_semi"))
    return inside, rest.join(known, "id", "left_anti")


def _kept(entries: DataFrame, point: Point) -> tuple[DataFrame, Mapping[str, int]]:
    """The entries that make the state, and by mesh the highest stamp of the deletions that are left
    out.
    """
    entries = entries.where(F.col("write_class") != STRONG)
    families = [*_ONE_WINS, *(["vector"] if point.vectors == "newest" else [])]
    contested = F.col("family").isin(families)
    won = _won(entries.where(contested))
    dropped: Mapping[str, int] = {}
    if point.deletions_since_ms is not None:
        since = F.timestamp_millis(F.lit(point.deletions_since_ms))
        old = F.col("op").isin(*_DELETIONS) & (F.col("created_at") < since)
        highest = won.where(old).groupBy("mesh").agg(F.max("lamport").alias("lamport"))
        dropped = {row.mesh: row.lamport for row in highest.collect()}
        won = won.where(~old)
    whole = entries.where(~contested & (F.col("family") != _NEVER))
    if not point.facts:
        whole = whole.where(F.col("family") != "fact")
    columns = [F.col(name) for name in TAKEN]
    chosen = entries.where(contested).join(won.select("id"), "id", "left_semi")
    return chosen.select(*columns).unionByName(whole.select(*columns)), dropped


def _won(entries: DataFrame) -> DataFrame:
    """The winning entry of each key, found on narrow columns only, since most entries lose."""
    named = entries.withColumnRenamed("origin", "peer")
    return winners(named.select(*_KEY, *ORDER_COLUMNS, "op", "created_at"), _KEY)


def _write(kept: DataFrame, target: SnapshotTarget) -> list[SnapshotPartWritten]:
    """Writes the parts in the order of stamps, in which a node then takes the entries in."""
    order = TAKEN[:3]
    task = partial(write_parts, target, uuid4().hex, SNAPSHOT_PART_BYTES)
    rows = (
        kept.repartitionByRange(*order)
        .sortWithinPartitions(*order)
        .mapInArrow(task, WRITTEN)
        .collect()
    )
    written = [msgspec.msgpack.decode(row.written, type=SnapshotPartWritten) for row in rows]
    return sorted(written, key=lambda written: written.order)
