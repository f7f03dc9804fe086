"""Commit records into the lake, beside the envelopes that they are about.

The table `commits` has a row for each commit and log, so that logs can be compared. How far it has
read a log follows from its own rows: there is nothing to be kept in step with, and a job that was
killed goes on where the table ends. A log that counts in a new epoch was restored, and is read from
its beginning again.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from holdfast.pipeline.ingest.plan import IngestPlan, UnreadableLog
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.commits import commit_rows
from holdfast.pipeline.logs.log import ReadableLog
from holdfast.rules.errors import HoldfastError, JobFailed, LakeBusy, LakeMoved
from holdfast.rules.limits import LAKE_TRIES_MAX

Numbers = dict[tuple[str, int], dict[str, int]]
"""By log and epoch, by mesh: the number of the last commit that the lake has."""


def known_commits(table: Table) -> Numbers:
    """How far the lake is, from what it holds."""
    if not table.exists:
        return {}
    rows, _ = table.load(table.files(), ["log", "epoch", "mesh", "number"])
    ends = rows.group_by(["log", "epoch", "mesh"]).aggregate([("number", "max")])
    found: Numbers = {}
    for row in ends.to_pylist():
        found.setdefault((row["log"], row["epoch"]), {})[row["mesh"]] = row["number_max"]
    return found


def ingest_commits(lake: Lake, plan: IngestPlan) -> list[UnreadableLog]:
    """Reads the records that the lake lacks; returns the logs that could not be read. They come
    after the envelopes, so whoever finds a record finds its envelope too.
    """
    failures: list[UnreadableLog] = []
    failed = {failure.location for failure in plan.failures}
    logs = {one.key: one.log for one in plan.found if one.log.location not in failed}
    for left in reversed(range(LAKE_TRIES_MAX)):
        table = lake.fresh().commits
        known = known_commits(table)
        parts: list[pa.Table] = []
        failures = []
        for key, log in logs.items():
            try:
                parts += _read(log, key, known)
            except (LakeBusy, LakeMoved):
                raise
            except HoldfastError as error:
                failures.append(UnreadableLog(log.location, error, key[0]))
        if not parts:
            return failures
        try:
            table.commit(table.stage_rows(pa.concat_tables(parts)).files)
            return failures
        except LakeMoved:
            if not left:
                raise JobFailed(
                    f"other jobs changed {table.root} {LAKE_TRIES_MAX} times in a row"
                ) from None
    raise AssertionError("the last try returns or raises")


def _read(log: ReadableLog, key: tuple[str, int], known: Numbers) -> Iterable[pa.Table]:
    return [commit_rows(*key, records) for records in log.commits(known.get(key, {}))]
