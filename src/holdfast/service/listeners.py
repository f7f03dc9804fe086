"""Binding the doors of a service: a Unix socket in its folder, a loopback port, a TLS port."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Protocol

from holdfast.rules.errors import HoldfastError
from holdfast.service.address import ListenAddress
from holdfast.storage.files.home import HomePaths, socket_path
from holdfast.storage.files.secrets import guard_secret, world_reads
from holdfast.transport.http_server import Server
from holdfast.transport.listeners import Listener, tcp_listener, unix_listener
from holdfast.transport.tls import certificate_digest, certificate_in, server_context

log = logging.getLogger("holdfast")

_LOOPBACK: Final = "127.0.0.1"
_PORTS_FROM: Final = 49_152
_PORTS_UPTO: Final = 65_536
"""Ports that are nobody's."""


class ListenSettings(Protocol):
    """Where a service is to listen."""

    @property
    def tcp_address(self) -> ListenAddress | None: ...
    @property
    def listen_address(self) -> ListenAddress | None: ...
    @property
    def tls_cert(self) -> str | None: ...
    @property
    def tls_key(self) -> str | None: ...


def renew_certificate(
    root: Path, settings: ListenSettings, listeners: Sequence[Listener]
) -> bytes | None:
    """Reads the certificate and its key again, for connections from now on, and returns the digest;
    None if no listener has one. Raises if they are no good, and goes on with the old ones.
    """
    contexts = [listener.tls for listener in listeners if listener.tls is not None]
    if not contexts:
        return None
    cert, key = certificate_in(root, settings.tls_cert, settings.tls_key)
    server_context(cert, key)  # a pair that does not fit must not get half into the one in use
    for context in contexts:
        context.load_cert_chain(cert, key, password="")
    return certificate_digest(cert)


def bind_listeners(
    paths: HomePaths, settings: ListenSettings, ending: AsyncExitStack, *, socket: bool = True
) -> tuple[list[Listener], bytes]:
    """The listeners that the settings ask for, and the digest of the certificate that the TLS one
    shows (empty without one). `ending` closes them.
    """
    listeners: list[Listener] = []
    digest = b""

    def keep(listener: Listener) -> None:
        ending.callback(listener.socket.close)
        listeners.append(listener)

    if socket:
        path = socket_path(paths)
        keep(unix_listener(path))
        ending.callback(path.unlink, missing_ok=True)
    if settings.tcp_address is not None:
        keep(tcp_listener(*settings.tcp_address))
    if settings.listen_address is not None:
        cert, key = certificate_in(paths.root, settings.tls_cert, settings.tls_key)
        _guard_key(key, own=settings.tls_key is None)
        digest = certificate_digest(cert)
        keep(tcp_listener(*settings.listen_address, server_context(cert, key)))
    return listeners, digest


async def open_loopback(server: Server, root: Path) -> None:
    """Lets a service listen on loopback too, if it does not yet: for a browser of this machine. It
    is the same port each time, so that what is open in a browser goes on after a restart.
    """
    if any(listener.kind == "tcp" and not listener.shared for listener in server.listeners):
        return
    digest = hashlib.sha256(str(root).encode(errors="surrogateescape")).digest()
    port = _PORTS_FROM + int.from_bytes(digest[:4], "big") % (_PORTS_UPTO - _PORTS_FROM)
    try:
        listener = tcp_listener(_LOOPBACK, port)
    except HoldfastError:
        listener = tcp_listener(_LOOPBACK, 0)  # somebody else has it
    await server.add(listener)


def _guard_key(key: Path, *, own: bool) -> None:
    """A key of ours is for its user alone. That of an operator may be for a group, and is left as
    it is.
    """
    if own:
        for mended in guard_secret(key):
            log.warning("%s", mended)
    elif world_reads(key):
        log.warning("every user of this machine can read the TLS key %s", key)
