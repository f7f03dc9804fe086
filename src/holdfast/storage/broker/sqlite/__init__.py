"""The broker's store on SQLite: a folder, one process, group commit."""

from __future__ import annotations

from holdfast.storage.broker.sqlite.store import SqliteBrokerStore
from holdfast.storage.broker.sqlite.threaded import ThreadedBrokerStore

__all__ = ["SqliteBrokerStore", "ThreadedBrokerStore"]
