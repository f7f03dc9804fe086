"""The store of a broker on SQLite, put together."""

from __future__ import annotations

from holdfast.storage.broker.sqlite.accept import SqliteAccept
from holdfast.storage.broker.sqlite.consumers import SqliteConsumers
from holdfast.storage.broker.sqlite.destinations import SqliteDestinations
from holdfast.storage.broker.sqlite.feed import SqliteFeed
from holdfast.storage.broker.sqlite.meshes import SqliteInvites, SqliteMeshes
from holdfast.storage.broker.sqlite.orphans import SqliteOrphans
from holdfast.storage.broker.sqlite.queues import SqliteQueues
from holdfast.storage.broker.sqlite.sweep import SqliteSweep


class SqliteBrokerStore(
    SqliteAccept,
    SqliteConsumers,
    SqliteDestinations,
    SqliteFeed,
    SqliteInvites,
    SqliteMeshes,
    SqliteOrphans,
    SqliteQueues,
    SqliteSweep,
):
    """A `BrokerStore` in a folder, for one broker process.

    No method suspends: what is awaited has happened. In a server, use `ThreadedBrokerStore`.
    """
