"""Tokens by which a scraper reads the figures of a broker, over TCP and TLS, and nothing else.

They stand in the broker's folder, as digests; every scrape looks there anew, so a token that is
revoked ends at once. Of several processes that serve one PostgreSQL each has figures and a folder
of its own, and so tokens of its own.
"""

from __future__ import annotations

import os
from hmac import compare_digest
from pathlib import Path
from typing import Final

import msgspec

from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    BadToken,
    KeyExpired,
    OverLimit,
    StoreCorrupt,
    UnknownToken,
)
from holdfast.rules.keys import token_digest, token_text
from holdfast.rules.limits import (
    BROKER_TOKENS_MAX,
    DAY_MS,
    MESH_SLUG_CHARS_MAX,
    TOKEN_BYTES,
)
from holdfast.rules.names import check_key
from holdfast.service.caller import Caller
from holdfast.storage.files.durable import alone_in, disk_errors, durable_replace

FILE: Final = "metrics.tokens"
KIND: Final = "metrics"
"""What a caller with such a token is."""
DAYS_MAX: Final = 36_500


class MetricsToken(msgspec.Struct, frozen=True):
    """One token, without its secret."""

    name: str
    digest: str
    """In hex."""
    created_at: int
    expires_at: int | None = None


class MetricsTokens:
    """The tokens of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / FILE

    def add(self, name: str, now_ms: int, *, days: int | None = None) -> str:
        """Makes a token and returns its text, which nobody can read again later."""
        check_key(name, "token name", MESH_SLUG_CHARS_MAX)
        if "/" in name or not name.isprintable():
            raise BadInput(
                f"token name {name!r} holds a slash or what cannot be printed",
                hint="say who will use it, in letters, digits and dashes",
            )
        if days is not None and not 1 <= days <= DAYS_MAX:
            raise BadInput(f"{days} days is not a time to trust for", hint=f"use 1 to {DAYS_MAX}")
        text = token_text(os.urandom(TOKEN_BYTES))
        expires_at = None if days is None else now_ms + days * DAY_MS
        row = MetricsToken(name, token_digest(text).hex(), now_ms, expires_at)
        with alone_in(self._folder):
            rows = self.all()
            if any(known.name == name for known in rows):
                raise AlreadyExists(
                    f"there is a token {name!r} already", hint="choose another name, or revoke it"
                )
            if len(rows) >= BROKER_TOKENS_MAX:
                raise OverLimit(
                    f"a broker has {BROKER_TOKENS_MAX} tokens at most", hint="revoke one first"
                )
            self._write([*rows, row])
        return text

    def revoke(self, name: str) -> None:
        with alone_in(self._folder):
            rows = self.all()
            kept = [row for row in rows if row.name != name]
            if len(kept) == len(rows):
                raise UnknownToken(f"there is no token {name!r}")
            self._write(kept)

    def all(self) -> list[MetricsToken]:
        """All of them, oldest first."""
        with disk_errors(f"read {self._path}"):
            try:
                raw = self._path.read_bytes()
            except FileNotFoundError:
                return []
        try:
            return msgspec.json.decode(raw, type=list[MetricsToken])
        except msgspec.DecodeError:
            raise StoreCorrupt(
                f"{self._path} cannot be read", hint="remove it and make the tokens anew"
            ) from None

    def caller_of(self, text: str, now_ms: int) -> Caller:
        """The caller that bears this token."""
        digest = token_digest(text).hex()
        found = [row for row in self.all() if compare_digest(row.digest, digest)]
        if not found:
            raise BadToken("this token is not known here", hint="make one: holdfast token add NAME")
        row = found[0]
        if row.expires_at is not None and now_ms >= row.expires_at:
            raise KeyExpired(f"the token {row.name!r} has expired")
        return Caller(KIND, row.name)

    def _write(self, rows: list[MetricsToken]) -> None:
        durable_replace(self._path, msgspec.json.encode(rows))
