"""Where the bus reaches a zone, by its keys. These are hints: the key of the hello decides.

The same rows hold where members of meshes were reached, who may be no zones.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.rules.bus.meshes.membership import BusAddressRow
from holdfast.rules.keys import is_good
from holdfast.rules.limits import BUS_ADDRESSES_MAX
from holdfast.rules.rows import ZoneRow
from holdfast.storage.ports import Reader, Transaction


def note_addresses(tx: Transaction, key: bytes, latest: Iterable[str], now_ms: int) -> None:
    """The owner of this key was reached there, or people say that it is there."""
    row = tx.bus_address_get(key)
    addresses = with_addresses(() if row is None else row.addresses, latest)
    seen_at = max(now_ms, 0 if row is None else row.seen_at)
    tx.bus_address_put(BusAddressRow(key=key, addresses=addresses, seen_at=seen_at))


def with_addresses(known: tuple[str, ...], latest: Iterable[str]) -> tuple[str, ...]:
    """The addresses of a peer with the latest ones first; the oldest make room."""
    return tuple(dict.fromkeys((*latest, *known)))[:BUS_ADDRESSES_MAX]


def addresses_of(tx: Reader, zone: ZoneRow) -> tuple[str, ...]:
    """Where any key of a zone was reached, those of its latest key first."""
    rows = [tx.bus_address_get(known.key) for known in reversed(zone.keys)]
    return tuple(dict.fromkeys(address for row in rows if row for address in row.addresses))


def last_seen(tx: Reader, zone: ZoneRow) -> int | None:
    rows = [tx.bus_address_get(known.key) for known in zone.keys]
    return max((row.seen_at for row in rows if row), default=0) or None


def trust_word(zone: ZoneRow, now_ms: int) -> str:
    """`trusted`, `blocked`, or `expired` if no key of the zone is good any more."""
    if zone.blocked_at is not None:
        return "blocked"
    return "trusted" if any(is_good(key, now_ms) for key in zone.keys) else "expired"
