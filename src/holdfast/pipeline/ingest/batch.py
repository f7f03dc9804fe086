"""One batch of entries into the lake: read once, judged, made true by at most three commits.

The rows are written into a folder of bronze where nobody looks. Then they are compared with what
bronze has. If all of them are new, as they mostly are when one node is read, those very files are
committed. Otherwise they are written again without what was seen before.

Sightings and quarantine are committed before bronze, and all three say up to where each log was
read. If bronze says less than the other two, a run was stopped in between: what it has written
there is found by its places and not written again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.ingest import dedupe
from holdfast.pipeline.ingest.plan import Gap, Key, positions_after
from holdfast.pipeline.lake.delta import File, Staged, Table
from holdfast.pipeline.lake.lake import ID_DAY, Lake, log_app
from holdfast.rules.errors import LakeMoved
from holdfast.rules.limits import (
    LAKE_FILE_BYTES,
    LAKE_FILE_ROWS,
    LAKE_TRIES_MAX,
    SOURCE_PARTITION_ROWS,
)

GAP: Final = "gap"
"""The reason in quarantine for offsets that nobody has any more."""
_ALONGSIDE: Final = 8
"""Times the rows of a small batch: so much of bronze is simply looked through with it."""
_GAP_COLUMNS: Final = (
    "log string, epoch bigint, offset bigint, id string, reason string, detail string"
)


@dataclass(frozen=True)
class BatchReport:
    """One step that was made true."""

    version: int
    """Of bronze, with this batch in it."""
    ends: Mapping[Key, int]
    counts: Sequence[dedupe.Count]


def ingest_batch(
    spark: SparkSession,
    lake: Lake,
    frame: DataFrame,
    ends: Mapping[Key, int] | None = None,
    *,
    gaps: Sequence[Gap] = (),
) -> BatchReport:
    """Makes one batch true, once: `frame` has the columns `schema.ENVELOPE`. What the lake has
    already is left out. `ends`: up to where each log was read; without it, up to the last row.
    """
    lake = lake.fresh()
    staged = _stage(lake, frame, ends)
    base = lake.bronze.version
    for _ in range(LAKE_TRIES_MAX):
        step = _Step(spark, lake, staged, ends, gaps, moved=lake.bronze.version != base)
        try:
            return step.carry_out()
        except LakeMoved:
            # Another job was first. What was read is still staged; it is judged anew.
            lake = lake.fresh()
    if not lake.bronze.holds(staged):
        lake.bronze.discard(staged)
    raise LakeMoved(f"other jobs changed {lake.root} {LAKE_TRIES_MAX} times in a row")


def _stage(lake: Lake, frame: DataFrame, ends: Mapping[Key, int] | None) -> Staged:
    """Reads the source, once. Rows are as bronze has them; those that could not be read have no
    number, and the problem in place of the family.
    """
    known = {(at.log, at.epoch): at.offset for at in lake.positions()}
    if ends is not None:
        known = {key: offset for key, offset in known.items() if key in ends}
    day = F.expr(ID_DAY)
    far = F.lit("bad_stamp: the id was made after the year 9999")
    problem = F.coalesce("problem", F.when(F.year(day) > 9999, far))
    staged = frame.where(dedupe.after_positions(known)).withColumns(
        {"problem": problem, "day": day}
    )
    ours = F.col("problem").isNull()
    staged = staged.withColumns(
        {
            "seq": F.when(ours, F.col("seq")),
            "family": F.coalesce("problem", F.substring_index("op", ".", 1)),
            "batch": F.lit(lake.bronze.version + 1).cast("long"),
        }
    )
    return lake.bronze.stage(staged, sort_by=("day", "id"))


class _Step:
    """A batch on top of one version of the lake."""

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
        """The lake is not the one that the rows were staged on."""
        self.known = {(at.log, at.epoch): at for at in lake.positions()}
        self.batch = lake.bronze.version + 1
        self._small = staged.rows <= LAKE_FILE_ROWS
        self._given_ends = ends
        self.ends: dict[Key, int] = {}

    def carry_out(self) -> BatchReport:
        lake = self.lake
        rows = lake.bronze.read_files(self.spark, self.staged.files)
        if self._small:
            rows = rows.coalesce(1)
        if self.moved:
            seen = {key: at.offset for key, at in self.known.items()}
            rows = rows.where(dedupe.after_positions(seen)).withColumn(
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
        """Of a small batch it costs less to judge it than to find out whether that is needed."""
        ends = self._given_ends
        return self._small and ends is not None and (near is not None or len(ends) > 1)

    def _after(self, ends: Mapping[Key, int]) -> dict[Key, int]:
        """Up to where each log is read with this batch: only those that go on."""
        known = {key: at.offset for key, at in self.known.items()}
        return {key: end for key, end in ends.items() if end > known.get(key, 0)}

    def _nothing(self) -> BatchReport:
        if not self.lake.bronze.holds(self.staged):
            self.lake.bronze.discard(self.staged)
        return BatchReport(self.lake.bronze.version, {}, ())

    def _near(self, rows: DataFrame) -> DataFrame | None:
        """What bronze has that may be the same, if anything."""
        files = dedupe.candidate_files(self.lake.bronze, self.staged.files)
        if not files:
            return None
        near = self.lake.bronze.read_files(self.spark, files)
        if sum(file.rows for file in files) > _ALONGSIDE * LAKE_FILE_ROWS:
            near = near.join(rows.select("id").distinct(), "id", "left_semi")
        return near

    def _survey(self, rows: DataFrame) -> list[dedupe.Count]:
        """What the batch would come to if all of it were new."""
        if not self.staged.files:
            return []
        verdict = F.when(dedupe.is_read(), dedupe.NEW).otherwise(dedupe.UNREAD)
        return dedupe.counts_of(rows.withColumn("verdict", verdict))

    def _all_new(
        self, rows: DataFrame, near: DataFrame | None, found: Sequence[dedupe.Count]
    ) -> bool:
        if self.moved or {count.what for count in found} - {dedupe.NEW, dedupe.UNKNOWN_OP}:
            return False
        if dedupe.interrupted_notes(self.spark, self.lake, self.ends) is not None:
            return False
        new = [count for count in found if count.what == dedupe.NEW]
        if near is None and len(new) < 2:
            return all(count.ids == count.rows for count in new)
        return not dedupe.any_double(rows, near)

    def _commit_as_is(self, rows: DataFrame, found: Sequence[dedupe.Count]) -> BatchReport:
        """Nothing but new rows: they are in place already."""
        if self.gaps or any(count.what == dedupe.UNKNOWN_OP for count in found):
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
            turned = None if noted is None else dedupe.now_first(judged)
            if turned is not None and turned.isEmpty():
                turned = None
            if dedupe.AGAIN in what or turned is not None:
                self._commit_sightings(judged, turned)
            if what - {dedupe.AGAIN, dedupe.NEW} or self.gaps or turned is not None:
                self._commit_quarantine(dedupe.for_quarantine(judged), noted, turned)
            new = Staged("", ())
            if dedupe.NEW in what:
                new = self.lake.bronze.stage(dedupe.for_bronze(judged), sort_by=("day", "id"))
            report = self._commit_bronze(new, counts)
        finally:
            judged.unpersist()
        self.lake.bronze.discard(self.staged)
        return report

    def _commit_sightings(self, judged: DataFrame, turned: DataFrame | None) -> None:
        table = self.lake.sightings
        staged = table.stage(dedupe.for_sightings(judged), sort_by=dedupe.PLACE)
        self._commit_aside(table, staged, turned)

    def _commit_quarantine(
        self, rows: DataFrame, noted: DataFrame | None, turned: DataFrame | None
    ) -> None:
        if self.gaps:
            gaps = self._gap_rows()
            if noted is not None:
                gaps = gaps.join(noted, list(dedupe.PLACE), "left_anti")
            rows = rows.unionByName(gaps)
        table = self.lake.quarantine
        staged = table.stage(rows.coalesce(1), sort_by=dedupe.PLACE)
        self._commit_aside(table, staged, turned)

    def _commit_aside(self, table: Table, staged: Staged, turned: DataFrame | None) -> None:
        """What goes beside bronze, in place of what was said there of rows that go into it."""
        old: list[File] = []
        rest: tuple[File, ...] = ()
        if turned is not None:
            known = {key: at.offset for key, at in self.known.items()}
            ranges = {key: (known.get(key, 0), end) for key, end in self.ends.items()}
            old = dedupe.files_about(table, ranges)
            kept = table.read_files(self.spark, old).join(turned, list(dedupe.PLACE), "left_anti")
            rest = table.stage(kept.coalesce(1), sort_by=dedupe.PLACE).files
        if staged.files or old:
            table.commit([*staged.files, *rest], old, txns=self._txns())

    def _commit_bronze(self, staged: Staged, counts: Sequence[dedupe.Count]) -> BatchReport:
        ids = {(*count.key, count.end): count.id for count in counts}
        info = self.lake.moved(positions_after(self.ends, ids))
        version = self.lake.bronze.commit(staged.files, txns=self._txns(), info=info)
        gaps = [dedupe.Count(gap.key, GAP, 1, gap.stop - 1, "", 0) for gap in self.gaps]
        return BatchReport(version, self.ends, [*counts, *gaps])

    def _txns(self) -> dict[str, int]:
        return {log_app(*key): offset for key, offset in self.ends.items()}

    def _gap_rows(self) -> DataFrame:
        """One row for each range that nobody has any more, at the place where it begins."""
        rows = [
            (*gap.key, gap.start, "", GAP, f"{gap} were truncated before the lake has read them")
            for gap in self.gaps
        ]
        frame = self.spark.createDataFrame(rows, _GAP_COLUMNS)
        return frame.withColumns(
            {
                "raw": F.lit(None).cast("binary"),
                "recorded_at": F.lit(None).cast("timestamp"),
                "batch": F.lit(self.batch).cast("long"),
            }
        )
