"""One writer, group commit: who is run together, who is answered when, and what a failure costs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import apsw
import pytest

from holdfast.rules.errors import (
    BadKey,
    DiskFull,
    HoldfastError,
    OutcomeUnknown,
    StoreClosed,
    StoreFailed,
    TaskTaken,
)
from holdfast.rules.limits import GROUP_MS_MAX, GROUP_OPS_MAX
from holdfast.storage.group_commit import GroupWriter
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.ports import Transaction
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.tickets import Ticket
from support.envelopes import MESH
from support.stores import read, state_row, with_mesh

AnyStore = MemoryStore | SqliteStore
PATIENCE_S = 30
"""How long a test waits for what must happen: only a failure ever waits so long."""


class TapeEngine:
    """An engine that keeps a list and writes down what is done to it, and fails when told to."""

    def __init__(self) -> None:
        self.tape: list[str] = []
        self.kept: list[object] = []
        self.fail: dict[str, BaseException] = {}
        self.open = False
        self._added = 0
        self._marks: list[int] = []
        self.transaction = cast(Transaction, self)

    def add(self, item: object) -> object:
        self.kept.append(item)
        self._added += 1
        return item

    def _note(self, what: str) -> None:
        self.tape.append(what)
        if what in self.fail:
            raise self.fail.pop(what)

    def begin(self) -> None:
        self._note("begin")
        self.open, self._marks = True, [len(self.kept)]

    def savepoint(self) -> None:
        self._marks.append(len(self.kept))

    def release(self) -> None:
        self._marks.pop()

    def undo(self) -> None:
        self._note("undo")
        del self.kept[self._marks.pop() :]

    def commit(self) -> None:
        self._note("commit")
        self.open = False

    def pinned(self) -> bool:
        return False

    def disown(self) -> None: ...

    def rollback(self) -> None:
        self._note("rollback")
        self.die()

    def die(self) -> None:
        del self.kept[self._marks[0] :]
        self.open = False

    def changes(self) -> int:
        return self._added

    def alive(self) -> bool:
        return self.open

    def error(self, error: BaseException, *, committing: bool) -> BaseException:
        if isinstance(error, OSError):
            return OutcomeUnknown("lost") if committing else StoreFailed("broken")
        return error


class Again:
    """A write that may be undone and run again, as those of the library are."""

    repeatable = True

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work = work

    def __call__(self, tx: Any) -> Any:
        return self._work(tx)


class Deck:
    """A writer over a tape, with tickets to put into it."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.engine = TapeEngine()
        self.writer = GroupWriter(self.engine, **({} if clock is None else {"clock": clock}))
        self.answered: list[Ticket] = []

    def put(self, work: Callable[[Any], Any]) -> Ticket:
        ticket = Ticket(work, self._answer)
        self.writer.enqueue(ticket)
        return ticket

    def item(self, item: object, *, repeatable: bool = False) -> Ticket:
        def work(tx: Any) -> object:
            return tx.add(item)

        return self.put(Again(work) if repeatable else work)

    def failing(self, error: BaseException) -> Ticket:
        def work(tx: Any) -> None:
            tx.add("half of it")
            raise error

        return self.put(work)

    def _answer(self, tickets: list[Ticket]) -> None:
        self.engine.tape.append(f"answer {len(tickets)}")
        self.answered += tickets


# --- groups --------------------------------------------------------------------------------------


def test_S3_who_waits_together_is_committed_together_and_answered_after() -> None:
    deck = Deck()
    tickets = [deck.item(n) for n in range(5)]
    assert deck.writer.run_group() == 5
    assert deck.engine.tape == ["begin", "commit", "answer 5"]
    assert [ticket.value() for ticket in tickets] == [0, 1, 2, 3, 4]
    assert deck.engine.kept == [0, 1, 2, 3, 4], "in the order they came"
    assert deck.writer.run_group() == 0, "nothing waits: no transaction"
    assert deck.engine.tape == ["begin", "commit", "answer 5"]


