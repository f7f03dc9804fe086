"""The broker's store on SQLite: a folder, one process, group commit."""

from __future__ import annotations

from holdfast.storage.broker_sqlite.desk import SqliteDesk
from holdfast.storage.broker_sqlite.threaded import ThreadedDesk

__all__ = ["SqliteDesk", "ThreadedDesk"]
