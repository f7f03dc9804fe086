"""Other nodes: zones with their keys, tokens, links, and what links brought and we refused."""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from holdfast.rules.errors import AlreadyExists
from holdfast.rules.filters import Filter
from holdfast.rules.rows import LinkRow, QuarantineRow, TokenRow, ZoneKey, ZoneRow

_ZONE = "number, name, reads, added_at, blocked_at"
_TOKEN = "name, digest, scope, reads, created_at, expires_at"
_LINK = "name, url, zone, filter, paused, epoch, cursor, added_at, moved_at"
_QUARANTINE = "number, link, epoch, offset, code, message, raw, found_at"

_names = msgspec.json.Decoder(tuple[str, ...])
_filter = msgspec.json.Decoder(Filter)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _token(row: Any) -> TokenRow:
    return TokenRow(
        name=row[0],
        digest=row[1],
        scope=row[2],
        reads=_names.decode(row[3]),
        created_at=row[4],
        expires_at=row[5],
    )


def _link(row: Any) -> LinkRow:
    return LinkRow(
        name=row[0],
        url=row[1],
        zone=row[2],
        filter=_filter.decode(row[3]),
        paused=bool(row[4]),
        epoch=row[5],
        cursor=row[6],
        added_at=row[7],
        moved_at=row[8],
    )


def _quarantined(row: Any) -> QuarantineRow:
    return QuarantineRow(
        number=row[0],
        link=row[1],
        epoch=row[2],
        offset=row[3],
        code=row[4],
        message=row[5],
        raw=row[6],
        found_at=row[7],
    )


class ZoneReads:
    _con: apsw.Connection

    def zone_get(self, name: str) -> ZoneRow | None:
        row = self._con.execute(f"SELECT {_ZONE} FROM zone WHERE name = ?", (name,)).get
        return None if row is None else self._zone(row)

    def zone_list(self) -> list[ZoneRow]:
        rows: list[Any] = self._con.execute(f"SELECT {_ZONE} FROM zone ORDER BY name").fetchall()
        return [self._zone(row) for row in rows]

    def zone_of_key(self, key: bytes) -> ZoneRow | None:
        name = self._con.execute("SELECT zone FROM zone_key WHERE key = ?", (key,)).get
        return None if name is None else self.zone_get(name)

    def token_find(self, digest: bytes) -> TokenRow | None:
        row = self._con.execute(f"SELECT {_TOKEN} FROM token WHERE digest = ?", (digest,)).get
        return None if row is None else _token(row)

    def token_list(self) -> list[TokenRow]:
        return [
            _token(row) for row in self._con.execute(f"SELECT {_TOKEN} FROM token ORDER BY name")
        ]

    def link_get(self, name: str) -> LinkRow | None:
        row = self._con.execute(f"SELECT {_LINK} FROM link WHERE name = ?", (name,)).get
        return None if row is None else _link(row)

    def link_list(self) -> list[LinkRow]:
        return [_link(row) for row in self._con.execute(f"SELECT {_LINK} FROM link ORDER BY name")]

    def quarantine_get(self, number: int) -> QuarantineRow | None:
        row = self._con.execute(
            f"SELECT {_QUARANTINE} FROM quarantine WHERE number = ?", (number,)
        ).get
        return None if row is None else _quarantined(row)

    def quarantine_list(self, link: str | None, after: int, limit: int) -> list[QuarantineRow]:
        of_link = "" if link is None else "link = ?3 AND "
        rows = self._con.execute(
            f"SELECT {_QUARANTINE} FROM quarantine WHERE {of_link}number > ?1 "
            "ORDER BY number LIMIT ?2",
            (after, limit, *(() if link is None else (link,))),
        )
        return [_quarantined(row) for row in rows]

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

    def _zone(self, row: Any) -> ZoneRow:
        number, name, reads, added_at, blocked_at = row
        keys: list[Any] = self._con.execute(
            "SELECT key, added_at, expires_at FROM zone_key WHERE zone = ? ORDER BY added_at, key",
            (name,),
        ).fetchall()
        return ZoneRow(
            number=number,
            name=name,
            keys=tuple(
                ZoneKey(key=key, added_at=added, expires_at=expires) for key, added, expires in keys
            ),
            reads=_names.decode(reads),
            added_at=added_at,
            blocked_at=blocked_at,
        )


class ZoneWrites(ZoneReads):
    def zone_put(self, row: ZoneRow) -> ZoneRow:
        for key in row.keys:
            owner = self._con.execute("SELECT zone FROM zone_key WHERE key = ?", (key.key,)).get
            if owner not in (None, row.name):
                raise AlreadyExists(f"this key of {row.name!r} is one of zone {owner!r}")
        number = self._con.execute("SELECT number FROM zone WHERE name = ?", (row.name,)).get
        self._con.execute(
            f"INSERT INTO zone ({_ZONE}) VALUES (?, ?, ?, ?, ?) ON CONFLICT (number) DO UPDATE SET "
            "reads = excluded.reads, added_at = excluded.added_at, "
            "blocked_at = excluded.blocked_at",
            (
                self._next("zone") if number is None else number,
                row.name,
                _json(row.reads),
                row.added_at,
                row.blocked_at,
            ),
        )
        self._con.execute("DELETE FROM zone_key WHERE zone = ?", (row.name,))
        self._con.executemany(
            "INSERT INTO zone_key (key, zone, added_at, expires_at) VALUES (?, ?, ?, ?) "
            # A key that is told twice holds as it was told last.
            "ON CONFLICT (key) DO UPDATE SET added_at = excluded.added_at, "
            "expires_at = excluded.expires_at",
            ((key.key, row.name, key.added_at, key.expires_at) for key in row.keys),
        )
        stored = self.zone_get(row.name)
        assert stored is not None, "the zone vanished inside its own transaction"
        return stored

    def token_put(self, row: TokenRow) -> None:
        try:
            self._con.execute(
                f"INSERT INTO token ({_TOKEN}) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    row.name,
                    row.digest,
                    row.scope,
                    _json(row.reads),
                    row.created_at,
                    row.expires_at,
                ),
            )
        except apsw.ConstraintError:
            raise AlreadyExists(f"token {row.name!r} exists already") from None

    def token_drop(self, name: str) -> bool:
        self._con.execute("DELETE FROM token WHERE name = ?", (name,))
        return self._con.changes() > 0

    def link_put(self, row: LinkRow) -> None:
        self._con.execute(
            f"INSERT INTO link ({_LINK}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (name) DO UPDATE SET url = excluded.url, zone = excluded.zone, "
            "filter = excluded.filter, paused = excluded.paused, epoch = excluded.epoch, "
            "cursor = excluded.cursor, added_at = excluded.added_at, moved_at = excluded.moved_at",
            (
                row.name,
                row.url,
                row.zone,
                _json(row.filter),
                row.paused,
                row.epoch,
                row.cursor,
                row.added_at,
                row.moved_at,
            ),
        )

    def link_drop(self, name: str) -> bool:
        self._con.execute("DELETE FROM quarantine WHERE link = ?", (name,))
        self._con.execute("DELETE FROM link WHERE name = ?", (name,))
        return self._con.changes() > 0

    def quarantine_add(self, row: QuarantineRow) -> int:
        number = self._next("quarantine")
        self._con.execute(
            f"INSERT INTO quarantine ({_QUARANTINE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                number,
                row.link,
                row.epoch,
                row.offset,
                row.code,
                row.message,
                row.raw,
                row.found_at,
            ),
        )
        return number

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
