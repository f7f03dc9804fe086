"""`holdfast pipeline repair`: read again what a lake has lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.apps.cli import documents, output, tables
from holdfast.apps.cli.commands.pipeline_job import Work, job
from holdfast.apps.cli.commands.pipeline_run import named_sources, reaching

if TYPE_CHECKING:
    from holdfast.pipeline.jobs.repair import LakeRepairReport, RepairedLog

LEFT = 1


@job("repair")
@click.argument("logs", nargs=-1, metavar="[LOG]...")
@reaching
@click.option("--dry-run", is_flag=True, help="Only show what is missing.")
@click.option(
    "--allow-gaps", is_flag=True, help="Give up what no log has any more, and note its offsets."
)
def repair(work: Work, logs: tuple[str, ...], dry_run: bool, allow_gaps: bool, **how: Any) -> int:
    """Read again what a lake has lost: after a restore, with a copied table, without some files.

    What is missing is read from the logs that the lake knows, and from every LOG named here: a
    backup or an export has what its node has truncated. Exits with 1 if something is still missing.
    A repair may be stopped at any point; the next one goes on from there.
    """
    lake = work.lake()
    from holdfast import pipeline

    named = named_sources(logs, **how)
    known = {one.location: one for one in (*pipeline.remembered(lake), *named)}
    with work.spark_when_needed(by_tasks=True) as start:
        report = pipeline.repair(
            start,
            lake,
            list(known.values()),
            dry_run=dry_run,
            allow_gaps=allow_gaps,
            progress=work.progress,
        )
    work.progress("")
    tell_repaired(work, report, dry_run=dry_run)
    return LEFT if report.left else 0


def tell_repaired(work: Work, report: LakeRepairReport, *, dry_run: bool) -> None:
    if work.session.as_json:
        failures = [
            {"location": one.location, "log": one.log or None, "message": one.error.message}
            for one in report.failures
        ]
        plain = documents.plain(msgspec.structs.replace(report, failures=()))
        document = {**plain, "failures": failures, "seconds": work.seconds}
        work.session.show({**document, "left": report.left, "dry_run": dry_run})
        return
    tables.table(
        [{**documents.plain(log), "left": _spans(log)} for log in report.logs],
        ["log", "epoch", "missing", "read", "lost", "left"],
    )
    for failure in report.failures:
        output.talk(f"error: {tables.visible(f'{failure.location}: {failure.error.message}')}")
    if report.files:
        output.talk(f"{report.files} files are gone")
    if report.rebuilt:
        output.talk(f"folded again: {', '.join(report.rebuilt)}")
    if report.left and not dry_run:
        output.talk("hint: name a backup that has them, or give them up: --allow-gaps")
    missing = sum(log.missing for log in report.logs)
    output.talk(f"{missing} entries {'are' if dry_run else 'were'} missing, {work.seconds} s")


def _spans(log: RepairedLog) -> str:
    return ", ".join(f"{first} to {last}" for first, last in log.left)
