"""Where an etcd is, and how it is talked to: `etcd://HOST:PORT,HOST:PORT?ca=FILE&user=NAME…`.

    ca                  a file with the authorities whose certificates are believed
    cert, key           files with our own certificate and its key, for an etcd that asks for one
    tls                 on or off; without it off for loopback, on for everything else
    user                a user of the etcd, whose password is the first line of password-file
    password-file
    scope               what the order is called in the etcd; without it as the mesh
    join                yes: the etcd has the order of this mesh already, by another node of it
    allow-old-version   yes: also a release that is known to lose writes (EtcdTooOld), for trials

Nothing unencrypted leaves the machine: `tls=off` is for loopback only. A password never stands in
an address, because addresses are shown and logged.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from holdfast.rules.errors import BadInput
from holdfast.rules.limits import ETCD_ENDPOINTS_MAX
from holdfast.transport.deadline_socket import Address

_PORT: Final = 2379
_OPTIONS: Final = frozenset(
    {"ca", "cert", "key", "tls", "user", "password-file", "scope", "join", "allow-old-version"}
)
_HINT: Final = "write it as etcd://HOST:PORT,HOST:PORT?ca=FILE"
_PASSWORD_BYTES_MAX: Final = 1024


class EtcdMember(NamedTuple):
    """One place to ask."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class EtcdAddress(msgspec.Struct, frozen=True, kw_only=True):
    """An etcd with all its members."""

    members: tuple[EtcdMember, ...]
    tls: bool
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    user: str | None = None
    password_file: str | None = None
    scope: str | None = None
    join: bool = False
    allow_old_version: bool = False

    def context(self) -> ssl.SSLContext | None:
        """How connections are encrypted. Reads the files that the address names."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                # An empty password: a key that needs one fails, instead of asking on a terminal.
                context.load_cert_chain(self.cert, self.key, password="")
        except (OSError, ssl.SSLError) as error:
            raise BadInput(
                f"a certificate of the etcd address cannot be used: {error.strerror or error}",
                hint="check the files of ca, cert and key",
            ) from None
        return context

    def password(self) -> str:
        """The password of the user, from its file."""
        assert self.password_file is not None, "parse lets no user without it pass"
        try:
            with Path(self.password_file).open("rb") as file:
                lines = file.read(_PASSWORD_BYTES_MAX + 1).splitlines()
            return lines[0].decode() if lines else ""
        except (OSError, UnicodeDecodeError):
            # Says nothing of what is in the file.
            raise BadInput(f"the password cannot be read from {self.password_file}") from None


def parse_etcd_address(text: str) -> EtcdAddress:
    """Raises BadInput, without repeating the text: somebody may have put a secret into it."""
    try:
        found = urlsplit(text)
        options = dict(parse_qsl(found.query, strict_parsing=bool(found.query)))
    except ValueError:
        raise BadInput("this is not the address of an etcd", hint=_HINT) from None
    if found.scheme != "etcd" or found.path.rstrip("/") or found.fragment:
        raise BadInput("this is not the address of an etcd", hint=_HINT)
    if "@" in found.netloc:
        raise BadInput(
            "an etcd address has no user or password before its hosts",
            hint="use user=NAME&password-file=FILE behind a question mark",
        )
    _check_options(options)
    members = tuple(_member(place) for place in found.netloc.split(","))
    if len(members) > ETCD_ENDPOINTS_MAX or len(set(members)) < len(members):
        raise BadInput(f"an etcd address names 1 to {ETCD_ENDPOINTS_MAX} members, each once")
    return EtcdAddress(
        members=members,
        tls=_tls(members, options),
        ca=options.get("ca"),
        cert=options.get("cert"),
        key=options.get("key"),
        user=options.get("user"),
        password_file=options.get("password-file"),
        scope=options.get("scope"),
        join=options.get("join") == "yes",
        allow_old_version=options.get("allow-old-version") == "yes",
    )


def with_scope(text: str, scope: str) -> str:
    """An address that was parsed, with an order of this name."""
    found = urlsplit(text)
    options = {**dict(parse_qsl(found.query)), "scope": scope}
    return urlunsplit(found._replace(query=urlencode(options, safe="/:")))


def next_scope(scope: str) -> str:
    """A name for another order of the same mesh: team, team-2, team-3."""
    name, _, count = scope.rpartition("-")
    if name and count.isascii() and count.isdecimal():
        return f"{name}-{int(count) + 1}"
    return f"{scope}-2"


def _check_options(options: Mapping[str, str]) -> None:
    if unknown := sorted(set(options) - _OPTIONS):
        raise BadInput(f"an etcd address has no option {unknown[0][:40]!r}", hint=_HINT)
    for one, other in (("cert", "key"), ("user", "password-file")):
        if (one in options) != (other in options):
            raise BadInput(f"an etcd address has {one} and {other}, or neither")
    for name in ("allow-old-version", "join"):
        if options.get(name, "yes") not in ("yes", "no"):
            raise BadInput(f"{name} is yes or no")


def _tls(members: tuple[EtcdMember, ...], options: Mapping[str, str]) -> bool:
    near = all(Address("http", member.host).is_secret for member in members)
    files = "ca" in options or "cert" in options
    told = options.get("tls", "on" if files or not near else "off")
    if told not in ("on", "off") or (told == "off" and files):
        raise BadInput("tls is on or off, and on where certificates are named")
    if told == "off" and not near:
        raise BadInput(
            "an etcd on another machine is talked to over TLS only",
            hint="leave out tls=off, and name its authority: ca=FILE",
        )
    return told == "on"


def _member(place: str) -> EtcdMember:
    try:
        found = urlsplit(f"etcd://{place}")
        host, port = found.hostname, found.port
    except ValueError:
        host = port = None
    if not host or not place.isascii() or not place.isprintable() or " " in place:
        raise BadInput("an etcd address names hosts and ports", hint=_HINT)
    return EtcdMember(host, port or _PORT)
