"""`holdfast pipeline verify`, `audit`: do nodes hold what their logs make, is anything wrong?"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.apps.cli import documents, output, tables
from holdfast.apps.cli.commands.pipeline_job import Work, job
from holdfast.apps.cli.commands.pipeline_run import named_sources, reaching, sources_of
from holdfast.rules.errors import BadInput, HoldfastError

if TYPE_CHECKING:
    from holdfast.pipeline import Lake, LiveFacts
    from holdfast.pipeline.audits.gold import AuditReport
    from holdfast.pipeline.verify.verify import Difference, VerifiedLog

DIFFERS = 1
FOUND = 1
_MAX = "So many findings of an audit pass; repeatable. Without it, none do."
_MAX_NOTICES = "So many notices of an audit pass; repeatable. Without it, any number does."


@job("verify")
@click.argument("logs", nargs=-1, metavar="[LOG]...")
@reaching
@click.option("--as-read", is_flag=True, help="Do not read the logs first; use what the lake has.")
def verify(work: Work, logs: tuple[str, ...], as_read: bool, **how: Any) -> int:
    """Compare what nodes hold with what the lake makes of their logs. Exits with 1 if they differ.

    Without a LOG, all logs that the lake remembers. A node that has not received everything yet is
    not wrong; the column behind shows how many rows it will still receive.
    """
    lake = work.lake()
    given = sources_of(lake, named_sources(logs, **how))
    from holdfast import pipeline
    from holdfast.pipeline.jobs.run import opened

    tell = work.progress
    with (
        opened(given, lake.consumer) as (logs_open, failures),
        work.spark_when_needed() as start,
    ):

        def catch_up() -> object:
            return pipeline.run(start, lake, logs_open, progress=tell)

        report = pipeline.verify_nodes(
            start, lake, logs_open, catch_up=None if as_read else catch_up, progress=tell
        )
    for failure in failures:
        work.session.warn("log_not_asked", f"{failure.location}: {failure.error.message}")
    tell_verified(work, report.logs)
    return DIFFERS if report.differs or failures else 0


def tell_verified(work: Work, logs: tuple[VerifiedLog, ...]) -> None:
    if work.session.as_json:
        work.session.show(
            {
                "differs": any(log.status == "differs" for log in logs),
                "logs": [{**documents.plain(log), "rows": log.rows} for log in logs],
                "seconds": work.seconds,
            }
        )
        return
    shown = [
        {**documents.plain(log), "rows": log.rows, "behind": sum(log.behind.values())}
        for log in logs
    ]
    tables.table(shown, ["log", "status", "rows", "behind", "epoch", "head", "reason"])
    for log in logs:
        for difference in log.differences:
            _tell_difference(log.log, difference)


def _tell_difference(log: str, difference: Difference) -> None:
    about = " ".join(map(str, difference.key)) or f"bucket {difference.bucket}"
    where = f"{difference.table} of {difference.mesh}: {about}"
    output.out(f"\n{tables.visible(log)} differs first in {tables.visible(where)}\n")
    output.out(f"  node  {_side(difference.node)}\n  lake  {_side(difference.lake)}\n")
    if difference.note:
        output.out(f"  {tables.visible(difference.note)}\n")


def _side(row: Mapping[str, Any] | None) -> str:
    return "has no such row" if row is None else tables.visible(tables.encode(row).decode())


@job("audit")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--plots", metavar="FOLDER", help="Also draw lag, staleness, conflicts and growth.")
@click.option("--offline", is_flag=True, help="Do not ask the nodes about their readers.")
@click.option("--max", "most", multiple=True, metavar="NAME=COUNT", help=_MAX)
@click.option("--max-notices", "notices", multiple=True, metavar="NAME=COUNT", help=_MAX_NOTICES)
def audit(
    work: Work,
    names: tuple[str, ...],
    plots: str | None,
    offline: bool,
    most: tuple[str, ...],
    notices: tuple[str, ...],
) -> int:
    """Look for what must never happen, and measure what may. Exits with 1 if an audit fails.

    Runs all audits, or those of these NAMEs. One fails if it has findings, or more of them than
    --max allows. The lake keeps the worst rows that they find, see holdfast pipeline query 'SELECT
    * FROM findings', and how each of them ended, in the table checks.
    """
    limits = _limits(most), _limits(notices)
    lake = work.lake()
    from holdfast import pipeline
    from holdfast.pipeline.audits.gold import Threshold, needs_spark

    thresholds = {
        name: Threshold(findings_max=limits[0].get(name, 0), notices_max=limits[1].get(name))
        for name in {**limits[0], **limits[1]}
    }
    facts = None if offline else _live_facts(work, lake)
    with work.spark_when_needed(by_tasks=True) as start, lake.working("audit"):
        report = pipeline.run_audits(
            start() if work.names_spark or needs_spark(lake) else None,
            lake,
            names or None,
            facts=facts,
            thresholds=thresholds,
            progress=work.progress,
        )
    drawn: list[str] = []
    if plots is not None:
        drawn = [documents.path(path) for path in pipeline.save_plots(lake.fresh(), Path(plots))]
    tell_audited(work, report, drawn)
    return 0 if report.passed else FOUND


def _limits(given: tuple[str, ...]) -> dict[str, int]:
    """Counts by the names of audits."""
    found: dict[str, int] = {}
    for text in given:
        name, _, count = text.partition("=")
        if not name or not count.isdecimal():
            raise BadInput(f"{text!r} is not NAME=COUNT", hint="as in --max gaps=3")
        found[name] = int(count)
    return found


def _live_facts(work: Work, lake: Lake) -> LiveFacts:
    """What the nodes that answer say about their logs; a warning for each of the others."""
    from holdfast import pipeline

    facts: list[Any] = []
    for source in pipeline.remembered(lake):
        try:
            with closing(pipeline.open_log(source.location, source.options())) as log:
                facts += pipeline.ask_logs([log]).logs
        except HoldfastError as error:
            work.session.warn("log_not_asked", f"{source.location}: {error.message}")
    return pipeline.LiveFacts(tuple(facts))


def tell_audited(work: Work, report: AuditReport, drawn: list[str]) -> None:
    if work.session.as_json:
        document = {
            **documents.plain(report),
            "findings": report.findings,
            "notices": report.notices,
            "passed": report.passed,
        }
        work.session.show({**document, "plots": drawn, "seconds": work.seconds})
        return
    audits = [
        {**documents.plain(audit), "result": "passed" if audit.passed else "failed"}
        for audit in report.audits
    ]
    tables.table(audits, ["name", "result", "findings", "notices", "about"])
    for audit in report.audits:
        for finding in audit.sample if audit.findings else ():
            output.out(f"{audit.name}: {finding.severity}: {tables.visible(finding.detail)}\n")
    for path in drawn:
        output.talk(f"drew {path}")
    output.talk(f"{report.findings} findings, {report.notices} notices, {work.seconds} s")
