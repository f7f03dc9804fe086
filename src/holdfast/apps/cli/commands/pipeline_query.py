"""`holdfast pipeline state`, `query`: what the lake says, now or at any time before."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from holdfast.apps.cli import inputs, output, tables
from holdfast.apps.cli.commands.pipeline_job import Work, job, no_server
from holdfast.apps.cli.times import parse_time
from holdfast.rules.errors import BadInput, UnknownKey

_ROWS = 100
_NUMBER = re.compile(r"[0-9]{1,18}")
_COMMIT = "commit:"
_PLACE = re.compile(r"(.+):([0-9]{1,18})")
# By table: the columns that are shown.
_SHOWN = {
    "state": "key value lamport peer updated_at",
    "memory": "owner key value tags lamport updated_at",
    "files": "owner path size sha256 lamport updated_at",
    "vectors": "owner key model content lamport updated_at",
    "tasks": "task title status holder_peer generation lamport peer updated_at",
    "task_events": "task event peer lamport event_time",
    "entities": "type entity revision fields number peer committed_at",
    "entity_revisions": "type entity revision kind fields number peer committed_at",
    "facts": "subject predicate object lamport peer created_at",
    "audit_events": "stream peer seq payload event_time hash",
    "messages": "ref kind sender priority content_type lamport created_at",
}
# By table: the column that KEY is compared with, where it is not called `key`.
_KEY = {
    "files": "path",
    "tasks": "task",
    "task_events": "task",
    "entities": "entity",
    "entity_revisions": "entity",
    "facts": "subject",
    "audit_events": "stream",
    "messages": "ref",
}


def parse_as_of(text: str) -> dict[str, Any]:
    """`120` or `lamport:120` is a stamp, `commit:17` a commit, `plant:17` an offset of a log,
    anything else a time.
    """
    if _NUMBER.fullmatch(number := text.removeprefix(_COMMIT)) and number != text:
        return {"commit": int(number)}
    if _NUMBER.fullmatch(text.removeprefix("lamport:")):
        return {"lamport": int(text.removeprefix("lamport:"))}
    try:
        ms = parse_time(text)
    except BadInput:
        place = _PLACE.fullmatch(text)
        if place is None:
            raise BadInput(
                f"{text!r} is not a point in the past",
                hint="write a stamp as 120, a time as 2026-11-15T10:00:00Z, LOG:OFFSET "
                "or commit:17",
            ) from None
        return {"log": place[1], "offset": int(place[2])}
    return {"at": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)}


_limit = click.option(
    "--limit", type=click.IntRange(1), default=_ROWS, show_default=True, help="Rows to show."
)


@job("state")
@click.argument("of_mesh", metavar="MESH")
@click.argument("key", required=False)
@click.option(
    "--table",
    type=click.Choice(list(_SHOWN)),
    default="state",
    help="Which table.",
    show_default=True,
)
@click.option("--as-of", metavar="STAMP|TIME|LOG:OFFSET|commit:N", help="The state at that point.")
@_limit
def state(
    work: Work, of_mesh: str, key: str | None, table: str, as_of: str | None, limit: int
) -> None:
    """Show what MESH holds, or one KEY of it, now or at any point in the past."""
    when = {} if as_of is None else parse_as_of(as_of)
    lake = work.lake()
    from holdfast import pipeline

    column = _KEY.get(table, "key")
    with work.spark_when_needed() as start:
        answer = pipeline.table_rows(
            start, lake, table, of_mesh, key_column=column, key=key, limit=limit, **when
        )
    if not answer.rows:
        then = "" if as_of is None else f" as of {as_of}"
        what = f"no {table}" if key is None else f"nothing under {key!r}"
        raise UnknownKey(f"the lake has {what} of mesh {of_mesh!r}{then}", hint="")
    work.session.rows(answer.documents(), _SHOWN[table], empty="")
    _tell_more(work, answer.more, limit)


@job("query")
@click.argument("sql")
@_limit
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    help="How rows are written; without it a table, or JSON with --json.",
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "duckdb", "spark"]),
    default="auto",
    show_default=True,
    help="What answers; auto: a server, or DuckDB if it reads the SQL as Spark does.",
)
@no_server
def query(work: Work, sql: str, limit: int, form: str | None, engine: str, no_server: bool) -> None:
    """Ask the lake in SQL. An SQL of - is read from stdin.

    The tables: bronze, sightings, quarantine, reads, commits; state, memory, files, vectors,
    models, tasks, task_events, entities, entity_revisions, facts; and those of the audits, which
    SHOW VIEWS lists. A query only reads.
    """
    text = inputs.text_of(sql)
    lake = work.lake()
    from holdfast.pipeline.query import AUTO, SPARK, ask_lake, check

    check(text)
    server = work.server(lake, wanted=engine == AUTO and not no_server)
    if server is not None:
        answer = server.query(text, limit)
    else:
        if engine == AUTO and work.names_spark:
            engine = SPARK
        with work.spark_when_needed() as start:
            answer = ask_lake(start, lake, text, limit, engine)
    chosen = form or ("json" if work.session.as_json else "table")
    if chosen == "json":
        tables.json_array(answer.documents())
    elif chosen == "csv":
        _csv(answer.columns, answer.rows)
    elif not tables.table(answer.documents(), answer.columns):
        work.session.talk("no rows")
    _tell_more(work, answer.more, limit)


def _tell_more(work: Work, more: bool, limit: int) -> None:
    if more:
        work.session.warn(
            "more_rows", f"these are the first {limit} rows; there are more: raise --limit"
        )


def _csv(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    output.out(text.getvalue())
    sys.stdout.flush()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return tables.encode(value).decode() if isinstance(value, dict | list) else value
