"""`holdfast.connect`: finding the daemon, and asking it once whether it is there."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.node.remote.line import Line
from holdfast.node.remote.node import RemoteNode
from holdfast.rules.arguments import checked
from holdfast.rules.errors import (
    BadInput,
    HoldfastError,
    NeedsHome,
    NoDaemon,
    NotGranted,
    Unreachable,
)
from holdfast.rules.keys import parse_card
from holdfast.storage.files.contexts import Context, contexts_of
from holdfast.storage.files.home import require_home, resolve_home, socket_path
from holdfast.transport.tls import trusting_context

_SCHEMES: Final = ("unix:", "http://", "https://")


class Place(NamedTuple):
    """Where a daemon answers, how to prove who asks, and whose daemon it must be."""

    address: str
    token: str | None = None
    home: Path | None = None
    trusted: ssl.SSLContext | None = None
    peer: str | None = None
    """Any, if this is None."""


def place_of(where: str | Path | None, token: str | None) -> Place:
    """What the first argument of `connect` names: an address, the folder of a home, or a context.
    A folder goes before a context of its name.
    """
    if isinstance(where, str) and where.startswith(_SCHEMES):
        return Place(where, token)
    if isinstance(where, str) and not Path(where).exists():
        contexts = contexts_of(os.environ)
        if where in contexts.names():
            place = context_place(contexts.get(where))
            return place if token is None else place._replace(token=token)
    return _of_home(resolve_home(where, os.environ), token)


def context_place(context: Context) -> Place:
    """Where the daemon of a context answers."""
    if context.kind == "home":
        return _of_home(Path(context.place), None)
    if context.kind == "broker":
        raise NeedsHome(
            f"the context names a broker at {context.place}, and a broker holds no home",
            hint="name a home with --home FOLDER, or another context",
        )
    trusted = trusting_context(context.ca) if context.ca else None
    peer = parse_card(context.card)[0] if context.card else None
    return Place(context.place, context.token or None, None, trusted, peer)


def _of_home(home: Path, token: str | None) -> Place:
    paths = require_home(home)
    socket = socket_path(paths)
    if not socket.exists():
        raise NoDaemon(f"no daemon serves {paths.root}")
    return Place(f"unix:{socket}", token, paths.root)


@checked
def connect_node(
    where: str | Path | None = None,
    *,
    token: str | None = None,
    context: ssl.SSLContext | None = None,
    ca: str | Path | None = None,
) -> RemoteNode:
    """Connects to a daemon: by its address (`unix:/path`, `http://host:port`, `https://host:port`),
    by the home that it serves (this user's own, if none is named), or by the name of a context.
    `token` is what `holdfast token add` printed; the socket of a home needs none. `ca` is a file
    with the certificates to trust, such as the daemon's own `tls.crt`, and `context` says in full
    what TLS is to check; without both, what authorities vouch for is trusted.

    >>> with holdfast.connect(ship_home) as far:
    ...     far.mesh("team").state.get("nothing", default="none")
    'none'
    """
    if ca is not None:
        if context is not None:
            raise BadInput("ca and context are two answers to one question", hint="give one")
        context = trusting_context(ca)
    place = place_of(where, token)
    return connect_at(place if context is None else place._replace(trusted=context))


def connect_at(place: Place) -> RemoteNode:
    """Asks once whether the daemon is there, and whose it is."""
    line = Line(place.address, token=place.token, context=place.trusted)
    try:
        found = line.peer()
        if place.peer not in (None, found):
            raise NotGranted(
                f"{place.address} is the daemon of {found!r}, and not of {place.peer!r}",
                hint="correct the address or the card of the context",
            )
    except Unreachable as error:
        line.close()
        if place.home is None or type(error) is not Unreachable:
            raise
        raise NoDaemon(f"no daemon serves {place.home}: {error.message}") from error
    except HoldfastError:
        line.close()
        raise
    return RemoteNode(line, place.home)
