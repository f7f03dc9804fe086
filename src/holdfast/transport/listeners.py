"""The sockets that a server listens on: a Unix socket in the home, TCP on loopback, TLS for others.

TCP sockets are made with their protocol spelled out. asyncio switches Nagle's algorithm off only
where it reads `IPPROTO_TCP` there; a socket made without it waits 40 ms on each small answer.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from holdfast.rules.errors import AlreadyExists, BadInput, NotOurs
from holdfast.transport.unix_socket import bound


@dataclass(frozen=True)
class Listener:
    """A bound socket, and its kind, by which the application knows what a caller may do."""

    kind: str
    """`unix`, `tcp` or `tls`."""
    socket: socket.socket
    address: str
    """The address for clients: `unix:/path`, `http://host:port` or `https://host:port`."""
    tls: ssl.SSLContext | None = None
    shared: bool = False
    """Several processes serve it, and no caller knows which of them answers."""


def unix_listener(path: Path) -> Listener:
    """A listener at this path. The caller holds the daemon's lock: a socket that is there is a dead
    daemon's and is replaced.
    """
    return Listener("unix", bound(path, socket.SOCK_STREAM), f"unix:{path}")


def tcp_listener(host: str, port: int, tls: ssl.SSLContext | None = None) -> Listener:
    """A listener on TCP, with TLS if there is a context. Port 0 takes a free port; `address` has
    it.
    """
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise BadInput(f"{host!r} is no address to listen on: {error}") from None
    family, kind, _, _, address = found[0]
    made = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)
        made.bind(address)
    except OSError as error:
        made.close()
        raise _not_bound(host, port, error) from None
    scheme = "http" if tls is None else "https"
    real = made.getsockname()[1]
    name = f"[{host}]" if ":" in host else host
    return Listener("tcp" if tls is None else "tls", made, f"{scheme}://{name}:{real}", tls)


def _not_bound(host: str, port: int, error: OSError) -> Exception:
    import errno

    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return AlreadyExists(
            f"another process listens on {where}", hint="choose another port, or 0 for a free one"
        )
    if error.errno == errno.EACCES:
        return NotOurs(f"this user may not listen on {where}", hint="choose a port above 1023")
    return BadInput(f"cannot listen on {where}: {error.strerror}")
