"""The report of a run and of each step of a stream, as text for people or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.apps.cli import documents, output, tables
from holdfast.apps.cli.commands.pipeline_job import Work

if TYPE_CHECKING:
    from holdfast.pipeline import Lake
    from holdfast.pipeline.ingest.ingest import IngestedLog
    from holdfast.pipeline.jobs.follow import Step
    from holdfast.pipeline.jobs.run import RunReport


def tell_run(work: Work, lake: Lake, report: RunReport) -> None:
    """Shows of each log what was read and what is still to come, and the rows of each table."""
    from holdfast.pipeline.jobs.status import row_counts

    ingested = report.ingest
    logs = [_log(log) for log in ingested.logs]
    if work.session.as_json:
        work.session.show(_document(work, lake, report, logs))
        return
    rows = row_counts(lake.fresh())
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


def _document(
    work: Work, lake: Lake, report: RunReport, logs: list[dict[str, Any]]
) -> dict[str, Any]:
    """What programs get of a run. Schedulers rely on these names; they are told in docs/pipeline.md
    and only ever added to.
    """
    from holdfast.pipeline import status
    from holdfast.pipeline.jobs.status import row_counts

    ingested, folded = report.ingest, report.fold
    now = lake.fresh()
    stored = status(now, ask=False).tables
    return {
        "lake": lake.root,
        "lake_id": lake.id,
        "ok": report.ok,
        "rows": {
            "read": ingested.read,
            "new": ingested.new,
            "repeated": ingested.again,
            "quarantined": sum(ingested.quarantined.values()),
            "folded": 0 if folded is None else folded.changes,
        },
        "lag": sum(log["lag"] for log in logs),
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
        "tables": row_counts(now),
        "versions": {table.table: table.version for table in stored},
        "bytes": {table.table: table.bytes for table in stored},
        "folded": 0 if folded is None else folded.changes,
        "batches": ingested.batches,
        "seconds": work.seconds,
        "seconds_ingest": round(ingested.seconds, 1),
        "seconds_fold": 0.0 if folded is None else round(folded.seconds, 1),
    }


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
