"""Where a service listens: HOST:PORT, read and checked."""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

from holdfast.rules.errors import BadInput

_LOOPBACK: Final = "localhost"


class ListenAddress(NamedTuple):
    """A host and a port to listen on; port 0 lets the system choose one."""

    host: str
    port: int


def parse_address(text: str) -> ListenAddress:
    """`127.0.0.1:7411`, `[::1]:7411`, `localhost:0`."""
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    fits = port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535
    if not (colon and host and fits) or "/" in host:
        raise BadInput(f"{text!r} is no place to listen", hint="write HOST:PORT; port 0: any")
    return ListenAddress(host, int(port))


def parse_loopback(text: str) -> ListenAddress:
    """The same, refused where other machines could reach it: nothing is encrypted there."""
    address = parse_address(text)
    if not is_loopback(address.host):
        raise BadInput(
            f"{text} can be reached from other machines, and nothing would be encrypted",
            hint="use --listen for other machines; --tcp takes 127.0.0.1:PORT or [::1]:PORT",
        )
    return address


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == _LOOPBACK
