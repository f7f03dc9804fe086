"""The desk on SQLite, put together."""

from __future__ import annotations

from holdfast.storage.broker.sqlite.accept import Accepting
from holdfast.storage.broker.sqlite.consumers import Consumers
from holdfast.storage.broker.sqlite.feed import Feeding
from holdfast.storage.broker.sqlite.meshes import Invites, Meshes
from holdfast.storage.broker.sqlite.queues import Queues
from holdfast.storage.broker.sqlite.sweep import Upkeep


class SqliteDesk(Accepting, Consumers, Feeding, Invites, Meshes, Queues, Upkeep):
    """A broker's store in a folder, for one broker process; see `storage.desk.Desk`.

    No method suspends: what is awaited has happened. In a server, use `ThreadedDesk`.
    """
