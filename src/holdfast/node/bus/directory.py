"""Who is who on the bus of a node: the zones that it trusts.

A peer of the bus is a zone: whoever is trusted by its card may open a link and send messages; what
it may read of the meshes is what `--reads` grants. A blocked zone, an expired key and a stranger
get the same words. Everything is looked up anew with each call, so what an operator takes back is
gone at once.

Where a peer is comes from three sides: the operator's settings, what `peer trust --at` told, and
where it was reached before. An address proves nothing; the key of the hello decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from holdfast.bus.ports import Peer
from holdfast.node.bus.standing import PeerStanding
from holdfast.node.core.engine import NodeEngine
from holdfast.node.trust.trust import check_zone_key
from holdfast.node.trust.whereabouts import addresses_of, last_seen, note_addresses, trust_word
from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.bus.succession import KeySuccession
from holdfast.rules.errors import ZoneNotTrusted
from holdfast.rules.keys import is_good, text_of
from holdfast.rules.limits import BUS_SEEN_MS
from holdfast.rules.member_names import key_text
from holdfast.rules.outbox import OutboxState, is_peer_lane, peer_of
from holdfast.rules.rows import ZoneRow
from holdfast.storage.ports import Reader, Work

NO_ADDRESSES: Mapping[str, tuple[str, ...]] = {}
_WAITING = (OutboxState.PENDING.value, OutboxState.INFLIGHT.value)


class TrustDirectory:
    """The peers of one node, from its trust."""

    def __init__(
        self,
        engine: NodeEngine,
        write: Callable[[str, Work[None]], Awaitable[None]],
        static: Mapping[str, tuple[str, ...]] = NO_ADDRESSES,
    ) -> None:
        """`write` runs a write from the event loop. `static`: where the operator says that peers
        are, by name.
        """
        self._engine, self._write = engine, write
        self.static = static

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

    async def follow(self, key: PeerKey, chain: Sequence[KeySuccession]) -> bool:
        """People trust a key, and say so themselves when it is another one."""
        return False

    async def note_address(self, key: PeerKey, address: str) -> None:
        """The peer was reached there. Nothing is written if that was known a moment ago."""
        now = self._engine.ctx.now_ms()

        def is_news(tx: Reader) -> bool:
            row = tx.bus_address_get(key)
            return tx.zone_of_key(key) is not None and (
                row is None
                or row.addresses[:1] != (address,)
                or not 0 <= now - row.seen_at < BUS_SEEN_MS
            )

        if self._engine.read("bus.peer", is_news):
            await self._write("bus.seen", lambda tx: note_addresses(tx, key, [address], now))

    def capabilities(self, peer: PeerKey) -> Sequence[bytes]:
        return ()

    def waiting(self) -> dict[str, int]:
        """How many messages wait for each peer."""
        counts = self._engine.message_count.latest().outbox
        found: dict[str, int] = {}
        for (lane, state), count in counts.items():
            if is_peer_lane(lane) and state in _WAITING:
                found[peer_of(lane)] = found.get(peer_of(lane), 0) + count
        return found

    def now_ms(self) -> int:
        return self._engine.ctx.now_ms()

    def seen_at(self, key: PeerKey) -> int | None:
        """When the owner of a key was reached last."""
        row = self._engine.read("bus.peer", lambda tx: tx.bus_address_get(key))
        return None if row is None else row.seen_at

    def standings(self) -> list[PeerStanding]:
        """The zones as people see them, without their links."""
        now = self._engine.ctx.now_ms()

        def read(tx: Reader) -> list[PeerStanding]:
            return [
                PeerStanding(
                    peer=row.name,
                    trust=trust_word(row, now),
                    address=next(iter(self._addresses(tx, row)), None),
                    seen_at=last_seen(tx, row),
                )
                for row in tx.zone_list()
            ]

        return self._engine.read("bus.peers", read)

    def _peer(self, row: ZoneRow) -> Peer | None:
        """The zone as a peer; None if it may not speak with us now."""
        now = self._engine.ctx.now_ms()
        keys = tuple(known.key for known in row.keys if is_good(known, now))
        if row.blocked_at is not None or not keys:
            return None
        addresses = self._engine.read("bus.peer", lambda tx: self._addresses(tx, row))
        return Peer(name=row.name, keys=keys, addresses=addresses, meshes=row.reads)

    def _addresses(self, tx: Reader, row: ZoneRow) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*addresses_of(tx, row), *self.static.get(row.name, ()))))


def _is(peer: Peer, name: str) -> bool:
    text = key_text(name)
    return any(text_of(key) == text for key in peer.keys)
