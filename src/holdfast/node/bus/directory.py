"""Who is who on the bus of a node: the zones that it trusts.

A peer of the bus is a zone: whoever is trusted by its card may open a link and send messages; what
it may read of the meshes is what `--reads` grants. A blocked zone, an expired key and a stranger
get the same words. Everything is looked up anew with each call, so what an operator takes back is
gone at once.

Where a peer is comes from three sides: the operator's settings, what `peer trust --at` told, and
where it was reached before. An address proves nothing; the key of the hello decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.bus.ports import Peer
from holdfast.node.core.engine import NodeEngine
from holdfast.node.trust.trust import check_zone_key
from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.errors import ZoneNotTrusted
from holdfast.rules.keys import is_good, text_of
from holdfast.rules.limits import BUS_ADDRESSES_MAX
from holdfast.rules.rows import ZoneRow

NO_ADDRESSES: Mapping[str, tuple[str, ...]] = {}


class TrustDirectory:
    """The peers of one node, from its trust."""

    def __init__(
        self, engine: NodeEngine, static: Mapping[str, tuple[str, ...]] = NO_ADDRESSES
    ) -> None:
        """`static`: where the operator says that peers are, by name."""
        self._engine = engine
        self.static = static
        self._reached: dict[str, tuple[str, ...]] = {}
        """Where peers were reached in this process, the latest first."""

    async def find(self, name: str) -> Peer | None:
        """By name, by the text of a key, or by a card."""
        found = self._engine.read("bus.peer", lambda tx: tx.zone_get(name))
        if found is None:
            return next((peer for peer in await self.all() if _is(peer, name)), None)
        return self._peer(found)

    async def of_key(self, key: PeerKey) -> Peer | None:
        row = self._engine.read("bus.peer", lambda tx: tx.zone_of_key(key))
        peer = None if row is None else self._peer(row)
        return peer if peer is not None and key in peer.keys else None

    async def all(self) -> list[Peer]:
        rows = self._engine.read("bus.peers", lambda tx: tx.zone_list())
        return [peer for row in rows if (peer := self._peer(row)) is not None]

    async def admit(self, key: PeerKey, name: str, capabilities: Sequence[bytes]) -> Peer:
        """The zone that this key belongs to, whatever it calls itself. Raises ZoneNotTrusted or
        KeyExpired.
        """
        row = self._engine.read("bus.peer", lambda tx: tx.zone_of_key(key))
        check_zone_key(row, name, key, self._engine.ctx.now_ms())
        peer = None if row is None else self._peer(row)
        if peer is None:
            raise ZoneNotTrusted(f"{name!r} is not trusted here by this key")
        return peer

    async def note_address(self, key: PeerKey, address: str) -> None:
        """The peer was reached there."""
        peer = await self.of_key(key)
        if peer is not None:
            before = self._reached.get(peer.name, ())
            self._reached[peer.name] = with_address(before, address)

    def capabilities(self, peer: PeerKey) -> Sequence[bytes]:
        return ()

    def _peer(self, row: ZoneRow) -> Peer | None:
        """The zone as a peer; None if it may not speak with us now."""
        now = self._engine.ctx.now_ms()
        keys = tuple(known.key for known in row.keys if is_good(known, now))
        if row.blocked_at is not None or not keys:
            return None
        addresses = (*self._reached.get(row.name, ()), *self.static.get(row.name, ()))
        return Peer(
            name=row.name, keys=keys, addresses=tuple(dict.fromkeys(addresses)), meshes=row.reads
        )


def with_address(known: tuple[str, ...], address: str) -> tuple[str, ...]:
    """The addresses of a peer after it was reached at one of them, or at a new one."""
    others = (other for other in known if other != address)
    return (address, *others)[:BUS_ADDRESSES_MAX]


def _is(peer: Peer, name: str) -> bool:
    text = name.rpartition(":")[2]
    return any(text_of(key) == text for key in peer.keys)
