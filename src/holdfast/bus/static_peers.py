"""Who is who, from a list: what a bus without a home knows of others.

A peer of the list is `CARD@host:port`, or a card alone if it dials us. Whoever is not on the list
is a stranger.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.bus.ports import Peer
from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.errors import AlreadyExists, ZoneNotTrusted
from holdfast.rules.keys import parse_card, text_of
from holdfast.rules.limits import BUS_ADDRESSES_MAX
from holdfast.service.address import parse_address


class StaticPeers:
    """A `PeerDirectory` in memory."""

    def __init__(self, peers: Iterable[str] = ()) -> None:
        self._by_name: dict[str, Peer] = {}
        self._by_key: dict[PeerKey, str] = {}
        for text in peers:
            self.add(text)

    def add(self, text: str) -> Peer:
        """Adds `CARD@host:port` or `CARD`. Raises BadInput."""
        card, at, address = text.strip().partition("@")
        name, key = parse_card(card)
        if at:
            parse_address(address)
        known = self._by_name.get(name)
        if key in self._by_key and self._by_key[key] != name:
            raise AlreadyExists(f"the key of {name} belongs to {self._by_key[key]} already")
        keys = () if known is None else known.keys
        addresses = () if known is None else known.addresses
        peer = Peer(
            name=name,
            keys=keys if key in keys else (*keys, key),
            addresses=addresses if not at or address in addresses else (*addresses, address),
            meshes=("*",),
        )
        self._by_name[name], self._by_key[key] = peer, name
        return peer

    async def find(self, name: str) -> Peer | None:
        found = self._by_name.get(name)
        if found is not None:
            return found
        for peer in self._by_name.values():
            if any(text_of(key) == name for key in peer.keys):
                return peer
        return None

    async def of_key(self, key: PeerKey) -> Peer | None:
        name = self._by_key.get(key)
        return None if name is None else self._by_name[name]

    async def all(self) -> list[Peer]:
        return list(self._by_name.values())

    async def admit(self, key: PeerKey, name: str, capabilities: Sequence[bytes]) -> Peer:
        peer = await self.of_key(key)
        if peer is None:
            raise ZoneNotTrusted(f"nobody here knows the key {text_of(key)}")
        return peer

    async def note_address(self, key: PeerKey, address: str) -> None:
        """The newest address is tried first."""
        peer = await self.of_key(key)
        if peer is not None:
            others = [one for one in peer.addresses if one != address]
            addresses = (address, *others)[:BUS_ADDRESSES_MAX]
            self._by_name[peer.name] = msgspec.structs.replace(peer, addresses=addresses)

    def capabilities(self, peer: PeerKey) -> Sequence[bytes]:
        return ()