def test_S3_a_group_has_a_greatest_size() -> None:
    deck = Deck()
    for n in range(GROUP_OPS_MAX + 3):
        deck.item(n)
    assert deck.writer.run_group() == GROUP_OPS_MAX
    assert deck.writer.run_group() == 3
    assert deck.engine.kept == list(range(GROUP_OPS_MAX + 3))


@pytest.mark.parametrize("repeatable", [True, False])
def test_S3_no_transaction_is_held_for_long(repeatable: bool) -> None:
    """Each write takes 20 ms by the clock in hand; a group closes when 50 have passed."""
    now = [0.0]
    deck = Deck(lambda: now[0])
    spans: list[float] = []

    def slow(n: int) -> Callable[[Any], Any]:
        def work(tx: Any) -> object:
            now[0] += 0.020
            return tx.add(n)

        return Again(work) if repeatable else work

    tickets = [deck.put(slow(n)) for n in range(8)]
    sizes = []
    while True:
        began = now[0]
        if not (size := deck.writer.run_group()):
            break
        sizes.append(size)
        spans.append(now[0] - began)
    assert sizes == [3, 3, 2]
    assert max(spans) <= (GROUP_MS_MAX + 20 + 1) / 1000
    assert deck.engine.kept == list(range(8)), "what was cut off goes on in its order"
    assert deck.answered == tickets


def test_S3_what_comes_while_a_group_is_cut_stays_behind_the_rest() -> None:
    now = [0.0]
    deck = Deck(lambda: now[0])

    def slow(tx: Any) -> None:
        now[0] += 1
        tx.add("slow")
        deck.item("late")

    deck.put(slow)
    deck.item("waiting")
    assert [deck.writer.run_group() for _ in range(2)] == [1, 2]
    assert deck.engine.kept == ["slow", "waiting", "late"]


def test_S3_a_lone_write_needs_no_thread_and_no_savepoint() -> None:
    deck = Deck()
    assert deck.writer.write(lambda tx: cast(Any, tx).add(1)) == 1
    assert deck.engine.tape == ["begin", "commit"]
    assert deck.writer._thread is None


# --- failures ------------------------------------------------------------------------------------


def test_S3_a_write_that_raises_undoes_itself_alone() -> None:
    deck = Deck()
    one, bad, two = deck.item(1), deck.failing(BadKey("no")), deck.item(2)
    deck.writer.run_group()
    assert deck.engine.kept == [1, 2]
    assert (one.value(), two.value()) == (1, 2)
    with pytest.raises(BadKey, match="no"):
        bad.value()


def test_S3_a_write_that_is_refused_before_it_changed_anything_costs_its_group_nothing() -> None:
    """Such as a claim of a task that is taken. The planted bug was the whole group run twice."""
    deck = Deck()
    runs: list[str] = []

    def put(name: str, *, refused: bool = False, changes: bool = True) -> Ticket:
        def work(tx: Any) -> object:
            runs.append(name)
            if changes:
                tx.add(name)
            if refused:
                raise TaskTaken("taken")
            return name

        return deck.put(Again(work))

    tickets = [put("a"), put("b", refused=True, changes=False), put("c")]
    assert deck.writer.run_group() == 3
    assert (runs, deck.engine.kept) == (["a", "b", "c"], ["a", "c"])
    assert [type(ticket.error) for ticket in tickets] == [type(None), TaskTaken, type(None)]
    assert "rollback" not in deck.engine.tape

    runs.clear()
    tickets = [put("d", refused=True, changes=False), put("e"), put("f", refused=True)]
    assert deck.writer.run_group() == 3
    assert runs == ["d", "e", "f", "d", "e", "f"], "what changed something is undone by itself"
    assert deck.engine.kept == ["a", "c", "e"]
    assert [type(ticket.error) for ticket in tickets] == [TaskTaken, type(None), TaskTaken]


