"""Other nodes: zones with their keys, tokens, links, and what links brought and we refused."""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from holdfast.rules.errors import AlreadyExists
from holdfast.rules.rows import LinkRow, QuarantineRow, TokenRow, ZoneKey, ZoneRow
from holdfast.storage.sqlite.columns import FILTER, FLAG, NAMES, RowColumns

_ZONE = RowColumns(ZoneRow, without=("keys",), reads=NAMES)
_KEY = RowColumns(ZoneKey)
_TOKEN = RowColumns(TokenRow, reads=NAMES)
_LINK = RowColumns(LinkRow, filter=FILTER, paused=FLAG)
_QUARANTINE = RowColumns(QuarantineRow)


class ZoneReads:
    _con: apsw.Connection

    def zone_get(self, name: str) -> ZoneRow | None:
        row = self._con.execute(f"SELECT {_ZONE.sql} FROM zone WHERE name = ?", (name,)).get
        return None if row is None else self._zone(row)

    def zone_list(self) -> list[ZoneRow]:
        rows: list[Any] = self._con.execute(
            f"SELECT {_ZONE.sql} FROM zone ORDER BY name"
        ).fetchall()
        return [self._zone(row) for row in rows]

    def zone_of_key(self, key: bytes) -> ZoneRow | None:
        name = self._con.execute("SELECT zone FROM zone_key WHERE key = ?", (key,)).get
        return None if name is None else self.zone_get(name)

    def token_find(self, digest: bytes) -> TokenRow | None:
        row = self._con.execute(f"SELECT {_TOKEN.sql} FROM token WHERE digest = ?", (digest,)).get
        return _TOKEN.one(row)

    def token_list(self) -> list[TokenRow]:
        return _TOKEN.rows(self._con.execute(f"SELECT {_TOKEN.sql} FROM token ORDER BY name"))

    def link_get(self, name: str) -> LinkRow | None:
        row = self._con.execute(f"SELECT {_LINK.sql} FROM link WHERE name = ?", (name,)).get
        return _LINK.one(row)

    def link_list(self) -> list[LinkRow]:
        return _LINK.rows(self._con.execute(f"SELECT {_LINK.sql} FROM link ORDER BY name"))

    def quarantine_get(self, number: int) -> QuarantineRow | None:
        row = self._con.execute(
            f"SELECT {_QUARANTINE.sql} FROM quarantine WHERE number = ?", (number,)
        ).get
        return _QUARANTINE.one(row)

    def quarantine_list(self, link: str | None, after: int, limit: int) -> list[QuarantineRow]:
        of_link = "" if link is None else "link = ?3 AND "
        rows = self._con.execute(
            f"SELECT {_QUARANTINE.sql} FROM quarantine WHERE {of_link}number > ?1 "
            "ORDER BY number LIMIT ?2",
            (after, limit, *(() if link is None else (link,))),
        )
        return _QUARANTINE.rows(rows)

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

    def _zone(self, values: Any) -> ZoneRow:
        zone = _ZONE.row(values)
        keys = self._con.execute(
            f"SELECT {_KEY.sql} FROM zone_key WHERE zone = ? ORDER BY added_at, key", (zone.name,)
        )
        return msgspec.structs.replace(zone, keys=tuple(_KEY.rows(keys)))


class ZoneWrites(ZoneReads):
    def zone_put(self, row: ZoneRow) -> ZoneRow:
        for key in row.keys:
            owner = self._con.execute("SELECT zone FROM zone_key WHERE key = ?", (key.key,)).get
            if owner not in (None, row.name):
                raise AlreadyExists(f"this key of {row.name!r} is one of zone {owner!r}")
        number = self._con.execute("SELECT number FROM zone WHERE name = ?", (row.name,)).get
        row = msgspec.structs.replace(row, number=self._next("zone") if number is None else number)
        self._con.execute(_ZONE.upsert("zone", "number", keep=("name",)), _ZONE.values(row))
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
            self._con.execute(_TOKEN.insert("token"), _TOKEN.values(row))
        except apsw.ConstraintError:
            raise AlreadyExists(f"token {row.name!r} exists already") from None

    def token_drop(self, name: str) -> bool:
        self._con.execute("DELETE FROM token WHERE name = ?", (name,))
        return self._con.changes() > 0

    def link_put(self, row: LinkRow) -> None:
        self._con.execute(_LINK.upsert("link", "name"), _LINK.values(row))

    def link_drop(self, name: str) -> bool:
        self._con.execute("DELETE FROM quarantine WHERE link = ?", (name,))
        self._con.execute("DELETE FROM link WHERE name = ?", (name,))
        return self._con.changes() > 0

    def quarantine_add(self, row: QuarantineRow) -> int:
        row = msgspec.structs.replace(row, number=self._next("quarantine"))
        self._con.execute(_QUARANTINE.insert("quarantine"), _QUARANTINE.values(row))
        return row.number

    def quarantine_drop(self, number: int) -> bool:
        self._con.execute("DELETE FROM quarantine WHERE number = ?", (number,))
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
