"""The lineage of a run: which logs it read, and which tables of the lake it wrote.

lineage = lineage_to("http://marquez:5000", os.environ)
with followed_run(lineage, lake, logs) as told:
    told(run(spark, lake, logs))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from holdfast.pipeline.fold.silver import FOLDED
from holdfast.pipeline.jobs.run import RunReport
from holdfast.pipeline.jobs.sources import LogSource, remembered
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lineage.events import Document, log_read, table_written
from holdfast.pipeline.lineage.job_run import Warn, followed
from holdfast.pipeline.lineage.outlet import Lineage
from holdfast.pipeline.logs.log import ReadableLog

Told = Callable[[RunReport], None]


def no_warning(text: str) -> None:
    """A `Warn` that shows nothing."""


@contextmanager
def followed_run(
    lineage: Lineage | None,
    lake: Lake,
    logs: Sequence[LogSource | ReadableLog],
    *,
    warn: Warn = no_warning,
) -> Iterator[Told]:
    """Tells the lineage that a run begins and how it ended. The block hands the report of the run
    to the function that it gets. Without a lineage nothing is told.
    """
    inputs = [log_read(one.location) for one in logs]
    # The versions before the run say nothing about it: they come with its end.
    outputs = [_table(table) for table in (lake.bronze, *map(lake.silver, FOLDED))]
    job = f"{lake.consumer}.run"
    with followed(lineage, job, inputs, outputs, warn=warn) as now:

        def told(report: RunReport) -> None:
            now.inputs = _inputs(lake, logs, report)
            now.outputs = list(_outputs(lake.fresh(), report))
            now.problems += [
                f"{failure.log or failure.location}: {failure.error.message}"
                for failure in report.failures
            ]

        yield told


def _inputs(
    lake: Lake, logs: Sequence[LogSource | ReadableLog], report: RunReport
) -> list[Document]:
    """The logs with what was read of each. A log that lies in two places is counted once."""
    names = {one.location: one.name or one.log or "" for one in remembered(lake)}
    rows = {log.log: log.read for log in report.ingest.logs}
    return [log_read(one.location, rows.pop(names.get(one.location, ""), None)) for one in logs]


def _outputs(lake: Lake, report: RunReport) -> Iterator[Document]:
    """The tables that got rows."""
    ingest = report.ingest
    counts = {
        lake.bronze: ingest.new,
        lake.sightings: ingest.again,
        lake.quarantine: sum(ingest.quarantined.values()),
    }
    for table, rows in counts.items():
        if rows:
            yield _table(table, at=table.version, rows=rows)
    for folded in report.fold.tables if report.fold is not None else ():
        table = lake.silver(folded.name)
        yield _table(table, at=table.version, rows=folded.changes)


def _table(table: Table, *, at: int | None = None, rows: int | None = None) -> Document:
    return table_written(table.root, table.schema, about=table.about, at=at, rows=rows)
