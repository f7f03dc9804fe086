"""Other nodes in memory: zones with their keys, tokens, links, the quarantine of links, and meshes
that are shared over the bus.
"""

from __future__ import annotations

import msgspec

from holdfast.rules.bus.meshes.membership import (
    BusAddressRow,
    BusCapabilityRow,
    BusInviteRow,
    BusMeshRow,
)
from holdfast.rules.errors import AlreadyExists
from holdfast.rules.rows import LinkRow, QuarantineRow, TokenRow, ZoneKey, ZoneRow
from holdfast.storage.memory.undo import UndoTables


class MemoryZones(UndoTables):
    """Zones, tokens, links and quarantine."""

    def zone_get(self, name: str) -> ZoneRow | None:
        return self._table("zone").get(name)

    def zone_list(self) -> list[ZoneRow]:
        return sorted(self._table("zone").values(), key=lambda row: row.name.encode())

    def zone_of_key(self, key: bytes) -> ZoneRow | None:
        for row in self._table("zone").values():
            if any(known.key == key for known in row.keys):
                found: ZoneRow = row
                return found
        return None

    def zone_put(self, row: ZoneRow) -> ZoneRow:
        for key in row.keys:
            owner = self.zone_of_key(key.key)
            if owner is not None and owner.name != row.name:
                raise AlreadyExists(f"this key of {row.name!r} is one of zone {owner.name!r}")
        before = self.zone_get(row.name)
        stored = msgspec.structs.replace(
            row,
            number=self._next_number("zone") if before is None else before.number,
            keys=_keys(row),
        )
        self._put("zone", row.name, stored)
        return stored

    # --- tokens ------------------------------------------------------------------------------

    def token_find(self, digest: bytes) -> TokenRow | None:
        for row in self._table("token").values():
            if row.digest == digest:
                found: TokenRow = row
                return found
        return None

    def token_list(self) -> list[TokenRow]:
        return sorted(self._table("token").values(), key=lambda row: row.name.encode())

    def token_put(self, row: TokenRow) -> None:
        if row.name in self._table("token") or self.token_find(row.digest) is not None:
            raise AlreadyExists(f"token {row.name!r} exists already")
        self._put("token", row.name, row)

    def token_drop(self, name: str) -> bool:
        there = name in self._table("token")
        self._drop("token", name)
        return there

    # --- links -------------------------------------------------------------------------------

    def link_get(self, name: str) -> LinkRow | None:
        return self._table("link").get(name)

    def link_list(self) -> list[LinkRow]:
        return sorted(self._table("link").values(), key=lambda row: row.name.encode())

    def link_put(self, row: LinkRow) -> None:
        self._put("link", row.name, row)

    def link_drop(self, name: str) -> bool:
        for number, row in list(self._table("quarantine").items()):
            if row.link == name:
                self._drop("quarantine", number)
        there = name in self._table("link")
        self._drop("link", name)
        return there

    def quarantine_get(self, number: int) -> QuarantineRow | None:
        return self._table("quarantine").get(number)

    def quarantine_list(self, link: str | None, after: int, limit: int) -> list[QuarantineRow]:
        rows = [
            row
            for number, row in sorted(self._table("quarantine").items())
            if number > after and link in (None, row.link)
        ]
        return rows[:limit]

    def quarantine_count(self, link: str) -> int:
        return sum(row.link == link for row in self._table("quarantine").values())

    def quarantine_places(self, link: str, epoch: int) -> list[tuple[int, int, int]]:
        return [
            (number, row.offset, len(row.raw))
            for number, row in sorted(self._table("quarantine").items())
            if (row.link, row.epoch) == (link, epoch)
        ]

    def quarantine_add(self, row: QuarantineRow) -> int:
        number = self._next_number("quarantine")
        self._put("quarantine", number, msgspec.structs.replace(row, number=number))
        return number

    def quarantine_drop(self, number: int) -> bool:
        there = number in self._table("quarantine")
        self._drop("quarantine", number)
        return there

    # --- meshes over the bus -----------------------------------------------------------------

    def bus_mesh_get(self, mesh: str) -> BusMeshRow | None:
        return self._table("bus_mesh").get(mesh)

    def bus_mesh_list(self) -> list[BusMeshRow]:
        return sorted(self._table("bus_mesh").values(), key=lambda row: row.mesh.encode())

    def bus_mesh_put(self, row: BusMeshRow) -> None:
        self._put("bus_mesh", row.mesh, row)

    def bus_mesh_drop(self, mesh: str) -> bool:
        for invite in self.bus_invite_list(mesh):
            self._drop("bus_invite", invite.digest)
        there = mesh in self._table("bus_mesh")
        self._drop("bus_mesh", mesh)
        return there

    def bus_invite_get(self, digest: bytes) -> BusInviteRow | None:
        return self._table("bus_invite").get(digest)

    def bus_invite_list(self, mesh: str | None) -> list[BusInviteRow]:
        rows = [row for row in self._table("bus_invite").values() if mesh in (None, row.mesh)]
        return sorted(rows, key=lambda row: (row.made_at, row.digest))

    def bus_invite_put(self, row: BusInviteRow) -> None:
        self._put("bus_invite", row.digest, row)

    def bus_invite_drop(self, digest: bytes) -> bool:
        there = digest in self._table("bus_invite")
        self._drop("bus_invite", digest)
        return there

    def bus_address_get(self, key: bytes) -> BusAddressRow | None:
        return self._table("bus_address").get(key)

    def bus_address_put(self, row: BusAddressRow) -> None:
        self._put("bus_address", row.key, row)

    def bus_address_drop(self, key: bytes) -> bool:
        there = key in self._table("bus_address")
        self._drop("bus_address", key)
        return there

    def bus_capability_list(self) -> list[BusCapabilityRow]:
        rows = self._table("bus_capability").values()
        return sorted(rows, key=lambda row: (row.added_at, row.id))

    def bus_capability_put(self, row: BusCapabilityRow) -> None:
        self._put("bus_capability", row.id, row)

    def bus_capability_drop(self, id: bytes) -> bool:
        there = id in self._table("bus_capability")
        self._drop("bus_capability", id)
        return there

    def _next_number(self, what: str) -> int:
        number = int(self._table("meta").get(what, 0)) + 1
        self._put("meta", what, number)
        return number


def _keys(row: ZoneRow) -> tuple[ZoneKey, ...]:
    """Each key once, as it was listed last; the oldest first."""
    latest = {key.key: key for key in row.keys}
    return tuple(sorted(latest.values(), key=lambda key: (key.added_at, key.key)))
