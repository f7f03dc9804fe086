"""The Raft logs of a node in `quorum.db`: one file, one writer and one sync for all its groups.

It is not the home's own database, so a busy group of ordinary writes, or another process that holds
the lock of `data.db`, delays no vote; and it is in no backup, so a restored home has no past to
vote with. One connection writes, behind the same group commit as the home's store
(`storage/group_commit`): a lone caller commits in its own thread, and what comes while a commit is
synced shares the next. A second connection reads beside it, what is committed.

One process at a time has it open (StoreBusy for the next). What is noticed at the opening, and what
cannot be, is told in `mark`; what happens in a commit in `engine`.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import apsw
import msgspec
from blake3 import blake3

from holdfast.rules.errors import (
    DiskFull,
    EntryDamaged,
    HoldfastError,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreFailed,
)
from holdfast.rules.limits import (
    ABORT_MS_MAX,
    QUORUM_BALLAST_BYTES,
    QUORUM_MARK_WRITES,
    SHUTDOWN_MS_MAX,
)
from holdfast.rules.quorum.log_rows import (
    BoundaryRow,
    EntryRow,
    GroupRow,
    GroupWrite,
    HardStateRow,
    KnownGroup,
    LogHead,
    QuorumSnapshot,
    SaveAnswer,
    SavedWrite,
    SnapshotIntake,
    Standing,
    TermRun,
)
from holdfast.storage import fork_gate
from holdfast.storage.files.durable import FILE_MODE, close_unlocked, disk_errors
from holdfast.storage.files.home import HomePaths
from holdfast.storage.group_commit import GroupWriter
from holdfast.storage.owned_lock import owned_lock, run_locked
from holdfast.storage.quorum_port import Answer, LogState
from holdfast.storage.sqlite.connection import connect, is_alone, managed, shut, typed
from holdfast.storage.sqlite.quorum.engine import QuorumEngine, QuorumStep
from holdfast.storage.sqlite.quorum.mark import marked, write_quorum_mark
from holdfast.storage.sqlite.quorum.opening import QuorumOpening, open_rows
from holdfast.storage.sqlite.quorum.reserve import QuorumReserve
from holdfast.storage.sqlite.quorum.rows import Card, QuorumRows
from holdfast.storage.sqlite.quorum.writes import QuorumWrites
from holdfast.storage.tickets import Sink, Ticket

T = TypeVar("T")

log = logging.getLogger("holdfast")


def _file_number(path: Path) -> int:
    return path.stat().st_ino


class SqliteQuorumLog:
    """The file, open. `known` is what the home's own database says of its groups."""

    def __init__(
        self,
        home: Path,
        *,
        known: Sequence[KnownGroup] = (),
        sync: str = "full",
        vfs: str | None = None,
        clock: Callable[[], float] = monotonic,
        file_number: Callable[[Path], int] = _file_number,
        random: Callable[[int], bytes] = os.urandom,
        mark_writes: int = QUORUM_MARK_WRITES,
        ballast_bytes: int = QUORUM_BALLAST_BYTES,
    ) -> None:
        """`sync` is another than full only in tests, to see that they notice."""
        self._paths = HomePaths(home)
        self._clock = clock
        self._reserve = QuorumReserve(self._paths.quorum_ballast, ballast_bytes)
        self._lock = _lock(self._paths.quorum_lock)
        try:
            opening = QuorumOpening(self._paths, known, sync, vfs, file_number, random)
            self._con, self._mark = self._open(opening)
            try:
                self._reader = self._open_reader(vfs)
            except BaseException:
                shut(self._con)
                raise
        except BaseException:
            close_unlocked(self._lock)
            raise
        self._reserve.lay()
        self._engine = QuorumEngine(self._con, self._reserve, self._raise_mark, mark_writes, clock)
        self.writer = GroupWriter(self._engine, clock=clock)
        self._reading = owned_lock()
        self._waiting: dict[int, float] = {}
        """When the writes came that are not answered yet, by the order in which they came."""
        self._counting = owned_lock()
        self._numbers = itertools.count()
        self._state: LogState = "open"
        self._stilled = self._forked = False
        fork_gate.watch(self)

    def _open(self, opening: QuorumOpening) -> tuple[apsw.Connection, Any]:
        try:
            return open_rows(opening)
        except DiskFull:
            if not self._reserve.met_end():
                raise
            return open_rows(opening)

    def _open_reader(self, vfs: str | None) -> apsw.Connection | None:
        """None where the disk was full at the opening: one connection does everything then."""
        if is_alone(self._con):
            return None
        reader = connect(self._paths.quorum, vfs=vfs, read_only=True)
        managed(reader)
        return reader

    # --- its life ------------------------------------------------------------------------------

    @property
    def state(self) -> LogState:
        failed = self._engine.failed or self.writer.failed
        return "failed" if failed is not None else self._state

    @property
    def failure(self) -> HoldfastError | None:
        """Why it has failed; None if it has not."""
        return self._engine.failed or self.writer.failed

    def close(self) -> None:
        if self._forked or self._state == "closed":
            return
        if not self.writer.stop(SHUTDOWN_MS_MAX / 1000):
            self.abort()
            return
        try:
            if self.failure is None:
                self._mark_end()
        finally:
            self._shut()

    def _mark_end(self) -> None:
        """After a clean end the mark says exactly how far the logs are."""
        try:
            self._con.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._write_mark(self._engine.rows, clean=True)
        except (apsw.Error, HoldfastError) as error:
            # As after a crash: the next opening checks every row.
            log.warning("closing %s: %s", self._paths.quorum, error)

    def abort(self) -> None:
        """Refuses what waits, and ends: the next opening checks every row."""
        self.writer.abort()
        self._shut()

    def _shut(self) -> None:
        self._state = "closed"
        run_locked(self._reading, lambda: None if self._reader is None else shut(self._reader))
        if not self.writer.between_groups(lambda: shut(self._con), ABORT_MS_MAX / 1000):
            # A write hangs. It may still reach the disk, so nobody else may have the file yet.
            log.error("%s stays locked: a write hangs in it", self._paths.quorum)
            return
        lock, self._lock = self._lock, -1
        if lock >= 0:
            close_unlocked(lock)

    def still(self, until: float) -> bool:
        self._stilled = self._reading.acquire(timeout=max(0.0, until - monotonic()))
        return self._stilled

    def go_on(self) -> None:
        if self._stilled:
            self._stilled = False
            self._reading.release()

    def disown(self) -> tuple[object, ...]:
        kept = vars(self).copy()
        self._reading, self._counting = owned_lock(), owned_lock()
        self._forked, self._waiting = True, {}
        if self._lock >= 0:  # a log that is closed already has none
            os.close(self._lock)
        return (kept,)

    # --- groups --------------------------------------------------------------------------------

    def groups(self) -> list[GroupRow]:
        return self._read(lambda rows: [card.group for card in rows.cards().values()])

    def group(self, scope: str) -> GroupRow:
        return self._read(lambda rows: rows.card(scope).group)

    def voters_used(self, scope: str) -> frozenset[int]:
        return self._look(scope, lambda rows, card: rows.voters_used(scope))

    def init(self, scope: str, *, tag: bytes, voter: int, config: bytes) -> GroupRow:
        return self._change(scope, lambda tx: tx.init(scope, tag, voter, config), adds=True)

    def found(
        self, scope: str, *, incarnation: int, tag: bytes, voter: int, config: bytes, term: int
    ) -> GroupRow:
        group = GroupRow(
            scope=scope, incarnation=incarnation, tag=tag, voter=voter, standing="voter"
        )
        return self._change(scope, lambda tx: tx.found(group, config, term), adds=True)

    def join(self, scope: str, *, incarnation: int, tag: bytes, voter: int) -> GroupRow:
        return self._change(scope, lambda tx: tx.join(scope, incarnation, tag, voter), adds=True)

    def set_standing(self, scope: str, voter: int, standing: Standing, reason: str = "") -> None:
        self._change(scope, lambda tx: tx.set_standing(scope, voter, standing, reason))

    def begin_incarnation(
        self, scope: str, *, incarnation: int, tag: bytes, voter: int
    ) -> GroupRow:
        return self._change(
            scope, lambda tx: tx.begin_incarnation(scope, incarnation, tag, voter), adds=True
        )

    # --- writes --------------------------------------------------------------------------------

    def save(self, write: GroupWrite) -> SavedWrite:
        return self._change(
            write.scope, lambda tx: tx.save(write), adds=not write.is_promise, waits=True
        )

    def submit(self, writes: Sequence[GroupWrite], answer: Answer) -> int:
        sink = _Sink(answer, self)  # one for all: what shares a commit is answered together
        tokens = self._came(len(writes))
        tickets = [_SaveTicket(write, sink, at) for write, at in zip(writes, tokens, strict=True)]
        taken = 0
        try:
            taken = self.writer.submit(tickets)
        finally:
            if taken < len(tickets):
                self.went(tokens[taken:])
        return taken

    def save_at_once(self, write: GroupWrite) -> SaveAnswer | None:
        if not self._engine.is_quick:
            return None
        step = QuorumStep(write.scope, lambda tx: tx.save(write), adds=not write.is_promise)
        tokens = self._came(1)
        self._engine.puts_off_checkpoint = True
        try:
            if self.writer.write_at_once(step) is None:
                return None
        except Exception as error:
            return SaveAnswer(write=write, error=error)
        finally:
            self._engine.puts_off_checkpoint = False
            self.went(tokens)
        return SaveAnswer(
            write=write, saved=step.result if step.error is None else None, error=step.error
        )

    def oldest_unsynced_ms(self) -> int | None:
        since = run_locked(self._counting, lambda: next(iter(self._waiting.values()), None))
        return None if since is None else max(0, int((self._clock() - since) * 1000))

    def _came(self, count: int) -> list[int]:
        """Notes so many writes; returns a number for each."""

        def add() -> list[int]:
            tokens = list(itertools.islice(self._numbers, count))
            self._waiting.update(dict.fromkeys(tokens, self._clock()))
            return tokens

        return run_locked(self._counting, add)

    def went(self, tokens: Iterable[int]) -> None:
        """Writes were answered."""

        def remove() -> None:
            for token in tokens:
                self._waiting.pop(token, None)

        run_locked(self._counting, remove)

    # --- the log -------------------------------------------------------------------------------

    def head(self, scope: str) -> LogHead:
        return self._look(scope, lambda rows, card: card.head)

    def boundary(self, scope: str) -> BoundaryRow:
        return self._look(scope, lambda rows, card: rows.boundary(card))

    def term_at(self, scope: str, index: int) -> int | None:
        return self._look(scope, lambda rows, card: rows.term_at(card, index))

    def term_runs(self, scope: str) -> list[TermRun]:
        return self._look(scope, lambda rows, card: rows.term_runs(card))

    def entries(self, scope: str, start: int, end: int, bytes_max: int) -> list[EntryRow]:
        return self._look(scope, lambda rows, card: rows.entries(card, start, end, bytes_max))

    def configs(self, scope: str) -> list[EntryRow]:
        return self._look(scope, lambda rows, card: rows.configs(card))

    def compact(self, scope: str, index: int, config: bytes) -> None:
        self._change(scope, lambda tx: tx.compact(scope, index, config))
        self._sweep(scope)

    def _sweep(self, scope: str) -> None:
        """Removes rows that nobody reads. What it follows is done, whatever becomes of this."""
        try:
            while self._change(scope, lambda tx: tx.sweep(scope)):
                pass
        except DiskFull as error:
            log.warning("old rows of %s stay until the next time: %s", scope, error.message)

    # --- a snapshot that comes in ----------------------------------------------------------------

    def intake(self, scope: str) -> SnapshotIntake | None:
        found = self._look(scope, lambda rows, card: rows.intake(card))
        return None if found is None else found[1]

    def intake_part(self, scope: str, offset: int) -> bytes:
        def part(rows: QuorumRows, card: Card) -> bytes:
            found = rows.intake(card)
            return b"" if found is None else rows.intake_part(found[0], offset)

        return self._look(scope, part)

    def intake_begin(self, scope: str, voter: int, snapshot: QuorumSnapshot) -> int:
        return self._change(scope, lambda tx: tx.intake_begin(scope, voter, snapshot), adds=True)

    def intake_add(self, scope: str, offset: int, content: bytes) -> int:
        return self._change(scope, lambda tx: tx.intake_add(scope, offset, content), adds=True)

    def intake_install(
        self, scope: str, voter: int, number: int, hard: HardStateRow | None = None
    ) -> SavedWrite:
        # Outside the transaction: reading it all may take longer than a vote can wait.
        snapshot = self._whole_snapshot(scope)
        saved = self._change(
            scope,
            lambda tx: tx.intake_install(scope, voter, number, snapshot, hard),
            adds=True,
            waits=True,
        )
        self._sweep(scope)
        return saved

    def _whole_snapshot(self, scope: str) -> QuorumSnapshot | None:
        """The snapshot that came in, if all of it is here and is what was announced."""
        intake = self.intake(scope)
        if intake is None or intake.received != intake.snapshot.size:
            return None
        total, at = blake3(), 0
        while part := self.intake_part(scope, at):
            total.update(part)
            at += len(part)
        if at != intake.snapshot.size or total.digest() != intake.snapshot.digest:
            self.intake_drop(scope)
            raise StoreCorrupt(
                f"a snapshot of {scope} is not what was announced", hint="it has to come in again"
            )
        return intake.snapshot

    def intake_drop(self, scope: str) -> None:
        self._change(scope, lambda tx: tx.intake_drop(scope))
        self._sweep(scope)

    # --- inside --------------------------------------------------------------------------------

    def _change(
        self,
        scope: str,
        work: Callable[[QuorumWrites], T],
        *,
        adds: bool = False,
        waits: bool = False,
    ) -> T:
        """Runs a write and returns after its sync. With `waits`, `oldest_unsynced_ms` counts it."""
        tokens = self._came(1) if waits else []
        try:
            step: QuorumStep = self.writer.write(QuorumStep(scope, work, adds=adds))
            result: T = step.value()
            return result
        finally:
            if waits:
                self.went(tokens)

    def _look(self, scope: str, look: Callable[[QuorumRows, Card], T]) -> T:
        """Reads rows of a group. One whose rows are damaged must rejoin from then on."""
        try:
            return self._read(lambda rows: look(rows, rows.card(scope)))
        except EntryDamaged as error:
            reason = error.message
            log.error("this node must rejoin the voters of %s: %s", scope, reason)
            self._change(scope, lambda tx: tx.condemn(scope, reason))
            raise

    def _read(self, look: Callable[[QuorumRows], T]) -> T:
        if self._forked:
            raise fork_gate.refusal()
        if (failed := self.failure) is not None:
            raise StoreFailed(f"the disk failed under the Raft logs: {failed.message}")
        if self._state == "closed":
            raise StoreClosed("the Raft logs are closed")
        try:
            reader = self._reader
            if reader is None:
                return self._read_between(look)
            return run_locked(self._reading, lambda: _in_transaction(reader, look))
        except apsw.Error as error:
            known = typed(error)
            if isinstance(known, StoreCorrupt):
                self._engine.fail(known)
            raise known from error

    def _read_between(self, look: Callable[[QuorumRows], T]) -> T:
        found: list[T] = []
        self.writer.between_groups(lambda: found.append(look(self._engine.rows)), None)
        return found[0]

    def _raise_mark(self, rows: QuorumWrites) -> None:
        self._write_mark(rows, clean=False)

    def _write_mark(self, rows: QuorumWrites, *, clean: bool) -> None:
        groups = marked(rows.cards().values())
        mark = msgspec.structs.replace(self._mark, clean=clean, groups=groups)
        write_quorum_mark(self._paths.quorum_mark, mark)


