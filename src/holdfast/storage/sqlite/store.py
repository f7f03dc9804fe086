"""The store on SQLite: one writing connection behind the group writer, reading connections beside
it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import apsw

from holdfast.rules.errors import (
    OutcomeUnknown,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreFailed,
)
from holdfast.rules.limits import ABORT_MS_MAX, BUSY_TIMEOUT_MS
from holdfast.storage import fork_gate
from holdfast.storage.group_commit import GroupWriter
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.conflicts import LedgerReads, LedgerWrites
from holdfast.storage.sqlite.connection import (
    check_ours,
    connect,
    is_alone,
    managed,
    refusing,
    shut,
    typed,
)
from holdfast.storage.sqlite.families import FamilyReads, FamilyWrites
from holdfast.storage.sqlite.log import LogReads, LogWrites
from holdfast.storage.sqlite.meshes import MeshReads, MeshWrites
from holdfast.storage.sqlite.tables.later import LaterReads, LaterWrites
from holdfast.storage.sqlite.wal.checkpoints import Checkpoints

if TYPE_CHECKING:
    from holdfast.storage.ports import Reader, Reading, Transaction, Work

T = TypeVar("T")

log = logging.getLogger("holdfast")

_POLL_S = 0.0005
_TROUBLE = (StoreFailed, StoreCorrupt, OutcomeUnknown)
"""Errors after which nobody can say what is on the disk."""


class SqliteReader(MeshReads, LogReads, FamilyReads, LedgerReads, LaterReads):
    """One consistent state, as a connection in a read transaction sees it."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._con = connection
        self._once = connection.cursor()
        """Reused by the statements of the hot path, which give one row at most: making a cursor
        for each of them would cost as much as running it."""


class SqliteTransaction(MeshWrites, LogWrites, FamilyWrites, LedgerWrites, LaterWrites):
    """The state within the writing connection's transaction."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._con = connection
        self._once = connection.cursor()
        self._stream_numbers = {}

    def start(self) -> None:
        self._recorded_at = 0

    @property
    def connection(self) -> apsw.Connection:
        return self._con

    def disown(self) -> None:
        self._con = self._once = refusing()

    def rollback(self) -> None:
        # By the cursor of the hot path: a query that was interrupted there ends with it.
        self._once.execute("ROLLBACK")


class SqliteEngine:
    """The writing connection, as the group writer drives it."""

    def __init__(
        self,
        connection: apsw.Connection,
        holders: Callable[[], str],
        turns: Turns | None = None,
        troubled: Callable[[], None] = lambda: None,
        pass_gate: Callable[[], None] = lambda: None,
    ) -> None:
        """`pass_gate` is called before each transaction, see `checkpoints`."""
        self._con = connection
        self._once = connection.cursor()
        self._holders = holders
        self._turns = turns
        self._troubled = troubled
        self._pass_gate = pass_gate
        self._transaction = SqliteTransaction(connection)
        self.transaction: Transaction = self._transaction

    def begin(self) -> None:
        self._pass_gate()
        if self._turns is not None:
            self._turns.write()
        try:
            self._once.execute("BEGIN IMMEDIATE")
        finally:
            self._pass_turn()
        self._transaction.start()

    def _pass_turn(self) -> None:
        """The next may come, unless our transaction is still open."""
        if self._turns is not None and not self._con.in_transaction:
            self._turns.done()

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
        try:
            self._once.execute("COMMIT")
        finally:
            self._pass_turn()

    def rollback(self) -> None:
        try:
            self._transaction.rollback()
        finally:
            self._pass_turn()

    def changes(self) -> int:
        return self._con.total_changes()

    def alive(self) -> bool:
        return self._con.in_transaction

    def pinned(self) -> bool:
        return self._con.txn_state() != apsw.SQLITE_TXN_NONE

    def disown(self) -> None:
        self._con = self._once = refusing()
        self._transaction.disown()

    def error(self, error: BaseException, *, committing: bool) -> BaseException:
        known = typed(error, committing=committing)
        if isinstance(known, _TROUBLE):
            self._troubled()
        if isinstance(known, StoreBusy) and (who := self._holders()):
            return StoreBusy(f"{known.message}; the home is open in {who}")
        return known


class Turns:
    """Who uses the one connection of a store whose disk was full. A thread that reads may read
    within that read, and a write may read; no thread writes within its own read.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._reads = 0
        self._writes = False

    def read(self) -> bool:
        self._take()
        self._reads += 1
        return True

    def read_ends(self) -> bool:
        """Whether it was the outermost."""
        self._reads -= 1
        return self._reads == 0 and not self._writes

    def write(self) -> None:
        self._take()
        if self._reads:
            self._lock.release()
            raise StoreBusy("a read is open in this thread", hint="end it, then write")
        self._writes = True

    def done(self) -> None:
        self._writes = self._writes and self._reads > 0
        self._lock.release()

    def _take(self) -> None:
        if not self._lock.acquire(timeout=BUSY_TIMEOUT_MS / 1000):
            raise StoreBusy("the disk was full at the opening: one thing is done at a time")


