"""One writer, group commit.

All writes of a process go through one queue. Writes that wait at the same time are a group: they
are run in order, each in its own savepoint, then committed together, and only then answered. So
durability costs one sync per group, not one per write, and a write that raises undoes itself alone.
A group of writes that may all be run twice (`repeatable`) is first run without savepoints; only if
one of them raises after it has changed something, the group is undone and run again with them.

There are two ways in. A thread that finds the queue empty runs its own write at once, without a
hand-over. All other writes (of coroutines, or of threads that find the writer busy) queue for the
writer's thread, which starts when it is first needed. Simulations and tests call `run_group`
themselves instead.

    open ──stop()──▶ stopping ──queue drained──▶ stopped
    abort() goes straight to stopped, and what waits is refused
    in a forked child it is forked, for good (see `fork_gate`)

A commit that fails fails the whole group and applies nothing. If the disk failed *during* the
commit, nobody can say what survives: the callers of the group get `OutcomeUnknown`, and the writer
refuses further work until the home is reopened.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from holdfast.rules.errors import (
    HoldfastError,
    StoreBusy,
    StoreClosed,
    StoreFailed,
    Unknown,
)
from holdfast.rules.limits import GROUP_MS_MAX, GROUP_OPS_MAX, QUEUE_OPS_MAX
from holdfast.storage import fork_gate
from holdfast.storage.owned_lock import nested, owned_lock, run_locked
from holdfast.storage.tickets import Ticket, copy, deliver, reject
from holdfast.storage.together import carry_out_next

if TYPE_CHECKING:
    from holdfast.storage.ports import Transaction, Work

log = logging.getLogger("holdfast")


T = TypeVar("T")
Listener = Callable[[], None]


class Unstreamed(Protocol):
    """A write that says of itself that nothing of it counts in a stream."""

    in_no_stream: bool

    def committed(self) -> None:
        """It is on the disk with its group, and those who listen are told after this."""


class Engine(Protocol):
    """What the writer needs of a database: transactions and savepoints."""

    transaction: Transaction

    def begin(self) -> None: ...
    def savepoint(self) -> None: ...
    def release(self) -> None: ...
    def undo(self) -> None:
        """Back to the savepoint."""

    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def changes(self) -> int:
        """A number that grows with every change; what raised without changing it undoes nothing."""

    def alive(self) -> bool:
        """Whether the transaction is still open: the database itself ends it after some errors."""

    def pinned(self) -> bool:
        """Whether a query that nobody finished keeps the database at an old state, although no
        transaction is open.
        """

    def error(self, error: BaseException, *, committing: bool) -> BaseException:
        """The typed error for one of the database's own."""

    def disown(self) -> None:
        """In a forked child: refuses everything from now on, also what is under way."""


