"""`holdfast pipeline verify`, `audit`: whether nodes hold what their logs make, and what is odd."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.apps.cli import documents, output, tables
from holdfast.apps.cli.commands.pipeline_job import Work, job, told
from holdfast.apps.cli.commands.pipeline_run import named_sources, opened, reaching, sources_of
from holdfast.rules.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.pipeline.audits.gold import AuditReport
    from holdfast.pipeline.audits.live_facts import LiveFacts
    from holdfast.pipeline.lake.lake import Lake
    from holdfast.pipeline.verify.verify import Difference, VerifiedLog

DIFFERS = 1
FOUND = 1


@job("verify")
@click.argument("logs", nargs=-1, metavar="[LOG]...")
@reaching
@click.option(
    "--as-read", is_flag=True, help="Do not read the logs first: judge by what the lake has."
)
def verify(work: Work, logs: tuple[str, ...], as_read: bool, **how: Any) -> int:
    """Compare what nodes hold with what the lake makes of their logs. Exits with 1 if it differs.

    Without a LOG, all that the lake remembers. A node that has not heard of everything yet is not
    wrong; how many rows it will still get is shown as behind.
    """
    lake = work.lake()
    given = sources_of(lake, named_sources(logs, **how))
    from holdfast.pipeline.jobs import run
    from holdfast.pipeline.verify.verify import verify as compare

    tell = told(work.session)
    with run.opened(given, lake.consumer) as (found, failures), work.spark() as spark:

        def catch_up() -> object:
            return run.run(spark, lake, found, progress=tell)

        report = compare(spark, lake, found, catch_up=None if as_read else catch_up, progress=tell)
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


def _tell_difference(log: str, found: Difference) -> None:
    about = " ".join(map(str, found.key)) or f"bucket {found.bucket}"
    where = f"{found.table} of {found.mesh}: {about}"
    output.out(f"\n{tables.visible(log)} differs first in {tables.visible(where)}\n")
    output.out(f"  node  {_side(found.node)}\n  lake  {_side(found.lake)}\n")
    if found.note:
        output.out(f"  {tables.visible(found.note)}\n")


def _side(row: Mapping[str, Any] | None) -> str:
    return "has no such row" if row is None else tables.visible(tables.encode(row).decode())


@job("audit")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--plots", metavar="FOLDER", help="Also draw lag, staleness, conflicts and growth.")
@click.option("--offline", is_flag=True, help="Do not ask the nodes about their readers.")
def audit(work: Work, names: tuple[str, ...], plots: str | None, offline: bool) -> int:
    """Look for what should never be, and count what may be. Exits with 1 if something was found.

    All audits, or those of these NAMEs. What they find is kept in the lake: see it all with
    holdfast pipeline query 'SELECT * FROM findings'.
    """
    lake = work.lake()
    from holdfast.pipeline.audits.gold import run_audits

    facts = None if offline else _asked(work, lake)
    with work.spark() as spark, lake.working("audit"):
        report = run_audits(spark, lake, names or None, facts=facts, progress=told(work.session))
    drawn = [] if plots is None else _drawn(lake.fresh(), Path(plots))
    tell_audited(work, report, drawn)
    return FOUND if report.findings else 0


def _asked(work: Work, lake: Lake) -> LiveFacts:
    """What the nodes that answer say of themselves; of the others it is said that they do not."""
    from holdfast.pipeline.audits.live_facts import LiveFacts, ask
    from holdfast.pipeline.jobs.sources import remembered

    told_of: list[Any] = []
    for source in remembered(lake):
        try:
            with opened([source]) as logs:
                told_of += ask(logs).logs
        except HoldfastError as error:
            work.session.warn("log_not_asked", f"{source.location}: {error.message}")
    return LiveFacts(tuple(told_of))


def _drawn(lake: Lake, folder: Path) -> list[str]:
    from holdfast.pipeline.audits.plots import save_plots

    return [documents.path(path) for path in save_plots(lake, folder)]


def tell_audited(work: Work, report: AuditReport, drawn: list[str]) -> None:
    if work.session.as_json:
        document = {
            **documents.plain(report),
            "findings": report.findings,
            "notices": report.notices,
        }
        work.session.show({**document, "plots": drawn, "seconds": work.seconds})
        return
    audits = [documents.plain(audit) for audit in report.audits]
    tables.table(audits, ["name", "findings", "notices", "about"])
    for audit in report.audits:
        for found in audit.sample if audit.findings else ():
            output.out(f"{audit.name}: {found.severity}: {tables.visible(found.detail)}\n")
    for path in drawn:
        output.talk(f"drew {path}")
    output.talk(f"{report.findings} findings, {report.notices} notices, {work.seconds} s")
