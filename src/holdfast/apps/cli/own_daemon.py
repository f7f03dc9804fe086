"""Asking the daemon that serves this home, if there is one."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from holdfast.rules.errors import (
    BadInput,
    BusClosed,
    NoDaemon,
    StoreClosed,
    Unreachable,
    WrongKey,
)
from holdfast.rules.limits import SECOND_MS
from holdfast.storage.files.home import HomePaths, socket_path

_PATIENCE_MS: Final = 5 * SECOND_MS
EVERYWHERE: Final = ("0.0.0.0", "[::]")
_ELSEWHERE: Final = "192.0.2.1"
"""An address that is nobody's, for documentation."""


def ask(
    home: Path, method: str, path: str, body: bytes | None = None, read_ms: int = _PATIENCE_MS
) -> bytes:
    """The body of its answer; NoDaemon if no daemon serves the home. `body` is JSON."""
    place = socket_path(HomePaths(home))
    if not place.exists():
        raise NoDaemon(f"no daemon serves {home}")
    # The client imports TLS, which a command on a home without a daemon does not need.
    from holdfast.transport.http_client import Client

    headers = {} if body is None else {"Content-Type": "application/json"}
    with closing(Client(f"unix:{place}", read_ms=read_ms)) as client:
        try:
            return client.call(method, path, body=body, headers=headers).body
        except Unreachable as error:
            raise NoDaemon(f"no daemon serves {home}: {error.message}") from error


def bus_peers(home: Path) -> dict[str, dict[str, Any]]:
    """How the bus of the daemon stands with each peer, by name; nothing without such a daemon."""
    found = bus_standing(home)
    return {} if found is None else {peer.pop("peer"): peer for peer in found["peers"]}


def bus_standing(home: Path) -> dict[str, Any] | None:
    """How the bus of the daemon stands; None if there is no daemon, or it holds no bus."""
    try:
        found: dict[str, Any] = json.loads(ask(home, "GET", "/v1/bus/status"))
    except (NoDaemon, StoreClosed, BusClosed, WrongKey):
        return None
    return found


def bus_address(home: Path) -> str:
    """Where peers reach the bus of the daemon. Raises NoDaemon, or BadInput if it listens
    nowhere.
    """
    found = json.loads(ask(home, "GET", "/v1/bus/status"))
    if not found["listening"]:
        raise BadInput(
            f"the bus of {home} listens nowhere",
            hint="start the daemon with: holdfast up --bus-listen HOST:PORT",
        )
    host, _, port = found["listening"][0].rpartition(":")
    return f"{_own_host() if host in EVERYWHERE else host}:{port}"


def _own_host() -> str:
    """The address by which this machine reaches others; its name if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_ELSEWHERE, 9))  # nothing is sent: the system only chooses a route
        except OSError:
            return socket.gethostname()
        host: str = probe.getsockname()[0]
        return host


def refresh(home: Path) -> bool:
    """Tells the daemon that links or keys have changed. False if there is none, or if it is about
    to end: the next daemon reads everything anew.
    """
    try:
        ask(home, "POST", "/v1/refresh")
    except (NoDaemon, StoreClosed):
        return False
    return True
