"""Other nodes: zones with their keys, tokens, links, what links brought and we refused, and meshes
that are shared over the bus.
"""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from holdfast.rules.bus.meshes.membership import (
    BusAddressRow,
    BusCapabilityRow,
    BusInviteRow,
    BusMeshRow,
)
from holdfast.rules.errors import AlreadyExists
from holdfast.rules.rows import LinkRow, QuarantineRow, TokenRow, ZoneKey, ZoneRow
from holdfast.storage.sqlite.columns import FILTER, FLAG, NAMES, RowColumns

_ZONE = RowColumns("zone", ZoneRow, without=("keys",), reads=NAMES)
_KEY = RowColumns("zone_key", ZoneKey)
_TOKEN = RowColumns("token", TokenRow, reads=NAMES)
_LINK = RowColumns("link", LinkRow, filter=FILTER, paused=FLAG)
_QUARANTINE = RowColumns("quarantine", QuarantineRow)
_BUS_MESH = RowColumns("bus_mesh", BusMeshRow)
_BUS_INVITE = RowColumns("bus_invite", BusInviteRow, grants=NAMES)
_BUS_ADDRESS = RowColumns("bus_address", BusAddressRow, addresses=NAMES)
_BUS_CAPABILITY = RowColumns("bus_capability", BusCapabilityRow)


class ZoneReads:
    _con: apsw.Connection

    def zone_get(self, name: str) -> ZoneRow | None:
        zone = _ZONE.find(self._con, "WHERE name = ?", (name,))
        return None if zone is None else self._with_keys(zone)

    def zone_list(self) -> list[ZoneRow]:
        return [self._with_keys(zone) for zone in _ZONE.select(self._con, "ORDER BY name")]

    def zone_of_key(self, key: bytes) -> ZoneRow | None:
        name = self._con.execute("SELECT zone FROM zone_key WHERE key = ?", (key,)).get
        return None if name is None else self.zone_get(name)

    def token_find(self, digest: bytes) -> TokenRow | None:
        return _TOKEN.find(self._con, "WHERE digest = ?", (digest,))

    def token_list(self) -> list[TokenRow]:
        return _TOKEN.select(self._con, "ORDER BY name")

    def link_get(self, name: str) -> LinkRow | None:
        return _LINK.find(self._con, "WHERE name = ?", (name,))

    def link_list(self) -> list[LinkRow]:
        return _LINK.select(self._con, "ORDER BY name")

    def quarantine_get(self, number: int) -> QuarantineRow | None:
        return _QUARANTINE.find(self._con, "WHERE number = ?", (number,))

    def quarantine_list(self, link: str | None, after: int, limit: int) -> list[QuarantineRow]:
        of_link = "" if link is None else "link = ?3 AND "
        return _QUARANTINE.select(
            self._con,
            f"WHERE {of_link}number > ?1 ORDER BY number LIMIT ?2",
            (after, limit, *(() if link is None else (link,))),
        )

    def quarantine_count(self, link: str) -> int:
        count = self._con.execute("SELECT count(*) FROM quarantine WHERE link = ?", (link,)).get
        assert isinstance(count, int)
        return count

    def quarantine_places(self, link: str, epoch: int) -> list[tuple[int, int, int]]:
        # The size of a blob stands in the header of its record: the blob itself is not read.
        rows: list[Any] = self._con.execute(
            "SELECT number, offset, length(raw) FROM quarantine WHERE link = ? AND epoch = ? "
            "ORDER BY number",
            (link, epoch),
        ).fetchall()
        return rows

    def bus_mesh_get(self, mesh: str) -> BusMeshRow | None:
        return _BUS_MESH.find(self._con, "WHERE mesh = ?", (mesh,))

    def bus_mesh_list(self) -> list[BusMeshRow]:
        return _BUS_MESH.select(self._con, "ORDER BY mesh")

    def bus_invite_get(self, digest: bytes) -> BusInviteRow | None:
        return _BUS_INVITE.find(self._con, "WHERE digest = ?", (digest,))

    def bus_invite_list(self, mesh: str | None) -> list[BusInviteRow]:
        of_mesh, values = ("", ()) if mesh is None else ("WHERE mesh = ? ", (mesh,))
        return _BUS_INVITE.select(self._con, f"{of_mesh}ORDER BY made_at, digest", values)

    def bus_address_get(self, key: bytes) -> BusAddressRow | None:
        return _BUS_ADDRESS.find(self._con, "WHERE key = ?", (key,))

    def bus_capability_list(self) -> list[BusCapabilityRow]:
        return _BUS_CAPABILITY.select(self._con, "ORDER BY added_at, id")

    def _with_keys(self, zone: ZoneRow) -> ZoneRow:
        keys = _KEY.select(self._con, "WHERE zone = ? ORDER BY added_at, key", (zone.name,))
        return msgspec.structs.replace(zone, keys=tuple(keys))


