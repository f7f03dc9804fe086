"""What quorums have committed, into the lake: records, and beside them the envelopes.

The table `commits` has a row for each commit and log, so that logs can be compared. The bytes of an
envelope stand beside the first row of its commit that had them. How far the table has read a log
follows from its own rows: there is nothing to be kept in step with, and a job that was killed goes
on where the table ends. A log that counts in a new epoch was restored, and is read from its
beginning again.

The files of one run have the commits of one log and mesh each, so that their statistics say what
they hold; only files that were put together since are looked into.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.ingest.plan import IngestPlan, UnreadableLog
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.commits import commit_rows
from holdfast.pipeline.logs.log import ReadableLog
from holdfast.rules.errors import HoldfastError, JobFailed, LakeBusy, LakeMoved
from holdfast.rules.limits import LAKE_FILE_BYTES, LAKE_TRIES_MAX

Numbers = dict[tuple[str, int], dict[str, int]]
"""By log and epoch, by mesh: the number of the last commit that the lake has."""
_LOG: Final = ("log", "epoch", "mesh")
_BYTES: Final = ("mesh", "incarnation")
_KNOWN: Final = ("log", "epoch", "mesh", "incarnation", "number", "first")
_ALIKE: Final = ("mesh", "incarnation", "first")
"""What all rows of a new file have in common."""


class KnownCommits(NamedTuple):
    """What the lake has of the commits of all logs."""

    ends: Numbers
    bytes: dict[tuple[str, int], list[range]]
    """By mesh and incarnation: of which numbers it has the envelopes."""

    def lacks(self, rows: pa.Table) -> pa.Array:
        """For each row of a piece whether nobody has brought the envelope of its commit yet."""
        lacking = []
        for mesh, incarnation, number in zip(
            *(rows[name].to_pylist() for name in (*_BYTES, "number")), strict=True
        ):
            spans = self.bytes.get((mesh, incarnation), ())
            lacking.append(not any(number in span for span in spans))
        return pa.array(lacking, pa.bool_())

    def first_lacking(self, mesh: str, last: int) -> int:
        """The first commit of a mesh up to a number whose envelope nobody has brought; 0 if there
        is none.
        """
        at = 1
        spans = [span for (of, _), spans in self.bytes.items() if of == mesh for span in spans]
        for span in _joined(spans):
            if at not in span:
                break
            at = span.stop
        return at if at <= last else 0

    def add(self, rows: pa.Table) -> None:
        """Notes the envelopes of rows that go to the table."""
        _add_bytes(self.bytes, rows)


def known_commits(table: Table) -> KnownCommits:
    """How far the lake is, from what it holds."""
    known = KnownCommits({}, {})
    mixed: list[File] = []
    for file in table.files() if table.exists else ():
        values = [file.only(name) for name in _KNOWN if name != "number"]
        low, high = file.low.get("number"), file.high.get("number")
        if None in values or low is None or high is None or file.rows != high + 1 - low:
            mixed.append(file)
            continue
        log, epoch, mesh, incarnation, first = values
        ends = known.ends.setdefault((log, epoch), {})
        ends[mesh] = max(ends.get(mesh, 0), high)
        if first:
            known.bytes.setdefault((mesh, incarnation), []).append(range(low, high + 1))
    if mixed:
        rows, _ = table.load(mixed, _KNOWN)
        for row in rows.group_by(_LOG).aggregate([("number", "max")]).to_pylist():
            ends = known.ends.setdefault((row["log"], row["epoch"]), {})
            ends[row["mesh"]] = max(ends.get(row["mesh"], 0), row["number_max"])
        _add_bytes(known.bytes, rows)
    for key, spans in known.bytes.items():
        known.bytes[key] = _joined(spans)
    return known


def ingest_commits(lake: Lake, plan: IngestPlan) -> list[UnreadableLog]:
    """Reads what the lake lacks; returns the logs that could not be read."""
    failed = {failure.location for failure in plan.failures}
    logs = {one.key: one.log for one in plan.found if one.log.location not in failed}
    for left in reversed(range(LAKE_TRIES_MAX)):
        lake = lake.fresh()
        table, failures = lake.commits, list[UnreadableLog]()
        known, batch, files = known_commits(table), 0, list[File]()
        for key, log in logs.items():
            try:
                for rows in _read(log, key, known):
                    batch = batch or lake.next_batch
                    numbers = pa.array([batch] * rows.num_rows, pa.int64())
                    at = rows.column_names.index("batch")
                    files += table.writer().write([rows.set_column(at, "batch", numbers)])
            except (LakeBusy, LakeMoved):
                raise
            except HoldfastError as error:
                failures.append(UnreadableLog(log.location, error, key[0]))
        if not files:
            return failures
        try:
            table.commit(files)
            return failures
        except LakeMoved:
            if not left:
                raise JobFailed(
                    f"other jobs changed {table.root} {LAKE_TRIES_MAX} times in a row"
                ) from None
    raise AssertionError("the last try returns or raises")


def _read(log: ReadableLog, key: tuple[str, int], known: KnownCommits) -> Iterator[pa.Table]:
    """The rows of a log that the lake lacks, those of one mesh together; the bytes of envelopes
    only where the lake does not have them.
    """
    waiting: list[pa.Table] = []
    for commits in log.commits(known.ends.get(key, {})):
        rows = commit_rows(*key, commits, 0)
        lacking = pc.and_(rows["first"], known.lacks(rows))
        rows = _with(rows, "first", lacking)
        rows = _with(rows, "raw", pc.if_else(lacking, rows["raw"], pa.scalar(None, pa.binary())))
        known.add(rows)
        if waiting and _is_full(waiting, rows):
            yield pa.concat_tables(waiting)
            waiting = []
        waiting.append(rows)
    if waiting:
        yield pa.concat_tables(waiting)


def _is_full(waiting: Sequence[pa.Table], rows: pa.Table) -> bool:
    """Whether these rows belong into another file than those that wait."""
    before, now = ([_only(some, name) for name in _ALIKE] for some in (waiting[-1], rows))
    return before != now or sum(part.nbytes for part in waiting) >= LAKE_FILE_BYTES


def _only(rows: pa.Table, name: str) -> Any:
    found = pc.unique(rows[name])
    return found[0].as_py() if len(found) == 1 else None


def _with(rows: pa.Table, name: str, column: Any) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, column)


def _add_bytes(known: dict[tuple[str, int], list[range]], rows: pa.Table) -> None:
    there = rows.filter(rows["first"]).select([*_BYTES, "number"])
    for group in there.group_by(_BYTES).aggregate([("number", "list")]).to_pylist():
        key = (group["mesh"], group["incarnation"])
        numbers = np.unique(np.array(group["number_list"], np.int64))
        cuts = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1), len(numbers)]
        runs = [range(int(numbers[a]), int(numbers[b - 1]) + 1) for a, b in pairwise(cuts)]
        known[key] = _joined([*known.get(key, []), *runs])


def _joined(spans: Sequence[range]) -> list[range]:
    """The same numbers in as few spans as possible."""
    found: list[range] = []
    for span in sorted(spans, key=lambda span: span.start):
        if found and span.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, span.stop))
        else:
            found.append(span)
    return found
