"""What quorums have committed, into the lake: records, and beside them the envelopes.

The table `commits` has a row for each commit and log, so that logs can be compared. The bytes of an
envelope stand beside the first row of its commit that had them. How far the table has read a log
follows from its own rows: there is nothing to be kept in step with, and a job that was killed goes
on where the table ends. A log that counts in a new epoch was restored, and is read from its
beginning again.

The files of one run have the commits of one log and mesh each, so that their statistics say what
they hold (`lake/known_commits.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.ingest.plan import IngestPlan, UnreadableLog
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.known_commits import KnownCommits, known_commits
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.commits import commit_rows
from holdfast.pipeline.logs.log import ReadableLog
from holdfast.rules.errors import HoldfastError, JobFailed, LakeBusy, LakeMoved
from holdfast.rules.limits import LAKE_FILE_BYTES, LAKE_TRIES_MAX

_ALIKE: Final = ("mesh", "incarnation", "first")
"""What all rows of a new file have in common."""


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
                    batch = batch or max(1, lake.next_batch)
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
