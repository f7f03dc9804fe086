"""`holdfast pipeline compact`, `vacuum`, `backfill`: the lake kept small, and made anew."""

from __future__ import annotations

from typing import Any

import click

from holdfast.apps.cli import documents, output, tables
from holdfast.apps.cli.commands.pipeline_job import Work, job, open_lake, told
from holdfast.apps.cli.declare import FILTER
from holdfast.apps.cli.times import parse_time

_WEEK_H = 168


@job("vacuum", spark=False)
@click.option(
    "--hours",
    type=click.IntRange(0),
    default=_WEEK_H,
    show_default=True,
    help="Keep what versions of the last N hours need.",
)
@click.option("--dry-run", is_flag=True, help="Only say which files would go.")
def vacuum(work: Work, hours: int, dry_run: bool) -> None:
    """Remove files that no version of the last hours needs, and what killed jobs left behind.

    Versions from before that can be read no more. What the tables hold now stays.
    """
    lake = work.lake()
    from holdfast.pipeline.jobs.status import tables as all_tables

    removed: list[dict[str, Any]] = []
    with lake.working("vacuum"):
        for name, table in all_tables(lake.fresh()):
            found = table.vacuum(hours, dry_run=dry_run)
            if found:
                removed.append({"table": name, "files": len(found), "paths": found})
    if work.session.as_json:
        work.session.show({"lake": lake.root, "dry_run": dry_run, "tables": removed})
        return
    count = sum(entry["files"] for entry in removed)
    tables.table(removed, ["table", "files"])
    output.talk(f"{'would remove' if dry_run else 'removed'} {count} files")


@job("compact")
def compact(work: Work) -> None:
    """Put small files together, and what was folded since into the files of the state.

    Nothing that a query shows changes by it.
    """
    lake = work.lake()
    from holdfast.pipeline.jobs.compaction import compact as put_together

    with work.spark() as spark, lake.working("compact"):
        report = put_together(spark, lake, progress=told(work.session))
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
@click.option("--redecode", is_flag=True, help="Read everything anew from its bytes.")
def backfill(
    work: Work,
    into: str,
    since: str | None,
    until: str | None,
    redecode: bool,
    **part: Any,
) -> None:
    """Make a new lake of what this one holds, or of a part of it, and fold it there.

    A lake of everything goes on where this one is. A lake of a part is for looking at.
    """
    times: dict[str, Any] = {
        name: None if text is None else parse_time(text)
        for name, text in (("since", since), ("until", until))
    }
    lake = work.lake()
    from holdfast.pipeline.history import Range
    from holdfast.pipeline.history import backfill as copy

    wanted = Range(mesh=work.session.named_mesh, **times, **part).check()
    target = open_lake(into, create=True)
    with work.spark() as spark, target.working("backfill"):
        report = copy(spark, lake, target, wanted, redecode=redecode, progress=told(work.session))
    work.session.talk(
        f"{report.envelopes} envelopes, {report.quarantined} in quarantine, {work.seconds} s"
    )
    work.session.show(
        {"lake": target.root, **documents.plain(report), "seconds": work.seconds},
        f"{tables.visible(target.root)}\n",
    )
