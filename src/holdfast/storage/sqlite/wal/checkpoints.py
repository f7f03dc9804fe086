"""Brings the WAL of a store into its database while the store goes on writing.

SQLite makes a checkpoint inside the commit that fills the WAL, and keeps its errors to itself. Here
a thread makes it, on a connection of its own. What is written meanwhile is not in it, and SQLite
begins the WAL anew only when all of it is in the database. So a checkpoint has two parts:

1. **Rounds** beside the writer, in the thread, each time that `WAL_CHECKPOINT_PAGES` have come.
2. The **rest**, what was written during the last round: the writer makes it itself before its next
   transaction, and that one begins the WAL anew. It is little, but it costs a sync for which the
   writer waits, so a broker makes it only after the round that ends with `WAL_REST_PAGES`. A node
   makes it after each: one thread that writes alone loses more by a WAL that grows.

The gate between groups is `pass_gate`: it begins rounds and makes the rest, and once so much was
written during a round (`WAL_ROUND_PAGES_MAX`) it waits for its end. So the WAL is bounded under
constant load, however slow the disk is; only a reader that holds on to an old state lets it grow.

What is committed stands in the WAL and is synced there, so an error here takes nothing back: it is
told, and the next checkpoint begins where this one did. Simulations have no threads, and a store
that is alone on a full disk has one connection: they leave checkpoints to SQLite.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any

import apsw

from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import (
    WAL_CHECKPOINT_PAGES,
    WAL_PAGE_BYTES,
    WAL_REST_PAGES,
    WAL_ROUND_PAGES_MAX,
)
from holdfast.storage import fork_gate
from holdfast.storage.owned_lock import owned_lock, run_locked
from holdfast.storage.sqlite.connection import connect, managed, page_bytes_of, refusing, shut

log = logging.getLogger("holdfast")


class _Round(Enum):
    NONE = "no round is under way"
    ASKED = "the thread was asked for one, and may be at it"
    MADE = "it has ended, and the rest is the writer's"


class Checkpoints:
    """Those of one database and its one writing connection. The rounds belong to a thread, all else
    to whoever has the writer's turn.

    Make it before what gives that turn: a fork stops what came last first, and the writer may be
    waiting in the gate for a round.
    """

    def __init__(
        self,
        database: Path,
        *,
        sync: str = "full",
        vfs: str | None = None,
        rest_each_round: bool = False,
        troubled: Callable[[], None] = lambda: None,
    ) -> None:
        """`rest_each_round`: the writer makes the rest after every round, see above. `troubled` is
        called, in any thread, when the disk has failed.
        """
        self._database, self._sync, self._vfs = database, sync, vfs
        self._rest_each_round = rest_each_round
        self._troubled = troubled
        self._turn = owned_lock()
        """Held by whoever makes a checkpoint: SQLite lets one at a time."""
        self._writer: Any = refusing()
        self._page_bytes = WAL_PAGE_BYTES
        self._begin()
        self._stilled = False
        fork_gate.watch(self)

    def _begin(self) -> None:
        self._pages = 0
        """In the WAL, after the last commit."""
        self._due = WAL_CHECKPOINT_PAGES
        """Pages with which the next round begins."""
        self._round = _Round.NONE
        self._asked: SimpleQueue[bool] = SimpleQueue()
        """True for a round, False for the end of the thread."""
        self._thread: threading.Thread | None = None
        self._connection: apsw.Connection | None = None
        """That of the rounds."""

    def take_over(self, writer: apsw.Connection) -> None:
        """From now on no commit of this connection makes a checkpoint."""
        self._begin()
        self._writer, self._page_bytes = writer, page_bytes_of(writer)
        writer.set_wal_hook(self._note_pages)  # in the place of SQLite's own

    def _note_pages(self, connection: apsw.Connection, name: str, pages: int) -> int:
        pages = pages * self._page_bytes // WAL_PAGE_BYTES
        if pages < self._pages:
            self._due = WAL_CHECKPOINT_PAGES  # the WAL has begun anew
        self._pages = pages
        return apsw.SQLITE_OK

    def alone(self, do: Callable[[], object]) -> None:
        """Runs a step while no round is under way, such as a checkpoint of another kind."""
        run_locked(self._turn, do)

    def stop(self, wait_s: float | None) -> bool:
        """Ends the thread; may be called twice. False if its round did not end in time: then it
        ends by itself, and its connection stays open.
        """
        thread = self._thread
        if thread is not None:
            self._asked.put(False)
            thread.join(wait_s)
            if thread.is_alive():
                return False
        if self._connection is not None:
            shut(self._connection)
        return True

    # --- the gate ------------------------------------------------------------------------------

    @property
    def are_due(self) -> bool:
        """Whether the gate has more to do than to ask for a round."""
        return self._pages >= self._due and self._round is not _Round.NONE

    def pass_gate(self) -> None:
        """Called by the writer while it has no transaction open. Raises nothing of the disk's, and
        does nothing for a connection that was not taken over.
        """
        if self._pages < self._due:
            return
        if self._round is _Round.NONE:
            self._ask()
        elif self._round is _Round.MADE and not self._is_rest_due:
            self._end_round()
        elif self._round is _Round.MADE or self._pages >= self._due + WAL_ROUND_PAGES_MAX:
            run_locked(self._turn, self._make_rest)

    @property
    def _is_rest_due(self) -> bool:
        return self._rest_each_round or self._pages >= WAL_REST_PAGES

    def _ask(self) -> None:
        self._round = _Round.ASKED
        try:
            self._ring()
        except RuntimeError as error:
            # The process has as many threads as it may, or is ending. The rest is all then.
            log.warning("no thread makes checkpoints of %s: %s", self._database, error)
            self._round = _Round.MADE

    def _ring(self) -> None:
        if self._thread is None:
            # A daemon: a process that ends without closing ends as if it were killed.
            name, args = "holdfast-checkpoints", (self._asked,)
            thread = threading.Thread(target=self._serve, args=args, name=name, daemon=True)
            thread.start()
            self._thread = thread
        self._asked.put(True)

    def _make_rest(self) -> None:
        self._make(self._writer)
        # Whether or not it came to the end: what holds it up is not gone with the next commit.
        self._end_round()

    def _end_round(self) -> None:
        self._due = self._pages + WAL_CHECKPOINT_PAGES
        self._round = _Round.NONE

    # --- rounds --------------------------------------------------------------------------------

    def _serve(self, asked: SimpleQueue[bool]) -> None:
        while asked.get():
            run_locked(self._turn, self.make_round)
        asked.put(False)  # for another thread, if an interrupt came before this one was noted

    def make_round(self) -> None:
        """One round, in the thread of the rounds, or a test's own."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            self._make(self._connection)
        except HoldfastError as error:
            # The rest is all then, and the writer makes it.
            log.warning("no checkpoint of %s beside its writer: %s", self._database, error.message)
        if self._round is _Round.ASKED:
            self._round = _Round.MADE

    def _connect(self) -> apsw.Connection:
        connection = connect(self._database, sync=self._sync, vfs=self._vfs)
        managed(connection)
        return connection

    def _make(self, connection: apsw.Connection) -> None:
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except (apsw.FullError, apsw.BusyError, apsw.LockedError) as error:
            log.warning("the WAL of %s stays for now: %s", self._database, error)
        except apsw.Error as error:
            log.error("a checkpoint of %s failed: %s", self._database, error)
            self._troubled()

    # --- forks ---------------------------------------------------------------------------------

    def still(self, until: float) -> bool:
        self._stilled = self._turn.acquire(timeout=max(0.0, until - monotonic()))
        return self._stilled

    def go_on(self) -> None:
        if self._stilled:
            self._stilled = False
            self._turn.release()

    def disown(self) -> tuple[object, ...]:
        kept = vars(self).copy()
        self._turn, self._writer = owned_lock(), refusing()
        self._begin()
        return (kept,)
