"""An exception that a signal handler raises, at every bytecode of a call: the call is done or
undone, and everybody goes on, in this process and in others.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from holdfast.node.home.exclusive import exclusive
from holdfast.node.home.opening import Opened, open_home
from holdfast.node.library.node import Node, open_node
from holdfast.rules.errors import StoreBusy
from holdfast.storage.files.home import HomePaths
from holdfast.storage.ports import Transaction
from holdfast.storage.tickets import Ticket
from support.interrupts import (
    Interrupter,
    Other,
    PlaceInterrupter,
    bytecodes,
    interrupted_writes,
    kind_of,
    places,
)
from support.nodes import team
from support.seeds import seeds

pytestmark = pytest.mark.faults

PATIENCE_S = 20


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Node]:
    node = open_node(tmp_path / "home", peer="ana", create=True, sync="normal")
    node.create_mesh("team")
    yield node
    node.close()


def in_a_thread(do: Callable[[], object]) -> None:
    """Runs a call in another thread, which a lock that stayed taken would stop for ever."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            do()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "another thread waits for ever"
    if failed:
        raise failed[0]


def test_S3_a_write_interrupted_at_any_bytecode_is_done_or_undone_and_the_next_works(
    home: Node,
) -> None:
    mesh = team(home)
    for n in interrupted_writes(home):
        if n % 8:
            mesh.state.set("next", n)
        else:
            in_a_thread(lambda: mesh.state.set("next", n))  # noqa: B023
        assert mesh.state.get("next") == n


def test_S3_changes_that_are_carried_out_together_are_all_done_or_undone_wherever_interrupted(
    home: Node,
) -> None:
    """A batch carries out its changes in runs, in the thread of its caller."""
    mesh = team(home)

    def write(n: int) -> None:
        with mesh.batch() as batch:
            batch.state.set("a", n)
            batch.memory.set("b", n)
            batch.state.set("a", [n])
            batch.facts.append("c", "is", n)

    write(-1)  # the first write takes steps that no later one takes
    with closing(Other(home.home / "data.db")) as other:
        for n, place in enumerate(places(lambda: write(0)), 1):
            if n % 7:
                continue
            before = home.log.head().offset
            cut = PlaceInterrupter(place, kind_of(n))
            error = cut.run(lambda: write(n))  # noqa: B023
            other.can_write()
            done = home.log.head().offset - before
            assert done in (0, 4), cut.where
            assert (mesh.state.get("a") == [n]) == bool(done), cut.where
            assert error is not None or done, cut.where
            mesh.state.set("next", n)


def test_S3_a_read_interrupted_at_any_bytecode_leaves_nothing_open_and_the_next_sees_the_newest(
    home: Node,
) -> None:
    mesh = team(home)
    kept: list[object] = []  # as a debugger keeps the last traceback
    with closing(Other(home.home / "data.db")) as other:
        for n in (7, 8):
            mesh.state.set(f"k{n}", n)

        def look() -> int:
            assert mesh.state.get("k7") is not None
            return len(list(mesh.state.list("k")))

        for n in range(1, 1 + bytecodes(look), 3):
            mesh.state.set("k7", n)
            cut = Interrupter(n, kind_of(n))
            kept.append(cut.run(look))
            other.can_write()
            assert mesh.state.get("k7") == n, cut.where
            del kept[:-3]


def test_S3_a_write_that_waits_for_others_and_is_interrupted_happens_at_once_or_never(
    home: Node,
) -> None:
    """The queue is in use: the write goes to the writer's thread, and its caller waits."""
    mesh = team(home)
    writer = home._opened.store.writer

    def behind_another() -> None:
        writer._queue.append(Ticket(lambda tx: None, lambda tickets: None))
        mesh.state.set("k", n)

    n = 0
    for n in range(1, 1 + bytecodes(behind_another)):
        before = home.log.head().offset
        cut = Interrupter(n, kind_of(n))
        error = cut.run(behind_another)
        done = home.log.head().offset - before
        in_a_thread(lambda: mesh.state.set("next", n))  # noqa: B023
        assert home.log.head().offset - before == done + 1, f"{cut.where}: it happened later"
        assert error is not None or done, cut.where


def test_S3_a_signal_handler_that_calls_the_store_in_the_middle_of_a_write_is_refused(
    home: Node,
) -> None:
    """Waiting for its own thread would never end."""
    mesh = team(home)
    answers: list[object] = []

    def work(tx: Transaction) -> None:
        # What runs here is the handler: it comes between two bytecodes of the write.
        with pytest.raises(StoreBusy, match="in the middle of another call") as refused:
            mesh.state.set("k", 1)
        answers.append(refused.value.hint)

    home._opened.store.write(work)
    assert "signal handler" in str(answers[0])
    mesh.state.set("k", 2)


def test_S3_a_write_that_was_interrupted_again_while_it_settled_is_settled_by_the_next(
    home: Node,
) -> None:
    mesh = team(home)
    writer = home._opened.store.writer
    writer._turn.acquire()
    writer._begun = True
    writer._engine.begin()  # nobody in this thread is about to end it
    writer._engine.transaction.tick("team")
    mesh.state.set("k", 1)
    assert mesh.state.entry("k").lamport == 1  # type: ignore[union-attr]
    in_a_thread(lambda: mesh.state.set("k", 2))


def test_S12_an_opening_or_closing_that_is_interrupted_is_finished_by_the_next(
    tmp_path: Path,
) -> None:
    where = tmp_path / "home"
    with open_node(where, peer="ana", create=True, sync="normal") as node:
        mesh = node.create_mesh("team")
        mesh.state.set("k", 0)
    paths = HomePaths(where)

    opened: list[Opened] = []

    def open_and_close() -> None:
        opened.append(open_home(where, sync="normal"))
        opened[-1].close()

    total = bytecodes(open_and_close)
    for seed in seeds(25):
        n = Random(seed).randrange(1, total)
        cut = Interrupter(n, kind_of(n))
        error = cut.run(open_and_close)
        assert error is not None or cut.seen < n, cut.where  # clocks make the call shorter
        opened[-1].close()  # finishes what was begun
        with exclusive(paths, "look around"):
            pass  # nobody is registered any more
        with open_node(where, sync="normal") as again:
            again.mesh("team").state.set("k", n)
            assert again.mesh("team").state.get("k") == n
        with closing(Other(where / "data.db")) as other:
            other.can_write()


@pytest.mark.parametrize("seed", seeds(1))
def test_S3_real_signals_whose_handler_raises_lose_nothing_and_lock_nothing(
    home: Node, seed: int
) -> None:
    program = Path(__file__).parent / "signalled_process.py"
    ran = subprocess.run(
        [sys.executable, program, home.home, str(seed), "400"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 3,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 300, "hardly any signal came in the middle of a call"
    team(home).state.set("k", "another process goes on")
