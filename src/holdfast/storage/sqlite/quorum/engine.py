"""The writing connection of the Raft logs, as the group commit drives it.

A commit has up to three steps, and callers are answered after the last of them:

1. COMMIT, with one sync for all writes of the group. If the disk is full, nothing of them is in:
   those that only promise something are done again with the room of the reserve, and those that add
   entries are refused.
2. The mark, if a term, a vote or a group has changed, or it is due (see `mark`).
3. A checkpoint, if the WAL is long. SQLite's own would keep its errors to itself.

Any error of the disk closes the log for good: what a failed sync has left on the disk nobody knows,
and asking again would report a success that never happened. The writes under way get
OutcomeUnknown, all later ones StoreFailed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import apsw

from holdfast.rules.errors import (
    Broken,
    DiskFull,
    EntryDamaged,
    HoldfastError,
    OutcomeUnknown,
    Refused,
    StoreCorrupt,
    StoreFailed,
    Unknown,
)
from holdfast.rules.limits import (
    QUORUM_WAL_PAGES,
)
from holdfast.storage.quick_commits import QuickCommits
from holdfast.storage.sqlite.connection import refusing, typed
from holdfast.storage.sqlite.quorum.reserve import QuorumReserve
from holdfast.storage.sqlite.quorum.writes import QuorumWrites

log = logging.getLogger("holdfast")


class QuorumStep:
    """One write in a group, and what came of it. It may be run twice: see `group_commit`."""

    __slots__ = ("_work", "adds", "error", "result", "scope")
    repeatable = True

    def __init__(self, scope: str, work: Callable[[QuorumWrites], Any], *, adds: bool) -> None:
        self.scope, self._work = scope, work
        self.adds = adds
        """Whether it adds data, and has no claim to the reserve."""
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self, tx: Any) -> QuorumStep:
        self.run(tx)
        tx.steps.append(self)
        return self

    def run(self, tx: QuorumTransaction) -> None:
        if self.adds:
            tx.reserve.admit()
        self.error = None
        try:
            self.result = self._work(tx)
        except EntryDamaged as error:
            # Not raised: that the group must rejoin is committed with the others.
            tx.condemn(self.scope, error.message)
            self.error = error

    def value(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class QuorumTransaction(QuorumWrites):
    """What the steps of a group share."""

    def __init__(self, connection: apsw.Connection, reserve: QuorumReserve) -> None:
        super().__init__(connection)
        self.reserve = reserve
        self.steps: list[QuorumStep] = []

    def start(self) -> None:
        super().start()
        self.steps.clear()


class QuorumEngine:
    """Transactions and savepoints of the one connection that writes."""

    def __init__(
        self,
        connection: apsw.Connection,
        reserve: QuorumReserve,
        raise_mark: Callable[[QuorumWrites], None],
        mark_writes: int,
        clock: Callable[[], float],
    ) -> None:
        self._con = connection
        self._once = connection.cursor()
        self.rows = QuorumTransaction(connection, reserve)
        self.transaction: Any = self.rows
        self.failed: HoldfastError | None = None
        """The error after which nothing can be saved any more."""
        self._reserve, self._raise_mark, self._mark_writes = reserve, raise_mark, mark_writes
        self._unmarked = 0
        """Writes since the mark was written."""
        self._owes_mark = False
        """Whether something may be committed that the mark has to say before the next answer."""
        self._committed = False
        """Whether the commit that is under way has come past its COMMIT."""
        self._wal_pages = 0
        self._quick = QuickCommits(clock)
        self.puts_off_checkpoint = False
        """Whether a checkpoint that is due is left to the next commit."""
        connection.set_wal_hook(self._note_wal)

    def _note_wal(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def begin(self) -> None:
        if self.failed is not None:
            raise StoreFailed(
                f"the disk failed under the Raft logs: {self.failed.message}",
                hint="check the disk, then open the home again",
            )
        self._once.execute("BEGIN IMMEDIATE")
        self.rows.start()

    def savepoint(self) -> None:
        self._once.execute("SAVEPOINT member")

    def release(self) -> None:
        self.rows.flush()
        self._once.execute("RELEASE member")

    def undo(self) -> None:
        self._con.execute("ROLLBACK TO member")
        self._con.execute("RELEASE member")
        self.rows.forget()

    @property
    def is_quick(self) -> bool:
        """Whether the next commit can be expected to last no longer than a sync of a disk that was
        quick so far: neither the mark nor a checkpoint is due with it.
        """
        return (
            self._quick.expected
            and self._unmarked + 1 < self._mark_writes
            and self._wal_pages < QUORUM_WAL_PAGES
        )

    def commit(self) -> None:
        self._quick.time(self._commit)

    def _commit(self) -> None:
        self._committed = False
        # Before it happens: an interrupt may come between the commit and the mark.
        self._owes_mark |= self.rows.promised
        try:
            self.rows.flush()
            self._once.execute("COMMIT")
        except apsw.FullError:
            self._commit_promises()
        self._committed = True
        self._unmarked += self.rows.written
        if self._owes_mark or self._unmarked >= self._mark_writes:
            self._mark()
        if self._wal_pages >= QUORUM_WAL_PAGES and not self.puts_off_checkpoint:
            self._checkpoint()

    def _commit_promises(self) -> None:
        """The disk is full: commits again what adds no data, in the same order."""
        steps = list(self.rows.steps)
        if self._con.in_transaction:
            self.rollback()
        self.rows.forget()
        if not self._reserve.met_end() or all(step.adds for step in steps):
            raise self._reserve.refusal()
        self._once.execute("BEGIN IMMEDIATE")
        self.rows.start()
        for step in steps:
            if step.adds:
                step.error = self._reserve.refusal()
                continue
            try:
                step.run(self.rows)
            except Refused as error:
                step.error = error  # it had followed one that is not in now
        self.rows.flush()
        self._once.execute("COMMIT")

    def _mark(self) -> None:
        try:
            self._raise_mark(self.rows)
        except DiskFull:
            if not self._reserve.met_end():
                raise
            self._raise_mark(self.rows)
        self._unmarked, self._owes_mark = 0, False

    def _checkpoint(self) -> None:
        """What is committed stands in the WAL and is synced there, so an error here takes nothing
        back; but with a disk that fails nothing more may be promised.
        """
        try:
            self._con.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.FullError as error:
            log.warning("the WAL of the Raft logs stays: %s", error)
        except apsw.Error as error:
            known = typed(error)
            self.fail(known if isinstance(known, HoldfastError) else StoreFailed(str(error)))

    def rollback(self) -> None:
        self.rows.forget()
        self._once.execute("ROLLBACK")

    def changes(self) -> int:
        return self._con.total_changes()

    def alive(self) -> bool:
        return self._con.in_transaction

    def pinned(self) -> bool:
        return self._con.txn_state() != apsw.SQLITE_TXN_NONE

    def disown(self) -> None:
        self._con = self._once = refusing()
        self.rows.disown()

    def error(self, error: BaseException, *, committing: bool) -> BaseException:
        known = typed(error, committing=committing)
        if committing and self._committed and isinstance(known, StoreFailed | DiskFull):
            # The group is on the disk, and the mark is not.
            known = OutcomeUnknown(f"the disk failed after a commit: {known.message}")
        if isinstance(known, apsw.Error):
            # A row that is there twice, a column that is not there: nothing that we ever write.
            known = StoreCorrupt(f"the Raft logs are damaged: {known}", hint="open the home again")
        if isinstance(known, Unknown | Broken) and not isinstance(known, EntryDamaged):
            self.fail(known)
        return known

    def fail(self, error: HoldfastError) -> None:
        if self.failed is None:
            self.failed = error
            log.error("the Raft logs are closed: %s", error.message)
