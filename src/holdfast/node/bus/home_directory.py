"""Who is who on the bus of a home: the zones that it trusts, and the members of its meshes.

A trusted zone is known by this node's own word, a member by the word of the mesh's owner. If both
name a peer, the zone's word counts, and a zone that is blocked is refused, whatever mesh it belongs
to. One name is one peer: a key that comes under the name of another one is refused, and both sides
are told.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.bus.ports import Peer, PeerDirectory
from holdfast.node.bus.member_peers import MemberPeers
from holdfast.node.core.engine import NodeEngine
from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.errors import NotTrusted
from holdfast.rules.keys import text_of


class HomeDirectory:
    """A `PeerDirectory` of zones and members."""

    def __init__(self, engine: NodeEngine, zones: PeerDirectory, members: MemberPeers) -> None:
        self._engine, self._zones, self.members = engine, zones, members

    async def find(self, name: str) -> Peer | None:
        found = await self._zones.find(name)
        if found is not None:
            return found
        text = name.rpartition(":")[2]  # a card ends with its key
        for peer in await self._members():
            if peer.name == name or any(text_of(key) == text for key in peer.keys):
                return peer
        linked = self.members.key_of(name)  # known by what it has shown alone
        return None if linked is None else self.members.of_key(linked)

    async def of_key(self, key: PeerKey) -> Peer | None:
        if self._is_zone(key):
            return await self._zones.of_key(key)
        return self.members.of_key(key)

    async def all(self) -> list[Peer]:
        return [*await self._zones.all(), *await self._members()]

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
            return peer
        peer = self.members.admit(key, name, capabilities)
        namesake = await self._zones.find(peer.name)
        others = [one for one in self.members.all() if one.name == peer.name]
        for other in [*([namesake] if namesake else []), *others]:
            if key not in other.keys:
                raise NotTrusted(
                    f"two homes are called {peer.name!r} here, with different keys",
                    hint="one of them has to get another name: two homes cannot have one",
                )
        return peer

    async def note_address(self, key: PeerKey, address: str) -> None:
        if self._is_zone(key):
            await self._zones.note_address(key, address)
        else:
            await self.members.note_addresses(key, [address])

    def capabilities(self, peer: PeerKey) -> Sequence[bytes]:
        return self.members.shown_to(peer)

    def _is_zone(self, key: PeerKey) -> bool:
        return self._engine.read("bus.peer", lambda tx: tx.zone_of_key(key)) is not None
