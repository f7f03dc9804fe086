"""`holdfast pipeline compact`, `vacuum`, `backfill`: keep a lake small, or copy it."""

from __future__ import annotations

from typing import Any

import click

from holdfast.apps.cli import documents, output, tables
from holdfast.apps.cli.commands.pipeline_job import Work, job
from holdfast.apps.cli.declare import FILTER
from holdfast.apps.cli.times import parse_time

_WEEK_H = 168
_CENTURY_H = 876_000


@job("vacuum", spark=False)
@click.option(
    "--hours",
    type=click.IntRange(0, _CENTURY_H),
    default=_WEEK_H,
    show_default=True,
    help="Keep the files that versions of the last N hours need.",
)
@click.option("--dry-run", is_flag=True, help="Only show which files would be removed.")
def vacuum(work: Work, hours: int, dry_run: bool) -> None:
    """Remove files that no version of the last hours needs, and what killed jobs left behind.

    Older versions can no longer be read. What the tables hold now stays.
    """
    lake = work.lake()
    from holdfast.pipeline.jobs.status import tables as all_tables

    removed: list[dict[str, Any]] = []
    with lake.working("vacuum"):
        for name, table in all_tables(lake.fresh()):
            paths = table.vacuum(hours, dry_run=dry_run)
            if paths:
                removed.append({"table": name, "files": len(paths), "paths": paths})
    if work.session.as_json:
        work.session.show({"lake": lake.root, "dry_run": dry_run, "tables": removed})
        return
    count = sum(entry["files"] for entry in removed)
    tables.table(removed, ["table", "files"])
    output.talk(f"{'would remove' if dry_run else 'removed'} {count} files")


@job("compact")
def compact(work: Work) -> None:
    """Merge small files, and merge what was folded since into the files of the state.

    Queries show the same as before. Tables of an older version get their descriptions.
    """
    lake = work.lake()
    from holdfast import pipeline

    with work.spark(by_tasks=True) as spark, lake.working("compact"):
        report = pipeline.compact(spark, lake, progress=work.progress)
    if work.session.as_json:
        work.session.show({"lake": lake.root, **documents.plain(report), "seconds": work.seconds})
        return
    output.talk(f"merged: {', '.join(report.silver) or 'nothing had to be'}")
    output.talk(f"{report.files_before} small files became {report.files_after}, {work.seconds} s")


@job("backfill", mesh=FILTER)
@click.option("--into", required=True, metavar="FOLDER", help="The new lake.")
@click.option("--since", metavar="TIME", help="Only what was first recorded then or later.")
@click.option("--until", metavar="TIME", help="Only what was first recorded before.")
@click.option("--log", metavar="LOG", help="Only what this log held.")
@click.option("--first", type=click.IntRange(1), help="From this offset of the log.")
@click.option("--last", type=click.IntRange(1), help="To this offset of the log, included.")
@click.option("--redecode", is_flag=True, help="Read every envelope again from its bytes.")
def backfill(
    work: Work,
    into: str,
    since: str | None,
    until: str | None,
    redecode: bool,
    **part: Any,
) -> None:
    """Copy this lake, or a part of it, into a new lake and fold it there.

    A copy of everything can go on reading where this lake is. A copy of a part is for queries.
    """
    times: dict[str, Any] = {
        name: None if text is None else parse_time(text)
        for name, text in (("since", since), ("until", until))
    }
    lake = work.lake()
    from holdfast import pipeline

    wanted = pipeline.Range(mesh=work.session.named_mesh, **times, **part).check()
    target = pipeline.Lake.open(into, create=True, options=work.options)
    with work.spark() as spark, target.working("backfill"):
        report = pipeline.backfill(
            spark, lake, target, wanted, redecode=redecode, progress=work.progress
        )
    work.session.talk(
        f"{report.envelopes} envelopes, {report.quarantined} in quarantine, {work.seconds} s"
    )
    work.session.show(
        {"lake": target.root, **documents.plain(report), "seconds": work.seconds},
        f"{tables.visible(target.root)}\n",
    )
