"""`holdfast pipeline register`, `changes`: the lake for the tools of others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from holdfast.apps.cli import output, tables
from holdfast.apps.cli.commands.pipeline_job import Work, job

if TYPE_CHECKING:
    from holdfast.pipeline import Lake

_ROWS = 100


@job("register")
@click.argument("chosen", nargs=-1, metavar="[TABLE]...")
@click.option(
    "--schema",
    default="holdfast",
    show_default=True,
    metavar="NAME",
    help="The schema of the catalog; CATALOG.NAME where it has several catalogs.",
)
@click.option(
    "--print",
    "dialect",
    type=click.Choice(["spark", "delta", "trino", "duckdb"]),
    help="Only print the SQL, for this engine. delta: Spark with Delta, Databricks, Unity.",
)
def register(work: Work, chosen: tuple[str, ...], schema: str, dialect: str | None) -> None:
    """Make all tables of the lake, or these, known to a catalog of Spark, as they are now.

    Each becomes a view that reads the lake when it is asked. Which catalog it is, --conf says:
    spark.sql.catalogImplementation=hive for the Hive metastore that the Spark is set up for.
    For engines that read Delta by themselves, tables that are still missing are made, empty.
    """
    lake = work.lake()
    if dialect is not None:
        for statement in _statements(lake, dialect, schema, chosen):
            output.out(f"{statement};\n")
        return
    from holdfast import pipeline

    with work.spark() as spark:
        names = pipeline.register_tables(spark, lake, chosen, schema=schema)
    work.session.talk(f"{len(names)} views in {schema}")
    work.session.show(
        {"lake": lake.root, "schema": schema, "views": names}, "".join(f"{n}\n" for n in names)
    )


def _statements(lake: Lake, dialect: str, schema: str, chosen: tuple[str, ...]) -> Iterator[str]:
    from holdfast.pipeline.frames.catalog import view_statements
    from holdfast.pipeline.frames.catalog_sql import Dialect, make_missing, statements

    if dialect == "spark":
        return view_statements(lake, schema, chosen)
    make_missing(lake)
    return statements(lake, Dialect(dialect), schema, chosen)


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