class SqliteReading:
    """One read transaction on a connection that the store lends."""

    __slots__ = ("_connection", "_in_turn", "_store", "thread")

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._connection: apsw.Connection | None = None
        self._in_turn = False
        self.thread = get_ident()

    def begin(self) -> Reader:
        self._store.enter(self)
        if self._store.turns is not None:
            self._in_turn = self._store.turns.read()
        connection = self._connection = self._store.borrow()
        try:
            if not connection.in_transaction:
                connection.execute("BEGIN")
        except apsw.Error as error:
            raise typed(error) from error
        return SqliteReader(connection)

    def end(self) -> None:
        connection = self._connection
        if connection is None or self._store.forked:
            self._store.readings.discard(self)
            return
        if self._in_turn:
            self._connection = None
            assert self._store.turns is not None, "it gave the turn"
            if self._store.turns.read_ends() and connection.in_transaction:
                connection.execute("ROLLBACK")
            self._store.turns.done()
            self._store.readings.discard(self)
            return
        # Also after an error: a read transaction that stayed open would keep the WAL from being
        # reused. If this is interrupted, it is done again.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        self._connection = None
        if connection.txn_state() == apsw.SQLITE_TXN_NONE:
            self._store.give_back(connection)
        else:
            # A query that an error left in the middle still sees the old state: so would the next.
            shut(connection)
        self._store.readings.discard(self)

    def error(self, error: BaseException) -> BaseException:
        known = typed(error)
        if isinstance(known, _TROUBLE):
            self._store.troubled()
        return known

    def __enter__(self) -> Reader:
        return self.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()
        if error is not None and (known := self.error(error)) is not error:
            raise known from error