def test_S3_repeatable_writes_share_a_transaction_and_one_that_raises_still_undoes_itself() -> None:
    deck = Deck()
    for n in range(3):
        deck.item(n, repeatable=True)
    assert deck.writer.run_group() == 3
    assert deck.engine.tape == ["begin", "commit", "answer 3"]
    deck.engine.tape.clear()

    def bad(tx: Any) -> None:
        tx.add("half of it")
        raise BadKey("no")

    one = deck.item(3, repeatable=True)
    failed = deck.put(Again(bad))
    two = deck.item(4, repeatable=True)
    assert deck.writer.run_group() == 3
    assert deck.engine.kept == [0, 1, 2, 3, 4]
    assert (one.value(), two.value()) == (3, 4)
    with pytest.raises(BadKey):
        failed.value()
    assert deck.engine.tape[-2:] == ["commit", "answer 3"]
    assert deck.answered[-3:] == [one, failed, two]


def test_S3_a_commit_that_fails_fails_repeatable_writes_too() -> None:
    deck = Deck()
    deck.engine.fail["commit"] = DiskFull("full")
    tickets = [deck.item(n, repeatable=True) for n in range(3)]
    assert deck.writer.run_group() == 3
    assert deck.engine.kept == []
    assert all(isinstance(ticket.error, DiskFull) for ticket in tickets)
    assert len({id(ticket.error) for ticket in tickets}) == 3


@pytest.mark.parametrize("error", [BadKey("no"), KeyboardInterrupt(), SystemExit(3)])
def test_S3_a_lone_write_that_raises_leaves_nothing(error: BaseException) -> None:
    deck = Deck()

    def work(tx: Any) -> None:
        tx.add(1)
        raise error

    with pytest.raises(type(error)):
        deck.writer.write(work)
    assert deck.engine.kept == []
    assert deck.writer.write(lambda tx: cast(Any, tx).add(2)) == 2


def test_S3_a_commit_that_fails_fails_every_caller_and_applies_nothing() -> None:
    deck = Deck()
    deck.engine.fail["commit"] = DiskFull("full")
    one, bad, two = deck.item(1), deck.failing(BadKey("no")), deck.item(2)
    assert deck.writer.run_group() == 3
    assert deck.engine.kept == []
    assert isinstance(one.error, DiskFull)
    assert isinstance(two.error, DiskFull)
    assert isinstance(bad.error, BadKey), "it had failed by itself before"
    assert one.error is not two.error, "each caller raises an error of its own"
    assert one.error.hint == DiskFull("full").hint
    assert deck.item(3)
    deck.writer.run_group()
    assert deck.engine.kept == [3], "a full disk is not the end"


def test_S3_a_disk_that_fails_in_the_commit_ends_all_writing() -> None:
    deck = Deck()
    deck.engine.fail["commit"] = OSError("gone")
    one, two = deck.item(1), deck.item(2)
    deck.writer.run_group()
    assert isinstance(one.error, OutcomeUnknown)
    assert isinstance(two.error, OutcomeUnknown)
    for attempt in (deck.writer.write, lambda work: deck.put(work)):
        with pytest.raises(StoreFailed, match="lost"):
            attempt(lambda tx: None)


def test_S3_a_lone_commit_that_fails_says_the_same() -> None:
    deck = Deck()
    deck.engine.fail["commit"] = DiskFull("full")
    with pytest.raises(DiskFull):
        deck.writer.write(lambda tx: cast(Any, tx).add(1))
    assert deck.engine.kept == []
    assert deck.writer.write(lambda tx: cast(Any, tx).add(2)) == 2
    deck.engine.fail["commit"] = OSError("gone")
    with pytest.raises(OutcomeUnknown):
        deck.writer.write(lambda tx: cast(Any, tx).add(3))
    with pytest.raises(StoreFailed):
        deck.writer.write(lambda tx: cast(Any, tx).add(4))


