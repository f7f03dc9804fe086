"""The database of a broker: its connection, its transactions, its epochs.

One connection does everything, one transaction at a time; a second one may read beside it. The
methods are coroutines that never suspend: a simulator may step them, and `ThreadedBrokerStore` runs
them in threads.

If the disk fails during a commit, nobody can say what survives: the caller gets OutcomeUnknown, and
the store does nothing more until it is opened anew.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Final, Self

import apsw

from holdfast.rules.broker_rows import BrokerMesh, Mode
from holdfast.rules.errors import DiskFull, StoreClosed, StoreFailed, Unknown
from holdfast.rules.limits import BROKER_CACHE_KIB, BROKER_MARK_ROWS, BROKER_PAGE_BYTES
from holdfast.storage import fork_gate
from holdfast.storage.broker.accepted import mode_of
from holdfast.storage.broker.refusals import no_mesh
from holdfast.storage.broker.sqlite.folder import prepare
from holdfast.storage.broker.sqlite.mark import Mark, doubts, read_mark, write_mark
from holdfast.storage.broker.sqlite.migrations import migrate, rollback
from holdfast.storage.broker.sqlite.room import BrokerRoom
from holdfast.storage.files.durable import alone_in, drafting
from holdfast.storage.files.home import size_of
from holdfast.storage.quick_commits import QuickCommits
from holdfast.storage.sqlite.columns import RowColumns
from holdfast.storage.sqlite.connection import connect, is_alone, managed, shut, typed
from holdfast.storage.sqlite.migrations import version
from holdfast.storage.sqlite.recovery.wal import rewrite_wal
from holdfast.storage.sqlite.snapshot_copy import copy_database
from holdfast.storage.sqlite.wal.checkpoints import Checkpoints

log = logging.getLogger("holdfast")

SEQ_BITS: Final = 40
"""Of a place; the rest is the number of the mesh."""
SEQ_MASK: Final = (1 << SEQ_BITS) - 1
MESH: Final = RowColumns("mesh", BrokerMesh)


class BrokerDatabase:
    """Opening, closing, and one transaction after the other."""

    def __init__(
        self,
        folder: Path,
        *,
        sync: str = "full",
        vfs: str | None = None,
        mark_rows: int = BROKER_MARK_ROWS,
        tell_copies: bool = True,
        room: BrokerRoom | None = None,
    ) -> None:
        """`tell_copies` False: the file system gives its files new numbers now and then, so that
        they say nothing about where a file comes from. `room` of a broker that serves keeps a
        ballast.
        """
        self.folder = folder
        self.room = BrokerRoom(folder) if room is None else room
        self._sync, self._vfs = sync, vfs
        self._mark_rows, self._tell_copies = mark_rows, tell_copies
        self._con: apsw.Connection | None = None
        self._checkpoints: Checkpoints | None = None
        self._quick = QuickCommits(monotonic)
        self._failed: str | None = None
        self.ended_well = False
        """It was closed, and the mark says exactly how far it was."""
        self._only_reads = False
        self._forked = False
        fork_gate.watch(self)
        self._listeners: list[Callable[[str, int], None]] = []
        self._news: list[tuple[str, int]] = []
        self._marked: dict[str, int] = {}
        """The seq of each mesh when the mark was last written."""
        self._reached: dict[str, int] = {}
        """The seq that this process has brought each mesh to."""

    @property
    def connection(self) -> apsw.Connection:
        if self._forked:
            raise fork_gate.refusal()
        if self._con is None:
            raise StoreClosed("the store is not open", hint="open it first")
        if self._failed is not None:
            raise StoreFailed(f"the disk has failed: {self._failed}", hint="start the broker again")
        return self._con

    @property
    def failed(self) -> str | None:
        """What the disk did, if nothing more can be done before the store is opened anew."""
        return self._failed

    def another(self) -> Self:
        """A second store for the same folder, not open yet."""
        return type(self)(self.folder, sync=self._sync, vfs=self._vfs)

    @property
    def database(self) -> Path:
        return self.folder / "broker.db"

    # --- open and close ------------------------------------------------------------------------

    async def open(self, now_ms: int) -> None:
        try:
            self._open(now_ms)
        except DiskFull:
            if not self.room.met_end():
                raise
            self._open(now_ms)
        else:
            self.room.look()

    def _open(self, now_ms: int) -> None:
        assert self._con is None, "opened once"
        self._failed = None
        prepare(self.folder, self.database)
        with alone_in(self.folder):
            self._settle_log()
            con = connect(
                self.database, sync=self._sync, vfs=self._vfs, page_bytes=BROKER_PAGE_BYTES
            )
            managed(con)
            try:
                con.pragma("cache_size", -BROKER_CACHE_KIB)
                migrate(con)
                self._con = con
                self.room.reusable = self._reusable
                if self._checkpoints is not None and not is_alone(con):
                    self._checkpoints.take_over(con)
                self._check_age(now_ms)
            except BaseException as error:
                self._con = None
                shut(con)
                raise typed(error) from error

    def checkpoint_beside(self) -> None:
        """From the next opening on a thread makes the checkpoints. Call it before anything else
        that a fork has to stop is made for this store.
        """
        self._checkpoints = Checkpoints(self.database, sync=self._sync, vfs=self._vfs)

    async def schema(self) -> int:
        return version(self.connection)

    async def rollback_schema(self, to: int, now_ms: int) -> tuple[list[int], Path]:
        """Takes the schema of a store that is not open back to a version. The database as it was
        stays beside it. Returns the numbers that were undone, and where the copy is.
        """
        assert self._con is None, "nobody has it open"
        with alone_in(self.folder):
            self._settle_log()
            kept = self.database.with_name(f"{self.database.name}.before-rollback-{now_ms}")
            with drafting(self.folder) as draft:
                copy_database(self.database, draft.path)
                draft.publish(kept)
            con = connect(self.database, sync=self._sync, vfs=self._vfs)
            try:
                return rollback(con, to), kept
            finally:
                shut(con)

    def _settle_log(self) -> None:
        """A bad end leaves commits in the log that were perhaps never synced: they are, before
        anybody is answered by them.
        """
        wal = self.folder / "broker.db-wal"
        if self._sync != "off" and size_of(wal):
            rewrite_wal(self.database, wal, vfs=self._vfs)

    def _reusable(self) -> int:
        free, size = (self.connection.pragma(name) for name in ("freelist_count", "page_size"))
        return int(str(free)) * int(str(size))

    @property
    def alone(self) -> bool:
        """Whether the disk was too full at the opening for a second connection."""
        return is_alone(self.connection)

    async def open_beside(self) -> None:
        """Opens for reading only what another store has opened; it sees what that one commits."""
        assert self._con is None, "opened once"
        con = connect(self.database, sync=self._sync, vfs=self._vfs, read_only=True)
        managed(con)
        con.pragma("cache_size", -BROKER_CACHE_KIB)
        self._con, self._failed, self._only_reads = con, None, True

    async def close(self) -> None:
        if self._con is None:
            return
        try:
            if self._failed is None and not self._only_reads:
                self._last_mark()
        finally:
            con, self._con = self._con, None
            if self._checkpoints is not None:
                self._checkpoints.stop(None)
            shut(con)

    def _last_mark(self) -> None:
        try:
            self.write_mark()
            self.ended_well = True
        except DiskFull as error:
            # The mark of before says less and nothing wrong: as after a crash.
            log.warning("closing %s: %s", self.folder, error.message)

    async def ping(self) -> None:
        with self.reading():
            self.connection.execute("SELECT count(*) FROM meta").get  # noqa: B018

    def wants_only_some_news(self) -> None:
        """No other process writes here."""

    def wants_news(self, mesh: str, *, on: bool) -> None:
        """No other process writes here."""

    def on_news(self, listener: Callable[[str, int], None]) -> None:
        self._listeners.append(listener)

    # --- forks ---------------------------------------------------------------------------------

    def still(self, until: float) -> bool:
        return True  # the worker stops: its thread is the one that uses this

    def go_on(self) -> None: ...

    def disown(self) -> tuple[object, ...]:
        kept, self._con, self._forked = self._con, None, True
        return (kept,)

    # --- transactions --------------------------------------------------------------------------

    @contextmanager
    def writing(self, *, adds: bool = False) -> Iterator[apsw.Connection]:
        """One transaction: all of the block or nothing. Listeners hear of it when it is on the
        disk. What `adds` data is refused while the disk is full.
        """
        con = self.connection
        if adds:
            self.room.admit()
        try:
            yield from self._transaction(con)
        except DiskFull:
            self.room.met_end()
            raise
        except apsw.Error as error:
            if isinstance(error, apsw.FullError):
                self.room.met_end()
            raise typed(error) from error
        for mesh, seq in self._news:
            for listener in self._listeners:
                listener(mesh, seq)

    def _transaction(self, con: apsw.Connection) -> Iterator[apsw.Connection]:
        if self._checkpoints is not None:
            self._checkpoints.pass_gate()
        con.execute("BEGIN IMMEDIATE")
        self._news.clear()
        try:
            yield con
        except BaseException:
            self._undo(con)
            raise
        self._commit(con)

    def empty_wal(self) -> None:
        """Gives the disk back what the WAL takes, as far as readers and the disk allow it."""
        con = self.connection

        def empty() -> None:
            try:
                con.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.Error as error:
                log.info("the WAL of %s stays: %s", self.database, error)

        if self._checkpoints is None:
            empty()
        else:
            self._checkpoints.alone(empty)

    def _commit(self, con: apsw.Connection) -> None:
        try:
            self._quick.time(lambda: con.execute("COMMIT"))
        except BaseException as error:
            known = typed(error, committing=True)
            if isinstance(known, Unknown):
                self._failed = str(known)
            self._undo(con)
            raise known from error

    def _undo(self, con: apsw.Connection) -> None:
        if not con.in_transaction:
            return
        try:
            con.execute("ROLLBACK")
        except apsw.Error as error:
            # What is on the disk is whole, but nothing more can be done with this connection.
            log.warning("%s: undoing a transaction: %s", self.database, error)
            self._failed = str(error)

    @contextmanager
    def reading(self) -> Iterator[apsw.Connection]:
        """Several reads of one state."""
        con = self.connection
        try:
            con.execute("BEGIN")
            try:
                yield con
            finally:
                self._undo(con)
        except apsw.Error as error:
            raise typed(error) from error

    def news(self, mesh: str, seq: int) -> None:
        """Tells listeners of a mesh, after the commit."""
        self._news.append((mesh, seq))

    # --- what every part needs -----------------------------------------------------------------

    def number_of(self, slug: str) -> int:
        number = self.find_number(slug)
        if number is None:
            raise no_mesh(slug)
        return number

    def find_number(self, slug: str) -> int | None:
        found = self.connection.execute("SELECT number FROM mesh WHERE slug = ?", (slug,)).get
        return None if found is None else int(found)

    def noted_removed(self) -> list[int]:
        """Numbers of removed meshes of which there may be rows left."""
        return [int(number) for number in (self.noted("removed") or "").split()]

    def note_removed(self, numbers: list[int]) -> None:
        self.note("removed", " ".join(map(str, numbers)))

    def noted(self, name: str) -> str | None:
        value = self.connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).get
        return None if value is None else str(value)

    def note(self, name: str, value: str) -> None:
        self.connection.execute(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
            (name, value),
        )

    def noted_mode(self) -> tuple[Mode, int]:
        return mode_of(self.noted("mode"), self.noted("days"))

    # --- epochs --------------------------------------------------------------------------------

    def begin_epoch(self, number: int, reason: str, now_ms: int, above: int = 0) -> BrokerMesh:
        """The next epoch of a mesh, above any that it is known to have had."""
        con = self.connection
        con.execute(
            "UPDATE mesh SET epoch = max(epoch, ?) + 1, base = seq WHERE number = ?",
            (above, number),
        )
        con.execute(
            "INSERT INTO epoch SELECT number, epoch, base, ?, ? FROM mesh WHERE number = ?",
            (now_ms, reason, number),
        )
        mesh = MESH.find(con, "WHERE number = ?", (number,))
        assert mesh is not None, "the mesh is there: its epoch was just moved"
        self.news(mesh.slug, 0)
        return mesh

    def _check_age(self, now_ms: int) -> None:
        mark = read_mark(self.folder / "broker.mark")
        with self.reading():
            found = self._found()
        sure = bool(found.store) and doubts(found, mark) is None
        try:
            self._count_opening(mark, now_ms)
            self._save_mark()
        except DiskFull as error:
            if not sure:
                raise
            # Nothing has happened since the mark, and nothing can before there is room.
            log.warning("%s: %s", self.folder, error.message)

    def _count_opening(self, mark: Mark | None, now_ms: int) -> None:
        with self.writing() as con:
            if self.noted("store") is None:
                self.note("store", os.urandom(16).hex())
            found = self._found()
            why = doubts(found, mark)
            if why is not None and found.meshes:
                log.warning("%s: %s; every mesh begins a new epoch", self.database, why)
                for number, server_id in list(con.execute("SELECT number, server_id FROM mesh")):
                    above = 0 if mark is None else mark.meshes.get(server_id, (0, 0))[0]
                    self.begin_epoch(number, why, now_ms, above)
            # Never below the mark: the next opening would doubt again.
            reached = max(found.generation, 0 if mark is None else mark.generation)
            self.note("generation", str(reached + 1))

    def _found(self) -> Mark:
        rows = self.connection.execute("SELECT server_id, epoch, seq FROM mesh")
        return Mark(
            store=self.noted("store") or "",
            generation=int(self.noted("generation") or 0),
            folder=os.stat(self.folder).st_ino if self._tell_copies else 0,
            file=os.stat(self.database).st_ino if self._tell_copies else 0,
            meshes={server_id: (epoch, seq) for server_id, epoch, seq in rows},
        )

    def write_mark(self) -> None:
        """Notes outside the database how far every mesh is (see `mark`)."""
        with alone_in(self.folder):
            with self.writing():
                self.note("generation", str(int(self.noted("generation") or 0) + 1))
            self._save_mark()

    def _save_mark(self) -> None:
        with self.reading() as con:
            found = self._found()
            reached = dict(con.execute("SELECT slug, seq FROM mesh"))
        write_mark(self.folder / "broker.mark", found)
        self._marked, self._reached = reached, dict(reached)

    def is_quick(self, adds: int) -> bool:
        """Whether a transaction that adds so many envelopes may be expected to hold nobody up: no
        mark is due with it, and no checkpoint.
        """
        return (
            self._quick.expected
            and self._checkpoints is not None
            and not self._checkpoints.are_due
            and not self._mark_is_due(adds)
        )

    def _mark_is_due(self, adds: int) -> bool:
        marked, rows = self._marked, self._mark_rows
        return any(seq + adds - marked.get(slug, 0) >= rows for slug, seq in self._reached.items())

    def mark_if_due(self) -> None:
        """Writes the mark if a mesh has gone `mark_rows` beyond it.

        Called before the next envelopes are written, so that a failure belongs to a call that has
        not done anything.
        """
        if self._mark_is_due(0):
            self.write_mark()