class SqliteStore:
    """A home's database, open."""

    def __init__(
        self,
        path: Path,
        *,
        sync: str = "full",
        vfs: str | None = None,
        holders: Callable[[], str] = str,
        troubled: Callable[[], None] = lambda: None,
    ) -> None:
        """`holders` names who has the home open; `troubled` is called when the disk has failed, in
        any thread. With a `vfs`, which is a simulated disk, no thread makes checkpoints.
        """
        self._path, self._sync, self._vfs = path, sync, vfs
        self.troubled = troubled
        self._con = connect(path, sync=sync, vfs=vfs)
        try:
            check_ours(self._con)
            self.migrated = migrations.migrate(self._con)
        except BaseException as error:
            shut(self._con)
            raise typed(error) from error
        self.turns = Turns() if is_alone(self._con) else None
        """Where the disk was full at the opening, one connection does everything, in turns."""
        self._checkpoints = Checkpoints(path, sync=sync, rest_each_round=True, troubled=troubled)
        if vfs is None and self.turns is None:
            self._checkpoints.take_over(self._con)
        gate = self._checkpoints.pass_gate
        self.writer = GroupWriter(SqliteEngine(self._con, holders, self.turns, troubled, gate))
        managed(self._con)
        self.readings: set[SqliteReading] = set()
        """The reads that are under way."""
        self._fork_ends: threading.Event | None = None
        """While a fork is under way, no read begins before this."""
        self.forked = False
        self._idle: list[apsw.Connection] = []
        self._closed = self._shut = False
        fork_gate.watch(self)

    @property
    def path(self) -> Path:
        return self._path

    def write(self, work: Work[T]) -> T:
        result: T = self.writer.write(work)
        return result

    def read(self) -> Reading:
        return SqliteReading(self)

    def borrow(self) -> apsw.Connection:
        """A connection for one reading. Without a lock, here and in `give_back`: a signal handler
        that raises could leave it locked.
        """
        if self._closed:
            raise fork_gate.refusal() if self.forked else StoreClosed("the store is closed")
        if self.turns is not None:
            return self._con
        try:
            return self._idle.pop()
        except IndexError:
            connection = connect(self._path, sync=self._sync, vfs=self._vfs, read_only=True)
            managed(connection)
            return connection

    def enter(self, reading: SqliteReading) -> None:
        """Notes a read that begins; a fork that is under way comes first."""
        self.readings.add(reading)
        while (fork_ends := self._fork_ends) is not None:
            self.readings.discard(reading)
            fork_ends.wait()
            self.readings.add(reading)

    # --- forks -------------------------------------------------------------------------------

    def still(self, until: float) -> bool:
        self._fork_ends = threading.Event()
        never, me = threading.Event(), get_ident()
        while any(reading.thread != me for reading in list(self.readings)):
            if monotonic() > until:
                return False
            never.wait(_POLL_S)
        return True

    def go_on(self) -> None:
        fork_ends, self._fork_ends = self._fork_ends, None
        if fork_ends is not None:
            fork_ends.set()

    def disown(self) -> tuple[object, ...]:
        kept = vars(self).copy()
        self._fork_ends, self.readings, self._idle = None, set(), []
        self.forked = self._closed = True
        return (kept,)

    # --- the end -----------------------------------------------------------------------------

    def give_back(self, connection: apsw.Connection) -> None:
        self._idle.append(connection)
        if self._closed:
            self._shut_idle()

    def sync_fully(self) -> None:
        """From now on each commit is synced, whatever was chosen at the opening."""
        self.writer.between_groups(lambda: self._con.pragma("synchronous", 2), None)

    def compact(self) -> None:
        """Writes the database anew without what was deleted or replaced, and empties the WAL."""

        def compact() -> None:
            try:
                self._con.execute("VACUUM")
                self._con.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.Error as error:
                raise typed(error) from error

        self.writer.between_groups(lambda: self._checkpoints.alone(compact), None)

    def on_commit(
        self, listener: Callable[[], None], *, unstreamed: Callable[[], None] | None = None
    ) -> None:
        self.writer.on_commit(listener, unstreamed=unstreamed)

    def stop(self, timeout_s: float | None = None) -> bool:
        deadline = None if timeout_s is None else monotonic() + timeout_s
        done = self.writer.stop(timeout_s)
        if not done:
            self.writer.abort()
        left = None if deadline is None else max(0.0, deadline - monotonic())
        return self._close(checkpoint=done, wait_s=0, round_wait_s=left) and done

    def abort(self) -> None:
        self.writer.abort()
        wait_s = ABORT_MS_MAX / 1000
        self._close(checkpoint=False, wait_s=wait_s, round_wait_s=wait_s)

    def _shut_idle(self) -> None:
        with suppress(IndexError):
            while True:
                shut(self._idle.pop())

    def _close(self, *, checkpoint: bool, wait_s: float, round_wait_s: float | None) -> bool:
        """May be called twice, also after an interrupt. A forked child has nothing to close. False
        if a checkpoint is still under way.
        """
        if self.forked:
            return True
        self._closed = True
        self._shut_idle()
        if self._shut:
            return True
        ended = self._checkpoints.stop(round_wait_s)
        # A write that hangs keeps its connection: closing it would tear the write apart.
        self.writer.between_groups(lambda: self._shut_writer(checkpoint), wait_s)
        return ended

    def _shut_writer(self, checkpoint: bool) -> None:
        try:
            if checkpoint:
                # Best effort: a reader elsewhere may still need the WAL, and the next opening
                # finishes the work.
                self._con.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error as error:
            log.info("the WAL of %s stays for the next opening: %s", self._path, error)
        finally:
            shut(self._con)
            self._shut = True
