"""What a broker is known by: a name and an Ed25519 key, in its folder.

Both are made once. Nodes pin them when they publish or join, so another key is another broker.
Several processes that serve one PostgreSQL are one broker, and must show one key: copy the folder's
`identity.key` and `broker.name` to each of them before it starts.
"""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Final

from holdfast.rules.errors import BadInput, StoreFailed
from holdfast.rules.keys import card_of, public_key
from holdfast.rules.names import check_peer, meant_peer, named_peer
from holdfast.service.caller import Caller
from holdfast.storage.files.durable import alone_in, disk_errors, durable_replace, make_folder
from holdfast.storage.files.home import HomePaths
from holdfast.storage.files.secrets import guard_secret

log = logging.getLogger("holdfast")

KEY: Final = "identity.key"
NAME: Final = "broker.name"
_SEED_BYTES: Final = 32
_NAME_BYTES_MAX: Final = 1024


class Identity:
    """A broker's name and key; every client that has proved a key becomes a caller."""

    def __init__(self, folder: Path, name: str | None = None) -> None:
        """Reads them from the folder, or makes them. Raises if `name` differs from the first one:
        nodes know the broker by that.
        """
        _refuse_home(folder)
        with disk_errors(f"create the folder {folder}"):
            folder.parent.mkdir(parents=True, exist_ok=True)
        make_folder(folder)
        with alone_in(folder):
            if (folder / KEY).exists():
                for mended in guard_secret(folder / KEY):
                    log.warning("%s; whoever read it can pose as this broker", mended)
            self._seed = _read(folder / KEY) or _make(folder / KEY, os.urandom(_SEED_BYTES))
            known = _read(folder / NAME)
            if known is None:
                given = named_peer(name or f"broker-{socket.gethostname()}")
                known = _make(folder / NAME, given.encode())
        if len(self._seed) != _SEED_BYTES:
            raise StoreFailed(
                f"{folder / KEY} is not a key of Holdfast", hint="restore it from a backup"
            )
        self.name = check_peer(known.decode(errors="replace"))
        if name is not None and meant_peer(name) != self.name:
            raise BadInput(
                f"this broker is called {self.name!r}; nodes know it by that name",
                hint="leave --name out, or use another folder for another broker",
            )

    def seed(self) -> bytes:
        return self._seed

    def card(self) -> str:
        return card_of(self.name, public_key(self._seed))

    def caller_of_zone(self, zone: str, key: bytes) -> Caller:
        """The caller for a proved key. Anybody may say hello; what a key may do, each call
        checks.
        """
        return Caller(kind="key", name=zone, reads=frozenset(), key=key)


def _refuse_home(folder: Path) -> None:
    if HomePaths(folder).database.exists():
        raise BadInput(f"{folder} is the home of a node", hint="give the broker its own folder")


def _read(path: Path) -> bytes | None:
    with disk_errors(f"read {path}"):
        try:
            with open(path, "rb") as file:
                return file.read(_NAME_BYTES_MAX)
        except FileNotFoundError:
            return None


def _make(path: Path, content: bytes) -> bytes:
    durable_replace(path, content)
    return content
