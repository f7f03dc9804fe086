"""The whole log of a mesh, and its named readers.

A reader gets everything, whomever it is for. What has expired leaves holes in the seqs. Those that
were there before the reader came are not its concern; those that come afterwards, before it has
confirmed what stood there, are noted with it as lost, in the transaction that removes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import apsw

from holdfast.rules.broker_rows import BrokerConsumer, LogPage, LogRow
from holdfast.rules.errors import EpochChanged, PastEnd, Truncated, UnknownConsumer
from holdfast.rules.limits import SEQ_MAX
from holdfast.storage.broker.sqlite.database import SEQ_BITS, BrokerDatabase

_SEQ_MASK: Final = (1 << SEQ_BITS) - 1
_CONSUMER: Final = "key, name, seq, added_at, seen_at, lost, lost_first, lost_last"
_ONE: Final = "mesh = ? AND key = ? AND name = ?"
_LOST: Final = (
    "UPDATE consumer SET lost_first = CASE lost WHEN 0 THEN :low ELSE min(lost_first, :low) END, "
    "lost_last = max(lost_last, :high), lost = lost + :rows "
    "WHERE mesh = :mesh AND key = :key AND name = :name"
)


def awaited_behind(mesh: str) -> str:
    """SQL: the seq of a mesh behind which somebody awaits everything; the last one if nobody."""
    return (
        "coalesce((SELECT min(c.seq) FROM consumer AS c JOIN member AS m "
        "ON m.mesh = c.mesh AND m.key = c.key AND m.removed_at IS NULL "
        f"AND ' ' || m.grants || ' ' LIKE '% audit %' WHERE c.mesh = {mesh}), {SEQ_MAX})"
    )


def note_lost(con: apsw.Connection, places: Sequence[int]) -> None:
    """Tells every reader what is removed before it has confirmed it."""
    by_mesh: dict[int, list[int]] = {}
    for place in places:
        by_mesh.setdefault(place >> SEQ_BITS, []).append(place & _SEQ_MASK)
    for mesh, seqs in by_mesh.items():
        behind = "SELECT key, name, seq FROM consumer WHERE mesh = ? AND seq < ?"
        for key, name, confirmed in list(con.execute(behind, (mesh, max(seqs)))):
            lost = [seq for seq in seqs if seq > confirmed]
            about = {"low": min(lost), "high": max(lost), "rows": len(lost)}
            con.execute(_LOST, {"mesh": mesh, "key": key, "name": name, **about})


class SqliteConsumers(BrokerDatabase):
    """`log_page` and the `consumer_` calls of a desk."""

    async def log_page(
        self, mesh: str, after: int, upto: int, limit: int, bytes_max: int
    ) -> LogPage:
        with self.reading() as con:
            number, epoch, last, first = self._stands(mesh)
            base, to = number << SEQ_BITS, max(after, min(upto, last))
            found = con.execute(
                "SELECT place, id, broker_id, raw FROM message "
                "WHERE place > ? AND place <= ? ORDER BY place",
                (base + min(after, last), base + min(to, last)),
            )
            rows: list[LogRow] = []
            size = 0
            for place, id, broker_id, raw in found:
                size += len(raw)
                if rows and (size > bytes_max or len(rows) >= limit):
                    to = rows[-1].seq
                    break
                rows.append(LogRow(place - base, id, broker_id, raw))
            found.close(True)
        return LogPage(epoch=epoch, first=first, last=last, to=to, rows=rows)

    async def consumer_add(
        self, mesh: str, key: bytes, name: str, after: int, known: int, now_ms: int
    ) -> BrokerConsumer:
        with self.writing() as con:
            number, _, last, first = self._stands(mesh)
            if self._consumer(number, key, name) is None:
                if after > last:
                    raise PastEnd(f"seq {after} is past the end of {mesh!r} at {last}")
                if after + 1 < first:
                    raise Truncated(f"the log of {mesh!r} begins at {first}", first_available=first)
                con.execute(
                    "INSERT INTO consumer (mesh, key, name, seq, added_at, seen_at) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    (number, key, name, after, now_ms, now_ms),
                )
            con.execute(
                f"UPDATE consumer SET seen_at = ? WHERE {_ONE}", (now_ms, number, key, name)
            )
            return self._settled(number, key, name, known)

    async def consumer_confirm(
        self, mesh: str, key: bytes, name: str, epoch: int, seq: int, now_ms: int
    ) -> BrokerConsumer:
        with self.writing() as con:
            number, current, last, _ = self._stands(mesh)
            if self._consumer(number, key, name) is None:
                raise UnknownConsumer(f"nobody reads {mesh!r} as {name!r}", hint="register first")
            if epoch != current:
                raise EpochChanged(
                    f"{mesh!r} counts in epoch {current}, not {epoch}", epoch=current
                )
            if seq > last:
                raise PastEnd(f"seq {seq} is past the end of {mesh!r} at {last}")
            con.execute(
                f"UPDATE consumer SET seq = max(seq, ?), seen_at = ? WHERE {_ONE}",
                (seq, now_ms, number, key, name),
            )
            return self._settled(number, key, name, seq)

    async def consumer_list(self, mesh: str) -> list[BrokerConsumer]:
        with self.reading() as con:
            rows = con.execute(
                f"SELECT {_CONSUMER} FROM consumer WHERE mesh = ? ORDER BY name, key",
                (self.number_of(mesh),),
            )
            return [_consumer_of(row) for row in rows]

    async def consumer_drop(self, mesh: str, key: bytes, name: str) -> bool:
        with self.writing() as con:
            con.execute(f"DELETE FROM consumer WHERE {_ONE}", (self.number_of(mesh), key, name))
            return con.changes() > 0

    def _stands(self, mesh: str) -> tuple[int, int, int, int]:
        """Number, epoch, last and first seq of a mesh."""
        row = self.connection.execute(
            "SELECT number, epoch, seq, first FROM mesh WHERE slug = ?", (mesh,)
        ).get
        if row is None:
            raise self.unknown(mesh)
        number, epoch, last, first = row
        return number, epoch, last, first

    def _consumer(self, number: int, key: bytes, name: str) -> BrokerConsumer | None:
        row = self.connection.execute(
            f"SELECT {_CONSUMER} FROM consumer WHERE {_ONE}", (number, key, name)
        ).get
        return None if row is None else _consumer_of(row)

    def _settled(self, number: int, key: bytes, name: str, known: int) -> BrokerConsumer:
        """The reader, after it said that of what it lost up to a seq it has or knows all."""
        self.connection.execute(
            "UPDATE consumer SET lost = 0, lost_first = 0, lost_last = 0 "
            f"WHERE {_ONE} AND lost_last <= ?",
            (number, key, name, known),
        )
        found = self._consumer(number, key, name)
        assert found is not None, "it was found in the same transaction"
        return found


def _consumer_of(row: Any) -> BrokerConsumer:
    key, name, seq, added_at, seen_at, lost, lost_first, lost_last = row
    return BrokerConsumer(
        key=key,
        name=name,
        seq=seq,
        added_at=added_at,
        seen_at=seen_at,
        lost=lost,
        lost_first=lost_first,
        lost_last=lost_last,
    )
