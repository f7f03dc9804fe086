"""Who is who on the bus of a home: the zones that it trusts, the members of its meshes, and those
who show a capability.

A trusted zone is known by this node's own word, a member by the word of the mesh's owner. If both
name a peer, the zone's word counts, and a zone that is blocked is refused, whatever mesh it belongs
to. One name is one peer: a key that comes under the name of another one is refused, and both sides
are told.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.bus.ports import Peer, PeerDirectory
from holdfast.node.bus.capabilities import CapabilityPeers
from holdfast.node.bus.member_peers import MemberPeers
from holdfast.node.core.engine import NodeEngine
from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.bus.meshes.membership import is_ticket
from holdfast.rules.bus.succession import KeySuccession, is_chain
from holdfast.rules.errors import PeerNameTaken, ZoneNotTrusted
from holdfast.rules.keys import text_of
from holdfast.rules.limits import BUS_CAPABILITIES_SHOWN_MAX
from holdfast.rules.member_names import key_text


class HomeDirectory:
    """A `PeerDirectory` of zones and members."""

    def __init__(
        self,
        engine: NodeEngine,
        zones: PeerDirectory,
        members: MemberPeers,
        rights: CapabilityPeers,
    ) -> None:
        self._engine, self._zones, self.members, self._rights = engine, zones, members, rights

    async def find(self, name: str) -> Peer | None:
        found = await self._zones.find(name)
        if found is not None:
            return found
        text = key_text(name)
        for peer in await self._members():
            if peer.name == name or any(text_of(key) == text for key in peer.keys):
                return peer
        linked = self.members.key_of(name)  # known by what it has shown alone
        found = None if linked is None else self.members.of_key(linked)
        return found or self._allowed(self._rights.find(name))

    async def of_key(self, key: PeerKey) -> Peer | None:
        if self._is_zone(key):
            peer = await self._zones.of_key(key)
        else:
            peer = self.members.of_key(key)
        if peer is not None:
            return self._rights.with_relays(key, peer)
        return None if self._is_zone(key) else self._rights.of_key(key)

    def _allowed(self, peer: Peer | None) -> Peer | None:
        """A peer that only a capability knows; a zone's own word counts more."""
        return None if peer is None or self._is_zone(peer.keys[0]) else peer

    async def all(self) -> list[Peer]:
        known = [*await self._zones.all(), *await self._members()]
        taken, keys = {peer.name for peer in known}, {key for peer in known for key in peer.keys}
        return known + [
            peer
            for peer in self._rights.all()
            if self._allowed(peer) and peer.name not in taken and peer.keys[0] not in keys
        ]

    async def _members(self) -> list[Peer]:
        """Members that are no zones, each name once."""
        taken = {peer.name for peer in await self._zones.all()}
        found = []
        for peer in self.members.all():
            if peer.name not in taken and not any(self._is_zone(key) for key in peer.keys):
                taken.add(peer.name)
                found.append(peer)
        return found

    async def admit(self, key: PeerKey, name: str, capabilities: Sequence[bytes]) -> Peer:
        if self._is_zone(key):
            peer = await self._zones.admit(key, name, capabilities)
            self.members.look_at(key, capabilities)
            self.members.met(peer.name, key)
            self._rights.look_at(key, capabilities)
            return self._rights.with_relays(key, peer)
        try:
            peer = self.members.admit(key, name, capabilities)
            self._rights.look_at(key, capabilities)
            peer = self._rights.with_relays(key, peer)
        except ZoneNotTrusted:
            rights = [one for one in capabilities if not is_ticket(one) and not is_chain(one)]
            peer = self._rights.admit(key, name, rights)
        namesake = await self._zones.find(peer.name)
        others = [one for one in self.members.all() if one.name == peer.name]
        linked = self._rights.find(peer.name)
        others += [] if linked is None else [linked]
        for other in [*([namesake] if namesake else []), *others]:
            if key not in other.keys:
                raise PeerNameTaken(
                    f"two homes are called {peer.name!r} here, with different keys",
                    hint="one of them has to get another name: two homes cannot have one",
                )
        return peer

    async def follow(self, key: PeerKey, chain: Sequence[KeySuccession]) -> bool:
        """A member is followed to its new key; a zone is trusted by people alone."""
        if any(self._is_zone(step.before) for step in chain):
            return False
        return self.members.follow(key, chain)

    async def note_address(self, key: PeerKey, address: str) -> None:
        if self._is_zone(key):
            await self._zones.note_address(key, address)
        else:
            await self.members.note_addresses(key, [address])

    def capabilities(self, peer: PeerKey) -> Sequence[bytes]:
        shown = [*self.members.shown_to(peer), *self._rights.shown_to(peer)]
        return shown[:BUS_CAPABILITIES_SHOWN_MAX]

    def _is_zone(self, key: PeerKey) -> bool:
        return self._engine.read("bus.peer", lambda tx: tx.zone_of_key(key)) is not None
