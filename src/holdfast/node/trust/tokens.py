"""Bearer tokens: people and programs are trusted by them, as zones are by their keys.

The store keeps only the digest of a token. To replace one without a pause, add the new token, move
its users, then revoke the old one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from hmac import compare_digest
from typing import Final

from holdfast.node.core.engine import NodeEngine
from holdfast.rules.errors import BadInput, BadToken, KeyExpired, OverLimit, UnknownToken
from holdfast.rules.filters import TERMS_MAX
from holdfast.rules.keys import token_digest, token_text
from holdfast.rules.limits import DAY_MS, MESH_SLUG_CHARS_MAX, TOKEN_BYTES
from holdfast.rules.names import check_key, check_mesh
from holdfast.rules.rows import TokenRow
from holdfast.service.caller import ALL_MESHES, Caller, granted
from holdfast.storage.ports import Transaction

DAYS_MAX: Final = 36_500
ALL: Final = "all"
READ: Final = "read"


class Tokens:
    """The tokens of one node. Every call looks them up anew: a revoked token ends at once."""

    _engine: NodeEngine

    def add_token(
        self, name: str, *, reads: Iterable[str] | None = None, days: int | None = None
    ) -> str:
        """Makes a token and returns its text, which nobody can read again later. With `reads` it
        may read those meshes and nothing else, from anywhere; without, it may do everything, on
        this machine only.
        """
        check_key(name, "token name", MESH_SLUG_CHARS_MAX)
        if "/" in name or not name.isprintable():
            raise BadInput(
                f"token name {name!r} holds a slash or what cannot be printed",
                hint="say who will use it, in letters, digits and dashes",
            )
        meshes = () if reads is None else check_reads(reads)
        if reads is not None and not meshes:
            raise BadInput("a token that reads needs a mesh", hint="name one, or * for all")
        now = self._engine.ctx.now_ms()
        text = token_text(os.urandom(TOKEN_BYTES))
        row = TokenRow(
            name=name,
            digest=token_digest(text),
            scope=ALL if reads is None else READ,
            reads=meshes,
            created_at=now,
            expires_at=expiry_of(now, days),
        )
        self._engine.write("token.add", lambda tx: tx.token_put(row))
        return text

    def revoke_token(self, name: str) -> None:
        def work(tx: Transaction) -> None:
            if not tx.token_drop(name):
                raise UnknownToken(f"there is no token {name!r}")

        self._engine.write("token.revoke", work)

    def tokens(self) -> list[TokenRow]:
        return self._engine.read("token.list", lambda tx: tx.token_list())

    def caller_of_token(self, text: str, *, local: bool) -> Caller:
        """The caller that bears this token. `local` says whether the call came in on this
        machine.
        """
        digest = token_digest(text)
        row = self._engine.read("token.find", lambda tx: tx.token_find(digest))
        if row is None or not compare_digest(row.digest, digest):
            raise BadToken("this token is not known here")
        if row.expires_at is not None and self._engine.ctx.now_ms() >= row.expires_at:
            raise KeyExpired(f"the token {row.name!r} has expired")
        if row.scope == READ:
            return Caller("token", row.name, granted(row.reads))
        if not local:
            raise BadToken(
                f"the token {row.name!r} is good on its own machine only",
                hint="for reading from elsewhere: holdfast token add NAME --reads MESH",
            )
        return Caller("local", row.name)


def check_reads(reads: Iterable[str]) -> tuple[str, ...]:
    """The meshes that a grant names, sorted; `*` stands for all."""
    meshes = tuple(sorted(set(reads)))
    for mesh in meshes:
        if mesh != ALL_MESHES:
            check_mesh(mesh)
    if len(meshes) > TERMS_MAX:
        raise OverLimit(f"{TERMS_MAX} meshes at most are named", hint="use * for all of them")
    return meshes


def expiry_of(now_ms: int, days: int | None) -> int | None:
    """When trust that is given now for some days ends; None: never."""
    if days is None:
        return None
    if not 1 <= days <= DAYS_MAX:
        raise BadInput(f"{days} days is not a time to trust for", hint=f"use 1 to {DAYS_MAX}")
    return now_ms + days * DAY_MS
