"""Who is who, from a list: what a bus without a home knows of others.

A peer of the list is `CARD@host:port`, or a card alone if it dials us. Whoever is not on the list
is a stranger, unless it shows a capability that this peer itself has issued: then it may do what
that says, for as long as it is linked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from holdfast.bus.ports import Peer
from holdfast.rules.bus.capability import ShownRights, parse_capability_text, rights_shown
from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.bus.scope import relayed_topics
from holdfast.rules.bus.succession import KeySuccession
from holdfast.rules.errors import AlreadyExists, CapabilityRefused, NotTrusted, ZoneNotTrusted
from holdfast.rules.keys import parse_card, text_of
from holdfast.rules.limits import BUS_ADDRESSES_MAX, BUS_CAPABILITIES_SHOWN_MAX
from holdfast.service.address import parse_address


class StaticPeers:
    """A `PeerDirectory` in memory."""

    def __init__(self, peers: Iterable[str] = (), capabilities: Iterable[str] = ()) -> None:
        """`capabilities` are texts of those that this peer was given; it shows them to their
        issuers, who have to be on the list.
        """
        self._by_name: dict[str, Peer] = {}
        self._by_key: dict[PeerKey, str] = {}
        self._held = [parse_capability_text(text)[1] for text in capabilities]
        self._shown: dict[PeerKey, Peer] = {}
        self._steps: dict[PeerKey, tuple[bytes, ...]] = {}
        """By which steps of capabilities they were let in."""
        self._relays: dict[PeerKey, ShownRights] = {}
        """What peers of the list have shown that may relay."""
        self._own_key: PeerKey = b""
        self._now_ms: Callable[[], int] = lambda: 0
        self._revoked: dict[bytes, None] = {}
        for text in peers:
            self.add(text)

    def bound(self, key: PeerKey, now_ms: Callable[[], int]) -> None:
        """The bus that asks here has this key, and this clock."""
        self._own_key, self._now_ms = key, now_ms

    def revoke(self, id: bytes) -> None:
        """Takes a capability back, and all that was narrowed from it; `Bus.refresh_peers` ends the
        links of those who came by it.
        """
        self._revoked[id] = None
        for key in [key for key, steps in self._steps.items() if id in steps]:
            del self._shown[key], self._steps[key]
        for key in [key for key, rights in self._relays.items() if id in rights.steps]:
            del self._relays[key]

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
        return next((peer for peer in self._shown.values() if peer.name == name), None)

    async def of_key(self, key: PeerKey) -> Peer | None:
        name = self._by_key.get(key)
        if name is None:
            return self._shown.get(key)
        peer, rights = self._by_name[name], self._relays.get(key)
        if rights is None:
            return peer
        relays = relayed_topics(rights.scopes)
        return msgspec.structs.replace(peer, relays=relays, relays_until=rights.ends_at)

    async def all(self) -> list[Peer]:
        return list(self._by_name.values())

    async def admit(self, key: PeerKey, name: str, capabilities: Sequence[bytes]) -> Peer:
        now = self._now_ms()
        if key in self._by_key:
            self._relays.pop(key, None)
            with suppress(CapabilityRefused):  # it is known by the list, whatever it shows
                rights = self._rights(key, capabilities)
                if rights is not None:
                    self._relays[key] = rights
            listed = await self.of_key(key)
            assert listed is not None
            return listed
        for old in [one for one, peer in self._shown.items() if now >= (peer.ends_at or 0)]:
            del self._shown[old], self._steps[old]
        rights = self._rights(key, capabilities)
        if rights is None:
            raise ZoneNotTrusted(f"nobody here knows the key {text_of(key)}")
        if rights.name in self._by_name:
            raise NotTrusted(f"another key is called {rights.name!r} here")
        peer = Peer(
            name=rights.name or text_of(key),
            keys=(key,),
            scopes=rights.scopes,
            ends_at=rights.ends_at,
            relays=relayed_topics(rights.scopes),
            relays_until=rights.ends_at,
        )
        self._shown[key], self._steps[key] = peer, rights.steps
        return peer

    async def follow(self, key: PeerKey, chain: Sequence[KeySuccession]) -> bool:
        """People trust a key, and say so themselves when it is another one."""
        return False

    def _rights(self, key: PeerKey, capabilities: Sequence[bytes]) -> ShownRights | None:
        shown = capabilities[:BUS_CAPABILITIES_SHOWN_MAX]
        return rights_shown(shown, self._own_key, key, self._now_ms(), self._revoked)

    async def note_address(self, key: PeerKey, address: str) -> None:
        """The newest address is tried first."""
        name = self._by_key.get(key)
        if name is not None:
            peer = self._by_name[name]
            others = [one for one in peer.addresses if one != address]
            addresses = (address, *others)[:BUS_ADDRESSES_MAX]
            self._by_name[peer.name] = msgspec.structs.replace(peer, addresses=addresses)

    def capabilities(self, peer: PeerKey) -> Sequence[bytes]:
        return [one.raw for one in self._held if one.issuer == peer][:BUS_CAPABILITIES_SHOWN_MAX]
