"""`holdfast fact`: what is so, and how readers of the log take it.

A fetch that waits is held by the daemon of the home, if there is one: it is told of every commit.
Without a daemon nobody wakes a command, because SQLite tells other processes nothing. So it looks a
few times a second, as `holdfast log tail --follow` does.
"""

from __future__ import annotations

import re
from shlex import quote
from threading import Event
from time import monotonic
from urllib.parse import urlencode

import click
import msgspec

from holdfast.apps.cli import contents, documents, inputs, output, own_daemon
from holdfast.apps.cli.commands.log import FIELDS
from holdfast.apps.cli.commands.state import JSON_VALUE
from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.lists.watching import watch_verb
from holdfast.apps.cli.session import CommandSession
from holdfast.node.library.node import Node
from holdfast.rules.errors import BadInput, NoDaemon, StoreClosed
from holdfast.rules.limits import FETCH_ROWS_DEFAULT, LONG_POLL_MS_DEFAULT, SECOND_MS
from holdfast.rules.rows import Entry

_LOOK_S = 0.2
_SHA = re.compile("[0-9a-f]{64}")

fact_ = noun("fact", "What is so: appended once, never changed, handed to readers.")

watch_verb(
    fact_,
    lambda mesh, prefix, **terms: mesh.facts.watch(prefix, **terms),
    "Show facts whose subject begins with PREFIX, as they come.",
)


@verb(fact_, "append", writes=True)
@click.argument("subject")
@click.argument("predicate")
@click.argument("object")
@JSON_VALUE
@click.option(
    "--object",
    "files",
    multiple=True,
    metavar="FILE|SHA256",
    help="Content that the fact names; kept as long as the fact, and brought with it. Repeatable.",
)
def append(
    session: CommandSession,
    subject: str,
    predicate: str,
    object: str,
    json_value: bool,
    files: tuple[str, ...],
) -> None:
    """Append a fact. An OBJECT of - reads stdin; with --json-value it is JSON."""
    named = [file if _SHA.fullmatch(file) else contents.existing(file) for file in files]
    with session.mesh() as mesh:
        value = inputs.value_of(object, json_value)
        objects = [
            one if isinstance(one, str) else session.opened.receive_blob(one) for one in named
        ]
        done = mesh.facts.append(subject, predicate, value, id=session.id, objects=objects)
        session.wrote(
            output.receipt(
                done,
                mesh.slug,
                op="fact.append",
                subject=subject,
                predicate=predicate,
                **({"objects": objects} if objects else {}),
            ),
            f"appended {subject!r} {predicate!r} at offset {done.offset}",
        )


@verb(fact_, "fetch", mesh=False)
@click.argument("consumer")
@click.option("--limit", type=int, default=FETCH_ROWS_DEFAULT, show_default=True)
@click.option(
    "--wait",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="If there is nothing new, wait for it at most so long.",
)
def fetch(session: CommandSession, consumer: str, limit: int, wait: float | None) -> None:
    """Show what comes next for CONSUMER. It is the same until it is confirmed."""
    with session.node() as node:
        found: list[Entry] = node.log.fetch(consumer, limit)
        if not found and wait:
            found = _fetch_waiting(node, consumer, limit, wait)
        session.rows(map(documents.entry, found), FIELDS, empty=_nothing(node, consumer))


def _fetch_waiting(node: Node, consumer: str, limit: int, wait_s: float) -> list[Entry]:
    """What comes next for a consumer that has nothing new; nothing when time is up."""
    until, never = monotonic() + wait_s, Event()
    while (left := until - monotonic()) > 0:
        if not _held(node, consumer, left):
            never.wait(min(_LOOK_S, left))
        if found := node.log.fetch(consumer, limit):
            return found
    return []


def _held(node: Node, consumer: str, left_s: float) -> bool:
    """True when the daemon has answered: something has come, or some time is over."""
    wait_ms = int(min(LONG_POLL_MS_DEFAULT, left_s * SECOND_MS)) + 1
    asked = urlencode({"consumer": consumer, "limit": 1, "wait_ms": wait_ms})
    patience_ms = wait_ms + 5 * SECOND_MS
    try:
        own_daemon.ask(node.home, "GET", f"/v1/facts/fetch?{asked}", read_ms=patience_ms)
    except (NoDaemon, StoreClosed):
        return False
    return True


def _nothing(node: Node, consumer: str) -> str:
    """That there is nothing new, and how to let the log go of what a filter has left out."""
    passed = node.log.batch(consumer, 1)
    (reader,) = (one for one in node.log.consumers() if one.name == consumer)
    if reader.frontier >= passed.upto:
        return f"nothing new for {consumer}"
    return (
        f"nothing new for {consumer}; its filter leaves out all up to offset {passed.upto}, which "
        f"the log keeps until: holdfast fact confirm {quote(consumer)} {passed.upto}"
    )


@verb(fact_, "confirm", mesh=False)
@click.argument("consumer")
@click.argument("offset", type=int, required=False)
@click.option(
    "--range", "ranges", multiple=True, metavar="START:END", help="Instead: START <= offset < END."
)
def confirm(
    session: CommandSession, consumer: str, offset: int | None, ranges: tuple[str, ...]
) -> None:
    """Confirm what was taken over: up to OFFSET, or by ranges."""
    spans = [_span(text) for text in ranges] if ranges else None
    with session.node() as node:
        reader = node.log.confirm(consumer, offset, ranges=spans)
        session.talk(f"{consumer} has confirmed up to {reader.frontier}, {reader.lag} to go")
        session.show(msgspec.structs.asdict(reader), f"{reader.frontier}\n")


def _span(text: str) -> tuple[int, int]:
    start, _, end = text.partition(":")
    if not (start.isascii() and start.isdecimal() and end.isascii() and end.isdecimal()):
        raise BadInput(f"{text!r} is not a range of offsets", hint="write it as 5:9, 9 left out")
    return int(start), int(end)
