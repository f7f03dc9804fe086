"""`holdfast fact` and `holdfast consumer`: what is so, and who reads the log."""

from __future__ import annotations

import click

from holdfast.apps.cli import documents, inputs
from holdfast.apps.cli.commands.log import FIELDS
from holdfast.apps.cli.commands.state import JSON_VALUE
from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.errors import BadInput
from holdfast.rules.limits import DAY_MS, FETCH_ROWS_DEFAULT

fact_ = noun("fact", "What is so: appended once, never changed, handed to readers.")
consumer_ = noun("consumer", "Named readers of the log. Nothing goes that they have not confirmed.")


@verb(fact_, "append", writes=True)
@click.argument("subject")
@click.argument("predicate")
@click.argument("object")
@JSON_VALUE
def append(
    session: CommandSession, subject: str, predicate: str, object: str, json_value: bool
) -> None:
    """Append a fact. An OBJECT of - reads stdin; with --json-value it is JSON."""
    with session.mesh() as mesh:
        value = inputs.value_of(object, json_value)
        done = mesh.facts.append(subject, predicate, value, id=session.id)
        session.wrote(
            documents.receipt(
                done, mesh.slug, op="fact.append", subject=subject, predicate=predicate
            ),
            f"appended {subject!r} {predicate!r} at offset {done.offset}",
        )


@verb(fact_, "fetch", mesh=False)
@click.argument("consumer")
@click.option("--limit", type=int, default=FETCH_ROWS_DEFAULT, show_default=True)
def fetch(session: CommandSession, consumer: str, limit: int) -> None:
    """Show what comes next for CONSUMER. It is the same until it is confirmed."""
    with session.node() as node:
        session.rows(
            (documents.entry(found) for found in node.log.fetch(consumer, limit)),
            FIELDS,
            empty=f"nothing new for {consumer}",
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
        found = node.log.confirm(consumer, offset, ranges=spans)
        session.talk(f"{consumer} has confirmed up to {found.frontier}, {found.lag} to go")
        session.show(documents.consumer(found), f"{found.frontier}\n")


@verb(consumer_, "add", mesh=False)
@click.argument("name")
@click.option("--from", "start", default="start", metavar="start|now|OFFSET", show_default=True)
@click.option(
    "--retire-days",
    type=click.IntRange(min=1),
    help="A sweep retires it when it has not confirmed for so long; else it is waited for.",
)
@click.option(
    "--retire-lag",
    type=click.IntRange(min=1),
    metavar="ENTRIES",
    help="A sweep retires it when more entries than this wait for it.",
)
def add(
    session: CommandSession, name: str, start: str, retire_days: int | None, retire_lag: int | None
) -> None:
    """Register a reader of the log."""
    retire_ms = None if retire_days is None else retire_days * DAY_MS
    with session.node() as node:
        place: str | int = int(start) if start.isascii() and start.isdecimal() else start
        found = node.log.add_consumer(name, place, retire_ms=retire_ms, retire_lag=retire_lag)
        session.talk(f"{name} reads from offset {found.position}")
        session.show(documents.consumer(found), f"{found.name}\n")


@verb(consumer_, "list", mesh=False)
def list_(session: CommandSession) -> None:
    """List the readers of the log and how far they are."""
    with session.node() as node:
        session.rows(
            (documents.consumer(found) for found in node.log.consumers()),
            "name position frontier lag seen_at",
            empty="the log has no reader",
        )


@verb(consumer_, "retire", mesh=False)
@click.argument("name")
def retire(session: CommandSession, name: str) -> None:
    """Forget a reader: the log no longer waits for it."""
    with session.node() as node:
        node.log.retire(name)
        session.talk(f"{name} is retired; the log no longer waits for it")
        session.show({"name": name, "retired": True}, f"{name}\n")


def _span(text: str) -> tuple[int, int]:
    start, _, end = text.partition(":")
    if not (start.isascii() and start.isdecimal() and end.isascii() and end.isdecimal()):
        raise BadInput(f"{text!r} is not a range of offsets", hint="write it as 5:9, 9 left out")
    return int(start), int(end)
