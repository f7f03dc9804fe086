"""Topics and queues that were declared, and who has subscribed to what."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.rules.broker_rows import DestinationRow
from holdfast.storage.broker.postgres.base import PostgresPart, columns, number_of, touched
from holdfast.storage.broker.refusals import check_subscriber, queue_in_use

_DESTINATION: Final = columns(DestinationRow)


class PostgresDestinations(PostgresPart):
    async def destination_put(self, mesh: str, row: DestinationRow) -> None:
        async def work(con: Any) -> None:
            await con.execute(
                f"INSERT INTO destination (mesh, {_DESTINATION}) "
                "VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (mesh, kind, ref) DO UPDATE SET "
                "visibility_ms = excluded.visibility_ms, deliveries_max = excluded.deliveries_max",
                await number_of(con, mesh),
                *msgspec.structs.astuple(row),
            )

        await self._connections.transact(work)

    async def destination_get(self, mesh: str, kind: str, ref: str) -> DestinationRow | None:
        rows = await self._connections.fetch(
            f"SELECT {_DESTINATION} FROM destination d JOIN mesh m ON m.number = d.mesh "
            "WHERE m.slug = $1 AND kind = $2 AND ref = $3",
            *(mesh, kind, ref),
        )
        return DestinationRow(**rows[0]) if rows else None

    async def destination_list(self, mesh: str) -> list[DestinationRow]:
        rows = await self._connections.fetch(
            f"SELECT {_DESTINATION} FROM destination d "
            "JOIN mesh m ON m.number = d.mesh WHERE m.slug = $1 ORDER BY kind, ref",
            mesh,
        )
        return [DestinationRow(**row) for row in rows]

    async def destination_drop(self, mesh: str, kind: str, ref: str) -> bool:
        async def work(con: Any) -> bool:
            # Nobody may put a message into the queue while it is looked whether it is empty.
            number = await number_of(con, mesh, lock=True)
            if kind == "queue" and await con.fetchval(
                "SELECT EXISTS (SELECT FROM queue WHERE mesh = $1 AND ref = $2)", number, ref
            ):
                raise queue_in_use(ref)
            status = await con.execute(
                "DELETE FROM destination WHERE mesh = $1 AND kind = $2 AND ref = $3",
                *(number, kind, ref),
            )
            if kind == "topic":
                await con.execute(
                    "DELETE FROM subscription WHERE mesh = $1 AND topic = $2", number, ref
                )
            return touched(status) > 0

        return await self._connections.transact(work)

    async def subscribe(self, mesh: str, key: bytes, topic: str) -> int:
        async def work(con: Any) -> int:
            # Nothing may be accepted between the seq that it counts from and its commit.
            number = await number_of(con, mesh, lock=True)
            looked = await con.fetchrow(
                "SELECT EXISTS (SELECT FROM member WHERE mesh = $1 AND key = $2 "
                "AND removed_at IS NULL) AS member, EXISTS (SELECT FROM destination "
                "WHERE mesh = $1 AND kind = 'topic' AND ref = $3) AS topic",
                *(number, key, topic),
            )
            check_subscriber(mesh, topic, member=looked["member"], declared=looked["topic"])
            # Setting what is there to itself gives the row back, old or new.
            since: int = await con.fetchval(
                "INSERT INTO subscription (mesh, key, topic, since) "
                "SELECT $1, $2, $3, seq FROM mesh WHERE number = $1 "
                "ON CONFLICT (mesh, key, topic) DO UPDATE SET since = subscription.since "
                "RETURNING since",
                *(number, key, topic),
            )
            return since

        return await self._connections.transact(work)

    async def unsubscribe(self, mesh: str, key: bytes, topic: str) -> bool:
        status = await self._connections.execute(
            "DELETE FROM subscription USING mesh m WHERE m.number = mesh AND m.slug = $1 "
            "AND key = $2 AND topic = $3",
            *(mesh, key, topic),
        )
        return touched(status) > 0

    async def subscriptions(self, mesh: str, key: bytes) -> dict[str, int]:
        rows = await self._connections.fetch(
            "SELECT topic, since FROM subscription s JOIN mesh m ON m.number = s.mesh "
            "WHERE m.slug = $1 AND key = $2 ORDER BY topic",
            *(mesh, key),
        )
        return {row["topic"]: row["since"] for row in rows}
