"""`holdfast log`: every change that this node knows, in the order in which it took them in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from threading import Event

import click

from holdfast.apps.cli import documents, output, tables
from holdfast.apps.cli.declare import FILTER, noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.node.library.node import Node
from holdfast.rules.rows import Entry

_FOLLOW_S = 0.2
FIELDS = "offset mesh op entity peer lamport recorded_at body"

log_ = noun("log", "Every change that this node knows, as it took them in.")


@verb(log_, "tail", mesh=FILTER)
@click.option("-n", "--count", type=click.IntRange(0), default=20, show_default=True)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes; JSON lines with --json.")
def tail(session: CommandSession, count: int, follow: bool) -> None:
    """Show the newest entries, oldest of them first."""
    with session.node() as node:
        entries: Iterable[Entry] = node.log.tail(count)
        if not follow:
            _show(session, entries)
            return
        for page in _following(node, list(entries)):
            rows = map(documents.entry, _of_mesh(session, page))
            if session.as_json:
                tables.json_lines(rows)
            else:
                tables.table(rows, FIELDS.split())
            output.flush()


@verb(log_, "range", mesh=FILTER)
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


def _following(node: Node, page: list[Entry]) -> Iterator[list[Entry]]:
    """Pages of new entries, until interrupted. It looks a few times a second: another process may
    be writing, and SQLite wakes nobody.
    """
    never = Event()
    position = node.log.head().offset + 1 if not page else page[-1].offset + 1
    while True:
        if page:
            yield page
        never.wait(_FOLLOW_S)
        page = list(node.log.range(position)) if node.log.head().offset >= position else []
        position = page[-1].offset + 1 if page else position
