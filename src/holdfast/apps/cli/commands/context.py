"""`holdfast context`: names for homes, daemons and brokers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.apps.cli import contents
from holdfast.apps.cli.declare import ASKS, noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.errors import BadInput
from holdfast.rules.keys import parse_card
from holdfast.rules.limits import TOKEN_FILE_BYTES_MAX
from holdfast.storage.files.contexts import KINDS, Context, Contexts, InForce, contexts_of, in_force
from holdfast.transport.deadline_socket import Address

_SHOWN = "context kind place in_use card has_token"

context_ = noun(
    "context",
    "Names for homes, daemons and brokers. A command works in the one of --context, else in the "
    "home of $HOLDFAST_HOME, else in the context of $HOLDFAST_CONTEXT, else in the one in use.",
)


@verb(context_, "add", mesh=False)
@click.argument("name")
@click.option("--folder", metavar="FOLDER", help="A home on this machine.")
@click.option("--daemon", metavar="ADDRESS", help="A daemon: unix:/PATH or https://HOST:PORT.")
@click.option("--broker", metavar="ADDRESS", help="A broker: https://HOST:PORT.")
@click.option("--token-file", metavar="FILE", help="Where its token stands; - reads stdin.")
@click.option("--ca", metavar="FILE", help="The certificates to trust, as PEM.")
@click.option("--card", metavar="CARD", help="Whose it is; another one is refused.")
@click.option("--use", is_flag=True, help="Use it from now on.")
@click.option("--replace", is_flag=True, help="In place of one of that name.")
def add(
    session: CommandSession,
    name: str,
    folder: str | None,
    daemon: str | None,
    broker: str | None,
    token_file: str | None,
    ca: str | None,
    card: str | None,
    use: bool,
    replace: bool,
) -> None:
    """Give a place a NAME. It is kept for this user alone, its token too."""
    places = dict(zip(KINDS, (folder, daemon, broker), strict=True))
    given = [(kind, place) for kind, place in places.items() if place]
    if len(given) != 1:
        raise BadInput(
            "a context names one place", hint="give one of --folder, --daemon and --broker"
        )
    (kind, place) = given[0]
    if kind == "home":
        if token_file or ca or card:
            raise BadInput("a home on this machine needs no token, certificate or card")
        place = str(Path(place).expanduser().absolute())
    else:
        Address.parse(place)  # it is shown in lists, so it must hold no password
    if card is not None:
        parse_card(card)
    context = Context(
        kind=kind,
        place=place,
        token=_token(token_file),
        ca="" if ca is None else str(contents.existing(ca).absolute()),
        card=card or "",
    )
    contexts = contexts_of(os.environ)
    contexts.add(name, context, replace=replace)
    if use:
        contexts.use(name)
    session.talk(f"{name} is {place}" + (", and in use" if use else ""))
    session.show(_document(contexts, name), f"{name}\n")


@verb(context_, "list", mesh=False, lists="")
def list_(session: CommandSession) -> None:
    """List the contexts, without their tokens."""
    contexts = contexts_of(os.environ)
    session.rows(
        (_document(contexts, name) for name in contexts.names()),
        _SHOWN,
        empty="no contexts; name a place with: holdfast context add NAME --folder FOLDER",
    )


@verb(context_, "use", mesh=False)
@click.argument("name", required=False)
@click.option("--none", is_flag=True, help="Use none from now on.")
def use_(session: CommandSession, name: str | None, none: bool) -> None:
    """Work in the context NAME wherever a command names no other place."""
    if (name is None) != none:
        raise BadInput("name a context, or say --none")
    contexts_of(os.environ).use(name)
    if os.environ.get("HOLDFAST_HOME"):
        session.warn("context", "$HOLDFAST_HOME is set, and goes before the context in use")
    session.talk("no context is in use" if name is None else f"{name} is in use")
    session.show({"in_use": name}, "")


@verb(context_, "show", mesh=False)
@click.argument("name", required=False)
def show(session: CommandSession, name: str | None) -> None:
    """Show a context; without NAME the one that counts here, and why it does."""
    contexts = contexts_of(os.environ)
    counts = InForce(name, "") if name else in_force(session.named_context, contexts, os.environ)
    if counts is None:
        document: dict[str, Any] = {"context": None, "kind": "home"}
        document |= {"place": str(session.check_home()), "because": _no_context()}
        session.show(document, fields="kind place because")
        return
    document = _document(contexts, counts.name)
    if counts.why:
        document["because"] = counts.why
    session.show(document, fields=f"{_SHOWN} because" if counts.why else _SHOWN)


@verb(context_, "remove", mesh=False, removes=ASKS)
@click.argument("name")
def remove(session: CommandSession, name: str) -> None:
    """Forget the name, and the token with it. The place itself stays as it is."""
    contexts = contexts_of(os.environ)
    document = _document(contexts, name)
    token = " and its token" if document["has_token"] else ""
    # A name alone is made again at once; a token was shown once.
    if not session.goes_on(f"forget the name {name}{token}", asks=bool(token), **document):
        return
    contexts.remove(name)
    session.talk(f"{name} is forgotten")
    session.show({"removed": name}, "")


def _document(contexts: Contexts, name: str) -> dict[str, Any]:
    context = contexts.get_or_damaged(name) or Context(kind="home", place="(damaged)")
    said = {key: value for key, value in msgspec.structs.asdict(context).items() if key != "token"}
    return {
        "context": name,
        **{key: value or None for key, value in said.items()},
        "has_token": bool(context.token),
        "in_use": contexts.in_use() == name,
    }


def _no_context() -> str:
    return "$HOLDFAST_HOME" if os.environ.get("HOLDFAST_HOME") else "no context is in use"


def _token(file: str | None) -> str:
    """From a file: what stands on a command line is seen by everybody on the machine."""
    if file is None:
        return ""
    if file == "-":
        raw = sys.stdin.buffer.read(TOKEN_FILE_BYTES_MAX + 1)
    else:
        with contents.existing(file).open("rb") as stream:
            raw = stream.read(TOKEN_FILE_BYTES_MAX + 1)
    token = raw.decode("ascii", "replace").strip()
    if not token or len(raw) > TOKEN_FILE_BYTES_MAX or not token.isprintable() or " " in token:
        raise BadInput("that is no token", hint="holdfast token add NAME prints one")
    return token
