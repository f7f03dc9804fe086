"""The broker's desk in PostgreSQL, for several broker processes at once; see
`store.PostgresBrokerStore`.

The package that talks to it, asyncpg, is optional: only what is in here imports it, and NoPostgres
says so if it is missing.
"""

from __future__ import annotations

from holdfast.storage.broker.postgres.store import PostgresBrokerStore

__all__ = ["PostgresBrokerStore"]
