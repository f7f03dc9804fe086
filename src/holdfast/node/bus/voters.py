"""Who may vote in the meshes of this node, as their owners say, and how voters ask each other.

The right `vote` stands in the list of members that the owner of a mesh signs. A node believes
nobody else that somebody belongs to the group of a mesh before its own log tells it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.node.bus.member_peers import MemberPeers
from holdfast.node.bus.members import Answer, MeshMembers
from holdfast.node.bus.sharing import BusSharing
from holdfast.node.core.engine import NodeEngine
from holdfast.node.trust.own_key import OwnKey
from holdfast.rules.errors import NotAllowed, NotAMember, NotShared
from holdfast.rules.keys import text_of

VOTE = "vote"


class MeshVoters:
    """A `MeshTrust` and a `VoterTrust`. Belongs to the event loop of the bus."""

    def __init__(self, engine: NodeEngine, own_key: OwnKey, peers: MemberPeers) -> None:
        self._engine, self._own_key, self._peers = engine, own_key, peers
        self.members: MeshMembers | None = None
        """Set when the bus is bound, and anew when it is bound anew."""

    def our_key(self) -> bytes:
        return self._peers.our_key()

    def is_ours(self, key: bytes) -> bool:
        return self._peers.is_ours(key)

    def keys(self, key: bytes) -> tuple[bytes, ...]:
        return self._peers.keys(key)

    def may_vote(self, mesh: str, keys: Sequence[bytes]) -> bool:
        held = self._peers.held_mesh(mesh)
        if held is None:
            return False
        listed = held.listed(keys)
        return held.row.owner in keys or (listed is not None and VOTE in listed.grants)

    def is_voter(self, mesh: str, key: bytes) -> bool:
        """The same of a linked peer, by the key of its link."""
        return self.may_vote(mesh, self.keys(key))

    def addresses(self, mesh: str) -> list[str]:
        """Who may vote in a mesh, other than this node, as the bus takes them: those that are
        linked first.
        """
        held = self._peers.held_mesh(mesh)
        if held is None:
            return []
        owner = held.row.owner
        may_vote = [
            one.key for one in held.members.members if VOTE in one.grants or one.key == owner
        ]
        found = [key for key in may_vote if not self._peers.is_ours(key)]
        linked = self._running().linked_keys()
        return [text_of(key) for key in sorted(found, key=lambda key: key not in linked)]

    def linked(self) -> frozenset[bytes]:
        """The keys of peers that a link stands to; none before the bus is bound."""
        return frozenset() if self.members is None else self.members.linked_keys()

    async def request(
        self, to: str, service: str, body: bytes, *, timeout_ms: int, wait_ms: int
    ) -> Answer:
        """By the bus of now; it is another one when this node has another key."""
        return await self._running().request(
            to, service, body, timeout_ms=timeout_ms, wait_ms=wait_ms
        )

    async def voter_key(self, mesh: str, peer: str) -> bytes:
        held = self._peers.held_mesh(mesh)
        if held is None:
            raise NotShared(
                f"{mesh!r} is not shared over the bus, so it has no other nodes that could vote",
                hint=f"holdfast mesh share {mesh}; then invite them: holdfast mesh invite {mesh}",
            )
        listed = held.members.of_name(peer)
        if listed is None:
            raise NotAMember(
                f"{peer!r} is no member of {mesh!r}", hint=f"invite it: holdfast mesh invite {mesh}"
            )
        if VOTE not in listed.grants and listed.key != held.row.owner:
            if not self._peers.is_ours(held.row.owner):
                raise NotAllowed(
                    f"{peer!r} may not vote in {mesh!r}",
                    hint=f"ask the mesh's owner: `holdfast mesh grant {peer} --mesh {mesh} "
                    + " ".join(f"--grant {right}" for right in (*listed.grants, VOTE))
                    + "`",
                )
            sharing = BusSharing(self._engine, self._own_key)
            await asyncio.to_thread(sharing.grant, mesh, peer, (*listed.grants, VOTE))
            await self._running().refresh()
        return listed.key

    async def ask(self, peer: str, service: str, body: bytes, timeout_ms: int) -> bytes:
        return await self._running().ask(peer, service, body, timeout_ms)

    def _running(self) -> MeshMembers:
        assert self.members is not None, "the bus is bound"
        return self.members
