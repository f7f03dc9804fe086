"""Messages that came for us, what stood where at the broker, and who else is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import apsw
import msgspec

from holdfast.rules.rows import InboxRow, KnownMember

_FIELDS: Final = (
    "id, mesh, kind, ref, sender, priority, offset, broker_id, received_at, read_at, hooked_at"
)
_COLUMNS: Final = f"number, {_FIELDS}"

_names = msgspec.json.Decoder(tuple[str, ...])


def _row(row: Any) -> InboxRow:
    return InboxRow(
        number=row[0],
        id=row[1],
        mesh=row[2],
        kind=row[3],
        ref=row[4],
        sender=row[5],
        priority=row[6],
        offset=row[7],
        broker_id=row[8],
        received_at=row[9],
        read_at=row[10],
        hooked_at=row[11],
    )


class InboxReads:
    _con: apsw.Connection

    def inbox_get(self, id: bytes) -> InboxRow | None:
        row = self._con.execute(f"SELECT {_COLUMNS} FROM inbox WHERE id = ?", (id,)).get
        return None if row is None else _row(row)

    def inbox_list(
        self, mesh: str | None, unread_only: bool, after: int, limit: int
    ) -> list[InboxRow]:
        rows = self._con.execute(
            f"SELECT {_COLUMNS} FROM inbox WHERE number > ?1 AND (?2 IS NULL OR mesh = ?2) "
            f"{'AND read_at IS NULL ' if unread_only else ''}ORDER BY number LIMIT ?3",
            (after, mesh, limit),
        )
        return [_row(row) for row in rows]

    def inbox_unhooked(self, limit: int) -> list[InboxRow]:
        rows = self._con.execute(
            f"SELECT {_COLUMNS} FROM inbox WHERE hooked_at IS NULL ORDER BY number LIMIT ?",
            (limit,),
        )
        return [_row(row) for row in rows]

    def inbox_last(self) -> int:
        return int(self._con.execute("SELECT max(number) FROM inbox").get or 0)

    def inbox_counts(self) -> tuple[int, int]:
        total = self._con.execute("SELECT count(*) FROM inbox").get
        unread = self._con.execute("SELECT count(*) FROM inbox WHERE read_at IS NULL").get
        assert isinstance(total, int)
        assert isinstance(unread, int)
        return total, unread

    def inbox_floor(self, received_after_ms: int) -> int | None:
        floor: int | None = self._con.execute(
            "SELECT min(offset) FROM inbox WHERE read_at IS NULL AND received_at > ?",
            (received_after_ms,),
        ).get
        return floor

    def broker_positions_above(
        self, mesh: str, epoch: int, seq: int, after_seq: int, limit: int
    ) -> list[tuple[int, int]]:
        rows: list[Any] = self._con.execute(
            "SELECT seq, offset FROM heard WHERE mesh = ? AND epoch = ? AND seq > ? "
            "ORDER BY seq LIMIT ?",
            (mesh, epoch, max(seq, after_seq), limit),
        ).fetchall()
        return [(row[0], row[1]) for row in rows]

    def known_members_list(self, mesh: str) -> list[KnownMember]:
        rows = self._con.execute(
            "SELECT mesh, key, name, grants, seen_at FROM mate WHERE mesh = ? ORDER BY key", (mesh,)
        )
        return [
            KnownMember(
                mesh=row[0],
                key=row[1],
                name=row[2],
                grants=_names.decode(row[3]),
                seen_at=row[4],
            )
            for row in rows
        ]


class InboxWrites(InboxReads):
    def inbox_add(self, row: InboxRow) -> bool:
        self._con.execute(
            f"INSERT INTO inbox ({_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO NOTHING",
            (
                row.id,
                row.mesh,
                row.kind,
                row.ref,
                row.sender,
                row.priority,
                row.offset,
                row.broker_id,
                row.received_at,
                row.read_at,
                row.hooked_at,
            ),
        )
        return self._con.changes() > 0

    def inbox_read(self, id: bytes, now_ms: int) -> bool:
        self._con.execute(
            "UPDATE inbox SET read_at = coalesce(read_at, ?) WHERE id = ?", (now_ms, id)
        )
        return self._con.changes() > 0

    def inbox_hooked(self, numbers: Sequence[int], now_ms: int) -> None:
        self._con.executemany(
            "UPDATE inbox SET hooked_at = coalesce(hooked_at, ?) WHERE number = ?",
            ((now_ms, number) for number in numbers),
        )

    def inbox_sweep(self, below_offset: int, most: int) -> int:
        # The row with the highest number stays, so that it is not given again.
        self._con.execute(
            "DELETE FROM inbox WHERE number IN (SELECT number FROM inbox WHERE offset < ? "
            "AND number < (SELECT max(number) FROM inbox) ORDER BY offset, number LIMIT ?)",
            (below_offset, most),
        )
        return self._con.changes()

    def broker_positions_add(self, mesh: str, epoch: int, rows: Sequence[tuple[int, int]]) -> None:
        self._con.executemany(
            "INSERT INTO heard (mesh, epoch, seq, offset) VALUES (?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            ((mesh, epoch, seq, offset) for seq, offset in rows),
        )

    def broker_positions_sweep(self, below_offset: int, most: int) -> int:
        self._con.execute(
            "DELETE FROM heard WHERE (mesh, epoch, seq) IN (SELECT mesh, epoch, seq FROM heard "
            "WHERE offset < ? ORDER BY offset, mesh, epoch, seq LIMIT ?)",
            (below_offset, most),
        )
        return self._con.changes()

    def broker_positions_drop(self, mesh: str, most: int) -> int:
        self._con.execute(
            "DELETE FROM heard WHERE (mesh, epoch, seq) IN (SELECT mesh, epoch, seq FROM heard "
            "WHERE mesh = ? ORDER BY epoch, seq LIMIT ?)",
            (mesh, most),
        )
        return self._con.changes()

    def known_members_put(self, mesh: str, rows: Sequence[KnownMember]) -> None:
        self._con.execute("DELETE FROM mate WHERE mesh = ?", (mesh,))
        self._con.executemany(
            "INSERT INTO mate (mesh, key, name, grants, seen_at) VALUES (?, ?, ?, ?, ?)",
            (
                (mesh, row.key, row.name, msgspec.json.encode(row.grants).decode(), row.seen_at)
                for row in rows
            ),
        )
