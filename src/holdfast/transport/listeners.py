"""MOVED: say what this module is for."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from holdfast.rules.errors import AlreadyExists, BadInput, NotOurs
from holdfast.transport.unix_socket import bound


@dataclass(frozen=True)
class Listener:
    """A socket that is bound, and what kind of door it is."""

    kind: str
    """`unix`, `tcp` or `tls`."""
    socket: socket.socket
    address: str
    """As a client is told: `unix:/path`, `http://host:port`, `https://host:port`."""
    tls: ssl.SSLContext | None = None


def unix_listener(path: Path) -> Listener:
    """Made anew in place of one that a dead daemon left: the caller holds the daemon's lock."""
    return Listener("unix", bound(path, socket.SOCK_STREAM), f"unix:{path}")


def tcp_listener(host: str, port: int, tls: ssl.SSLContext | None = None) -> Listener:
    """Port 0 takes a free one; the address says which."""
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
