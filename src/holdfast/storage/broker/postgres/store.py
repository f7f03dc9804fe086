"""The store of a broker in PostgreSQL, put together.

Every call is one transaction on a connection of a small pool. What makes several processes one
broker:

- A process that numbers envelopes holds the row of their mesh until its commit can be seen
  (`accept`).
- Each process hears of what the others have accepted (`notify`).
- What only one process may do at a time, migrations and new epochs, is done under an advisory lock.
- A database that may have gone back in time begins a new epoch, once (`timeline`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from holdfast.rules.limits import POSTGRES_CONNECTIONS_MAX, POSTGRES_LOOK_MS
from holdfast.storage.broker.postgres.accept import PostgresAccept
from holdfast.storage.broker.postgres.commits import PostgresCommits
from holdfast.storage.broker.postgres.connections import PostgresConnections
from holdfast.storage.broker.postgres.consumers import PostgresConsumers
from holdfast.storage.broker.postgres.destinations import PostgresDestinations
from holdfast.storage.broker.postgres.feed import PostgresFeed
from holdfast.storage.broker.postgres.meshes import PostgresMeshes
from holdfast.storage.broker.postgres.notify import PostgresNotify
from holdfast.storage.broker.postgres.object_gc import PostgresObjectGc
from holdfast.storage.broker.postgres.objects import PostgresSnapshots
from holdfast.storage.broker.postgres.orphans import PostgresOrphans
from holdfast.storage.broker.postgres.queues import PostgresQueues
from holdfast.storage.broker.postgres.sweep import PostgresSweep


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class PostgresBrokerStore(
    PostgresMeshes,
    PostgresDestinations,
    PostgresAccept,
    PostgresCommits,
    PostgresConsumers,
    PostgresFeed,
    PostgresQueues,
    PostgresObjectGc,
    PostgresSnapshots,
    PostgresSweep,
    PostgresOrphans,
):
    """A `BrokerStore`. `dsn`: postgresql://user:password@host:port/database?sslmode=…"""

    groups_max: Final = 1

    def __init__(
        self,
        dsn: str,
        *,
        connections: int = POSTGRES_CONNECTIONS_MAX,
        look_ms: int = POSTGRES_LOOK_MS,
        wall_ms: Callable[[], int] = _wall_ms,
    ) -> None:
        self._connections = PostgresConnections(dsn, connections, wall_ms)
        self._news = PostgresNotify(self._connections, wall_ms, look_ms=look_ms)
        self._connections.on_moved = self._moved

    async def open(self, now_ms: int) -> None:
        await self._connections.open(now_ms)
        self._news.open()

    async def close(self) -> None:
        await self._news.close()
        await self._connections.close()

    async def schema(self) -> int:
        found = await self._connections.fetchval("SELECT value FROM meta WHERE name = 'schema'")
        return int(found)

    async def rollback_schema(self, to: int) -> list[int]:
        """Takes the schema of a store that is not open back to a version, in one transaction.
        Refused while another process has it open.
        """
        return await self._connections.rollback(to)

    async def ping(self) -> None:
        await self._connections.fetchval("SELECT count(*) FROM meta")

    def may_hold_up_the_loop(self, when: Callable[[], bool]) -> None: ...  # it never does

    def on_news(self, listener: Callable[[str, int], None]) -> None:
        self._news.on_news(listener)

    def wants_only_some_news(self) -> None:
        self._news.wants_only_some()

    def wants_news(self, mesh: str, *, on: bool) -> None:
        self._news.wants(mesh, on=on)

    def _moved(self, slugs: list[str]) -> None:
        for slug in slugs:
            self._news.grew(slug, 0)
