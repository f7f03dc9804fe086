"""The broker's store in PostgreSQL, for several broker processes at once.

The files have the names of their twins in `broker.sqlite`, and the same calls in the same order.
What only several processes need stands beside them: `connections` (the pool), `notify` (news
between processes), `timeline` (has the database gone back in time?), `errors` (the driver's errors
in our words). `schema/` holds the migrations; 0002 has the function that `accept` runs on the
server.

The driver, asyncpg, is optional: only this package imports it (`driver`), and raises NoPostgres if
it is missing.
"""

from __future__ import annotations

from holdfast.storage.broker.postgres.store import PostgresBrokerStore

__all__ = ["PostgresBrokerStore"]
