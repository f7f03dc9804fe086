"""What a node's store keeps of meshes that it shares over the bus, with no broker: a part of
`ports`.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.rules.bus.meshes.membership import (
    BusAddressRow,
    BusCapabilityRow,
    BusInviteRow,
    BusMeshRow,
)


class MembershipReader(Protocol):
    def bus_mesh_get(self, mesh: str) -> BusMeshRow | None: ...
    def bus_mesh_list(self) -> list[BusMeshRow]:
        """By mesh."""

    def bus_invite_get(self, digest: bytes) -> BusInviteRow | None: ...
    def bus_invite_list(self, mesh: str | None) -> list[BusInviteRow]:
        """Of a mesh, or of all, the oldest first."""

    def bus_address_get(self, key: bytes) -> BusAddressRow | None: ...
    def bus_capability_list(self) -> list[BusCapabilityRow]:
        """The oldest first."""


class MembershipWriter(MembershipReader, Protocol):
    def bus_mesh_put(self, row: BusMeshRow) -> None:
        """Adds or changes how a mesh of this node is shared over the bus."""

    def bus_mesh_drop(self, mesh: str) -> bool:
        """The mesh is shared no more; its invites are gone with it."""

    def bus_invite_put(self, row: BusInviteRow) -> None: ...
    def bus_invite_drop(self, digest: bytes) -> bool: ...
    def bus_address_put(self, row: BusAddressRow) -> None: ...
    def bus_address_drop(self, key: bytes) -> bool: ...
    def bus_capability_put(self, row: BusCapabilityRow) -> None: ...
    def bus_capability_drop(self, id: bytes) -> bool: ...