class _SaveTicket(Ticket):
    """A write that was submitted."""

    __slots__ = ("token", "write")

    def __init__(self, write: GroupWrite, sink: Sink, token: int) -> None:
        work: Any = QuorumStep(write.scope, lambda tx: tx.save(write), adds=not write.is_promise)
        super().__init__(work, sink)
        self.write, self.token = write, token

    def answer(self) -> SaveAnswer:
        error = self.error or (self.result.error if isinstance(self.result, QuorumStep) else None)
        if error is not None:
            return SaveAnswer(write=self.write, error=error)
        return SaveAnswer(write=self.write, saved=self.result.result)


class _Sink:
    """Hands the answers of one group to whoever submitted the writes."""

    def __init__(self, answer: Answer, log: SqliteQuorumLog) -> None:
        self._answer, self._log = answer, log

    def __call__(self, tickets: list[Ticket]) -> None:
        saves = [ticket for ticket in tickets if isinstance(ticket, _SaveTicket)]
        self._log.went([ticket.token for ticket in saves])
        self._answer([ticket.answer() for ticket in saves])


def _in_transaction(reader: apsw.Connection, look: Callable[[QuorumRows], T]) -> T:
    reader.execute("BEGIN")
    try:
        return look(QuorumRows(reader))
    finally:
        if reader.in_transaction:
            reader.execute("ROLLBACK")


def _lock(path: Path) -> int:
    with disk_errors(f"lock {path}"):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise StoreBusy(
            f"another process has the Raft logs beside {path} open", hint="end it first"
        ) from None
    return fd
