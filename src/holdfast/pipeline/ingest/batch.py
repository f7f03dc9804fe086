"""One batch of entries into the lake: read once, judged, made visible by at most three commits.

The rows are staged in a folder of bronze that no reader looks into. Then they are compared with
what bronze has. If all of them are new, as they mostly are when one node is read, those very files
are committed. Otherwise they are written again without the rows that were seen before.

Sightings and quarantine are committed before bronze, and all three note how far each log was read.
If bronze is behind the other two, a run was stopped in between: the rows that it has written there
are found by their places and not written again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.ingest import dedupe
from holdfast.pipeline.ingest.plan import Gap
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.files import File, Staged
from holdfast.pipeline.lake.held import Key
from holdfast.pipeline.lake.lake import ID_DAY, Lake, log_app
from holdfast.pipeline.lake.reads import Read, note_reads
from holdfast.pipeline.lake.schema import GAP, QUARANTINE, UNKNOWN_OP
from holdfast.rules.errors import LakeMoved
from holdfast.rules.limits import (
    LAKE_FILE_BYTES,
    LAKE_FILE_ROWS,
    LAKE_TRIES_MAX,
    SOURCE_PARTITION_ROWS,
)

_SCANNED_WHOLE: Final = 8 * LAKE_FILE_ROWS
"""Up to so many rows of bronze are compared with the batch as they are, without a join by id."""


@dataclass(frozen=True)
class BatchReport:
    """What a committed batch brought."""

    version: int
    """The version of bronze that has this batch."""
    ends: Mapping[Key, int]
    """By log: the last offset that was read."""
    counts: Sequence[dedupe.Count]


def ingest_batch(
    spark: SparkSession,
    lake: Lake,
    frame: DataFrame,
    ends: Mapping[Key, int] | None = None,
    *,
    gaps: Sequence[Gap] = (),
) -> BatchReport:
    """Commits one batch. `frame` has the columns `schema.ENVELOPE`; entries that the lake has
    already are left out. `ends`: the last offset of each log that the batch covers; without it,
    that of its last row.
    """
    lake = lake.fresh()
    staged = _stage(lake, frame, ends)
    base = lake.bronze.version
    for _ in range(LAKE_TRIES_MAX):
        step = _Step(spark, lake, staged, ends, gaps, moved=lake.bronze.version != base)
        try:
            return step.carry_out()
        except LakeMoved:
            # Another job committed first. The staged rows are judged again on the new version.
            lake = lake.fresh()
    if not lake.bronze.holds(staged):
        lake.bronze.discard(staged)
    raise LakeMoved(f"other jobs changed {lake.root} {LAKE_TRIES_MAX} times in a row")


def _stage(lake: Lake, frame: DataFrame, ends: Mapping[Key, int] | None) -> Staged:
    """Reads the source, once, into files with the columns of bronze. Rows that could not be read
    have no `seq`, and the problem in the place of the family.
    """
    known = lake.offsets
    if ends is not None:
        known = {key: offset for key, offset in known.items() if key in ends}
    day = F.expr(ID_DAY)
    far = F.lit("bad_stamp: the id was made after the year 9999")
    problem = F.coalesce("problem", F.when(F.year(day) > 9999, far))
    staged = frame.where(dedupe.after_positions(known)).withColumns(
        {"problem": problem, "day": F.when(F.year(day) <= 9999, day)}
    )
    ours = F.col("problem").isNull()
    staged = staged.withColumns(
        {
            "seq": F.when(ours, F.col("seq")),
            "family": F.coalesce("problem", F.substring_index("op", ".", 1)),
            "batch": F.lit(lake.next_batch).cast("long"),
        }
    )
    return lake.bronze.stage(staged, sort_by=("day", "id"))


class _Step:
    """One try to commit a batch on top of one version of the lake."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        staged: Staged,
        ends: Mapping[Key, int] | None,
        gaps: Sequence[Gap],
        *,
        moved: bool,
    ) -> None:
        self.spark = spark
        self.lake = lake
        self.staged = staged
        self.gaps = gaps
        self.moved = moved
        """Whether other jobs have committed to the lake since the rows were staged."""
        self.known = lake.offsets
        self.batch = lake.next_batch
        self._small = staged.rows <= LAKE_FILE_ROWS
        self._given_ends = ends
        self.ends: dict[Key, int] = {}

    def carry_out(self) -> BatchReport:
        lake = self.lake
        rows = lake.bronze.read_files(self.spark, self.staged.files)
        if self._small:
            rows = rows.coalesce(1)
        if self.moved:
            rows = rows.where(dedupe.after_positions(self.known)).withColumn(
                "batch", F.lit(self.batch).cast("long")
            )
        near = self._near(rows)
        if self._judge_at_once(near):
            self.ends = self._after(self._given_ends or {})
            return self._commit_judged(rows, near) if self.ends else self._nothing()
        found = self._survey(rows)
        ends = dict(self._given_ends or {})
        for count in found:
            ends[count.key] = max(ends.get(count.key, 0), count.end)
        self.ends = self._after(ends)
        if not self.ends:
            return self._nothing()
        if self._all_new(rows, near, found):
            return self._commit_as_is(rows, found)
        return self._commit_judged(rows, near)

    def _judge_at_once(self, near: DataFrame | None) -> bool:
        """Whether to skip `_all_new`: a small batch is judged faster than that is found out."""
        ends = self._given_ends
        return self._small and ends is not None and (near is not None or len(ends) > 1)

    def _after(self, ends: Mapping[Key, int]) -> dict[Key, int]:
        """The ends of the logs for which this batch reaches further than the lake."""
        return {key: end for key, end in ends.items() if end > self.known.get(key, 0)}

    def _nothing(self) -> BatchReport:
        if not self.lake.bronze.holds(self.staged):
            self.lake.bronze.discard(self.staged)
        return BatchReport(self.lake.bronze.version, {}, ())

    def _near(self, rows: DataFrame) -> DataFrame | None:
        """The rows of bronze that may have an id of the batch; None if there are none."""
        files = dedupe.candidate_files(self.lake.bronze, self.staged.files)
        if not files:
            return None
        near = self.lake.bronze.read_files(self.spark, files)
        if sum(file.rows for file in files) > _SCANNED_WHOLE:
            near = near.join(rows.select("id").distinct(), "id", "left_semi")
        return near

    def _survey(self, rows: DataFrame) -> list[dedupe.Count]:
        """The counts of the batch as if all readable rows were new."""
        if not self.staged.files:
            return []
        verdict = F.when(dedupe.is_read(), dedupe.NEW).otherwise(dedupe.UNREAD)
        return dedupe.counts_of(rows.withColumn("verdict", verdict))

    def _all_new(
        self, rows: DataFrame, near: DataFrame | None, found: Sequence[dedupe.Count]
    ) -> bool:
        if self.moved or {count.what for count in found} - {dedupe.NEW, UNKNOWN_OP}:
            return False
        if dedupe.interrupted_notes(self.spark, self.lake, self.ends) is not None:
            return False
        new = [count for count in found if count.what == dedupe.NEW]
        if near is None and len(new) < 2:
            return all(count.ids == count.rows for count in new)
        return not dedupe.any_double(rows, near)

    def _commit_as_is(self, rows: DataFrame, found: Sequence[dedupe.Count]) -> BatchReport:
        """Commits the staged files themselves: all of their rows are new."""
        if self.gaps or any(count.what == UNKNOWN_OP for count in found):
            judged = rows.withColumns(
                {"verdict": F.lit(dedupe.NEW), "noted": F.lit(None).cast("int")}
            )
            self._commit_quarantine(dedupe.for_quarantine(judged), None, None)
        return self._commit_bronze(self.staged, found)

    def _commit_judged(self, rows: DataFrame, near: DataFrame | None) -> BatchReport:
        size = sum(file.size for file in self.staged.files)
        partitions = 1 + max(size // LAKE_FILE_BYTES, self.staged.rows // SOURCE_PARTITION_ROWS)
        noted = dedupe.interrupted_notes(self.spark, self.lake, self.ends)
        judged = dedupe.with_verdicts(rows, near, noted, partitions).persist()
        try:
            counts = dedupe.counts_of(judged)
            what = {count.what for count in counts}
            revised = None if noted is None else dedupe.now_first(judged)
            if revised is not None and revised.isEmpty():
                revised = None
            if dedupe.AGAIN in what or revised is not None:
                self._commit_sightings(judged, revised)
            if what - {dedupe.AGAIN, dedupe.NEW} or self.gaps or revised is not None:
                self._commit_quarantine(dedupe.for_quarantine(judged), noted, revised)
            new = Staged("", ())
            if dedupe.NEW in what:
                new = self.lake.bronze.stage(dedupe.for_bronze(judged), sort_by=("day", "id"))
            report = self._commit_bronze(new, counts)
        finally:
            judged.unpersist()
        self.lake.bronze.discard(self.staged)
        return report

    def _commit_sightings(self, judged: DataFrame, revised: DataFrame | None) -> None:
        table = self.lake.sightings
        staged = table.stage(dedupe.for_sightings(judged), sort_by=dedupe.PLACE)
        self._commit_aside(table, staged, revised)

    def _commit_quarantine(
        self, rows: DataFrame, noted: DataFrame | None, revised: DataFrame | None
    ) -> None:
        if self.gaps:
            gaps = self._gap_rows()
            if noted is not None:
                gaps = gaps.join(noted, list(dedupe.PLACE), "left_anti")
            rows = rows.unionByName(gaps)
        table = self.lake.quarantine
        staged = table.stage(rows.coalesce(1), sort_by=dedupe.PLACE)
        self._commit_aside(table, staged, revised)

    def _commit_aside(self, table: Table, staged: Staged, revised: DataFrame | None) -> None:
        """Commits to sightings or quarantine. `revised`: places that a killed run has noted there
        and that now go to bronze; those rows are removed.
        """
        old: list[File] = []
        rest: tuple[File, ...] = ()
        if revised is not None:
            ranges = {key: (self.known.get(key, 0), end) for key, end in self.ends.items()}
            old = dedupe.files_about(table, ranges)
            kept = table.read_files(self.spark, old).join(revised, list(dedupe.PLACE), "left_anti")
            rest = table.stage(kept.coalesce(1), sort_by=dedupe.PLACE).files
        if staged.files or old:
            table.commit([*staged.files, *rest], old, txns=self._txns())

    def _commit_bronze(self, staged: Staged, counts: Sequence[dedupe.Count]) -> BatchReport:
        gaps = [dedupe.Count(gap.key, GAP, 1, gap.stop - 1, "", 0, gap.start) for gap in self.gaps]
        version = self.lake.bronze.commit(staged.files, txns=self._txns())
        note_reads(self.lake.reads, [self._read(key, (*counts, *gaps)) for key in self.ends])
        return BatchReport(version, self.ends, [*counts, *gaps])

    def _read(self, key: Key, counts: Sequence[dedupe.Count]) -> Read:
        own = [count for count in counts if count.key == key]

        def rows(*what: str) -> int:
            return sum(count.rows for count in own if count.what in what)

        new, again = rows(dedupe.NEW), rows(dedupe.AGAIN)
        noted = sum(count.rows for count in own) - new - again
        quarantined = noted - rows(UNKNOWN_OP, GAP)
        last = self.ends[key]
        return Read(
            log=key[0],
            epoch=key[1],
            first=min((count.begin for count in own), default=self.known.get(key, 0) + 1),
            last=last,
            rows=new + again + quarantined,
            new=new,
            again=again,
            quarantined=quarantined,
            noted=noted,
            last_id=next((count.id for count in own if count.end == last), ""),
            batch=self.batch,
        )

    def _txns(self) -> dict[str, int]:
        return {log_app(*key): offset for key, offset in self.ends.items()}

    def _gap_rows(self) -> DataFrame:
        """A row of quarantine for each gap, at the place where it begins."""
        lost = "were truncated before the lake has read them"
        rows = [
            (*gap.key, gap.start, "", GAP, f"{gap} {lost}", None, None, self.batch)
            for gap in self.gaps
        ]
        return self.spark.createDataFrame(rows, QUARANTINE)
