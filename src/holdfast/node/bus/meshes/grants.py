"""What a peer may do with a mesh over the bus.

    read    it is told what this node has of the mesh, and gets it
    write   what it wrote itself is taken from it
    relay   what others wrote is taken from it too
    vote    it decides with others what is committed, so what was committed is taken from it

A zone that this node trusts with a mesh (`holdfast peer trust … --reads MESH`) may read it and
write to it. A member of a mesh without a broker may do what the owner granted it. Only a member to
whom it was granted may relay, because a relay could make up what others wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from holdfast.rules.bus.meshes.membership import MemberStanding
from holdfast.rules.errors import NotTrusted
from holdfast.rules.rows import ZoneRow
from holdfast.storage.ports import Reader

ALL_MESHES = "*"


class MeshPeer(NamedTuple):
    """A peer at the other end of a link."""

    name: str
    """Under which it writes."""
    key: bytes


class MeshGrants(Protocol):
    """Asked with each page, in its transaction: so nothing outlives a grant that was taken back."""

    def may_read(self, tx: Reader, peer: MeshPeer, mesh: str) -> bool: ...
    def may_write(self, tx: Reader, peer: MeshPeer, mesh: str) -> bool: ...
    def may_relay(self, tx: Reader, peer: MeshPeer, mesh: str) -> bool: ...
    def may_bring_commits(self, tx: Reader, peer: MeshPeer, mesh: str) -> bool:
        """Whether it is believed when it says what a quorum has committed."""

    def may_vote(self, tx: Reader, peer: MeshPeer, mesh: str) -> bool: ...


class TrustGrants:
    """Grants as the table of trusted zones has them; who may relay is known of the members of a
    mesh that has a broker.
    """

    def may_read(self, tx: Reader, peer: MeshPeer, mesh: str) -> bool:
        zone = tx.zone_of_key(peer.key)
        return zone is not None and _shares(zone, mesh)

    def may_write(self, tx: Reader, peer: MeshPeer, mesh: str) -> bool:
        return self.may_read(tx, peer, mesh)

    def may_relay(self, tx: Reader, peer: MeshPeer, mesh: str) -> bool:
        return self._may_as_member(tx, peer, mesh, "relay")

    def may_bring_commits(self, tx: Reader, peer: MeshPeer, mesh: str) -> bool:
        return self.may_relay(tx, peer, mesh)

    def may_vote(self, tx: Reader, peer: MeshPeer, mesh: str) -> bool:
        return self._may_as_member(tx, peer, mesh, "vote")

    def _may_as_member(self, tx: Reader, peer: MeshPeer, mesh: str, right: str) -> bool:
        return self.may_read(tx, peer, mesh) and any(
            member.key == peer.key and right in member.grants
            for member in tx.known_members_list(mesh)
        )


class MemberGrants(TrustGrants):
    """The same, and what the owners of meshes without a broker granted. `standing` says how a key
    stands in a mesh, by what it has shown; `votes` whether it may vote, by the list that the owner
    signs, as groups have it: what a link was shown may be older than that right.
    """

    def __init__(
        self,
        standing: Callable[[bytes, str], MemberStanding | None],
        votes: Callable[[str, bytes], bool] = lambda mesh, key: False,
    ) -> None:
        self._standing, self._votes = standing, votes

    def may_read(self, tx: Reader, peer: MeshPeer, mesh: str) -> bool:
        return super().may_read(tx, peer, mesh) or self._granted(peer, mesh, "read")

    def may_write(self, tx: Reader, peer: MeshPeer, mesh: str) -> bool:
        """A member writes under the name that it has in this mesh, and not under one that it has in
        another mesh, where another owner let it in.
        """
        return super().may_read(tx, peer, mesh) or self._granted(peer, mesh, "write", peer.name)

    def may_relay(self, tx: Reader, peer: MeshPeer, mesh: str) -> bool:
        return super().may_relay(tx, peer, mesh) or self._granted(peer, mesh, "relay")

    def may_bring_commits(self, tx: Reader, peer: MeshPeer, mesh: str) -> bool:
        return self.may_relay(tx, peer, mesh) or self._granted(peer, mesh, "vote")

    def may_vote(self, tx: Reader, peer: MeshPeer, mesh: str) -> bool:
        return super().may_vote(tx, peer, mesh) or self._votes(mesh, peer.key)

    def _granted(self, peer: MeshPeer, mesh: str, right: str, name: str | None = None) -> bool:
        try:
            standing = self._standing(peer.key, mesh)
        except NotTrusted:
            return False  # a second home under one name
        if standing is None or name not in (None, standing.name):
            return False
        return right in standing.grants


def _shares(zone: ZoneRow, mesh: str) -> bool:
    return zone.blocked_at is None and (mesh in zone.reads or ALL_MESHES in zone.reads)
