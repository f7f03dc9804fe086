"""Repair of a lake that was set back, or that has lost files: what is missing is read again.

    report = repair(start, lake, [log_source("/srv/ana"), log_source("/backups/ana.tar")])

The lake knows which entries it has read of each log. Those that it no longer holds are read again
from any location of that log that has them: a node, a home, a backup, an export. They come in as a
new batch, so that silver takes them in, and no position moves.

What no location has stays missing, and runs do not go on with that log, until it is given up: then
a row in quarantine names the offsets (reason `lost`), audits show it, and nobody asks for it again.

Every step leaves a lake from which the next repair goes on: a repair may be killed anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from holdfast.pipeline.fold.silver import fold_lake
from holdfast.pipeline.ingest.batch import ingest_batch
from holdfast.pipeline.ingest.dedupe import KNOWN_OPS
from holdfast.pipeline.ingest.plan import Gap, LocatedLog, LogStretch, UnreadableLog, check_same
from holdfast.pipeline.jobs.run import Starting, needs_fold, opened
from holdfast.pipeline.jobs.sources import LogSource
from holdfast.pipeline.lake.checked import checked
from holdfast.pipeline.lake.compare import Comparison, MissingPlaces
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.held import Key
from holdfast.pipeline.lake.lake import Lake, Progress, no_progress
from holdfast.pipeline.lake.reads import PART, replace_reads
from holdfast.pipeline.lake.schema import (
    GAP,
    LOST,
    QUARANTINE,
    SILVER,
    UNKNOWN_OP,
    arrow_schema,
)
from holdfast.pipeline.logs.log import ReadableLog
from holdfast.pipeline.spark.failures import spark_errors
from holdfast.pipeline.spark.spark_workers import SparkWorkers
from holdfast.pipeline.spark.workers import DriverWorkers, Workers
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import LAKE_BATCH_ROWS, LAKE_FILE_ROWS

Ranges = Sequence[tuple[int, int]]


class RepairedLog(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair found missing of one log, and what became of it."""

    log: str
    epoch: int
    missing: int
    """Entries that the lake had read and did not hold."""
    notes: int = 0
    """Rows of quarantine about gaps and unknown ops that it did not hold."""
    read: int = 0
    """How many of the entries it holds again."""
    lost: int = 0
    """How many were given up, because no location has them."""
    left: tuple[tuple[int, int], ...] = ()
    """Ranges [first, last] of offsets that are still missing."""


class LakeRepairReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair did, or would do."""

    logs: tuple[RepairedLog, ...] = ()
    files: int = 0
    """Files that tables named and that were not there; the tables no longer name them."""
    rebuilt: tuple[str, ...] = ()
    """Tables of silver that were folded again."""
    failures: tuple[UnreadableLog, ...] = ()
    seconds: float = 0.0

    @property
    def left(self) -> bool:
        return any(log.left for log in self.logs)


def repair(
    spark: SparkSession | Starting,
    lake: Lake,
    logs: Sequence[LogSource | ReadableLog],
    *,
    allow_gaps: bool = False,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> LakeRepairReport:
    """Repairs a lake. With `allow_gaps` what no location has is given up. With `dry_run` nothing is
    changed: the report tells what is missing. `spark` may be a function that starts Spark; it is
    called only if there is something to read or to fold.
    """
    began = time.monotonic()
    start = cache(lambda: spark() if callable(spark) else spark)
    with lake.working("a repair"), opened(logs, lake.consumer) as (found, failures):
        lake = lake.fresh()
        progress("compare what was read with what is there", 0, 3)
        before = _missing(lake.compare()) if _has_positions(lake) else {}
        gone = [table for table in _ingested(lake) if table.gone()]
        files = sum(len(table.gone()) for table in gone)
        if dry_run:
            return _report(before, before, frozenset(), files, (), failures, began)
        for table in gone:
            table.commit([], table.gone())
        after, failed = before, list(failures)
        if _has_positions(lake):
            after, more = _read_again(start, lake.fresh(), found, progress)
            failed += more
        lost = frozenset(after) if allow_gaps else frozenset[Key]()
        if lost:
            _give_up(lake.fresh(), after)
        progress("fold", 2, 3)
        rebuilt = _fold(start, lake.fresh(), progress)
        progress("repair", 3, 3)
    return _report(before, after, lost, files, rebuilt, failed, began)


def _has_positions(lake: Lake) -> bool:
    return (lake.bronze.exists or lake.reads.exists) and lake.reads.txn(PART) is None


def _ingested(lake: Lake) -> tuple[Table, ...]:
    return (lake.bronze, lake.sightings, lake.quarantine, lake.reads)


def _missing(found: Comparison) -> dict[Key, MissingPlaces]:
    return {one.key: one for one in found.missing}


# --- reading again -------------------------------------------------------------------------------


def _read_again(
    start: Starting, lake: Lake, found: Sequence[ReadableLog], progress: Progress
) -> tuple[dict[Key, MissingPlaces], list[UnreadableLog]]:
    """Reads what is missing; returns what still is, and the logs that could not be read."""
    lake, _ = checked(lake)
    located, failures = _located(lake, found)
    progress("read again", 1, 3)
    seen = lake.compare()
    # First what the lake has nothing of. A sighting whose envelope comes back by that is good.
    failures += _ingest(start, lake, [*_stretches(located, seen, seen.orphans)])
    seen = _settled(lake.fresh())
    if seen.orphans:
        failures += _ingest(start, lake, [*_stretches(located, seen, {})])
        seen = _settled(lake.fresh())
    if any(one.notes for one in seen.missing):
        _note_strange(lake.fresh())
        _note_gaps(lake.fresh(), lake.fresh().compare().missing)
        seen = _settled(lake.fresh())
    return _missing(seen), failures


def _settled(lake: Lake) -> Comparison:
    """Compares, and brings `reads` up to date."""
    found = lake.compare()
    if found.differs:
        replace_reads(lake.reads, found.reads)
    return found


def _located(
    lake: Lake, logs: Sequence[ReadableLog]
) -> tuple[list[LocatedLog], list[UnreadableLog]]:
    """The logs that answer and are the ones that were read before."""
    positions = {(at.log, at.epoch): at for at in lake.positions()}
    found: list[LocatedLog] = []
    failures: list[UnreadableLog] = []
    for log in logs:
        name = ""
        try:
            one = LocatedLog(log, log.place())
            name = one.place.log
            check_same(one, positions.get(one.key))
            found.append(one)
        except HoldfastError as error:
            failures.append(UnreadableLog(log.location, error, name))
    return found, failures


def _stretches(
    located: Sequence[LocatedLog], seen: Comparison, but: Mapping[Key, Ranges]
) -> Iterator[LogStretch]:
    """Where missing places can be read, without those of `but`; each once."""
    for missing in seen.missing:
        left = list(missing.ranges)
        for start, stop in but.get(missing.key, ()):
            left = [part for one in left for part in _apart(one, start, stop)]
        for one in located:
            if one.key != missing.key:
                continue
            first, end = one.place.first, one.place.head + 1
            for start, stop in left:
                if max(start, first) < min(stop, end):
                    yield LogStretch(one.log, one.key, max(start, first), min(stop, end))
            left = [part for span in left for part in _apart(span, first, end)]


def _apart(span: tuple[int, int], start: int, stop: int) -> list[tuple[int, int]]:
    """What of a range lies outside of another."""
    parts = ((span[0], min(span[1], start)), (max(span[0], stop), span[1]))
    return [(first, end) for first, end in parts if first < end]


def _ingest(start: Starting, lake: Lake, stretches: Sequence[LogStretch]) -> list[UnreadableLog]:
    """Reads stretches in batches of all logs. If that fails, log by log, so that one that goes away
    does not stop the others.
    """
    failures: list[UnreadableLog] = []
    workers = cache(lambda: _workers(start, lake, sum(part.rows for part in stretches)))
    for batch in _batches(stretches):
        try:
            ingest_batch(workers(), lake, batch, again=True)
        except HoldfastError:
            for key in dict.fromkeys(part.key for part in batch):
                alone = [part for part in batch if part.key == key]
                try:
                    ingest_batch(workers(), lake, alone, again=True)
                except HoldfastError as error:
                    failures.append(UnreadableLog(alone[0].log.location, error, key[0]))
    return failures


def _workers(start: Starting, lake: Lake, rows: int) -> Workers:
    """The driver itself for so few rows, else Spark."""
    return DriverWorkers() if rows <= LAKE_FILE_ROWS else SparkWorkers(start(), lake.proof)


def _batches(stretches: Sequence[LogStretch]) -> Iterator[list[LogStretch]]:
    batch: list[LogStretch] = []
    rows = 0
    for stretch in stretches:
        left: LogStretch | None = stretch
        while left is not None:
            part = left.upto(LAKE_BATCH_ROWS - rows)
            batch.append(part)
            rows += part.rows
            left = None
            if part.stop < stretch.stop:
                left = LogStretch(stretch.log, stretch.key, part.stop, stretch.stop)
            if rows >= LAKE_BATCH_ROWS:
                yield batch
                batch, rows = [], 0
    if batch:
        yield batch


# --- notes in quarantine -------------------------------------------------------------------------


def _note_strange(lake: Lake) -> None:
    """Notes entries of bronze with an unknown op again, where quarantine has lost that note."""
    names = ["log", "epoch", "offset", "id", "recorded_at", "batch", "op", "raw"]
    known = pa.array(sorted(KNOWN_OPS))
    noted = _told(lake, (UNKNOWN_OP,))
    rows: list[dict[str, object]] = []
    for file in lake.bronze.files():
        ops = lake.bronze.load([file], ["op"])[0]
        if pc.all(pc.is_in(ops["op"], value_set=known)).as_py() is not False:
            continue
        for row in lake.bronze.load([file], names)[0].to_pylist():
            op = row.pop("op")
            if op not in KNOWN_OPS and (row["log"], row["epoch"], row["offset"]) not in noted:
                detail = f"op {op} is not known to this version"
                rows.append({**row, "reason": UNKNOWN_OP, "detail": detail})
    _add_notes(lake, rows)


def _note_gaps(lake: Lake, missing: Sequence[MissingPlaces]) -> None:
    """Notes gaps again where quarantine has lost such notes: ranges of which nothing was read."""
    for one in missing:
        gaps = [Gap(one.key, start, stop) for start, stop in one.untold]
        if one.notes and len(gaps) > one.notes:
            # A broker's log has holes of its own, and nothing tells them from the gaps.
            gaps = [Gap(one.key, gaps[0].start, gaps[-1].stop, one.notes)]
        _add_notes(lake, _gap_rows(lake, gaps, GAP, "were truncated before the lake has read them"))
        lake = lake.fresh()
    keys = [one.key for one in missing if one.notes and not one.rows]
    replace_reads(lake.reads, lake.compare(without=keys).reads)


def _give_up(lake: Lake, missing: Mapping[Key, MissingPlaces]) -> None:
    """Names what no location has, and claims it no more."""
    for one in missing.values():
        gaps = [Gap(one.key, start, stop) for start, stop in one.ranges]
        if gaps and sum(gap.stop - gap.start for gap in gaps) != one.rows:
            gaps = [Gap(one.key, gaps[0].start, gaps[-1].stop, one.rows)]
        why = "were read before the lake was set back, and no log has them any more"
        _add_notes(lake, _gap_rows(lake, gaps, LOST, why))
        lake = lake.fresh()
    replace_reads(lake.reads, lake.compare(without=missing.keys()).reads)


def _gap_rows(lake: Lake, gaps: Sequence[Gap], reason: str, why: str) -> list[dict[str, object]]:
    told, batch = _told(lake, (GAP, LOST)), lake.next_batch
    return [
        {
            **{"log": gap.key[0], "epoch": gap.key[1], "offset": gap.start, "id": ""},
            **{"reason": reason, "detail": f"{gap} {why}", "batch": batch},
        }
        for gap in gaps
        if (*gap.key, gap.start) not in told
    ]


def _told(lake: Lake, reasons: Sequence[str]) -> set[tuple[str, int, int]]:
    """The places about which quarantine has a row with one of these reasons."""
    table = lake.quarantine
    rows, _ = table.load(table.files(), ["log", "epoch", "offset", "reason"])
    chosen = rows.filter(pc.is_in(rows["reason"], value_set=pa.array(reasons)))
    return {(row["log"], row["epoch"], row["offset"]) for row in chosen.to_pylist()}


def _add_notes(lake: Lake, rows: Sequence[dict[str, object]]) -> None:
    if rows:
        notes = pa.Table.from_pylist(list(rows), schema=arrow_schema(QUARANTINE))
        lake.quarantine.commit(lake.quarantine.stage_rows(notes).files)


# --- silver, and the report ----------------------------------------------------------------------


def _fold(start: Starting, lake: Lake, progress: Progress) -> tuple[str, ...]:
    """Folds what silver lacks; all of it if files of silver are gone."""
    tables = [table for name in SILVER for table in (lake.silver(name), lake.increments(name))]
    full = any(table.gone() for table in tables)
    if not full and not needs_fold(lake):
        return ()
    with spark_errors("fold"):
        workers = _workers(start, lake, lake.bronze.rows)
        done = fold_lake(workers, lake, full=full, progress=progress)
    return tuple(table.name for table in done.tables if table.how == "rebuilt")


def _report(
    before: Mapping[Key, MissingPlaces],
    after: Mapping[Key, MissingPlaces],
    lost: Collection[Key],
    files: int,
    rebuilt: Sequence[str],
    failures: Sequence[UnreadableLog],
    began: float,
) -> LakeRepairReport:
    logs: list[RepairedLog] = []
    for key in sorted({*before, *after}):
        was, still = before.get(key), after.get(key)
        missing, left = was.rows if was else 0, still.rows if still else 0
        ranges = tuple((start, stop - 1) for start, stop in (still.ranges if still else ()))
        logs.append(
            RepairedLog(
                log=key[0],
                epoch=key[1],
                missing=max(missing, left),
                notes=was.notes if was else 0,
                read=max(missing, left) - left,
                lost=left if key in lost else 0,
                left=() if key in lost else ranges,
            )
        )
    return LakeRepairReport(
        logs=tuple(logs),
        files=files,
        rebuilt=tuple(rebuilt),
        failures=tuple(failures),
        seconds=time.monotonic() - began,
    )
