"""The broker's store on SQLite: a folder, for one broker process.

`database` opens it and runs transactions; `accept`, `feed`, `queues` and the others each hold the
calls of one part of the port, and `store` puts them together. None of these calls ever suspends. A
server uses `threaded`, which runs them in threads (`worker`); the simulator steps them itself.
`mark` and `folder` guard against a database that was copied or restored, and against other users.
"""

from __future__ import annotations

from holdfast.storage.broker.sqlite.store import SqliteBrokerStore
from holdfast.storage.broker.sqlite.threaded import ThreadedBrokerStore

__all__ = ["SqliteBrokerStore", "ThreadedBrokerStore"]
