"""Whom this node trusts: zones, by their keys, with the meshes that each may read.

Every call looks everything up anew, so what an operator takes back is gone at once, in every
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hmac import compare_digest

import msgspec

from holdfast.node.trust.own_key import OwnKey
from holdfast.node.trust.tokens import Tokens, check_reads, expiry_of
from holdfast.node.trust.whereabouts import note_addresses
from holdfast.rules.errors import (
    BadInput,
    KeyExpired,
    OverLimit,
    UnknownKey,
    UnknownZone,
    ZoneNotTrusted,
)
from holdfast.rules.keys import is_good, parse_card, public_key, text_of
from holdfast.rules.limits import KEYS_OF_ZONE_MAX
from holdfast.rules.names import meant_peer
from holdfast.rules.rows import ZoneKey, ZoneRow
from holdfast.service.caller import ALL_MESHES, Caller, granted
from holdfast.storage.ports import Reader, Transaction


class Trust(OwnKey, Tokens):
    """The trust of one node: its own key, its tokens, and the zones that it trusts."""

    def trust(
        self,
        card: str,
        *,
        reads: Iterable[str] = (),
        days: int | None = None,
        at: Iterable[str] = (),
    ) -> ZoneRow:
        """Adds the key on a card to its zone, and `reads` to the meshes that the zone may read. A
        blocked zone is trusted again. `days` is how long this key is good for, `at` where the bus
        may reach the zone: host:port.
        """
        name, key = parse_card(card)
        if name == self.name or key == public_key(self.seed()):
            raise BadInput(
                "that is the card of this node itself, or of one with its name or key",
                hint="give the card of the other node; every node needs a name of its own",
            )
        granted_now, places = check_reads(reads), tuple(at)
        now = self._engine.ctx.now_ms()
        fresh = ZoneKey(key=key, added_at=now, expires_at=expiry_of(now, days))

        def work(tx: Transaction) -> ZoneRow:
            row = tx.zone_get(name) or ZoneRow(name=name, added_at=now)
            meshes = check_reads({*row.reads, *granted_now})
            if places:
                # Never reached there yet, so it was not seen.
                note_addresses(tx, key, places, 0)
            return tx.zone_put(
                msgspec.structs.replace(
                    row, keys=_with_key(row, fresh, now), reads=meshes, blocked_at=None
                )
            )

        return self._engine.write("peer.trust", work)

    def revoke(self, name: str, *, reads: Iterable[str] = (), key: str | None = None) -> ZoneRow:
        """Takes back meshes, or a key (by its card, or by the text of the key on it)."""
        less = self._less(name, reads, key)
        return self._engine.write("peer.revoke", lambda tx: tx.zone_put(less(tx)))

    def foresee_revoke(
        self, name: str, *, reads: Iterable[str] = (), key: str | None = None
    ) -> ZoneRow:
        """What `revoke` would leave of a zone; nothing changes."""
        return self._engine.read("peer.revoke", self._less(name, reads, key))

    def _less(
        self, name: str, reads: Iterable[str], key: str | None
    ) -> Callable[[Reader], ZoneRow]:
        gone = set(reads)
        if not gone and key is None:
            raise BadInput(
                "say what is taken back", hint=f"or all of it: holdfast peer block {name}"
            )
        lost = None if key is None else key.strip().rpartition(":")[2]

        def work(tx: Reader) -> ZoneRow:
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
            return msgspec.structs.replace(row, keys=kept, reads=meshes)

        return work

    def block(self, name: str) -> ZoneRow:
        """This node no longer speaks with the zone. Its keys stay known, for the day it is trusted
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
        """The zone of this name, which a link is pinned to; raises UnknownZone if there is none."""
        return self._engine.read("peer.zone", lambda tx: _require(tx, name))

    def caller_of_zone(self, name: str, key: bytes) -> Caller:
        """The caller for a zone that has proved to own this key, with what it may read now."""
        row = self._engine.read("peer.zone", lambda tx: tx.zone_get(name))
        check_zone_key(row, name, key, self._engine.ctx.now_ms())
        assert row is not None
        return Caller("zone", name, granted(row.reads))


def check_zone_key(row: ZoneRow | None, name: str, key: bytes, now_ms: int) -> None:
    """Raises unless the owner of this key may speak as this zone now."""
    keys = () if row is None or row.blocked_at is not None else row.keys
    known = next((found for found in keys if compare_digest(found.key, key)), None)
    if known is None:
        # The same words for every reason: a stranger must not learn whom this node knows.
        raise ZoneNotTrusted(f"zone {name!r} is not trusted here by this key")
    if not is_good(known, now_ms):
        raise KeyExpired(f"the key of zone {name!r} has expired")


def _require(tx: Reader, name: str) -> ZoneRow:
    row = tx.zone_get(meant_peer(name))
    if row is None:
        raise UnknownZone(f"there is no zone {name!r}")
    return row


def _with_key(row: ZoneRow, fresh: ZoneKey, now_ms: int) -> tuple[ZoneKey, ...]:
    """The zone's keys with `fresh` added, or with its new end. Ended keys make room if needed."""
    others = [known for known in row.keys if known.key != fresh.key]
    if len(others) >= KEYS_OF_ZONE_MAX:
        others = [known for known in others if is_good(known, now_ms)]
    if len(others) >= KEYS_OF_ZONE_MAX:
        raise OverLimit(
            f"zone {row.name!r} has {KEYS_OF_ZONE_MAX} keys already",
            hint="revoke one that is no longer used: holdfast peer revoke NAME --key KEY",
        )
    return (*others, fresh)
