"""Which web pages may talk to a service, and by which names it may be called on loopback.

Any page that a person opens can make the browser send requests to this machine. The browser says
whose page it is (`Origin`) and which name the page asked for (`Host`), and a page cannot change
either. So:

* A request with an `Origin` is refused unless the page came from this very service, or its origin
  is allowed by name. Programs send none.
* On the loopback listener the `Host` must be a name of loopback, or one that is allowed. A page
  whose own name was pointed at 127.0.0.1 (DNS rebinding) has the same origin as the service and
  sends no `Origin` with its reads; its `Host` is the page's name.

The TLS listener takes any `Host`: a browser does not get past a certificate for another name, and
nodes call it by whatever name or number reaches it. Browsers cannot reach the Unix socket.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from holdfast.rules.errors import BadInput, HostNotAllowed, NotAllowed, OriginNotAllowed
from holdfast.rules.shown_address import shown_address


class WebAccess(msgspec.Struct, frozen=True):
    """What a service allows besides what is always allowed."""

    hosts: frozenset[str] = frozenset()
    """Names or numbers, without a port."""
    origins: frozenset[str] = frozenset()
    """As browsers write them: `https://board.example:8443`."""

    def refusal(
        self, listener: str, hosts: Sequence[bytes], origins: Sequence[bytes]
    ) -> NotAllowed | None:
        """Why a request with these headers is refused; None if it is not. `listener` is `unix`,
        `tcp` (loopback) or `tls`.
        """
        named = [_host_of(raw) for raw in hosts]
        if len(named) > 1 or (listener == "tcp" and not all(map(self._knows, named))):
            return HostNotAllowed("this listener is not called by this name")
        scheme = {"tcp": b"http", "tls": b"https"}.get(listener)
        for raw in origins:
            own = scheme is not None and len(hosts) == 1 and raw == scheme + b"://" + hosts[0]
            if len(origins) > 1 or not (own or raw.decode("latin-1") in self.origins):
                return OriginNotAllowed("web pages of this origin may not talk to this service")
        return None

    def _knows(self, host: str) -> bool:
        return host in self.hosts or is_loopback(host)


def is_loopback(host: str) -> bool:
    """Whether a name or number always means this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def web_access(hosts: Sequence[str], origins: Sequence[str]) -> WebAccess:
    """The settings `allowed_hosts` and `allowed_origins`, checked. A text has commas between."""
    hosts, origins = _listed(hosts), _listed(origins)
    for host in hosts:
        if not host or host != _host_of(host.encode()) or "/" in host:
            raise BadInput(
                f"{host!r} is no host to be allowed",
                hint="write a name in lower case or a number, without port: board.example",
            )
    for origin in origins:
        try:
            parts = urlsplit(origin)
            written = f"{parts.scheme}://{parts.netloc}"
        except ValueError:
            written = ""
        if not origin or origin != written or origin != origin.lower() or "@" in origin:
            raise BadInput(
                f"{shown_address(origin)} is no origin of a web page",
                hint="write it as browsers do: https://board.example or http://localhost:3000",
            )
    return WebAccess(frozenset(hosts), frozenset(origins))


def _listed(given: Sequence[str]) -> list[str]:
    if not isinstance(given, str):
        return list(given)
    return [one.strip() for one in given.split(",")] if given else []


def _host_of(raw: bytes) -> str:
    """The name or number in a `Host` header, without port, brackets and the dot of the root."""
    text = raw.decode("latin-1").strip().lower()
    if text.startswith("["):
        number, _, port = text[1:].partition("]")
        return number if not port or port.startswith(":") else text
    if text.count(":") > 1:
        return text  # a number of IPv6, as settings write it
    return text.partition(":")[0].removesuffix(".")
