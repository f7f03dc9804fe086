"""The desk on SQLite, put together."""

from __future__ import annotations

from holdfast.storage.broker_sqlite.accepting import Accepting
from holdfast.storage.broker_sqlite.consumers import Consumers
from holdfast.storage.broker_sqlite.feeding import Feeding
from holdfast.storage.broker_sqlite.meshes import Invites, Meshes
from holdfast.storage.broker_sqlite.queues import Queues
from holdfast.storage.broker_sqlite.upkeep import Upkeep


class SqliteDesk(Accepting, Consumers, Feeding, Invites, Meshes, Queues, Upkeep):
    """A broker's store in a folder, for one broker process; see `storage.desk.Desk`.

    No method suspends: what is awaited has happened. In a server, use `ThreadedDesk`.
    """
