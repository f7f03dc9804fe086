"""`holdfast pipeline changes`: the lake for the tools of others."""

from __future__ import annotations

from itertools import islice

import click

from holdfast.apps.cli import output, tables
from holdfast.apps.cli.commands.pipeline_job import Work, job

_ROWS = 100


@job("changes", spark=False)
@click.argument("table")
@click.option(
    "--since",
    type=click.IntRange(-1),
    default=-1,
    metavar="VERSION",
    help="What changed after this version of bronze; without it, everything.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=_ROWS,
    show_default=True,
    help="Rows to show; --json gives all of them.",
)
def changes(work: Work, table: str, since: int, limit: int) -> None:
    """Show the rows of a TABLE of the state that have changed since a version of bronze.

    With --json each line is a row with its change, set or deleted; the last line has the number
    of rows and upto, which is the next --since. Replace the rows of a key by those that come.
    """
    lake = work.lake()
    from holdfast import pipeline
    from holdfast.pipeline.frames.changes import change_documents
    from holdfast.pipeline.query import plain

    told = pipeline.changes(lake, table, since)
    rows = (plain(row) for row in change_documents(told))
    if work.session.as_json:
        count = 0
        for row in rows:
            output.out(f"{tables.encode(row).decode()}\n")
            count += 1
        end = {"table": table, "since": told.since, "upto": told.upto, "rows": count}
        output.out(f"{tables.encode(end).decode()}\n")
        return
    shown = list(islice(rows, limit + 1))
    columns = ["change", *told.key, "lamport", "peer", "updated_at", "created_at"]
    tables.table(shown[:limit], [name for name in columns if name in told.schema.names])
    if len(shown) > limit:
        work.session.warn("more_rows", f"these are the first {limit} rows; there are more")
    work.session.talk(f"go on with: --since {told.upto}")
