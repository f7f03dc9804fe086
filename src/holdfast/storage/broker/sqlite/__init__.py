"""The broker's store on SQLite: a folder, one process, group commit."""

from __future__ import annotations

from holdfast.storage.broker.sqlite.store import SqliteDesk
from holdfast.storage.broker.sqlite.threaded import ThreadedDesk

__all__ = ["SqliteDesk", "ThreadedDesk"]
