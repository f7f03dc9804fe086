"""`holdfast log`: every change that this node knows, in the order in which it took them in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import click

from holdfast.apps.cli import documents, output, tables
from holdfast.apps.cli.declare import FILTER, noun, verb
from holdfast.apps.cli.lists.watching import LIMIT, SINCE, place_of, show_changes
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.cursor import LogCursor
from holdfast.rules.rows import Entry

FIELDS = "offset mesh op entity peer lamport recorded_at body"

log_ = noun("log", "Every change that this node knows, as it took them in.")


@verb(log_, "tail", mesh=FILTER)
@click.option("-n", "--count", type=click.IntRange(0), default=20, show_default=True)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes; JSON lines with --json.")
@click.option("--op", "ops", multiple=True, metavar="OP", help="Only state.set, or task for all.")
@click.option("--prefix", default="", metavar="TEXT", help="Only of what begins with it.")
@SINCE
@LIMIT
def tail(
    session: CommandSession,
    count: int,
    follow: bool,
    ops: tuple[str, ...],
    prefix: str,
    since: str | None,
    limit: int | None,
) -> None:
    """Show the newest entries, oldest of them first.

    With --since all that came after it. With --follow it goes on until Ctrl-C, which says where to
    go on.
    """
    terms: dict[str, Any] = {"mesh": session.named_mesh, "ops": ops, "prefix": prefix}
    with session.node() as node:
        if not follow and since is None:
            _show(session, _passing(node.log.tail(count), terms))
            return
        with node.log.watch(**terms, since=place_of(node, since)) as watch:
            if not follow:
                _show(session, (change.entry for change in islice(watch.present(), limit)))
                return
            # The watch shows what comes after its cursor: before it, no entry is left out.
            newest = node.log.tail(count) if since is None else []
            shown = _passing(newest, terms, watch.cursor)
            show_changes(session, watch, limit, mesh=True, begin=lambda: _begin(session, shown))


def _passing(
    entries: Iterable[Entry], terms: Mapping[str, Any], upto: LogCursor | int | None = None
) -> list[Entry]:
    """The entries up to a cursor that a watch with these terms would show."""
    from holdfast.node.watching.changes import watch_filter

    filter, ops = watch_filter(**terms)
    return [
        one
        for one in entries
        if filter.passes(one.mesh, one.op, one.entity, one.origin, "")
        and (not ops or one.op in ops)
        and (not isinstance(upto, LogCursor) or one.offset <= upto.offset)
    ]


def _begin(session: CommandSession, entries: Sequence[Entry]) -> None:
    rows = map(documents.entry, entries)
    if session.as_json:
        tables.json_lines(rows)
    else:
        tables.table(rows, FIELDS.split())
    output.flush()


@verb(log_, "range", mesh=FILTER, lists="recorded_at")
@click.argument("start", type=int, default=1)
@click.argument("end", type=int, required=False)
def range_(session: CommandSession, start: int, end: int | None) -> None:
    """Show the entries with START <= offset < END. Without END, all from START on."""
    with session.node() as node:
        _show(session, node.log.range(start, end))


def _show(session: CommandSession, entries: Iterable[Entry]) -> None:
    session.rows(map(documents.entry, _of_mesh(session, entries)), FIELDS, empty="no entries")


def _of_mesh(session: CommandSession, entries: Iterable[Entry]) -> Iterator[Entry]:
    mesh = session.named_mesh
    return (entry for entry in entries if mesh is None or entry.mesh == mesh)
