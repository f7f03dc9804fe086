"""The report of a run and of each step of a stream, as text for people or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.apps.cli import documents, output, tables
from holdfast.apps.cli.commands.pipeline_job import Work

if TYPE_CHECKING:
    from holdfast.pipeline import Lake
    from holdfast.pipeline.ingest.ingest import IngestedLog
    from holdfast.pipeline.jobs.run import RunReport
    from holdfast.pipeline.jobs.stream import Step


def tell_run(work: Work, lake: Lake, report: RunReport) -> None:
    """Shows of each log what was read and what is still to come, and the rows of each table."""
    from holdfast.pipeline.jobs.status import row_counts

    ingested, folded = report.ingest, report.fold
    logs = [_log(log) for log in ingested.logs]
    rows = row_counts(lake.fresh())
    if work.session.as_json:
        work.session.show(
            {
                "lake": lake.root,
                "logs": logs,
                "quarantined": ingested.quarantined,
                "failures": [
                    {
                        "location": failure.location,
                        "log": failure.log or None,
                        "code": failure.error.code,
                        "message": failure.error.message,
                        "hint": failure.error.hint,
                    }
                    for failure in report.failures
                ],
                "tables": rows,
                "folded": 0 if folded is None else folded.changes,
                "seconds": work.seconds,
            }
        )
        return
    tables.table(logs, ["log", "epoch", "from", "to", "new", "repeated", "quarantined", "lag"])
    held = [{"table": name, "rows": count} for name, count in rows.items() if count]
    if held:
        output.out("\n")
        tables.table(held, ["table", "rows"])
    for reason, count in ingested.quarantined.items():
        output.talk(f"{count} in quarantine: {reason}")
    for failure in report.failures:
        text = f"{failure.log or failure.location}: {failure.error.message}"
        output.talk(f"error: {tables.visible(text)}")
        if failure.error.hint:
            output.talk(f"hint: {tables.visible(failure.error.hint)}")
    output.talk(f"{ingested.new} new of {ingested.read} read, {work.seconds} s")


def tell_step(work: Work, step: Step) -> None:
    """Shows one batch of a stream when it is committed."""
    if work.session.as_json:
        output.out(f"{tables.encode({'event': 'batch', **documents.plain(step)}).decode()}\n")
        output.flush()
        return
    lag = ", ".join(f"{tables.visible(log)} {count}" for log, count in step.lag.items())
    aside = f", {step.quarantined} in quarantine" if step.quarantined else ""
    output.talk(
        f"{step.new} new of {step.read}{aside}; lag {lag or 'unknown'}; {step.seconds:.1f} s"
    )


def _log(log: IngestedLog) -> dict[str, Any]:
    return {
        "log": log.log,
        "epoch": log.epoch,
        "from": log.before + 1 if log.after > log.before else None,
        "to": log.after,
        "read": log.read,
        "new": log.new,
        "repeated": log.again,
        "quarantined": log.quarantined,
        "head": max(log.head, log.head_now),
        "lag": log.lag_after,
    }
