"""Forks, in every way that programs do it, while threads write: a child can neither destroy nor
lose anything, and does not hang.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.node.library.node import open_node
from holdfast.service.instance_lock import DaemonLock
from holdfast.storage.files import backup_lock
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite.integrity import integrity

pytestmark = pytest.mark.faults

PATIENCE_S = 100
PROGRAM = Path(__file__).parent / "forking_process.py"


def make_home(folder: Path) -> Path:
    with open_node(folder / "home", peer="ana", create=True, sync="normal") as node:
        node.create_mesh("team")
    return folder / "home"


def run(*args: object) -> list[str]:
    ran = subprocess.run(
        [sys.executable, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


def test_S1_no_way_of_forking_loses_an_answered_write_of_any_process(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    answered = run(PROGRAM, home, tmp_path / "others", 4)
    assert len(answered) > 200
    assert {key.partition("-")[0][:5] for key in answered} == {
        *("paren", "third", "spawn", "forks")
    }
    assert not integrity(home / "data.db")
    with open_node(home) as node:
        kept = {entry.key for entry in node.mesh("team").state.list()}
        offsets = [entry.offset for entry in node.log.range()]
    assert set(answered) <= kept
    assert offsets == list(range(1, len(offsets) + 1))
    for other in (tmp_path / "others").iterdir():
        with open_node(other) as node:
            assert node.mesh("team").state.get("k") == other.name


PREFORK = """
import os, sys, holdfast
home, children = sys.argv[1], 3
def serve(name):
    with holdfast.open(home, sync="normal") as node:
        for n in range(30):
            node.mesh("team").state.set(f"{name}-{n}", n)
pids = []
for name in range(children):
    pid = os.fork()
    if pid == 0:
        serve(name)
        sys.exit(0)
    pids.append(pid)
for pid in pids:
    assert os.waitpid(pid, 0)[1] == 0
serve("master")
"""


def test_S1_workers_that_are_forked_before_anybody_opens_the_home_share_it(tmp_path: Path) -> None:
    """As a server forks its workers, each of which opens the home for itself."""
    home = make_home(tmp_path)
    run("-c", PREFORK, home)
    with open_node(home) as node:
        assert len(list(node.mesh("team").state.list())) == 4 * 30


IN_THE_MIDDLE = """
import os, sys, holdfast
node = holdfast.open(sys.argv[1], sync="normal")
mesh = node.mesh("team")
def work(tx):
    tx.tick("team")
    pid = os.fork()
    if pid:
        assert os.waitpid(pid, 0)[1] == 0
    return pid
try:
    pid = node._opened.store.write(work)
except holdfast.errors.ProcessForked:
    sys.exit(0)
assert pid, "a child has committed"
mesh.state.set("k", 1)
print(mesh.state.entry("k").lamport)
"""


def test_S1_a_fork_in_the_middle_of_a_write_leaves_the_write_to_the_parent(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    assert run("-c", IN_THE_MIDDLE, home) == ["2"]


STUCK = """
import os, sys, threading, holdfast
node = holdfast.open(sys.argv[1], sync="normal")
inside, leave = threading.Event(), threading.Event()
def hang(tx):
    inside.set()
    leave.wait()
thread = threading.Thread(target=lambda: node._opened.store.write(hang))
thread.start()
inside.wait()
pid = os.fork()
if pid == 0:
    for home, create in ((sys.argv[1], False), (sys.argv[2], True)):
        try:
            holdfast.open(home, peer="ana", create=create)
        except holdfast.errors.ProcessForked as error:
            assert create is False or "in the middle" in error.message, error
            continue
        os._exit(7)
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
leave.set()
thread.join()
node.mesh("team").state.set("k", 1)
node.close()
"""


def test_S1_a_child_opens_no_database_at_all_if_a_thread_was_inside_one(tmp_path: Path) -> None:
    """A mutex of SQLite may have been held: the child would wait for it for ever."""
    run("-c", STUCK, make_home(tmp_path), tmp_path / "new")


def test_S1_a_child_keeps_no_lock_of_its_parent(tmp_path: Path) -> None:
    paths = HomePaths(make_home(tmp_path))
    ready, end = os.pipe(), os.pipe()
    lock = DaemonLock(paths)
    with backup_lock.holding(paths):
        pid = os.fork()
        if pid == 0:
            os.write(ready[1], b"x")
            os.read(end[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
    try:
        os.close(lock._fd)  # as the end of the parent would
        DaemonLock(paths).close()
        with backup_lock.free(paths) as nobody_copies:
            assert nobody_copies
    finally:
        os.write(end[1], b"x")
        assert os.waitpid(pid, 0)[1] == 0
        for fd in (*ready, *end):
            os.close(fd)


BROKER = """
import asyncio, os, sys
from pathlib import Path
from holdfast.rules.errors import ProcessForked
from holdfast.storage.broker.sqlite.store import SqliteBrokerStore
from holdfast.storage.broker.sqlite.threaded import ThreadedBrokerStore
def refused(call):
    try:
        call.send(None)
    except ProcessForked:
        return
    os._exit(5)
async def main(folder):
    store = ThreadedBrokerStore(SqliteBrokerStore(folder))
    await store.open(1)
    busy = [asyncio.ensure_future(store.ping()) for _ in range(500)]
    await asyncio.sleep(0)
    pid = os.fork()
    if pid == 0:
        # No loop runs in a child; the calls are refused before they need one.
        refused(store.ping())
        refused(store.mesh_list())
        refused(store.sweep(1, 1))
        refused(store.inner.ping())
        refused(SqliteBrokerStore(folder).open(2))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    await asyncio.gather(*busy)
    await store.close()
asyncio.run(main(Path(sys.argv[1])))
"""


def test_D1_a_forked_child_can_do_nothing_with_the_store_of_a_broker(tmp_path: Path) -> None:
    run("-c", BROKER, tmp_path / "broker")


BUS = """
import os, sys, holdfast
from holdfast.rules.errors import ProcessForked
node = holdfast.open(sys.argv[1], sync="normal")
node.bus.bind(listen="127.0.0.1:0", discovery="off")
pid = os.fork()
if pid == 0:
    try:
        node.bus.status()
    except ProcessForked:
        node.close()
        sys.exit(0)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
assert node.bus.status().pid == os.getpid()
node.close()
"""


def test_S1_B2_a_forked_child_is_refused_by_the_bus_of_its_parent_and_ends(tmp_path: Path) -> None:
    run("-c", BUS, make_home(tmp_path))
