"""Checkpoints beside the writer: the WAL stays bounded, and nothing is left half done."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.simulate.disk.disk import FaultyDisk
from holdfast.simulate.disk.faults import DiskCall, Kind
from holdfast.storage.broker.sqlite import SqliteBrokerStore, ThreadedBrokerStore
from holdfast.storage.ports import Transaction
from holdfast.storage.sqlite.connection import connect, shut
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.sqlite.wal.checkpoints import Checkpoints
from support.broker_stores import NOW, TEAM, accept, topic, with_team
from support.checkpoints import BEYOND, REST, ROUND, Rows, Stepped, numbers, small
from support.stores import state_row, with_mesh

PATIENCE_S = 30


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)


def stepped(path: Path) -> tuple[Stepped, Rows]:
    made = Stepped(path)
    return made, Rows(made, path)


def fill(rows: Rows, until: Callable[[], bool], number: int = 1) -> int:
    while not until():
        rows.add(number)
        number += 1
    return number


def close(made: Checkpoints, rows: Rows) -> None:
    assert made.stop(PATIENCE_S)
    shut(rows.connection)


def test_S2_under_constant_load_the_wal_begins_anew_and_stays_bounded(tmp_path: Path) -> None:
    made = Checkpoints(tmp_path / "data.db")
    rows = Rows(made, tmp_path / "data.db")
    anew = number = 0
    while anew < 5:
        before, number = made._pages, number + 1
        rows.add(number)
        anew += made._pages < before
    # A round that the thread ends between two commits has all, and the WAL begins anew before REST.
    assert ROUND <= rows.longest <= REST + ROUND + BEYOND + 5
    close(made, rows)
    assert numbers(tmp_path / "data.db") == set(range(1, number + 1))


def test_S2_a_writer_waits_for_a_round_that_lasts_too_long_and_then_goes_on(tmp_path: Path) -> None:
    made = Checkpoints(tmp_path / "data.db")
    rows = Rows(made, tmp_path / "data.db")
    waits, done = threading.Event(), threading.Event()

    def write() -> None:
        number = fill(rows, lambda: made._pages >= ROUND + BEYOND)
        waits.set()
        fill(rows, lambda: made._pages < ROUND, number)
        done.set()

    made._turn.acquire()  # as a round on a disk that hangs
    thread = threading.Thread(target=write)
    thread.start()
    assert waits.wait(PATIENCE_S)
    assert not done.wait(0.05)
    assert rows.longest <= ROUND + BEYOND + 5
    made._turn.release()
    assert done.wait(PATIENCE_S)
    thread.join()
    close(made, rows)


def test_S2_the_rest_is_made_between_transactions_once_for_several_rounds(tmp_path: Path) -> None:
    made, rows = stepped(tmp_path / "data.db")
    number = fill(rows, lambda: made.rung == 1)
    while made._pages >= ROUND:
        rows.begin(number)
        made.make_round()  # what this transaction writes is not in it
        rows.commit()
        number += 1
    assert 1 < made.rung <= REST // ROUND, "and the WAL has begun anew"
    assert rows.longest >= REST
    close(made, rows)
    assert numbers(tmp_path / "data.db") == set(range(1, number))


def test_S2_a_reader_lets_the_wal_grow_only_as_long_as_it_reads(tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    made, rows = stepped(path)
    rows.add(1)
    reader = connect(path, read_only=True)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM row").get == 1
    number = 2
    for _ in range(REST):
        rows.add(number)
        made.make_round()
        number += 1
    assert made._pages > REST + ROUND
    assert made.rung <= made._pages // ROUND, "it is not tried again with every commit"
    assert reader.execute("SELECT count(*) FROM row").get == 1
    reader.execute("COMMIT")
    shut(reader)

    def anew() -> bool:
        made.make_round()
        return made._pages < ROUND

    number = fill(rows, anew, number)
    close(made, rows)
    assert numbers(path) == set(range(1, number))


def test_S2_a_disk_that_fails_in_a_checkpoint_takes_nothing_back_and_is_told(
    tmp_path: Path,
) -> None:
    path, troubles = tmp_path / "data.db", [0]
    failing: list[Kind] = []

    def plan(call: DiskCall) -> Kind | None:
        return failing[0] if failing and call.op == "write" and call.file == "data.db" else None

    def trouble() -> None:
        troubles[0] += 1

    with FaultyDisk(plan) as disk:
        made = Stepped(path, vfs=disk.name, troubled=trouble)
        rows = Rows(made, path, vfs=disk.name)
        number = 1
        for kind, told in (("full", 0), ("ioerr", 2)):
            failing[:] = [kind]  # type: ignore[list-item]
            for _ in range(2 * REST):
                rows.add(number)
                made.make_round()
                number += 1
            assert (troubles[0] > 0) == (told > 0), kind
        failing.clear()

        def anew() -> bool:
            made.make_round()
            return made._pages < ROUND

        number = fill(rows, anew, number)
        close(made, rows)
    assert numbers(path) == set(range(1, number))


def test_S16_closing_waits_for_the_round_and_leaves_a_whole_database(tmp_path: Path) -> None:
    made = Checkpoints(tmp_path / "data.db")
    rows = Rows(made, tmp_path / "data.db")
    made._turn.acquire()
    fill(rows, lambda: made._pages >= ROUND + 5)
    assert not made.stop(0.01), "its round has not ended"
    made._turn.release()
    close(made, rows)
    assert made.stop(0), "twice is once"
    assert not (tmp_path / "data.db-wal").exists(), "no connection is left open"


def _put(number: int, tx: Transaction) -> None:
    tx.state_put(state_row(f"key {number}", number + 1, "ana"))


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "checkpoints" in thread.name]


def test_S2_a_store_checkpoints_beside_its_writer_and_ends_that_with_itself(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "data.db")
    with_mesh(store)
    for number in range(60):
        store.write(partial(_put, number))
    assert _threads()
    store.compact()
    assert store.stop(PATIENCE_S)
    assert not _threads()
    assert not (tmp_path / "data.db-wal").exists()


def test_S2_where_no_thread_can_be_begun_the_writer_makes_the_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    made = Checkpoints(path)
    rows = Rows(made, path)
    anew = number = 0
    threading.stack_size(2**47)  # no address space has room for it
    try:
        while anew < 3:
            before, number = made._pages, number + 1
            rows.add(number)
            anew += made._pages < before
            assert made._pages <= REST + ROUND + BEYOND + 5, "it stays bounded"
    finally:
        threading.stack_size(0)
    assert not _threads()
    close(made, rows)
    assert numbers(path) == set(range(1, number + 1))


def test_S2_a_store_on_a_simulated_disk_has_no_thread(tmp_path: Path) -> None:
    with FaultyDisk() as disk:
        store = SqliteStore(tmp_path / "data.db", vfs=disk.name)
        with_mesh(store)
        for number in range(60):
            store.write(partial(_put, number))
        assert not _threads()
        store.stop()


def test_D1_a_broker_checkpoints_beside_its_writer_and_ends_that_with_itself(
    tmp_path: Path,
) -> None:
    asyncio.run(_broker_checkpoints(tmp_path))


async def _broker_checkpoints(tmp_path: Path) -> None:
    inner = SqliteBrokerStore(tmp_path / "b")
    store = ThreadedBrokerStore(inner)
    await store.open(NOW)
    await with_team(store)
    for number in range(60):
        await accept(store, topic(number + 1))
    assert _threads()
    assert inner._checkpoints is not None
    assert inner._checkpoints._pages <= REST + ROUND + BEYOND + 20
    await store.close()
    assert not _threads()
    assert not (tmp_path / "b" / "broker.db-wal").exists()
    await store.open(NOW)
    mesh = await store.mesh_get(TEAM)
    assert mesh is not None
    assert mesh.seq == 60
    await store.close()


WRITES: str = """
import sys
from pathlib import Path
from holdfast.storage.sqlite.wal import checkpoints
from support.checkpoints import Rows
checkpoints.WAL_CHECKPOINT_PAGES, checkpoints.WAL_REST_PAGES = 10, 30
made = checkpoints.Checkpoints(Path(sys.argv[1]))
rows = Rows(made, Path(sys.argv[1]))
number = 0
while True:
    number += 1
    rows.add(number)
    print(number, flush=True)
