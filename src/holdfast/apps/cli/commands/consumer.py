"""`holdfast consumer`: the named readers of the log."""

from __future__ import annotations

import click
import msgspec

from holdfast.apps.cli.declare import ASKS, noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.filters import CLASSES, Filter
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
@click.option(
    "--mesh", "meshes", multiple=True, metavar="NAME", help="Only of this mesh; repeatable."
)
@click.option("--subject", "subjects", multiple=True, metavar="PREFIX", help="Only these entities.")
@click.option(
    "--class", "classes", multiple=True, type=click.Choice(list(CLASSES)), help="Only these."
)
@click.option("--op", "ops", multiple=True, metavar="OP", help="Only this op, like state.delete.")
@click.option("--origin", "origins", multiple=True, metavar="PEER", help="Only what PEER wrote.")
def add(
    session: CommandSession,
    name: str,
    start: str,
    retire_days: int | None,
    retire_lag: int | None,
    **narrows: tuple[str, ...],
) -> None:
    """Register a reader of the log. What its filter leaves out counts as read."""
    retire_ms = None if retire_days is None else retire_days * DAY_MS
    with session.node() as node:
        place: str | int = int(start) if start.isascii() and start.isdecimal() else start
        for mesh in narrows["meshes"]:
            node.mesh(mesh)  # a name that is not there would wait for ever
        reader = node.log.add_consumer(
            name,
            place,
            retire_ms=retire_ms,
            retire_lag=retire_lag,
            filter=Filter(
                meshes=narrows["meshes"],
                subjects=narrows["subjects"],
                classes=narrows["classes"],
                ops=narrows["ops"],
                origins=narrows["origins"],
            ),
        )
        session.talk(f"{name} reads from offset {reader.position}")
        session.show(msgspec.structs.asdict(reader), f"{reader.name}\n")


@verb(consumer_, "list", mesh=False, lists="seen_at")
def list_(session: CommandSession) -> None:
    """List the readers of the log and how far they are."""
    with session.node() as node:
        session.rows(
            map(msgspec.structs.asdict, node.log.consumers()),
            "name position frontier lag seen_at",
            empty="the log has no reader",
        )


@verb(consumer_, "retire", mesh=False, removes=ASKS)
@click.argument("name")
def retire(session: CommandSession, name: str) -> None:
    """Forget a reader: the log no longer waits for it."""
    with session.node() as node:
        waiting = {reader.name: reader.lag for reader in node.log.consumers()}
        if name in waiting:
            what = f"forget how far the reader {name} is ({waiting[name]} entries wait for it)"
            if not session.goes_on(what, name=name, lag=waiting[name]):
                return
        node.log.retire(name)
        session.talk(f"{name} is retired; the log no longer waits for it")
        session.show({"name": name, "retired": True}, f"{name}\n")
