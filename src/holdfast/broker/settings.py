"""How a broker is set up."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

from holdfast.broker.accept import RetentionPolicy
from holdfast.rules import limits
from holdfast.rules.broker_rows import Mode
from holdfast.rules.connection_policy import ConnectionPolicy
from holdfast.rules.errors import BadInput, BadValue
from holdfast.rules.features import check_retention
from holdfast.rules.paths import check_place
from holdfast.rules.web_access import WebAccess, web_access
from holdfast.service.address import ListenAddress, parse_address, parse_loopback

Registration = Literal["open", "closed", "token"]
TOKEN_CHARS_MIN: Final = 16


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a broker."""

    store: Path
    """The folder of its key and certificate and, without PostgreSQL, of its database."""
    dsn: str | None = None
    """The address of PostgreSQL. It usually holds a password, and is never shown."""
    listen: str | None = None
    """HOST:PORT for other machines, with TLS."""
    tcp: str | None = None
    """HOST:PORT on loopback, without TLS."""
    tls_cert: str | None = None
    tls_key: str | None = None
    allowed_hosts: str = ""
    """Names, besides those of loopback, by which callers may call the listener of `tcp`; commas
    between them.
    """
    allowed_origins: str = ""
    """Origins of web pages that may talk to this broker, as `https://board.example`; the same."""
    replace_key: bool = False
    """The key of the broker that the database belongs to is lost: this one takes its place."""
    name: str | None = None
    """The broker's name; given at its first start, and kept in the folder."""
    registration: Registration = "open"
    """Who may create a mesh here: anybody with a key, nobody, or callers with the token."""
    registration_token: str | None = None
    dedupe: str = str(limits.DEDUPE_RETENTION_DAYS_DEFAULT)
    """`permanent`, or for how many days the broker remembers ids."""
    keep_days: int = limits.BROKER_KEEP_DAYS
    rate_per_s: int = limits.ACCEPT_RATE_PER_S
    sweep_every_ms: int = limits.SWEEP_EVERY_MS
    connections: str = ConnectionPolicy.ALLOW_CONCURRENT
    """Which connections stay when a member has several: see `rules.connection_policy`."""
    processes: int = 1
    """How many processes serve; more than one only on PostgreSQL."""
    sync: str = "full"
    """The sync mode of SQLite; only tests use another one."""

    def __repr__(self) -> str:
        return f"BrokerSettings(store={self.store!r}, postgres={self.dsn is not None})"

    def check(self) -> BrokerSettings:
        check_place(str(self.store), "the folder of the broker")
        _ = self.connection_policy, self.mode, self.listen_address, self.tcp_address
        if not 1 <= self.keep_days <= limits.DEDUPE_RETENTION_DAYS_MAX:
            raise BadValue(f"messages cannot be kept for {self.keep_days} days")
        if self.registration not in ("open", "closed", "token"):
            raise BadInput(
                f"registration {self.registration!r} is not known", hint="open, closed or token"
            )
        if (self.registration == "token") != (self.registration_token is not None):
            raise BadInput(
                "registration by token needs the token, and only that does",
                hint="put it into the environment: HOLDFAST_BROKER_TOKEN",
            )
        if self.registration_token is not None and len(self.registration_token) < TOKEN_CHARS_MIN:
            raise BadInput(f"the token has fewer than {TOKEN_CHARS_MIN} characters")
        if not 1 <= self.processes <= limits.BROKER_PROCESSES_MAX:
            raise BadValue(f"a broker has 1 to {limits.BROKER_PROCESSES_MAX} processes")
        if self.processes > 1 and self.dsn is None:
            raise BadInput(
                "one process serves a broker on SQLite; several need PostgreSQL",
                hint="leave --processes out, or name a database by --postgres",
            )
        if self.rate_per_s < 1:
            raise BadValue("a rate is one envelope per second at least")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise BadInput("a certificate and its key go together", hint="give both, or neither")
        return self

    @property
    def mode(self) -> tuple[Mode, int]:
        """How the broker remembers ids, and for how many days."""
        if self.dedupe == "permanent":
            return "permanent", 0
        if not (self.dedupe.isascii() and self.dedupe.isdecimal() and len(self.dedupe) <= 6):
            raise BadInput(
                f"{self.dedupe!r} is no way to remember ids",
                hint="give a number of days, 3 or more, or: permanent",
            )
        return "retention_scoped", check_retention("retention_scoped", int(self.dedupe))

    @property
    def connection_policy(self) -> ConnectionPolicy:
        try:
            return ConnectionPolicy(self.connections)
        except ValueError:
            known = ", ".join(ConnectionPolicy)
            raise BadInput(
                f"{self.connections!r} is no policy for connections", hint=f"one of: {known}"
            ) from None

    @property
    def web(self) -> WebAccess:
        return web_access(self.allowed_hosts, self.allowed_origins)

    @property
    def listen_address(self) -> ListenAddress | None:
        return None if self.listen is None else parse_address(self.listen)

    @property
    def tcp_address(self) -> ListenAddress | None:
        return None if self.tcp is None else parse_loopback(self.tcp)


def retention_of(mode: Mode, days: int, keep_days: int) -> RetentionPolicy:
    return RetentionPolicy(
        keep_ms=keep_days * limits.DAY_MS,
        dedupe_ms=None if mode == "permanent" else days * limits.DAY_MS,
    )
