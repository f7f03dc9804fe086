"""Whom this node trusts, and what it is itself known by.

Zones are trusted by their keys, people and programs by tokens. Everything is looked up anew for
every call, so what an operator takes back is gone at once, in every process.

**Changing a key without a pause.** `make_next` lays the next key beside the one in use. Its card is
given to every zone that trusts this one; each then knows two keys. `switch` makes the next key the
current one, which other processes notice with their next hello. At last the old key is revoked
there, or ends by itself if it was trusted for some days only. Tokens overlap in the same way: add
the new one, move its users, revoke the old one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from hmac import compare_digest
from typing import Final

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.rules.errors import (
    BadInput,
    BadToken,
    KeyExpired,
    OverLimit,
    StoreFailed,
    UnknownKey,
    UnknownToken,
    UnknownZone,
    ZoneNotTrusted,
)
from holdfast.rules.filters import TERMS_MAX
from holdfast.rules.keys import (
    card_of,
    is_good,
    parse_card,
    public_key,
    text_of,
    token_digest,
    token_text,
)
from holdfast.rules.limits import DAY_MS, KEYS_OF_ZONE_MAX, MESH_SLUG_CHARS_MAX, TOKEN_BYTES
from holdfast.rules.names import check_key, check_mesh
from holdfast.rules.rows import TokenRow, ZoneKey, ZoneRow
from holdfast.service.caller import ALL_MESHES, Caller, granted
from holdfast.storage.files.durable import alone_in, disk_errors, durable_replace, fsync_dir
from holdfast.storage.files.home import IDENTITY_BYTES, HomePaths
from holdfast.storage.ports import Reader, Transaction

DAYS_MAX: Final = 36_500

ALL: Final = "all"
READ: Final = "read"


class Trust:
    """The trust of one node. Thread-safe: it keeps nothing in memory."""

    def __init__(self, engine: NodeEngine, paths: HomePaths) -> None:
        self._engine = engine
        self._paths = paths

    # --- this node -----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._engine.ctx.peer

    def seed(self) -> bytes:
        """The secret that this node signs with; read anew, so that a switch needs no restart."""
        seed = _read_seed(self._paths.identity)
        if seed is None:
            raise StoreFailed(
                f"{self._paths.identity} is not a key of Holdfast",
                hint="restore it from a backup: it is in every one",
            )
        return seed

    def card(self) -> str:
        return card_of(self.name, public_key(self.seed()))

    def make_next(self) -> str:
        """The card of the next key, which is made if there is none yet."""
        with alone_in(self._paths.root):
            seed = self._next()
            if seed is None:
                seed = os.urandom(IDENTITY_BYTES)
                durable_replace(self._paths.identity_next, seed)
        return card_of(self.name, public_key(seed))

    def switch(self) -> str:
        """The next key becomes the current one; its card. The old key is gone."""
        with alone_in(self._paths.root):
            seed = self._next()
            if seed is None:
                raise UnknownKey(
                    "this node has no next key", hint="make it first: holdfast peer rotate"
                )
            # Replaced before the other goes: a crash between leaves both, with the same content.
            durable_replace(self._paths.identity, seed)
            self._drop_next()
        return card_of(self.name, public_key(seed))

    def _next(self) -> bytes | None:
        seed = _read_seed(self._paths.identity_next)
        if seed is not None and compare_digest(seed, self.seed()):
            self._drop_next()  # a switch was cut short after its first step
            return None
        return seed

    def _drop_next(self) -> None:
        with disk_errors(f"remove {self._paths.identity_next}"):
            self._paths.identity_next.unlink(missing_ok=True)
        fsync_dir(self._paths.root)

    # --- zones ---------------------------------------------------------------------------------

    def trust(self, card: str, *, reads: Iterable[str] = (), days: int | None = None) -> ZoneRow:
        """Adds the key on a card to its zone, and meshes to what it may read. A blocked zone is
        trusted again. `days` is how long this key is good for.
        """
        name, key = parse_card(card)
        if name == self.name or key == public_key(self.seed()):
            raise BadInput(
                "that is the card of this node itself, or of one with its name or key",
                hint="give the card of the other node; every node needs a name of its own",
            )
        granted_now = _check_reads(reads)
        now = self._engine.ctx.now_ms()
        fresh = ZoneKey(key=key, added_at=now, expires_at=_expiry(now, days))

        def work(tx: Transaction) -> ZoneRow:
            row = tx.zone_get(name) or ZoneRow(name=name, added_at=now)
            meshes = _check_reads({*row.reads, *granted_now})
            return tx.zone_put(
                msgspec.structs.replace(
                    row, keys=_with_key(row, fresh, now), reads=meshes, blocked_at=None
                )
            )

        return self._engine.write("peer.trust", work)

    def revoke(self, name: str, *, reads: Iterable[str] = (), key: str | None = None) -> ZoneRow:
        """Takes back meshes, or a key (by its card, or by the text of the key on it)."""
        gone = set(reads)
        if not gone and key is None:
            raise BadInput(
                "say what is taken back", hint=f"or all of it: holdfast peer block {name}"
            )
        lost = None if key is None else key.strip().rpartition(":")[2]

        def work(tx: Transaction) -> ZoneRow:
            row = _require(tx, name)
            kept = tuple(known for known in row.keys if text_of(known.key) != lost)
            if lost is not None and len(kept) == len(row.keys):
                raise UnknownKey(f"zone {name!r} has no such key", hint="see: holdfast peer zones")
            if missing := sorted(gone - set(row.reads)):
                if ALL_MESHES in row.reads:
                    raise BadInput(
                        f"zone {name!r} may read every mesh, {', '.join(missing)} among them",
                        hint="take back * and trust it with --reads for each mesh that it may read",
                    )
                raise BadInput(f"zone {name!r} may not read {', '.join(missing)} anyway")
            meshes = tuple(mesh for mesh in row.reads if mesh not in gone)
            return tx.zone_put(msgspec.structs.replace(row, keys=kept, reads=meshes))

        return self._engine.write("peer.revoke", work)

    def block(self, name: str) -> ZoneRow:
        """The zone is not spoken with any more; its keys stay known, for the day it is trusted
        again.
        """
        now = self._engine.ctx.now_ms()

        def work(tx: Transaction) -> ZoneRow:
            row = _require(tx, name)
            if row.blocked_at is not None:
                return row
            return tx.zone_put(msgspec.structs.replace(row, blocked_at=now))

        return self._engine.write("peer.block", work)

    def zones(self) -> list[ZoneRow]:
        return self._engine.read("peer.zones", lambda tx: tx.zone_list())

    def zone(self, name: str) -> ZoneRow:
        """UnknownZone if there is none: what a link is pinned to."""
        return self._engine.read("peer.zone", lambda tx: _require(tx, name))

    def caller_of_zone(self, name: str, key: bytes) -> Caller:
        """A zone that has proved that it owns this key, as it may be trusted now."""
        row = self._engine.read("peer.zone", lambda tx: tx.zone_get(name))
        check_zone_key(row, name, key, self._engine.ctx.now_ms())
        assert row is not None
        return Caller("zone", name, granted(row.reads))

    # --- tokens --------------------------------------------------------------------------------

    def add_token(
        self, name: str, *, reads: Iterable[str] | None = None, days: int | None = None
    ) -> str:
        """A new token, told this once. With `reads` it may read those meshes and nothing else, from
        anywhere; without, it may do everything, on this machine only.
        """
        check_key(name, "token name", MESH_SLUG_CHARS_MAX)
        if "/" in name or not name.isprintable():
            raise BadInput(
                f"token name {name!r} holds a slash or what cannot be printed",
                hint="say who will use it, in letters, digits and dashes",
            )
        meshes = () if reads is None else _check_reads(reads)
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
            expires_at=_expiry(now, days),
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
        """Who bears this token. `local` says whether the call came in on this machine."""
        digest = token_digest(text)
        row = self._engine.read("token.find", lambda tx: tx.token_find(digest))
        if row is None or not compare_digest(row.digest, digest):
            raise BadToken("no such token is known here")
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


def check_zone_key(row: ZoneRow | None, name: str, key: bytes, now_ms: int) -> None:
    """May the owner of this key speak as this zone, now?"""
    keys = () if row is None or row.blocked_at is not None else row.keys
    known = next((found for found in keys if compare_digest(found.key, key)), None)
    if known is None:
        # The same words for every reason: anybody may ask, and whom we know is not his business.
        raise ZoneNotTrusted(f"zone {name!r} is not trusted here by this key")
    if not is_good(known, now_ms):
        raise KeyExpired(f"the key of zone {name!r} has expired")


def _require(tx: Reader, name: str) -> ZoneRow:
    row = tx.zone_get(name)
    if row is None:
        raise UnknownZone(f"there is no zone {name!r}")
    return row


def _with_key(row: ZoneRow, fresh: ZoneKey, now_ms: int) -> tuple[ZoneKey, ...]:
    """The key added, or given its new end. Keys that have ended make room when it is needed."""
    others = [known for known in row.keys if known.key != fresh.key]
    if len(others) >= KEYS_OF_ZONE_MAX:
        others = [known for known in others if is_good(known, now_ms)]
    if len(others) >= KEYS_OF_ZONE_MAX:
        raise OverLimit(
            f"zone {row.name!r} has {KEYS_OF_ZONE_MAX} keys already",
            hint="revoke one that is no longer used: holdfast peer revoke NAME --key KEY",
        )
    return (*others, fresh)


def _check_reads(reads: Iterable[str]) -> tuple[str, ...]:
    meshes = tuple(sorted(set(reads)))
    for mesh in meshes:
        if mesh != ALL_MESHES:
            check_mesh(mesh)
    if len(meshes) > TERMS_MAX:
        raise OverLimit(f"{TERMS_MAX} meshes at most are named", hint="use * for all of them")
    return meshes


def _expiry(now_ms: int, days: int | None) -> int | None:
    if days is None:
        return None
    if not 1 <= days <= DAYS_MAX:
        raise BadInput(f"{days} days is not a time to trust for", hint=f"use 1 to {DAYS_MAX}")
    return now_ms + days * DAY_MS


def _read_seed(path: os.PathLike[str]) -> bytes | None:
    with disk_errors(f"read {os.fspath(path)}"):
        try:
            with open(path, "rb") as file:
                seed = file.read(IDENTITY_BYTES + 1)
        except FileNotFoundError:
            return None
    return seed if len(seed) == IDENTITY_BYTES else None