class GroupWriter:
    """The queue in front of one engine."""

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._make_queue()
        self._state = "open"
        self._failed: HoldfastError | None = None
        self._busy = 0
        self._listeners: tuple[tuple[Listener, Listener], ...] = ()
        self._begun = False
        """Whether a lone write may have begun a transaction."""
        self._untold = False
        """Whether something was committed, perhaps, of which the listeners have not heard."""
        self._stilled = False
        fork_gate.watch(self)

    def _make_queue(self) -> None:
        self._queue: deque[Ticket] = deque()
        self._lock = owned_lock()
        self._work_came = threading.Condition(cast(threading.RLock, self._lock))
        self._drained = threading.Condition(cast(threading.RLock, self._lock))
        self._turn = owned_lock()
        """Held by the thread that runs a group: the engine belongs to one thread at a time."""
        self._thread: threading.Thread | None = None

    @property
    def state(self) -> str:
        return self._state

    @property
    def failed(self) -> HoldfastError | None:
        """The error after which nothing can be written any more; None if there was none."""
        return self._failed

    def on_commit(self, listener: Listener, *, unstreamed: Listener | None = None) -> None:
        """Calls `listener` after every commit from now on, before its writes are answered; and
        `unstreamed` instead, if it is given, after those whose writes all say (`in_no_stream`) that
        nothing of theirs counts in a stream.
        """
        self._listeners = (*self._listeners, (listener, unstreamed or listener))

    # --- the two ways in ---------------------------------------------------------------------

    def write(self, work: Work[Any]) -> Any:
        """Runs one write and returns after its commit. An exception that a signal handler raises
        meanwhile leaves the write done or undone, and the writer free for the next one.
        """
        turn = self._turn
        if turn._is_owned():
            self._after_interrupt()
        if not self._queue:
            # Twice, because the exception may also come while the first one settles.
            try:
                try:
                    if turn.acquire(blocking=False):
                        return self._write_alone(work)
                finally:
                    if turn._is_owned():
                        self._settle()
            finally:
                if turn._is_owned():
                    self._settle()
        return self._write_queued(work)

    def write_at_once(self, work: Work[T]) -> T | None:
        """As `write`, but only where nobody else writes or waits: otherwise nothing happens, and
        None comes back.
        """
        turn = self._turn
        if self._queue or turn._is_owned():
            return None
        try:
            try:
                if turn.acquire(blocking=False):
                    result: T = self._write_alone(work)
                    return result
            finally:
                if turn._is_owned():
                    self._settle()
        finally:
            if turn._is_owned():
                self._settle()
        return None

    def _write_queued(self, work: Work[Any]) -> Any:
        done = threading.Lock()
        done.acquire()
        answers: list[Ticket] = []

        def answer(tickets: list[Ticket]) -> None:
            answers.extend(tickets)
            done.release()

        ticket = Ticket(work, answer)
        try:
            if not self.submit([ticket]):
                raise StoreBusy(
                    f"{QUEUE_OPS_MAX} writes wait already",
                    hint="wait for some of them before sending more",
                )
            done.acquire()
        except BaseException:
            # Nothing may happen after the caller has got its exception.
            if run_locked(self._lock, lambda: self._withdraw(ticket)) and not answers:
                done.acquire()
            raise
        return ticket.value()

    def _withdraw(self, ticket: Ticket) -> bool:
        """Takes a write out of the queue again; True if it runs already."""
        with suppress(ValueError):
            self._queue.remove(ticket)
        return ticket.taken

    def submit(self, tickets: Sequence[Ticket]) -> int:
        """Queues writes for the writer's thread, which calls their sinks, once per group. Returns
        how many of them, from the first, the queue had room for.
        """
        return run_locked(self._lock, lambda: self._submit(tickets))

    def _submit(self, tickets: Sequence[Ticket]) -> int:
        self._refuse_unless_open()
        room = max(0, QUEUE_OPS_MAX - len(self._queue))
        if not room:
            return 0
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="holdfast-writer", daemon=True)
            thread.start()
            self._thread = thread
        self._queue.extend(tickets[:room])
        self._work_came.notify()
        return min(room, len(tickets))

    def enqueue(self, ticket: Ticket) -> None:
        """Queues a write for the next `run_group` of a simulation or a test."""
        with self._lock:
            self._refuse_unless_open()
            self._queue.append(ticket)

    def run_group(self) -> int:
        """Runs the writes that wait now as one group, in this thread. Returns how many were
        answered.
        """
        with self._turn:
            return self._run(self._take())

    # --- the end -----------------------------------------------------------------------------

    def stop(self, timeout_s: float | None = None) -> bool:
        """Takes no more work, finishes what waits, then stops. Returns False if time ran out
        first.
        """
        deadline = None if timeout_s is None else monotonic() + timeout_s
        if self._state in ("stopped", "forked"):
            return True
        if not run_locked(self._lock, lambda: self._drain(timeout_s)):
            return False
        # A write may also be running in its caller's own thread.
        if not self.between_groups(self._finish, _left(deadline)):
            return False
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_left(deadline))
        return True

    def _drain(self, timeout_s: float | None) -> bool:
        self._state = "stopping"
        self._work_came.notify()
        return self._thread is None or self._drained.wait_for(self._is_idle, timeout_s)

    def _finish(self) -> None:
        while self._queue:
            self._run(self._take())
        run_locked(self._lock, self._end)

    def _end(self) -> list[Ticket]:
        """Ends the writer's thread; returns what still waited."""
        self._state = "stopped"
        waiting = list(self._queue)
        self._queue.clear()
        self._work_came.notify()
        return waiting

    def abort(self) -> None:
        """Refuses what waits and stops at once. A group being committed is not torn apart."""
        if self._state == "forked":
            return
        reject(run_locked(self._lock, self._end))

    def between_groups(self, do: Callable[[], object], timeout_s: float | None) -> bool:
        """Runs a step while no group runs. False, and the step is not run, if the running group did
        not end in time.
        """
        turn = self._turn
        if turn._is_owned():
            self._after_interrupt()
        try:
            try:
                if not turn.acquire(timeout=-1 if timeout_s is None else timeout_s):
                    return False
                do()
                return True
            finally:
                if turn._is_owned():
                    turn.release()
        finally:
            if turn._is_owned():
                turn.release()

    # --- forks -------------------------------------------------------------------------------

    def still(self, until: float) -> bool:
        self._stilled = self._turn.acquire(timeout=max(0.0, until - monotonic()))
        return self._stilled

    def go_on(self) -> None:
        if self._stilled:
            self._stilled = False
            self._turn.release()

    def disown(self) -> tuple[object, ...]:
        kept = vars(self).copy()
        self._make_queue()
        self._state = "forked"
        self._engine.disown()
        return (kept,)

    def refuse_if_forked(self) -> None:
        if self._state == "forked":
            raise fork_gate.refusal()

    # --- inside ------------------------------------------------------------------------------

    def _refuse_unless_open(self) -> None:
        self.refuse_if_forked()
        if self._state != "open":
            raise StoreClosed(f"the store is {self._state}")
        if self._failed is not None:
            raise self._refusal()

    def _refusal(self) -> StoreFailed:
        assert self._failed is not None
        return StoreFailed(f"an earlier write failed on the disk: {self._failed.message}")

    def _is_idle(self) -> bool:
        return not self._queue and not self._busy

    def _settle(self) -> None:
        """Gives the turn back, with no transaction open, however its holder ended."""
        if self._begun:
            self._undo_lone()
            self._begun = False
        if self._untold:
            self._notify_listeners()
        self._turn.release()

    def _after_interrupt(self) -> None:
        """Called when this thread has the turn already. Either a signal handler calls from the
        middle of a write, or a write was interrupted again while it settled.
        """
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_locals.get("self") is self:
                raise nested()
            frame = frame.f_back
        while self._turn._is_owned():
            self._settle()

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._drained.notify_all()
                self._work_came.wait_for(lambda: self._queue or self._state == "stopped")
                if not self._queue:
                    return
                self._busy += 1
            try:
                self.run_group()
            finally:
                with self._lock:
                    self._busy -= 1

    def _take(self) -> list[Ticket]:
        with self._lock:
            count = min(len(self._queue), GROUP_OPS_MAX)
            tickets = [self._queue.popleft() for _ in range(count)]
            for ticket in tickets:
                ticket.taken = True
            return tickets

    def _put_back(self, tickets: list[Ticket]) -> None:
        if not tickets:
            return
        with self._lock:
            if self._state != "stopped":
                for ticket in tickets:
                    ticket.taken = False
                self._queue.extendleft(reversed(tickets))
                return
        # The writer was aborted while their group ran: they are refused like all that waited.
        reject(tickets)

    def _write_alone(self, work: Work[Any]) -> Any:
        """Runs a group of one. It needs no ticket, and no savepoint: a failure undoes the whole
        transaction anyway.
        """
        if self._state != "open" or self._failed is not None:
            self._refuse_unless_open()
        engine = self._engine
        self._begun = True
        try:
            engine.begin()
            result = work(engine.transaction)
        except BaseException as error:
            self._undo_lone()
            if engine.pinned():
                # A frame that the error keeps alive holds a query in the middle.
                traceback.clear_frames(error.__traceback__)
            typed = engine.error(error, committing=False)
            if typed is error:
                raise
            raise typed from error
        self._untold = True
        try:
            engine.commit()
        except BaseException as error:
            typed = self._commit_failed(error)
            if typed is error:
                raise
            raise typed from error
        if self._listeners:
            self._notify_listeners()
        else:
            self._untold = False
        self._begun = False
        return result

    def _run(self, tickets: list[Ticket]) -> int:
        if not tickets:
            return 0
        if self._failed is not None:
            # They were queued before the disk failed.
            return self._fail(tickets, self._refusal())
        if all(getattr(ticket.work, "repeatable", False) for ticket in tickets):
            ran = self._run_plainly(tickets)
            if ran:
                return ran
            if self._failed is not None:
                return self._fail(tickets, self._failed)
        engine = self._engine
        try:
            engine.begin()
        except BaseException as error:
            return self._fail(tickets, engine.error(error, committing=False))
        deadline = self._clock() + GROUP_MS_MAX / 1000
        ran = 0
        for ticket in tickets:
            dead = self._run_one(ticket)
            ran += 1
            if dead is not None:
                # The database ended the transaction, and undid the writes before with it.
                self._put_back(tickets[ran:])
                group = tickets[:ran]
                return self._fail([t for t in group if t.error is None], dead, group)
            if ran < len(tickets) and self._clock() > deadline:
                break
        return self._commit(tickets, ran)

    def _run_plainly(self, tickets: list[Ticket]) -> int:
        """Runs a group without savepoints, which cost a fifth of a write. A write that is refused
        before it has changed anything, such as a claim of a task that is taken, gets its error and
        the others go on. Returns 0 if one raised later: then everything is undone, to be run again
        with savepoints.
        """
        engine = self._engine
        try:
            engine.begin()
        except BaseException as error:
            return self._fail(tickets, engine.error(error, committing=False))
        deadline = self._clock() + GROUP_MS_MAX / 1000
        ran = 0
        try:
            while ran < len(tickets):
                ran += carry_out_next(engine, tickets, ran)
                # Each time: thirty writes of a megabyte would hold the lock for half a second.
                if self._clock() > deadline:
                    break
        except Exception:
            self._rollback()
            for ticket in tickets[:ran]:
                ticket.error = None
            return 0
        except BaseException:
            self._rollback()
            raise
        return self._commit(tickets, ran)

    def _commit(self, tickets: list[Ticket], ran: int) -> int:
        """Commits and answers the first `ran` writes; the others wait for the next group."""
        self._put_back(tickets[ran:])
        group = tickets[:ran]
        try:
            self._engine.commit()
        except BaseException as error:
            failed = [ticket for ticket in group if ticket.error is None]
            return self._fail(failed, self._commit_failed(error), group)
        if self._listeners:
            unstreamed = all(getattr(ticket.work, "in_no_stream", False) for ticket in group)
            if unstreamed:
                for ticket in group:
                    cast(Unstreamed, ticket.work).committed()
            self._notify_listeners(unstreamed=unstreamed)
        deliver(group)
        return ran

    def _notify_listeners(self, *, unstreamed: bool = False) -> None:
        self._untold = False
        for listener, of_unstreamed in self._listeners:
            try:
                (of_unstreamed if unstreamed else listener)()
            except Exception:
                # The writes are durable, so their callers must not get this error.
                log.exception("somebody could not be told of a commit")

    def _run_one(self, ticket: Ticket) -> BaseException | None:
        """Runs one write in its savepoint. Returns an error only if the whole transaction died."""
        engine = self._engine
        try:
            engine.savepoint()
            ticket.result = ticket.work(engine.transaction)
            engine.release()
        except BaseException as error:
            ticket.error = engine.error(error, committing=False)
            if not engine.alive():
                return ticket.error
            try:
                engine.undo()
            except BaseException as worse:
                self._rollback()
                return engine.error(worse, committing=False)
        return None

    def _undo_lone(self) -> None:
        """Undoes a lone write. A second try, because the first may have met a signal handler that
        raised, and not a disk that failed.
        """
        if self._engine.alive():
            try:
                self._engine.rollback()
            except Exception:
                self._rollback()

    def _rollback(self) -> None:
        """Undoes the transaction. An error here is logged: the caller raises the one before it."""
        engine = self._engine
        if not engine.alive():
            return
        try:
            engine.rollback()
        except Exception as error:
            known = engine.error(error, committing=False)
            log.warning("undoing a transaction: %s", known)
            if engine.alive():
                # This connection is of no use any more; the database on the disk is intact.
                message = f"a transaction could not be undone: {known}"
                self._failed = known if isinstance(known, HoldfastError) else StoreFailed(message)

    def _commit_failed(self, error: BaseException) -> BaseException:
        typed = self._engine.error(error, committing=True)
        try:
            self._rollback()
        finally:
            if isinstance(typed, Unknown):
                self._failed = typed
        return typed

    def _fail(
        self, tickets: list[Ticket], error: BaseException, group: list[Ticket] | None = None
    ) -> int:
        answered = tickets if group is None else group
        for ticket in tickets:
            ticket.error = error if len(answered) == 1 else copy(error)
        deliver(answered)
        return len(answered)


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - monotonic())
