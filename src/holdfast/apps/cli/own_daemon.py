"""Asking the daemon that serves this home, if there is one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

from holdfast.rules.errors import NoDaemon, StoreClosed, Unreachable
from holdfast.rules.limits import SECOND_MS
from holdfast.storage.files.home import HomePaths, socket_path

_PATIENCE_MS: Final = 5 * SECOND_MS


def ask(home: Path, method: str, path: str) -> bytes:
    """The body of its answer; NoDaemon if no daemon serves the home."""
    socket = socket_path(HomePaths(home))
    if not socket.exists():
        raise NoDaemon(f"no daemon serves {home}")
    # The client imports TLS, which a command on a home without a daemon does not need.
    from holdfast.transport.http_client import Client

    with closing(Client(f"unix:{socket}", read_ms=_PATIENCE_MS)) as client:
        try:
            return client.call(method, path).body
        except Unreachable as error:
            raise NoDaemon(f"no daemon serves {home}: {error.message}") from error


def refresh(home: Path) -> bool:
    """Tells the daemon that links or keys have changed. False if there is none, or if it is about
    to end: the next daemon reads everything anew.
    """
    try:
        ask(home, "POST", "/v1/refresh")
    except (NoDaemon, StoreClosed):
        return False
    return True