"""

FORKS: str = """
import os, sys
from pathlib import Path
from holdfast.rules.errors import ProcessForked
from holdfast.storage.sqlite.wal import checkpoints
from support.checkpoints import Rows
checkpoints.WAL_CHECKPOINT_PAGES, checkpoints.WAL_REST_PAGES = 10, 30
path = Path(sys.argv[1])
made = checkpoints.Checkpoints(path)
rows = Rows(made, path)
for number in range(1, 400):
    rows.add(number)
    if number % 20 == 0:
        child = os.fork()
        if child == 0:
            try:
                made._writer.execute("SELECT 1")
            except ProcessForked:
                os._exit(0 if made.stop(0) else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
assert made.stop(20)
checkpoints.shut(rows.connection)
"""


def _program(text: str, path: Path, **settings: Any) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", text, str(path)]
    return subprocess.Popen(command, env=environ, text=True, **settings)


def test_S2_a_process_killed_between_or_in_rounds_has_lost_nothing(tmp_path: Path) -> None:
    for lines in (17, 40, 73):
        path = tmp_path / f"{lines}.db"
        with _program(WRITES, path, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            told = [int(process.stdout.readline()) for _ in range(lines)]
            process.send_signal(signal.SIGKILL)
            told += [int(line) for line in process.stdout]
        assert numbers(path) >= set(told)


def test_S2_a_fork_waits_for_the_round_and_the_child_has_none(tmp_path: Path) -> None:
    with _program(FORKS, tmp_path / "data.db") as process:
        assert process.wait(60) == 0
    assert numbers(tmp_path / "data.db") == set(range(1, 400))
