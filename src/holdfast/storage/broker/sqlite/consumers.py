"""The whole log of a mesh, and its named readers.

A reader gets everything, for every member. What has expired leaves holes in the seqs. Those that
were there before the reader came are not its concern; those that come afterwards, before it has
confirmed what stood there, are noted with it as lost, in the transaction that removes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import apsw

from holdfast.rules.broker_rows import BrokerConsumer, LogPage, LogRow
from holdfast.rules.limits import SEQ_MAX
from holdfast.storage.broker.refusals import (
    check_confirmed,
    check_new_consumer,
    no_consumer,
    no_mesh,
)
from holdfast.storage.broker.sqlite.database import SEQ_BITS, SEQ_MASK, BrokerDatabase
from holdfast.storage.broker.sqlite.feed import cut_page
from holdfast.storage.sqlite.columns import RowColumns

_CONSUMER: Final = RowColumns("consumer", BrokerConsumer)
_ONE: Final = "mesh = ? AND key = ? AND name = ?"
_LOST: Final = (
    "UPDATE consumer SET lost_first = CASE lost WHEN 0 THEN :low ELSE min(lost_first, :low) END, "
    "lost_last = max(lost_last, :high), lost = lost + :rows "
    "WHERE mesh = :mesh AND key = :key AND name = :name"
)


def awaited_behind(mesh: str) -> str:
    """SQL: the lowest seq that a reader of a mesh has confirmed; SEQ_MAX if it has no reader."""
    return (
        "coalesce((SELECT min(c.seq) FROM consumer AS c JOIN member AS m "
        "ON m.mesh = c.mesh AND m.key = c.key AND m.removed_at IS NULL "
        f"AND ' ' || m.grants || ' ' LIKE '% audit %' WHERE c.mesh = {mesh}), {SEQ_MAX})"
    )


def note_lost(con: apsw.Connection, places: Sequence[int]) -> None:
    """Notes with every reader what is removed before it has confirmed it."""
    by_mesh: dict[int, list[int]] = {}
    for place in places:
        by_mesh.setdefault(place >> SEQ_BITS, []).append(place & SEQ_MASK)
    for mesh, seqs in by_mesh.items():
        behind = "SELECT key, name, seq FROM consumer WHERE mesh = ? AND seq < ?"
        for key, name, confirmed in list(con.execute(behind, (mesh, max(seqs)))):
            lost = [seq for seq in seqs if seq > confirmed]
            about = {"low": min(lost), "high": max(lost), "rows": len(lost)}
            con.execute(_LOST, {"mesh": mesh, "key": key, "name": name, **about})


class SqliteConsumers(BrokerDatabase):
    """`log_page` and the `consumer_` calls of the store."""

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
            rows, cut_at = cut_page(found, base, limit, bytes_max, LogRow)
        return LogPage(
            epoch=epoch,
            first=first,
            last=last,
            to=to if cut_at is None else cut_at,
            rows=rows,
        )

    async def consumer_add(
        self, mesh: str, key: bytes, name: str, after: int, known: int, now_ms: int
    ) -> BrokerConsumer:
        with self.writing() as con:
            number, _, last, first = self._stands(mesh)
            if self._consumer(number, key, name) is None:
                check_new_consumer(mesh, after, first, last)
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
                raise no_consumer(mesh, name)
            check_confirmed(mesh, epoch, seq, current=current, last=last)
            con.execute(
                f"UPDATE consumer SET seq = max(seq, ?), seen_at = ? WHERE {_ONE}",
                (seq, now_ms, number, key, name),
            )
            return self._settled(number, key, name, seq)

    async def consumer_list(self, mesh: str) -> list[BrokerConsumer]:
        with self.reading() as con:
            return _CONSUMER.select(
                con, "WHERE mesh = ? ORDER BY name, key", (self.number_of(mesh),)
            )

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
            raise no_mesh(mesh)
        number, epoch, last, first = row
        return number, epoch, last, first

    def _consumer(self, number: int, key: bytes, name: str) -> BrokerConsumer | None:
        return _CONSUMER.find(self.connection, f"WHERE {_ONE}", (number, key, name))

    def _settled(self, number: int, key: bytes, name: str, known: int) -> BrokerConsumer:
        """The reader, after what it has lost up to a seq that it knows of is forgotten."""
        self.connection.execute(
            "UPDATE consumer SET lost = 0, lost_first = 0, lost_last = 0 "
            f"WHERE {_ONE} AND lost_last <= ?",
            (number, key, name, known),
        )
        found = self._consumer(number, key, name)
        assert found is not None, "it was found in the same transaction"
        return found
