"""One batch of entries into the lake: read by tasks, judged, made visible by at most three commits.

Tasks read their ranges and stage files (`take.py`); where two of them have the same ids, one gives
way (`doubles.py`). The driver compares three numbers for every log: how many entries were planned,
how many the tasks have read, and how many lie in the files that they name. Only if these are the
same does it commit: sightings, quarantine, bronze, and then `reads`, which says how far each log
was read. If sightings or quarantine have rows that `reads` does not know, a run was stopped in
between: what it wrote there is replaced when the same places are read again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.ingest import dedupe
from holdfast.pipeline.ingest.divide import tasks_of
from holdfast.pipeline.ingest.doubles import settle
from holdfast.pipeline.ingest.plan import Gap, LogStretch
from holdfast.pipeline.ingest.take import Portion, Taken, TakenRange, Taking, summed
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.held import Key
from holdfast.pipeline.lake.lake import Lake, log_app
from holdfast.pipeline.lake.reads import Read, note_reads, sum_of
from holdfast.pipeline.lake.schema import GAP, UNKNOWN_OP
from holdfast.pipeline.spark.workers import Workers
from holdfast.rules.errors import HoldfastError, JobFailed, LakeBusy, LakeMoved
from holdfast.rules.limits import LAKE_UNFINISHED_MS, SECOND_MS

_NO_END: Final = 1 << 62

Places = Mapping[Key, Sequence[tuple[int, int]]]
"""By log: ranges [start, stop) of offsets."""


class Count(NamedTuple):
    """How many rows of a log got one verdict; see `dedupe.Counts`."""

    key: Key
    what: str
    rows: int


@dataclass(frozen=True)
class BatchReport:
    """What a committed batch brought."""

    version: int
    """The version of bronze that has this batch."""
    ends: Mapping[Key, int]
    """By log: the last offset that was read."""
    counts: Sequence[Count]


@dataclass
class _Batch:
    """A batch on its way."""

    lake: Lake
    stretches: Sequence[LogStretch]
    gaps: Sequence[Gap]
    again: bool
    """Whether places below the positions are read once more, which moves no position."""
    portions: list[Portion] = field(default_factory=list)

    @cached_property
    def number(self) -> int:
        return self.lake.next_batch

    @property
    def starts(self) -> dict[Key, int]:
        """By log: the first offset that the batch covers."""
        starts: dict[Key, int] = {}
        covered = [(part.key, part.start) for part in self.stretches]
        for key, start in covered + [(gap.key, gap.start) for gap in self.gaps]:
            starts[key] = min(start, starts.get(key, start))
        return starts

    @property
    def ends(self) -> dict[Key, int]:
        ends: dict[Key, int] = {}
        for part in self.stretches:
            ends[part.key] = max(part.stop - 1, ends.get(part.key, 0))
        return ends

    @property
    def txns(self) -> dict[str, int]:
        return {} if self.again else {log_app(*key): end for key, end in self.ends.items()}


def ingest_batch(
    workers: Workers,
    lake: Lake,
    stretches: Sequence[LogStretch],
    *,
    gaps: Sequence[Gap] = (),
    again: bool = False,
) -> BatchReport:
    """Reads these stretches and commits them as one batch. With `again` they are places that were
    read before: what the lake has of them stays, what it lacks comes in, and no position moves.
    """
    batch = _Batch(lake.fresh(), stretches, gaps, again)
    _check_position(batch)
    tasks = tasks_of(stretches, workers.parallelism)
    taken: list[Taken] = []
    try:
        taken = workers.run("ingest: read", Taking.of(batch.lake, tasks, batch.number), len(tasks))
        ranges = _as_planned(tasks, taken)
        batch.portions = [portion for one in taken for portion in one.portions]
        settled = settle(workers, batch.lake, batch.portions, batch.number)
        batch.portions = settled.portions
        _check_staged(ranges, batch.portions)
        version = _commit(batch, ranges)
    except HoldfastError:
        _discard(lake, [*batch.portions, *(p for one in taken for p in one.portions)])
        raise
    _discard(lake, settled.replaced)
    return BatchReport(version, batch.ends, _counts(batch))


def _check_position(batch: _Batch) -> None:
    """LakeMoved if another job has read on since the plan was made."""
    known = batch.lake.offsets
    if not batch.again and any(part.start <= known.get(part.key, 0) for part in batch.stretches):
        raise LakeMoved(f"another job has read the same logs into {batch.lake.root}")


def _counts(batch: _Batch) -> list[Count]:
    counts = [Count(key, what, rows) for (key, what), rows in summed(batch.portions).items()]
    return counts + [Count(gap.key, GAP, 1) for gap in batch.gaps]


# --- planned = read = staged ---------------------------------------------------------------------


def _as_planned(tasks: Sequence[Sequence[LogStretch]], taken: Sequence[Taken]) -> list[TakenRange]:
    """The ranges that the tasks have read. JobFailed unless they are exactly those of the plan."""
    planned = [(part.key, part.start, part.stop) for task in tasks for part in task]
    ranges = [one for done in taken for one in done.ranges]
    if planned != [(one.key, one.start, one.stop) for one in ranges]:
        raise JobFailed("the tasks have read other ranges than were planned; nothing was changed")
    for part, one in zip((part for task in tasks for part in task), ranges, strict=True):
        if one.read > part.rows or (part.log.dense and one.read != part.rows):
            raise JobFailed(
                f"offsets {part.start} to {part.stop - 1} of log {part.key[0]!r} at "
                f"{part.log.location}: {part.rows} entries were planned, and {one.read} were read; "
                "nothing was changed"
            )
    return ranges


def _check_staged(ranges: Iterable[TakenRange], portions: Sequence[Portion]) -> None:
    """JobFailed unless every entry that was read is in one of the staged files, log by log, and
    the files have as many rows as the tasks say.
    """
    read: Counter[Key] = Counter()
    for one in ranges:
        read[one.key] += one.read
    counted, staged = summed(portions), Counter[Key]()
    tables: Counter[str] = Counter()
    for (key, what), rows in counted.items():
        staged[key] += 0 if what == UNKNOWN_OP else rows
        tables[_table_of(what)] += rows
    for key in read.keys() | staged.keys():
        if read[key] != staged[key]:
            raise JobFailed(
                f"{read[key]} entries of log {key[0]!r} in epoch {key[1]} were read, and "
                f"{staged[key]} are staged; nothing was changed"
            )
    for name in ("bronze", "sightings", "quarantine"):
        rows = sum(file.rows for file in _files(portions, name))
        if rows != tables[name]:
            raise JobFailed(
                f"the files for {name} have {rows} rows, where the tasks have counted "
                f"{tables[name]}; nothing was changed"
            )


def _table_of(what: str) -> str:
    known = {dedupe.NEW: "bronze", dedupe.AGAIN: "sightings", dedupe.STORED: "none"}
    return known.get(what, "quarantine")


def _files(portions: Iterable[Portion], table: str) -> list[File]:
    return [file for portion in portions for file in getattr(portion, table)]


# --- the commits ---------------------------------------------------------------------------------


def _commit(batch: _Batch, ranges: Sequence[TakenRange]) -> int:
    lake, began = batch.lake, time.monotonic()
    _commit_aside(batch, lake.sightings, "again", _files(batch.portions, "sightings"))
    aside = _files(batch.portions, "quarantine")
    _commit_aside(batch, lake.quarantine, "noted", aside + _gap_files(batch))
    took_ms = (time.monotonic() - began) * SECOND_MS
    if lake.folder.local is None and took_ms > LAKE_UNFINISHED_MS / 2:
        # Others may take these rows for those of a dead job, and replace them.
        raise LakeMoved(f"the commits to {lake.root} took too long; the batch is read again")
    version = lake.bronze.commit(_files(batch.portions, "bronze"), txns=batch.txns)
    if not batch.again:
        note_reads(lake.reads, _reads(batch, ranges))
    return version


def _reads(batch: _Batch, ranges: Sequence[TakenRange]) -> list[Read]:
    """What the batch has read of each log."""
    ids = {(one.key, one.last): one.last_id for one in ranges}
    counts, starts = _counts(batch), batch.starts
    return [
        Read(
            log=key[0],
            epoch=key[1],
            first=starts[key],
            last=end,
            last_id=ids.get((key, end), ""),
            batch=batch.number,
            **_sums([count for count in counts if count.key == key]),
        )
        for key, end in batch.ends.items()
    ]


def _sums(counts: Sequence[Count]) -> dict[str, int]:
    """The counts of one log as columns of `reads`."""

    def rows(*what: str) -> int:
        return sum(count.rows for count in counts if count.what in what)

    new, again = rows(dedupe.NEW, dedupe.STORED), rows(dedupe.AGAIN)
    noted = sum(count.rows for count in counts) - new - again
    aside = noted - rows(UNKNOWN_OP, GAP)
    return {
        "rows": new + again + aside,
        "new": new,
        "again": again,
        "quarantined": aside,
        "noted": noted,
    }


def _commit_aside(batch: _Batch, table: Table, counted: str, files: Sequence[File]) -> None:
    """Commits to sightings or quarantine. Rows about the places that this batch reads and that are
    there already are replaced by the same commit. `counted`: the column of `reads` that says how
    many rows the table has.
    """
    places = _read_before(batch, table, counted)
    old = files_about(table, places)
    rest: list[File] = []
    if old:
        kept = [_outside(table, file, places) for file in old]
        rest = table.writer().write(kept)
    if files or old:
        table.commit([*files, *rest], old, txns=batch.txns)


def _read_before(batch: _Batch, table: Table, counted: str) -> Places:
    """The places of which the table may have rows though they are still to be read: those that are
    read again, and those that a run has noted which was stopped before its commit to bronze.
    """
    if batch.again:
        return _by_log((part.key, part.start, part.stop) for part in batch.stretches)
    if table.rows == sum_of(batch.lake.claims, counted):
        return {}
    _check_unfinished(batch.lake, table)
    return _by_log((key, start, _NO_END) for key, start in batch.starts.items())


def _check_unfinished(lake: Lake, table: Table) -> None:
    """Raises LakeBusy if the job that has left rows in a table may still live. On a disk it does
    not, since that job would hold the lock.
    """
    at = table.changed_at
    if lake.folder.local is not None or at is None:
        return
    age = time.time_ns() // 1_000_000 - at
    if age < LAKE_UNFINISHED_MS:
        raise LakeBusy(
            f"a job has begun to commit to {lake.root} {max(0, age) // SECOND_MS} s ago and may "
            "still be at work",
            hint="let one job at a time write to a lake; if that one is dead, run this again after "
            f"{LAKE_UNFINISHED_MS // (60 * SECOND_MS)} minutes",
        )


def _by_log(ranges: Iterable[tuple[Key, int, int]]) -> Places:
    places: dict[Key, list[tuple[int, int]]] = {}
    for key, start, stop in ranges:
        places.setdefault(key, []).append((start, stop))
    return places


def files_about(table: Table, places: Places) -> list[File]:
    """Files of a table that may have rows about some places."""

    def may_hold(file: File) -> bool:
        return any(
            file.may_hold("log", log, log)
            and file.may_hold("epoch", epoch, epoch)
            and any(file.may_hold("offset", start, stop - 1) for start, stop in ranges)
            for (log, epoch), ranges in places.items()
        )

    return table.files(may_hold) if places else []


def _outside(table: Table, file: File, places: Places) -> pa.Table:
    """The rows of a file that are about other places."""
    with table.reader().open(file) as opened:
        rows = pa.concat_tables([opened.group(group) for group in range(opened.groups)])
    inside = np.zeros(rows.num_rows, bool)
    offset = rows.column("offset").to_numpy()
    for (log, epoch), ranges in places.items():
        here = pc.and_(pc.equal(rows.column("log"), log), pc.equal(rows.column("epoch"), epoch))
        for start, stop in ranges:
            inside |= here.to_numpy() & (offset >= start) & (offset < stop)
    return rows.filter(pa.array(~inside))


def _gap_files(batch: _Batch) -> list[File]:
    """A row of quarantine for each gap, at the place where it begins."""
    if not batch.gaps:
        return []
    lost = "were truncated before the lake has read them"
    rows = [
        {
            **dict(zip(dedupe.PLACE, (*gap.key, gap.start), strict=True)),
            "id": "",
            "reason": GAP,
            "detail": f"{gap} {lost}",
            "batch": batch.number,
        }
        for gap in batch.gaps
    ]
    return batch.lake.quarantine.writer().write(
        [pa.Table.from_pylist(rows, schema=dedupe.QUARANTINE)]
    )


def _discard(lake: Lake, portions: Sequence[Portion]) -> None:
    """Removes staged files that no commit names: one that seemed to fail may have succeeded."""
    lake = lake.fresh()
    for table, name in (
        (lake.bronze, "bronze"),
        (lake.sightings, "sightings"),
        (lake.quarantine, "quarantine"),
    ):
        table.discard_files(_files(portions, name))
