"""`holdfast capability`: rights over the bus for a key, that can be narrowed and taken back.

All verbs work in this home alone. A daemon that runs is told, and shows or refuses from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.apps.cli import documents, own_daemon, tables
from holdfast.apps.cli.declare import DRY, noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.errors import BadInput, NoDaemon

if TYPE_CHECKING:
    from holdfast.node.bus.capabilities import BusCapability

capability_ = noun("capability", "Rights over the bus: give them, narrow them, use them.")

_SCOPES = click.option(
    "--scope", "scopes", multiple=True, metavar="SCOPE", help="service:NAME or topic:PATTERN."
)
_DAYS = click.option("--days", type=click.IntRange(1, 366), metavar="N", help="How long.")


@verb(capability_, "give", mesh=False)
@click.argument("card")
@_SCOPES
@_DAYS
def give(session: CommandSession, card: str, scopes: tuple[str, ...], days: int | None) -> None:
    """Let the holder of CARD do what each --scope says, and nothing else; 30 days if not said.

    Hand it the text that is shown; it is no secret, because it is good for that key alone. The
    holder runs: holdfast capability use TEXT.
    """
    if not scopes:
        raise BadInput("a capability is for something", hint="say --scope service:NAME")
    with session.node() as node:
        given = {} if days is None else {"days": days}
        made = node.bus.capabilities.give(card, scopes, **given)
        session.talk(f"{made.holder} may use {', '.join(made.scopes)}")
        session.talk(f"take it back with: holdfast capability drop {made.id[:12]}")
        try:
            where = f"@{own_daemon.bus_address(node.home)}"
        except (NoDaemon, BadInput):
            where = ""
            session.talk("it names no address: its holder says --at HOST:PORT")
        _show(session, made, f"{made.text}{where}\n")


@verb(capability_, "narrow", mesh=False)
@click.argument("which")
@click.argument("card")
@_SCOPES
@_DAYS
def narrow(
    session: CommandSession, which: str, card: str, scopes: tuple[str, ...], days: int | None
) -> None:
    """Pass on one that this node holds (WHICH: its id or text) to the holder of CARD.

    With --scope and --days less of it, or for less long; never more.
    """
    with session.node() as node:
        made = node.bus.capabilities.narrow(_split(which)[0], card, scopes, days=days)
        session.talk(f"for {made.holder_key}: {', '.join(made.scopes)}")
        _show(session, made, f"{made.text}\n")


@verb(capability_, "show", mesh=False)
@click.argument("which")
def show(session: CommandSession, which: str) -> None:
    """Show what a capability says (WHICH: its text, or an id of the list)."""
    with session.node() as node:
        document = _document(node.bus.capabilities.show(_split(which)[0]))
        if session.as_json:
            session.show(document)
        else:
            tables.card(document, [name for name in document if name != "text"])


@verb(capability_, "use", mesh=False)
@click.argument("text")
@click.option("--at", multiple=True, metavar="HOST:PORT", help="Where its issuer is; repeatable.")
def use(session: CommandSession, text: str, at: tuple[str, ...]) -> None:
    """Keep the capability TEXT and show it to its issuer, who is called from now on."""
    from holdfast.node.settings import dial_address

    text, address = _split(text)
    places = at if address is None else (address, *at)
    with session.node() as node:
        found = node.bus.capabilities.use(text, addresses=[dial_address(one) for one in places])
        own_daemon.refresh(node.home)
        session.talk(f"{found.issuer} lets this node use {', '.join(found.scopes)}")
        _show(session, found, f"{found.id}\n")


@verb(capability_, "list", mesh=False, lists="")
def list_(session: CommandSession) -> None:
    """List the capabilities that this node gave, and those that it holds."""
    with session.node() as node:
        session.rows(
            (_document(one) for one in node.bus.capabilities.list()),
            "id kind issuer holder scopes expires_at",
            empty="no capabilities; give one with: holdfast capability give CARD --scope SCOPE",
        )


@verb(capability_, "drop", mesh=False, removes=DRY)
@click.argument("which")
def drop(session: CommandSession, which: str) -> None:
    """Take one back that this node gave, with all that was narrowed from it, or forget one that it
    holds.

    WHICH is its id, or that of a step that somebody else made of it: see `capability show`.
    """
    with session.node() as node:
        if session.dry_run:
            found = node.bus.capabilities.show(which)
            what = f"take back the capability of {found.holder} for {', '.join(found.scopes)}"
            session.goes_on(what, id=found.id)
            return
        gone = node.bus.capabilities.drop(which)
        told = own_daemon.refresh(node.home)
        shown = which if gone is None else gone.id
        session.talk(
            "it is no longer good; links by it have ended" if told else "it is no longer good"
        )
        session.show({"id": shown, "dropped": True}, f"{shown}\n")


def _split(text: str) -> tuple[str, str | None]:
    """The text of a capability, and the address behind it."""
    before, at, address = text.strip().rpartition("@")
    return (before, address) if at and ":capability:" in before else (text, None)


def _document(found: BusCapability) -> dict[str, Any]:
    return documents.plain(found)


def _show(session: CommandSession, found: BusCapability, text: str) -> None:
    session.show(_document(found), text)
