"""Commands that show changes as they come: a line each, until Ctrl-C.

Lines for people say the place in the log, the time, who did what to which key, and the new value.
With `--json` each is the document that `log tail --json` shows too, with its `cursor`. Whoever ends
it is told where to go on, on stderr.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.apps.cli import documents, output, tables
from holdfast.apps.cli.declare import verb
from holdfast.apps.cli.session import CommandSession
from holdfast.apps.cli.times import iso, parse_moment
from holdfast.rules.errors import BadInput

if TYPE_CHECKING:
    from holdfast.node.library.node import Node
    from holdfast.node.messages.inbox import Inbox
    from holdfast.node.watching.changes import LogChange
    from holdfast.node.watching.watches import ChangeWatch

T = TypeVar("T")

SINCE = click.option(
    "--since",
    metavar="PLACE",
    help="Begin after a cursor (2:812) or offset, at a time (2h: that long ago, yesterday) or the "
    "start; else with what comes next.",
)
LIMIT = click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="End after so many changes."
)
_PLACE = re.compile(r"[0-9]+(:[0-9]+)?|start")
_SCOPE = click.option(
    "--scope", default="all", metavar="SCOPE", help="all (the default), self or peer:ID."
)
_TOLD = ("value", "title", "predicate", "sha256", "payload", "content")
"""Of the fields of a body, the one that people want to see."""


def watch_verb(
    group: click.Group,
    follow: Callable[..., ChangeWatch[LogChange]],
    help: str,
    *,
    scoped: bool = False,
) -> None:
    """Gives a noun its verb `watch`. `follow` gets the mesh, the PREFIX and how to narrow it."""

    def watch(
        session: CommandSession,
        prefix: str,
        since: str | None,
        limit: int | None,
        **terms: str | None,
    ) -> None:
        with session.mesh() as mesh:
            begin = place_of(session.opened, since)
            show_changes(session, follow(mesh, prefix, since=begin, **terms), limit)

    watch.__doc__ = f"{help}\n\nCtrl-C ends it, and says where to go on."
    declared = SINCE(LIMIT(watch))
    declared = _SCOPE(declared) if scoped else declared
    verb(group, "watch")(click.argument("prefix", default="")(declared))


def place_of(node: Node, since: str | None) -> str | None:
    """Where --since says to begin in the log."""
    if since is None or _PLACE.fullmatch(since):
        return since
    return str(node.log.place_at(_moment(since)))


def number_of(inbox: Inbox, since: str | None) -> str | None:
    """Where --since says to begin in the inbox: after a number, or with what came since a time."""
    if since is None or _PLACE.fullmatch(since):
        return since
    from_ms = _moment(since)
    with inbox.watch() as end:  # first, or what arrives in between would be missed
        first = next(inbox.list(since_ms=from_ms), None)
        return str(end.cursor if first is None else first.number - 1)


def _moment(text: str) -> int:
    try:
        return parse_moment(text)
    except BadInput as error:
        raise BadInput(
            f"{text!r} is no place to begin",
            hint="give what a watch has named when it ended, start, or a time: 2h, yesterday, "
            "2026-11-15T10:00:00Z",
        ) from error


def show_changes(
    session: CommandSession,
    watch: ChangeWatch[LogChange],
    limit: int | None,
    *,
    mesh: bool = False,
    begin: Callable[[], None] | None = None,
) -> None:
    """Changes of the log; `mesh` says of each to which mesh it belongs."""
    show(session, watch, limit, _document, lambda change: _line(change, mesh), begin)


def show(
    session: CommandSession,
    watch: ChangeWatch[T],
    limit: int | None,
    document: Callable[[T], Mapping[str, Any]],
    line: Callable[[T], str],
    begin: Callable[[], None] | None = None,
) -> None:
    """Whatever a watch yields; `begin` shows what comes before that."""
    with watch:
        try:
            if begin is not None:
                begin()
            for found in islice(watch, limit):
                text = tables.encode(document(found)).decode() if session.as_json else line(found)
                output.out(f"{text}\n")
                if not watch.has_more:
                    output.flush()
        except (KeyboardInterrupt, SystemExit):
            output.flush()
            _tell_end(session, watch)
            raise


def _tell_end(session: CommandSession, watch: ChangeWatch[T]) -> None:
    if session.as_json:
        output.talk(tables.encode({"stopped": {"since": str(watch.cursor)}}).decode())
    else:
        output.talk(f"stopped; go on with --since {watch.cursor}")


def _document(change: LogChange) -> Mapping[str, Any]:
    return {**documents.entry(change.entry), "cursor": str(change.cursor)}


def _line(change: LogChange, with_mesh: bool) -> str:
    entry = change.entry
    where = (entry.mesh, entry.op, entry.entity) if with_mesh else (entry.op, entry.entity)
    place = (str(entry.offset), iso(entry.recorded_at), str(change.stamp))
    return "  ".join(map(tables.visible, (*place, *where, *_told(change))))


def _told(change: LogChange) -> tuple[str, ...]:
    """The new value, in one word or none."""
    body = documents.entry(change.entry).get("body") or {}
    for name in _TOLD:
        if name in body:
            value = body[name]
            told = value if isinstance(value, str) else tables.encode(value).decode()
            more = body.get("object")
            return (told,) if name != "predicate" else (told, tables.encode(more).decode())
    return ()