def test_S3_a_transaction_that_cannot_begin_costs_nothing_but_the_attempt() -> None:
    deck = Deck()
    deck.engine.fail["begin"] = OSError("busy")
    one, two = deck.item(1), deck.item(2)
    assert deck.writer.run_group() == 2
    assert isinstance(one.error, StoreFailed)
    assert isinstance(two.error, StoreFailed)
    deck.engine.fail["begin"] = OSError("busy")
    with pytest.raises(StoreFailed):
        deck.writer.write(lambda tx: None)
    assert deck.writer.write(lambda tx: cast(Any, tx).add(3)) == 3


def test_S3_when_the_database_drops_the_transaction_the_writes_before_fail_and_the_rest_go_on() -> (
    None
):
    deck = Deck()
    one, bad = deck.item(1), deck.failing(BadKey("own reason"))

    def killer(tx: Any) -> None:
        tx.add("doomed")
        tx.die()
        raise OSError("the disk")

    dead, two = deck.put(killer), deck.item(2)
    assert deck.writer.run_group() == 3
    assert deck.engine.kept == []
    assert isinstance(one.error, StoreFailed)
    assert isinstance(dead.error, StoreFailed)
    assert isinstance(bad.error, BadKey)
    assert one.error is not dead.error
    assert deck.writer.run_group() == 1
    assert (two.value(), deck.engine.kept) == (2, [2])


def test_S3_a_write_that_cannot_be_undone_takes_its_group_down() -> None:
    deck = Deck()
    one, bad, two = deck.item(1), deck.failing(BadKey("no")), deck.item(2)
    deck.engine.fail["undo"] = OSError("the disk")
    assert deck.writer.run_group() == 2
    assert deck.engine.kept == []
    assert isinstance(one.error, StoreFailed)
    assert isinstance(bad.error, BadKey)
    assert deck.writer.run_group() == 1
    assert (two.value(), deck.engine.kept) == (2, [2])


def test_S3_a_caller_that_cannot_be_told_does_not_take_the_others_along(
    caplog: pytest.LogCaptureFixture,
) -> None:
    deck = Deck()

    def broken(tickets: list[Ticket]) -> None:
        raise RuntimeError("the event loop is closed")

    deck.writer.submit([Ticket(lambda tx: cast(Any, tx).add(1), broken)])
    done = threading.Event()
    ticket = Ticket(lambda tx: cast(Any, tx).add(2), lambda tickets: done.set())
    deck.writer.submit([ticket])
    assert done.wait(PATIENCE_S), "the writer's thread died of its caller"
    assert ticket.value() == 2
    assert deck.writer.stop(PATIENCE_S)
    assert deck.engine.kept == [1, 2]
    assert "could not be told" in caplog.text


# --- the end -------------------------------------------------------------------------------------


def _adding(item: object) -> Callable[[Any], object]:
    return lambda tx: tx.add(item)


@contextmanager
def held(writer: GroupWriter, *, alone: bool) -> Iterator[threading.Event]:
    """A write that is running: in its caller's own thread, or in the writer's."""
    inside, go = threading.Event(), threading.Event()

    def work(tx: Transaction) -> None:
        inside.set()
        assert go.wait(PATIENCE_S)

    if alone:
        caller = threading.Thread(target=writer.write, args=(work,))
        caller.start()
    else:
        writer.submit([Ticket(work, lambda tickets: None)])
    assert inside.wait(PATIENCE_S)
    try:
        yield go
    finally:
        go.set()
        if alone:
            caller.join(PATIENCE_S)


