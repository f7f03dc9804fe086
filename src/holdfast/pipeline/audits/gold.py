"""Gold: runs audits and measures, and keeps their results as tables that any tool can read.

`findings` is one table for all audits, with the worst rows of each; `checks` gets a row for each
audit and run, with its counts and whether it has passed; each measure has a table of its own. A run
replaces the findings and measures of the run before, in one commit for each table, so older results
can still be read as older versions. Each commit notes the version of bronze that it is about.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from holdfast.pipeline.audits import AUDITS, MEASURES, chosen
from holdfast.pipeline.audits.claims import CLAIMS, audit_claims
from holdfast.pipeline.audits.frontiers import FRONTIERS, judge_frontiers
from holdfast.pipeline.audits.job import audit_bronze
from holdfast.pipeline.audits.live_facts import LiveFacts
from holdfast.pipeline.audits.lost import judge_lost, lost_places
from holdfast.pipeline.audits.places import OFFSETS
from holdfast.pipeline.audits.shape import (
    FINDING,
    FINDINGS,
    NOTICE,
    Audit,
    Found,
    FoundRow,
    Measure,
    arrow_rows,
    findings_rows,
    together,
)
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.lake import Lake, Progress, no_progress
from holdfast.pipeline.lake.schema import arrow_schema, described
from holdfast.pipeline.spark.spark_workers import SparkWorkers
from holdfast.pipeline.spark.workers import DriverWorkers, Workers
from holdfast.rules.errors import UnknownKey
from holdfast.rules.limits import (
    AUDIT_DRIVER_ROWS_MAX,
    AUDIT_SAMPLE_ROWS,
    CHECKS_ROWS_MAX,
    SECOND_MS,
)

APP: Final = "audits"
"""The application id with which a commit of gold notes the version of bronze that it is about."""
FINDINGS_ABOUT: Final = "What audits have found wrong, and what is worth a look"
CHECKS: Final = described(
    """
    name string: the audit
    checked_at timestamp: when it ran
    bronze_version bigint: the version of bronze that it is about
    rows bigint: how many rows of the lake the run has looked at
    findings bigint: how many findings there were
    notices bigint: how many notices there were
    findings_max bigint: more findings than these do not pass
    notices_max bigint: more notices than these do not pass; null if any number does
    level string: `ok`, `notice` or `finding`: the gravest that was found
    passed boolean: whether neither findings nor notices were too many
    """
)
CHECKS_ABOUT: Final = "How each audit of each run ended"

Level = Literal["ok", "notice", "finding"]


class AuditFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table `findings`, without the name of its audit."""

    severity: str
    mesh: str | None
    log: str | None
    epoch: int | None
    offset: int | None
    origin: str | None
    entity: str | None
    id: str | None
    detail: str
    at: datetime | None
    """When it was recorded, in UTC, by the clock of the node that recorded it; None if the finding
    has no time.
    """
    weight: int
    """How bad it is, by the measure of its audit."""


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    """How much of an audit is let pass."""

    findings_max: int = 0
    notices_max: int | None = None
    """None for any number."""


class AuditResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one audit found."""

    name: str
    about: str
    weight: str
    """The measure by which its rows are ranked."""
    level: Level = "ok"
    findings: int = 0
    notices: int = 0
    findings_max: int = 0
    notices_max: int | None = None
    passed: bool = True
    """Whether neither findings nor notices are over their threshold."""
    sample: tuple[AuditFinding, ...] = ()
    """The worst rows, findings before notices."""


class MeasureResult(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    about: str
    rows: int


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """What all audits found, and how large the measures are."""

    bronze_version: int
    rows: int
    """Rows that were looked at."""
    audits: tuple[AuditResult, ...]
    measures: tuple[MeasureResult, ...] = ()

    @property
    def findings(self) -> int:
        return sum(audit.findings for audit in self.audits)

    @property
    def notices(self) -> int:
        return sum(audit.notices for audit in self.audits)

    @property
    def passed(self) -> bool:
        return all(audit.passed for audit in self.audits)


def run_audits(
    spark: SparkSession | None,
    lake: Lake,
    names: Iterable[str] | None = None,
    *,
    facts: LiveFacts | None = None,
    thresholds: Mapping[str, Threshold] | None = None,
    write: bool = True,
    sample: int = AUDIT_SAMPLE_ROWS,
    progress: Progress = no_progress,
) -> AuditReport:
    """Runs audits and measures, all of them without `names`, and keeps the results in gold. Without
    `spark` the driver does all of it. `facts` are what live nodes say about their logs; audits that
    need them find nothing without. `thresholds` say by audit how much passes; without one, no
    finding and any notice. Without `write` nothing is measured and nothing kept. A caller that
    writes holds `Lake.working`.
    """
    audits, measures = chosen(names)
    limits = _checked(thresholds or {})
    lake = lake.fresh()
    workers: Workers = DriverWorkers() if spark is None else SparkWorkers(spark, lake.proof)
    job = _Run(workers, lake, facts or LiveFacts(), audits, measures if write else [])
    progress(f"audit {lake.bronze.rows} envelopes", 0, 2)
    found = job.find()
    if write:
        progress("keep what was found", 1, 2)
    results = tuple(_result(audit, found, limits, sample) for audit in audits)
    report = AuditReport(
        bronze_version=lake.bronze.version,
        rows=job.rows,
        audits=results,
        measures=tuple(job.keep_measures()) if write else (),
    )
    if write and audits:
        _keep_findings(lake, found, audits)
        _keep_checks(lake, report)
    progress("audit", 2, 2)
    return report


def needs_spark(lake: Lake) -> bool:
    """Whether the lake is too large to be audited in one process."""
    return lake.bronze.rows + lake.sightings.rows > AUDIT_DRIVER_ROWS_MAX


def gold_tables(lake: Lake) -> dict[str, Table]:
    """Every table of gold by its name, whether audits have written it yet or not."""
    measures = {
        name: lake.gold(name, measure.schema, measure.about) for name, measure in MEASURES.items()
    }
    return {"findings": findings_table(lake), "checks": checks_table(lake), **measures}


def findings_table(lake: Lake) -> Table:
    return lake.gold("findings", FINDINGS, FINDINGS_ABOUT)


def checks_table(lake: Lake) -> Table:
    return lake.gold("checks", CHECKS, CHECKS_ABOUT)


class _Run:
    """One run of audits and measures on one version of a lake."""

    def __init__(
        self,
        workers: Workers,
        lake: Lake,
        facts: LiveFacts,
        audits: Sequence[Audit],
        measures: Sequence[Measure],
    ) -> None:
        self._workers = workers
        self._lake = lake
        self._facts = facts
        self._wanted = {*(one.name for one in audits), *(one.name for one in measures)}
        self._measures = measures
        self._files: dict[str, list[File]] = {}
        self.rows = lake.bronze.rows + lake.sightings.rows + lake.quarantine.rows

    def find(self) -> list[Found]:
        """What all audits found; measures are written, and not committed yet."""
        lake = self._lake
        tables = gold_tables(lake)
        writers = {one.name: tables[one.name].writer() for one in self._measures}
        found, self._files = audit_bronze(self._workers, lake, self._wanted, self._facts, writers)
        if CLAIMS.name in self._wanted:
            claims, rows = audit_claims(self._workers, lake)
            found += claims
            self.rows += rows
        if FRONTIERS.name in self._wanted:
            found += judge_frontiers(self._facts.logs, lake.offsets, lake.consumer)
        if not self._wanted.isdisjoint({OFFSETS.name, FRONTIERS.name}):
            found += judge_lost(lost_places(lake, self._facts))
        return together(part for part in found if part.audit in self._wanted)

    def keep_measures(self) -> Iterable[MeasureResult]:
        for measure in self._measures:
            table = gold_tables(self._lake)[measure.name]
            files = self._files.get(measure.name, [])
            _replace(table, files, self._lake.bronze.version)
            rows = sum(file.rows for file in files)
            yield MeasureResult(name=measure.name, about=measure.about, rows=rows)


def _checked(thresholds: Mapping[str, Threshold]) -> Mapping[str, Threshold]:
    for name in thresholds:
        if name not in AUDITS:
            raise UnknownKey(f"there is no audit {name!r}", hint=f"use: {', '.join(AUDITS)}")
    return thresholds


def _result(
    audit: Audit, found: Sequence[Found], thresholds: Mapping[str, Threshold], sample: int
) -> AuditResult:
    ours = {part.severity: part for part in found if part.audit == audit.name}
    findings, notices = (
        ours[severity].total if severity in ours else 0 for severity in (FINDING, NOTICE)
    )
    limit = thresholds.get(audit.name, Threshold())
    over = findings > limit.findings_max or (
        limit.notices_max is not None and notices > limit.notices_max
    )
    shown = [
        _finding(severity, row)
        for severity in (FINDING, NOTICE)
        if severity in ours
        for row in ours[severity].rows[:sample]
    ]
    return AuditResult(
        name=audit.name,
        about=audit.about,
        weight=audit.weight,
        level="finding" if findings else "notice" if notices else "ok",
        findings=findings,
        notices=notices,
        findings_max=limit.findings_max,
        notices_max=limit.notices_max,
        passed=not over,
        sample=tuple(shown[:sample]),
    )


def _finding(severity: str, row: FoundRow) -> AuditFinding:
    fields = {name: getattr(row, name) for name in FoundRow.__struct_fields__}
    if row.at is not None:
        fields["at"] = datetime.fromtimestamp(row.at / SECOND_MS, UTC)
    return AuditFinding(severity=severity, **fields)


# --- the results that are kept -------------------------------------------------------------------


def _keep_findings(lake: Lake, found: Sequence[Found], audits: Sequence[Audit]) -> None:
    """Replaces what these audits had found before."""
    table = findings_table(lake).widened()
    names = [audit.name for audit in audits]
    kept = arrow_rows(findings_rows(found), arrow_schema(FINDINGS))
    if len(names) < len(AUDITS):
        before = rows_of(table)
        others = before.filter(pc.invert(pc.is_in(before["audit"], value_set=pa.array(names))))
        kept = pa.concat_tables([others, kept])
    _replace(table, table.writer().write([kept]), lake.bronze.version)


def _keep_checks(lake: Lake, report: AuditReport) -> None:
    """Adds the results of this run to those of earlier ones."""
    table = checks_table(lake)
    now = time.time_ns() // 1000
    about = {"checked_at": now, "bronze_version": report.bronze_version, "rows": report.rows}
    names = [name for name in CHECKS.names if name not in about]
    rows = [{**about, **{name: getattr(audit, name) for name in names}} for audit in report.audits]
    new = arrow_rows(rows, arrow_schema(CHECKS))
    # One file is written again with every run: many small ones would be slower to read.
    whole = pa.concat_tables([rows_of(table), new])
    kept = whole.slice(max(0, whole.num_rows - CHECKS_ROWS_MAX))
    _replace(table, table.writer().write([kept]), report.bronze_version)


def rows_of(table: Table) -> pa.Table:
    """All rows of a small table."""
    reader = table.reader()
    parts = [reader.schema.empty_table()]
    for file in table.files():
        with reader.open(file) as opened:
            parts += [opened.group(group) for group in range(opened.groups)]
    return pa.concat_tables(parts)


def _replace(table: Table, files: Sequence[File], version: int) -> None:
    table.commit(files, table.files(), txns={APP: version}, info={"bronze": version})
