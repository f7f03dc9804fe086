"""`holdfast consumer`: the named readers of the log."""

from __future__ import annotations

import click
import msgspec

from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.limits import DAY_MS

consumer_ = noun("consumer", "Named readers of the log. Nothing goes that they have not confirmed.")


@verb(consumer_, "add", mesh=False)
@click.argument("name")
@click.option("--from", "start", default="start", metavar="start|now|OFFSET", show_default=True)
@click.option(
    "--retire-days",
    type=click.IntRange(min=1),
    help="A sweep retires it when it has not confirmed for so long; else the log waits for it.",
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
        reader = node.log.add_consumer(name, place, retire_ms=retire_ms, retire_lag=retire_lag)
        session.talk(f"{name} reads from offset {reader.position}")
        session.show(msgspec.structs.asdict(reader), f"{reader.name}\n")


@verb(consumer_, "list", mesh=False)
def list_(session: CommandSession) -> None:
    """List the readers of the log and how far they are."""
    with session.node() as node:
        session.rows(
            map(msgspec.structs.asdict, node.log.consumers()),
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
