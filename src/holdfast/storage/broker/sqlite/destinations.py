"""Topics and queues that were declared, and who has subscribed to what."""

from __future__ import annotations

from typing import Final

from holdfast.rules.broker_rows import DestinationRow
from holdfast.storage.broker.refusals import check_subscriber, queue_in_use
from holdfast.storage.broker.sqlite.meshes import SqliteMembers
from holdfast.storage.sqlite.columns import RowColumns

_DESTINATION: Final = RowColumns("destination", DestinationRow)


class SqliteDestinations(SqliteMembers):
    """Topics, queues, and who has subscribed to what."""

    async def destination_put(self, mesh: str, row: DestinationRow) -> None:
        with self.writing() as con:
            con.execute(
                f"INSERT INTO destination (mesh, {_DESTINATION.sql}) "
                f"VALUES (?, {_DESTINATION.marks}) ON CONFLICT DO UPDATE SET "
                "visibility_ms = excluded.visibility_ms, deliveries_max = excluded.deliveries_max",
                (self.number_of(mesh), *_DESTINATION.values(row)),
            )

    async def destination_get(self, mesh: str, kind: str, ref: str) -> DestinationRow | None:
        with self.reading() as con:
            which = (self.number_of(mesh), kind, ref)
            return _DESTINATION.find(con, "WHERE mesh = ? AND kind = ? AND ref = ?", which)

    async def destination_list(self, mesh: str) -> list[DestinationRow]:
        with self.reading() as con:
            return _DESTINATION.select(
                con, "WHERE mesh = ? ORDER BY kind, ref", (self.number_of(mesh),)
            )

    async def destination_drop(self, mesh: str, kind: str, ref: str) -> bool:
        with self.writing() as con:
            number = self.number_of(mesh)
            held = "SELECT 1 FROM queued WHERE mesh = ? AND queue = ? LIMIT 1"
            if kind == "queue" and con.execute(held, (number, ref)).get is not None:
                raise queue_in_use(ref)
            con.execute(
                "DELETE FROM destination WHERE mesh = ? AND kind = ? AND ref = ?",
                (number, kind, ref),
            )
            dropped = con.changes() > 0
            if kind == "topic":
                con.execute("DELETE FROM subscription WHERE mesh = ? AND topic = ?", (number, ref))
            return dropped

    async def subscribe(self, mesh: str, key: bytes, topic: str) -> int:
        with self.writing() as con:
            number = self.number_of(mesh)
            member = self.present(number, key) is not None
            query = "SELECT 1 FROM destination WHERE mesh = ? AND kind = 'topic' AND ref = ?"
            declared = con.execute(query, (number, topic)).get is not None
            check_subscriber(mesh, topic, member=member, declared=declared)
            con.execute(
                "INSERT INTO subscription SELECT number, ?, ?, seq FROM mesh WHERE number = ? "
                "ON CONFLICT DO NOTHING",
                (key, topic, number),
            )
            since = con.execute(
                "SELECT since FROM subscription WHERE mesh = ? AND key = ? AND topic = ?",
                (number, key, topic),
            ).get
            return int(since)

    async def unsubscribe(self, mesh: str, key: bytes, topic: str) -> bool:
        with self.writing() as con:
            con.execute(
                "DELETE FROM subscription WHERE mesh = ? AND key = ? AND topic = ?",
                (self.number_of(mesh), key, topic),
            )
            return con.changes() > 0

    async def subscriptions(self, mesh: str, key: bytes) -> dict[str, int]:
        with self.reading() as con:
            rows = con.execute(
                "SELECT topic, since FROM subscription WHERE mesh = ? AND key = ? ORDER BY topic",
                (self.number_of(mesh), key),
            )
            return dict(list(rows))
