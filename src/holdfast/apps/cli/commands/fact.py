"""`holdfast fact`: what is so, and how readers of the log take it."""

from __future__ import annotations

import click
import msgspec

from holdfast.apps.cli import documents, inputs
from holdfast.apps.cli.commands.log import FIELDS
from holdfast.apps.cli.commands.state import JSON_VALUE
from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.errors import BadInput
from holdfast.rules.limits import FETCH_ROWS_DEFAULT

fact_ = noun("fact", "What is so: appended once, never changed, handed to readers.")


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
            map(documents.entry, node.log.fetch(consumer, limit)),
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
        reader = node.log.confirm(consumer, offset, ranges=spans)
        session.talk(f"{consumer} has confirmed up to {reader.frontier}, {reader.lag} to go")
        session.show(msgspec.structs.asdict(reader), f"{reader.frontier}\n")


def _span(text: str) -> tuple[int, int]:
    start, _, end = text.partition(":")
    if not (start.isascii() and start.isdecimal() and end.isascii() and end.isdecimal()):
        raise BadInput(f"{text!r} is not a range of offsets", hint="write it as 5:9, 9 left out")
    return int(start), int(end)