class ZoneWrites(ZoneReads):
    def zone_put(self, row: ZoneRow) -> ZoneRow:
        for key in row.keys:
            owner = self._con.execute("SELECT zone FROM zone_key WHERE key = ?", (key.key,)).get
            if owner not in (None, row.name):
                raise AlreadyExists(f"this key of {row.name!r} is one of zone {owner!r}")
        number = self._con.execute("SELECT number FROM zone WHERE name = ?", (row.name,)).get
        row = msgspec.structs.replace(row, number=self._next("zone") if number is None else number)
        self._con.execute(_ZONE.upsert("number", keep=("name",)), _ZONE.values(row))
        self._con.execute("DELETE FROM zone_key WHERE zone = ?", (row.name,))
        self._con.executemany(
            "INSERT INTO zone_key (key, zone, added_at, expires_at) VALUES (?, ?, ?, ?) "
            # A key that is listed twice holds as it was listed last.
            "ON CONFLICT (key) DO UPDATE SET added_at = excluded.added_at, "
            "expires_at = excluded.expires_at",
            ((key.key, row.name, key.added_at, key.expires_at) for key in row.keys),
        )
        stored = self.zone_get(row.name)
        assert stored is not None, "the zone vanished inside its own transaction"
        return stored

    def token_put(self, row: TokenRow) -> None:
        try:
            self._con.execute(_TOKEN.insert, _TOKEN.values(row))
        except apsw.ConstraintError:
            raise AlreadyExists(f"token {row.name!r} exists already") from None

    def token_drop(self, name: str) -> bool:
        self._con.execute("DELETE FROM token WHERE name = ?", (name,))
        return self._con.changes() > 0

    def link_put(self, row: LinkRow) -> None:
        self._con.execute(_LINK.upsert("name"), _LINK.values(row))

    def link_drop(self, name: str) -> bool:
        self._con.execute("DELETE FROM quarantine WHERE link = ?", (name,))
        self._con.execute("DELETE FROM link WHERE name = ?", (name,))
        return self._con.changes() > 0

    def quarantine_add(self, row: QuarantineRow) -> int:
        row = msgspec.structs.replace(row, number=self._next("quarantine"))
        self._con.execute(_QUARANTINE.insert, _QUARANTINE.values(row))
        return row.number

    def quarantine_drop(self, number: int) -> bool:
        self._con.execute("DELETE FROM quarantine WHERE number = ?", (number,))
        return self._con.changes() > 0

    def bus_mesh_put(self, row: BusMeshRow) -> None:
        self._con.execute(_BUS_MESH.upsert("mesh"), _BUS_MESH.values(row))

    def bus_mesh_drop(self, mesh: str) -> bool:
        self._con.execute("DELETE FROM bus_invite WHERE mesh = ?", (mesh,))
        self._con.execute("DELETE FROM bus_mesh WHERE mesh = ?", (mesh,))
        return self._con.changes() > 0

    def bus_invite_put(self, row: BusInviteRow) -> None:
        self._con.execute(_BUS_INVITE.upsert("digest"), _BUS_INVITE.values(row))

    def bus_invite_drop(self, digest: bytes) -> bool:
        self._con.execute("DELETE FROM bus_invite WHERE digest = ?", (digest,))
        return self._con.changes() > 0

    def bus_address_put(self, row: BusAddressRow) -> None:
        self._con.execute(_BUS_ADDRESS.upsert("key"), _BUS_ADDRESS.values(row))

    def bus_address_drop(self, key: bytes) -> bool:
        self._con.execute("DELETE FROM bus_address WHERE key = ?", (key,))
        return self._con.changes() > 0

    def bus_capability_put(self, row: BusCapabilityRow) -> None:
        self._con.execute(_BUS_CAPABILITY.upsert("id"), _BUS_CAPABILITY.values(row))

    def bus_capability_drop(self, id: bytes) -> bool:
        self._con.execute("DELETE FROM bus_capability WHERE id = ?", (id,))
        return self._con.changes() > 0

    def _next(self, what: str) -> int:
        """The next number of a kind: one that was never given before, whatever is dropped."""
        number = self._con.execute(
            "INSERT INTO meta (name, value) VALUES (?, 1) "
            "ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value",
            (what,),
        ).get
        assert isinstance(number, int)
        return number
