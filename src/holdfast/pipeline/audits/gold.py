"""Gold: runs audits and measures, and keeps their results as tables that any tool can read.

`findings` is one table for all audits; each measure has a table of its own. A run replaces the
results of the run before, in one commit for each table, so older results can still be read as
older versions. Each commit notes the version of bronze that it is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from holdfast.pipeline.audits import AUDITS, MEASURES, chosen, findings
from holdfast.pipeline.audits.live_facts import LiveFacts
from holdfast.pipeline.audits.lost import LOST_PLACES, lost_places
from holdfast.pipeline.audits.shape import (
    FINDING,
    FINDINGS,
    NOTICE,
    POSITIONS,
    Audit,
    AuditTables,
    settled,
    sighted,
    small_table,
)
from holdfast.pipeline.fold.silver import current
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.lake import Lake, Progress, no_progress
from holdfast.pipeline.spark.failures import spark_errors
from holdfast.rules.limits import AUDIT_SAMPLE_ROWS, SECOND_MS

APP: Final = "audits"
"""The application id with which a commit of gold notes the version of bronze that it is about."""
FINDINGS_ABOUT: Final = "What audits have found wrong, and what is worth a look"
_ORDER: Final = ("audit", "severity", "mesh", "log", "epoch", "offset", "origin", "entity", "id")
_STRONG: Final = "strong"


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


class AuditResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one audit found."""

    name: str
    about: str
    findings: int = 0
    notices: int = 0
    sample: tuple[AuditFinding, ...] = ()
    """The first rows, findings before notices."""


class MeasureResult(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    about: str
    rows: int


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """What all audits found, and how large the measures are."""

    bronze_version: int
    audits: tuple[AuditResult, ...]
    measures: tuple[MeasureResult, ...] = ()

    @property
    def findings(self) -> int:
        return sum(audit.findings for audit in self.audits)

    @property
    def notices(self) -> int:
        return sum(audit.notices for audit in self.audits)


def run_audits(
    spark: SparkSession,
    lake: Lake,
    names: Iterable[str] | None = None,
    *,
    facts: LiveFacts | None = None,
    write: bool = True,
    sample: int = AUDIT_SAMPLE_ROWS,
    progress: Progress = no_progress,
) -> AuditReport:
    """Runs audits and measures, all of them without `names`, and keeps the results in gold. `facts`
    are what live nodes say about their logs; audits that need them find nothing without. Without
    `write` nothing is measured and nothing kept. A caller that writes holds `Lake.working`.
    """
    audits, measures = chosen(names)
    steps = bool(audits) + len(measures)
    lake = lake.fresh()
    version = lake.bronze.version
    results: tuple[AuditResult, ...] = ()
    measured: list[MeasureResult] = []
    with spark_errors("the audit"), _tables(spark, lake, facts or LiveFacts()) as tables:
        if audits:
            progress(f"audit {lake.bronze.rows} envelopes", 0, steps)
            found = findings(tables, audits)
            if write:
                found = _keep_findings(spark, lake, found, audits, version)
            results = _summed(found, audits, sample)
        for measure in measures if write else ():
            progress(f"measure {measure.name}", bool(audits) + len(measured), steps)
            files = _replace(gold_tables(lake)[measure.name], measure.take(tables), version)
            rows = sum(file.rows for file in files)
            measured.append(MeasureResult(name=measure.name, about=measure.about, rows=rows))
    return AuditReport(bronze_version=version, audits=results, measures=tuple(measured))


def gold_tables(lake: Lake) -> dict[str, Table]:
    """Every table of gold by its name, whether audits have written it yet or not."""
    measures = {
        name: lake.gold(name, measure.schema, measure.about) for name, measure in MEASURES.items()
    }
    return {"findings": findings_table(lake), **measures}


def findings_table(lake: Lake) -> Table:
    return lake.gold("findings", FINDINGS, FINDINGS_ABOUT)


# --- the tables that audits read -----------------------------------------------------------------


@contextmanager
def _tables(spark: SparkSession, lake: Lake, facts: LiveFacts) -> Iterator[AuditTables]:
    bronze, positions = lake.bronze.read(spark), _positions(spark, lake)
    sightings = settled(lake.sightings.read(spark), positions)
    seen = sighted(bronze, sightings)
    again = lake.sightings.rows > 0
    if again:
        # It is a join of everything, and five audits use it.
        seen = seen.persist()
    try:
        yield AuditTables(
            bronze=bronze,
            sightings=sightings,
            quarantine=settled(lake.quarantine.read(spark), positions),
            seen=seen,
            strong=lake.bronze.read(spark, _may_hold_strong).filter(
                F.col("write_class") == _STRONG
            ),
            tasks=current(spark, lake, "tasks"),
            task_events=current(spark, lake, "task_events"),
            logs=facts.frame(spark),
            positions=positions,
            lost=small_table(spark, lost_places(lake, facts), LOST_PLACES),
            consumer=lake.consumer,
        )
    finally:
        if again:
            seen.unpersist()


def _may_hold_strong(file: File) -> bool:
    return file.may_hold("write_class", _STRONG, _STRONG)


def _positions(spark: SparkSession, lake: Lake) -> DataFrame:
    rows = [(known.log, known.epoch, known.offset) for known in lake.positions()]
    return small_table(spark, rows, POSITIONS)


# --- the results that are kept -------------------------------------------------------------------


def _keep_findings(
    spark: SparkSession, lake: Lake, found: DataFrame, audits: Sequence[Audit], version: int
) -> DataFrame:
    """Replaces what these audits had found before; returns what they found now."""
    table = findings_table(lake)
    names = [audit.name for audit in audits]
    kept = found
    if len(names) < len(AUDITS):
        others = table.read(spark).filter(~F.col("audit").isin(*names))
        kept = others.unionByName(found)
    files = _replace(table, kept, version)
    return table.read_files(spark, files).filter(F.col("audit").isin(*names))


def _replace(table: Table, frame: DataFrame, version: int) -> Sequence[File]:
    # One file of few rows. `coalesce` would make a single task do all the work before it too.
    staged = table.stage(frame.repartition(1))
    table.commit(staged.files, table.files(), txns={APP: version}, info={"bronze": version})
    return staged.files


def _summed(found: DataFrame, audits: Sequence[Audit], sample: int) -> tuple[AuditResult, ...]:
    """Counts and the first rows of each audit, in one job; nothing else comes to the driver."""
    kind = Window.partitionBy("audit", "severity")
    ranked = found.withColumn("at", F.unix_millis("at")).select(
        "*",
        F.count("*").over(kind).alias("total"),
        F.row_number().over(kind.orderBy(*_ORDER[2:])).alias("number"),
    )
    rows = ranked.filter(F.col("number") <= max(1, sample)).orderBy(*_ORDER).collect()
    totals = {(row["audit"], row["severity"]): row["total"] for row in rows}
    return tuple(
        AuditResult(
            name=audit.name,
            about=audit.about,
            findings=totals.get((audit.name, FINDING), 0),
            notices=totals.get((audit.name, NOTICE), 0),
            sample=tuple(_finding(row) for row in rows if row["audit"] == audit.name)[:sample],
        )
        for audit in audits
    )


def _finding(row: Row) -> AuditFinding:
    fields = {name: row[name] for name in AuditFinding.__struct_fields__}
    if fields["at"] is not None:
        fields["at"] = datetime.fromtimestamp(fields["at"] / SECOND_MS, UTC)
    return AuditFinding(**fields)