def in_thread(act: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []

    def run() -> None:
        try:
            results.append(act())
        except HoldfastError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


@pytest.mark.parametrize("alone", [True, False])
def test_S3_stop_finishes_what_waits_and_takes_nothing_new(alone: bool) -> None:
    deck = Deck()
    answered = threading.Semaphore(0)
    with held(deck.writer, alone=alone) as go:
        tickets = [
            Ticket(_adding(n), lambda group: answered.release(len(group))) for n in range(20)
        ]
        deck.writer.submit(tickets)
        stopper, stopped = in_thread(lambda: deck.writer.stop(PATIENCE_S))
        while deck.writer.state == "open":
            stopper.join(0.001)
        assert deck.writer.state == "stopping"
        for attempt in (deck.writer.write, lambda work: deck.put(work)):
            with pytest.raises(StoreClosed, match="stopping"):
                attempt(lambda tx: None)
        go.set()
        stopper.join(PATIENCE_S)
    assert stopped == [True]
    assert deck.writer.state == "stopped"
    assert [ticket.value() for ticket in tickets] == list(range(20))
    assert deck.engine.kept == list(range(20))
    for _ in tickets:
        assert answered.acquire(timeout=PATIENCE_S)


def test_S3_stop_runs_what_waits_for_nobody_else() -> None:
    deck = Deck()
    deck.item(1)
    deck.item(2)
    assert deck.writer.stop()
    assert deck.engine.kept == [1, 2]
    assert deck.writer.stop(), "twice is once"


@pytest.mark.parametrize("alone", [True, False])
def test_S16_stop_gives_up_in_time_when_a_write_hangs(alone: bool) -> None:
    deck = Deck()
    with held(deck.writer, alone=alone):
        stopper, stopped = in_thread(lambda: deck.writer.stop(0.01))
        stopper.join(PATIENCE_S)
        assert stopped == [False], "stop waited for a write that does not end"
    assert deck.writer.stop(PATIENCE_S), "and can be asked again"


@pytest.mark.parametrize("alone", [True, False])
def test_S3_abort_refuses_what_waits_and_lets_the_running_write_end(alone: bool) -> None:
    deck = Deck()
    with held(deck.writer, alone=alone):
        ticket = Ticket(lambda tx: cast(Any, tx).add(1), deck._answer)
        deck.writer.submit([ticket])
        deck.writer.abort()
        assert deck.answered == [ticket], "refused at once"
        with pytest.raises(StoreClosed):
            ticket.value()
    assert deck.writer.stop(PATIENCE_S)
    assert deck.writer.state == "stopped"
    with pytest.raises(StoreClosed, match="stopped"):
        deck.writer.write(lambda tx: None)
    assert deck.engine.kept == []


def test_S3_abort_also_refuses_what_a_running_group_put_back() -> None:
    now = [0.0]
    deck = Deck(lambda: now[0])

    def slow(tx: Any) -> None:
        now[0] += 1
        tx.add("running")
        deck.writer.abort()

    first = deck.put(slow)
    rest = [deck.item(n) for n in range(3)]
    deck.writer.run_group()
    assert first.error is None
    assert deck.engine.kept == ["running"]
    assert deck.writer.run_group() == 0, "nothing may run after an abort"
    assert all(isinstance(ticket.error, StoreClosed) for ticket in rest)
    assert set(deck.answered) == {first, *rest}


# --- the real stores -----------------------------------------------------------------------------


def test_S3_a_closed_store_says_so(store: AnyStore) -> None:
    with_mesh(store)
    assert store.stop()
    assert store.stop()
    store.abort()
    with pytest.raises(StoreClosed):
        store.write(lambda tx: tx.tick(MESH))


def test_S3_a_closed_database_is_not_read(tmp_path: Any) -> None:
    store = SqliteStore(tmp_path / "data.db")
    with store.read() as reader:
        store.stop()
        assert reader.mesh_list() == [], "who reads already may finish"
    with pytest.raises(StoreClosed), store.read():
        pass


def test_S3_an_abort_waits_for_the_running_write_before_it_closes(store: AnyStore) -> None:
    with_mesh(store)
    inside, go = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> str:
        tx.state_put(state_row("a"))
        inside.set()
        assert go.wait(PATIENCE_S)
        tx.state_put(state_row("b"))
        return "written"

    writer, written = in_thread(lambda: store.write(slow))
    assert inside.wait(PATIENCE_S)
    aborter, aborted = in_thread(store.abort)
    while store.writer.state == "open":
        aborter.join(0.001)
    go.set()
    writer.join(PATIENCE_S)
    aborter.join(PATIENCE_S)
    assert written == ["written"]
    assert aborted == [None]


def test_S3_a_database_that_refuses_the_commit_applies_nothing(store: AnyStore) -> None:
    with_mesh(store)
    _refuse_next_commit(store)
    answered: list[Ticket] = []
    for key in ("a", "b"):

        def work(tx: Transaction, key: str = key) -> int:
            tx.state_put(state_row(key))
            return tx.tick(MESH)[0]

        store.writer.enqueue(Ticket(work, answered.extend))
    store.writer.run_group()
    assert [ticket.error is not None for ticket in answered] == [True, True]
    assert read(store, lambda tx: tx.state_scan(MESH, "", "", 9)) == []
    assert store.write(lambda tx: tx.tick(MESH)) == (1, 1, None, 0), "the clock did not move"
    _refuse_next_commit(store)
    with pytest.raises((apsw.Error, RuntimeError)):
        store.write(lambda tx: tx.tick(MESH))
    assert store.write(lambda tx: tx.tick(MESH)) == (2, 2, None, 0)


def _refuse_next_commit(store: AnyStore) -> None:
    if isinstance(store, SqliteStore):
        connection = store._con

        def refuse() -> bool:
            connection.set_commit_hook(None)
            return True

        connection.set_commit_hook(refuse)
        return
    engine = store._engine
    commit = engine.commit

    def fail() -> None:
        engine.commit = commit  # type: ignore[method-assign]
        raise RuntimeError("the commit was refused")

    engine.commit = fail  # type: ignore[method-assign]


def test_S3_threads_share_groups_and_each_keeps_its_order(store: AnyStore) -> None:
    with_mesh(store)
    start = threading.Barrier(8)
    failures: list[object] = []

    def run(name: str) -> None:
        start.wait()
        for n in range(25):
            if n % 5 == 4:
                try:
                    store.write(_raise_after_tick)
                except BadKey:
                    continue
                failures.append(name)
            else:
                store.write(lambda tx, key=f"{name}{n:02}": _next(tx, key))  # type: ignore[misc]

    workers = [threading.Thread(target=run, args=(name,)) for name in "abcdefgh"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    rows = read(store, lambda tx: tx.state_scan(MESH, "", "", 999))
    assert len(rows) == 8 * 20
    assert sorted(row.lamport for row in rows) == list(range(1, 161)), "failed writes left no gap"
    for name in "abcdefgh":
        stamps = [row.lamport for row in rows if row.key.startswith(name)]
        assert stamps == sorted(stamps)


def _next(tx: Transaction, key: str) -> None:
    lamport, _, _, _ = tx.tick(MESH)
    tx.state_put(state_row(key, lamport))


def _raise_after_tick(tx: Transaction) -> None:
    tx.tick(MESH)
    raise BadKey("no")


def test_S3_a_reader_never_waits_for_the_writer_and_sees_whole_groups(tmp_path: Any) -> None:
    store = SqliteStore(tmp_path / "data.db", sync="normal")
    with_mesh(store)
    inside, go = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> None:
        tx.state_put(state_row("a"))
        inside.set()
        assert go.wait(PATIENCE_S)
        tx.state_put(state_row("b"))

    writer, _ = in_thread(lambda: store.write(slow))
    assert inside.wait(PATIENCE_S)
    with store.read() as reader:
        assert reader.state_scan(MESH, "", "", 9) == []
        go.set()
        writer.join(PATIENCE_S)
        assert reader.state_scan(MESH, "", "", 9) == [], "one state for as long as it is held"
    assert len(read(store, lambda tx: tx.state_scan(MESH, "", "", 9))) == 2
    store.stop()


def test_S3_a_reader_cannot_write(tmp_path: Any) -> None:
    store = SqliteStore(tmp_path / "data.db", sync="normal")
    with_mesh(store)
    with store.read() as reader, pytest.raises(apsw.ReadOnlyError):
        cast(Any, reader)._con.execute("DELETE FROM mesh")
    store.stop()
