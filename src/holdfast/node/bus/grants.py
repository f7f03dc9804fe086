"""What a peer may do with a mesh over the bus.

    read    it is told what this node has of the mesh, and gets it
    write   what it wrote itself is taken from it
    relay   what others wrote is taken from it too

A zone that this node trusts with a mesh (`holdfast peer trust … --reads MESH`) may read it and
write to it. Only a member that was granted it may relay, because a relay could make up what others
wrote.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.rules.rows import ZoneRow
from holdfast.storage.ports import Reader

ALL_MESHES = "*"


class MeshGrants(Protocol):
    """Asked with each page, in its transaction: so nothing outlives a grant that was taken back."""

    def may_read(self, tx: Reader, peer: str, mesh: str) -> bool: ...
    def may_write(self, tx: Reader, peer: str, mesh: str) -> bool: ...
    def may_relay(self, tx: Reader, peer: str, mesh: str) -> bool: ...


class TrustGrants:
    """Grants as the table of trusted zones has them, and the members that a mesh is known to
    have.
    """

    def may_read(self, tx: Reader, peer: str, mesh: str) -> bool:
        zone = tx.zone_get(peer)
        return zone is not None and _shares(zone, mesh)

    def may_write(self, tx: Reader, peer: str, mesh: str) -> bool:
        return self.may_read(tx, peer, mesh)

    def may_relay(self, tx: Reader, peer: str, mesh: str) -> bool:
        zone = tx.zone_get(peer)
        if zone is None or not _shares(zone, mesh):
            return False
        keys = [key.key for key in zone.keys]
        return any(
            member.key in keys and "relay" in member.grants
            for member in tx.known_members_list(mesh)
        )


def _shares(zone: ZoneRow, mesh: str) -> bool:
    return zone.blocked_at is None and (mesh in zone.reads or ALL_MESHES in zone.reads)
