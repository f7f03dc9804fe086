"""The store on SQLite: one writing connection behind the group writer, reading connections beside
it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import apsw

from holdfast.rules.errors import StoreBusy, StoreClosed
from holdfast.rules.limits import ABORT_MS_MAX
from holdfast.storage.group_commit import GroupWriter
from holdfast.storage.ports import Reader, Transaction, Work
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.broker_positions import BrokerPositionReads, BrokerPositionWrites
from holdfast.storage.sqlite.conflicts import LedgerReads, LedgerWrites
from holdfast.storage.sqlite.connection import UnbindableErrors, check_ours, connect, shut, typed
from holdfast.storage.sqlite.consumers import ConsumerReads, ConsumerWrites
from holdfast.storage.sqlite.families import FamilyReads, FamilyWrites
from holdfast.storage.sqlite.inbox import InboxReads, InboxWrites
from holdfast.storage.sqlite.log import LogReads, LogWrites
from holdfast.storage.sqlite.meshes import MeshReads, MeshWrites
from holdfast.storage.sqlite.outbox import OutboxReads, OutboxWrites
from holdfast.storage.sqlite.tasks import TaskReads, TaskWrites
from holdfast.storage.sqlite.vector_rows import VectorReads, VectorWrites
from holdfast.storage.sqlite.zones import ZoneReads, ZoneWrites

T = TypeVar("T")

log = logging.getLogger("holdfast")


class SqliteReader(
    MeshReads,
    LogReads,
    FamilyReads,
    VectorReads,
    TaskReads,
    LedgerReads,
    ConsumerReads,
    ZoneReads,
    OutboxReads,
    InboxReads,
    BrokerPositionReads,
):
    """One consistent state, as a connection in a read transaction sees it."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._con = connection
        self._once = connection.cursor()
        """Reused by the statements of the hot path, which give one row at most: making a cursor
        for each of them would cost as much as running it."""


class SqliteTransaction(
    MeshWrites,
    LogWrites,
    FamilyWrites,
    VectorWrites,
    TaskWrites,
    LedgerWrites,
    ConsumerWrites,
    ZoneWrites,
    OutboxWrites,
    InboxWrites,
    BrokerPositionWrites,
):
    """The state within the writing connection's transaction."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._con = connection
        self._once = connection.cursor()

    def start(self) -> None:
        self._recorded_at = 0


class SqliteEngine:
    """The writing connection, as the group writer drives it."""

    def __init__(self, connection: apsw.Connection, holders: Callable[[], str]) -> None:
        self._con = connection
        self._once = connection.cursor()
        self._holders = holders
        self._transaction = SqliteTransaction(connection)
        self.transaction: Transaction = self._transaction

    def begin(self) -> None:
        self._once.execute("BEGIN IMMEDIATE")
        self._transaction.start()

    def savepoint(self) -> None:
        self._once.execute("SAVEPOINT member")

    def release(self) -> None:
        self._once.execute("RELEASE member")

    def undo(self) -> None:
        self._con.execute("ROLLBACK TO member")
        self._con.execute("RELEASE member")
        # What it noted of the log's end may have been undone with it.
        self._transaction.start()

    def commit(self) -> None:
        self._once.execute("COMMIT")

    def rollback(self) -> None:
        self._con.execute("ROLLBACK")

    def changes(self) -> int:
        return self._con.total_changes()

    def alive(self) -> bool:
        return self._con.in_transaction

    def error(self, error: BaseException, *, committing: bool) -> BaseException:
        known = typed(error, committing=committing)
        if isinstance(known, StoreBusy) and (who := self._holders()):
            return StoreBusy(f"{known.message}; the home is open in {who}")
        return known


class SqliteStore:
    """A home's database, open."""

    def __init__(
        self,
        path: Path,
        *,
        sync: str = "full",
        vfs: str | None = None,
        holders: Callable[[], str] = str,
    ) -> None:
        self._path, self._sync, self._vfs = path, sync, vfs
        self._con = connect(path, sync=sync, vfs=vfs)
        try:
            check_ours(self._con)
            self.migrated = migrations.migrate(self._con)
        except BaseException as error:
            shut(self._con)
            raise typed(error) from error
        self.writer = GroupWriter(SqliteEngine(self._con, holders))
        self._idle: list[apsw.Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    def write(self, work: Work[T]) -> T:
        result: T = self.writer.write(work)
        return result

    @contextmanager
    def read(self) -> Iterator[Reader]:
        with self._lock:
            if self._closed:
                raise StoreClosed("the store is closed")
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = connect(self._path, sync=self._sync, vfs=self._vfs, read_only=True)
        try:
            connection.execute("BEGIN")
            yield SqliteReader(connection)
        except (apsw.Error, *UnbindableErrors) as error:
            raise typed(error) from error
        finally:
            self._give_back(connection)

    def on_commit(self, listener: Callable[[], None]) -> None:
        self.writer.on_commit(listener)

    def stop(self, timeout_s: float | None = None) -> bool:
        done = self.writer.stop(timeout_s)
        if not done:
            self.writer.abort()
        self._close(checkpoint=done, wait_s=0)
        return done

    def abort(self) -> None:
        self.writer.abort()
        self._close(checkpoint=False, wait_s=ABORT_MS_MAX / 1000)

    def _give_back(self, connection: apsw.Connection) -> None:
        # Also after an error: a read transaction that stayed open would keep the WAL from being
        # reused.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        shut(connection)

    def _close(self, *, checkpoint: bool, wait_s: float) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            shut(connection)
        with self.writer.between_groups(wait_s) as quiet:
            if not quiet:
                # A write that hangs keeps its connection: closing it would tear the write apart.
                return
            try:
                if checkpoint:
                    # Best effort: a reader elsewhere may still need the WAL, and the next opening
                    # finishes the work.
                    self._con.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.Error as error:
                log.info("the WAL of %s stays for the next opening: %s", self._path, error)
            finally:
                shut(self._con)
