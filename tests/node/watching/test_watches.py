"""Watches wait: for commits of any process, until they are closed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

import holdfast
from holdfast.node.core.change import Receipt
from holdfast.node.library.aio import AsyncMesh, AsyncNode
from holdfast.node.library.node import open_node
from holdfast.node.watching.changes import LogChange, LogFollowing
from holdfast.node.watching.watches import AsyncChangeWatch
from holdfast.rules.errors import ProcessForked
from holdfast.storage.files.home import HomePaths, watchers_folder
from support.daemon import PATIENCE_S, ask, make_home, running
from support.nodes import team

NEVER_MS = 3_600_000
"""Nobody looks by himself: only what rings can wake."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with holdfast.open(tmp_path / "home", peer="ana", create=True, sync="normal") as node:
        node.create_mesh("team")
    return tmp_path / "home"


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.node.watching.watches.WATCH_MS", NEVER_MS)


def sockets(home: Path) -> list[str]:
    folder = watchers_folder(HomePaths(home))
    return os.listdir(folder) if folder.exists() else []


class Waiting:
    """A thread that iterates over a watch."""

    def __init__(self, watch: Any) -> None:
        self.got: Queue[Any] = Queue()
        self._watch = watch
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        for change in self._watch:
            self.got.put(change.key)
        self.got.put(None)

    def next(self) -> Any:
        return self.got.get(timeout=PATIENCE_S)


def write(home: Path, key: str) -> None:
    """By another process."""
    words = ["state", "set", key, "1", "--home", str(home)]
    subprocess.run([sys.executable, "-m", "holdfast", *words], check=True, capture_output=True)


# --- waking ------------------------------------------------------------------------------------


def test_Z2_a_watch_is_woken_by_a_write_of_its_own_process(home: Path, never: None) -> None:
    with holdfast.open(home, sync="normal") as node:
        waiting = Waiting(team(node).state.watch())
        for key in ("a", "b"):
            team(node).state.set(key, 1)
            assert waiting.next() == key


def test_Z2_a_watch_is_woken_by_a_write_of_another_process(home: Path, never: None) -> None:
    with holdfast.open(home, sync="normal") as node:
        waiting = Waiting(team(node).state.watch())
        write(home, "a")
        assert waiting.next() == "a"


def test_Z2_a_watch_is_woken_by_what_a_daemon_writes(tmp_path: Path, never: None) -> None:
    home = make_home(tmp_path / "home")
    with running(home) as up, open_node(home, sync="normal") as node:
        waiting = Waiting(team(node).state.watch())
        changes = [{"op": "state.set", "entity": "a", "value": 1}]
        answer = ask(up.unix, "POST", "/v1/meshes/team/batch", _json({"changes": changes}))
        assert answer.status == 201
        assert waiting.next() == "a"


def test_Z2_a_commit_between_the_look_and_the_wait_is_not_slept_through(
    home: Path, never: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LogFollowing.read
    written: list[Receipt] = []
    loop: asyncio.AbstractEventLoop | None = None

    def read(self: LogFollowing) -> bool:
        found = real(self)
        if not found and not written:
            written.append(team(node).state.set("a", 1))
            for _ in range(3 if loop else 0):  # it hears the ring before it hears of the read
                assert loop is not None
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01), loop).result()
        return found

    monkeypatch.setattr(LogFollowing, "read", read)
    with holdfast.open(home, sync="normal") as node:
        assert Waiting(team(node).state.watch()).next() == "a"
    written.clear()

    async def story(twin: AsyncNode, mesh: AsyncMesh) -> None:
        nonlocal node, loop
        node, loop = twin.sync, asyncio.get_running_loop()
        assert await asyncio.wait_for(_keys(mesh.state.watch(), 1), PATIENCE_S) == ["a"]

    _play(home, story)


def test_Z2_a_commit_whose_datagram_gets_lost_is_seen_by_a_look(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.node.watching.watches.WATCH_MS", 20)
    with holdfast.open(home, sync="normal") as node:
        waiting = Waiting(team(node).state.watch())
        with open_node(home, sync="normal", nudges=False) as other:
            team(other).state.set("a", 1)
        assert waiting.next() == "a"


def test_Z2_coroutines_are_woken_too_and_share_one_socket(home: Path, never: None) -> None:
    async def story(node: AsyncNode, mesh: AsyncMesh) -> None:
        tasks = [asyncio.create_task(_keys(mesh.state.watch(), 2)) for _ in range(5)]
        await _until(lambda: len(sockets(home)) == 1)
        await mesh.state.set("a", 1)
        await asyncio.to_thread(write, home, "b")
        assert await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S) == [["a", "b"]] * 5
        assert sockets(home) == []

    _play(home, story)


def test_Z2_a_home_whose_path_is_long_has_its_sockets_elsewhere(
    tmp_path: Path, never: None
) -> None:
    home = tmp_path / ("x" * 60) / ("y" * 60)
    with holdfast.open(home, peer="ana", create=True, sync="normal") as node:
        node.create_mesh("team")
        waiting = Waiting(team(node).state.watch())
        assert not (home / "watchers").exists()
        write(home, "a")
        assert waiting.next() == "a"


def test_Z2_without_a_socket_a_watch_looks_once_a_second_and_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.node.watching.watches.WATCH_MS", 20)
    said: list[str] = []
    warned = "holdfast.node.watching.watcher_sockets.log.warning"
    monkeypatch.setattr(warned, lambda text, *about: said.append(text))
    with open_node(home, nudges=False) as node:
        folder = watchers_folder(HomePaths(home), make=True)
        folder.write_text("not a folder")
        waiting = Waiting(team(node).state.watch())
        assert said == ["changes are seen within a second only: %s"]
        team(node).state.set("a", 1)
        assert waiting.next() == "a"
    folder.unlink()


# --- ending ------------------------------------------------------------------------------------


def test_U1_closing_ends_a_watch_that_waits_in_another_thread(home: Path, never: None) -> None:
    with holdfast.open(home, sync="normal") as node:
        watch = team(node).state.watch()
        waiting = Waiting(watch)
        assert len(sockets(home)) == 1
        watch.close()
        assert waiting.next() is None
        assert sockets(home) == []
        assert not watchers_folder(HomePaths(home)).exists()
        watch.close()


def test_U1_closing_the_node_ends_its_watches(home: Path, never: None) -> None:
    node = holdfast.open(home, sync="normal")
    waiting = [Waiting(team(node).state.watch()), Waiting(node.log.watch())]
    node.close()
    assert [one.next() for one in waiting] == [None, None]
    assert not watchers_folder(HomePaths(home)).exists()


def test_U1_a_watch_that_nobody_holds_any_more_leaves(home: Path) -> None:
    with holdfast.open(home, sync="normal") as node:
        watch = team(node).state.watch()
        assert len(sockets(home)) == 1
        del watch
        assert sockets(home) == []


def test_U1_cancelling_a_coroutine_ends_its_watch_at_once(home: Path, never: None) -> None:
    async def story(node: AsyncNode, mesh: AsyncMesh) -> None:
        task = asyncio.create_task(_keys(mesh.state.watch(), 1))
        await _until(lambda: len(sockets(home)) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await _until(lambda: sockets(home) == [])

    _play(home, story)


def test_U1_closing_an_async_node_ends_its_watches(home: Path, never: None) -> None:
    async def story(node: AsyncNode, mesh: AsyncMesh) -> None:
        task = asyncio.create_task(_keys(mesh.state.watch(), 1))
        await _until(lambda: len(sockets(home)) == 1)
        await node.close()
        assert await asyncio.wait_for(task, PATIENCE_S) == []

    _play(home, story)


def test_U1_a_cancelled_wait_loses_nothing(home: Path, never: None) -> None:
    """A program that gives each change some time goes on with the same watch, or its cursor."""

    async def story(node: AsyncNode, mesh: AsyncMesh) -> None:
        async with mesh.state.watch(since="start") as watch:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(watch), 0.05)
        await mesh.state.set("a", 1)
        async with mesh.state.watch(since=watch.cursor) as again:
            assert (await asyncio.wait_for(anext(again), PATIENCE_S)).key == "a"

    _play(home, story)


def test_S16_a_reader_that_was_killed_leaves_nothing_for_long(home: Path) -> None:
    code = (
        "import holdfast, sys\n"
        f"node = holdfast.open({str(home)!r})\n"
        "watch = node.mesh('team').state.watch()\n"
        "print('waits', flush=True)\n"
        "next(watch)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"waits\n"
        reader.kill()
    assert len(sockets(home)) == 1
    with holdfast.open(home, sync="normal") as node:
        team(node).state.set("k", 1)
    assert not watchers_folder(HomePaths(home)).exists()


@pytest.fixture
def python_interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, as in a program of its own: Spark, which other tests of this
    process start, has a handler that stays.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_S16_an_interrupt_loses_nothing(home: Path, python_interrupts: None) -> None:
    """A signal that comes just before the wait is noticed by the next look, a second later."""
    with holdfast.open(home, sync="normal") as node:
        watch = team(node).state.watch()
        main = threading.main_thread().ident
        timer = threading.Timer(0.2, signal.pthread_kill, [main, signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            next(watch)
        timer.join()
        team(node).state.set("a", 1)
        assert [change.key for change in islice(watch, 1)] == ["a"]
        watch.close()


def test_S1_a_forked_child_takes_nothing_from_its_parents_watch(home: Path) -> None:
    with holdfast.open(home, sync="normal") as node:
        watch = team(node).state.watch()
        pid = os.fork()
        if not pid:
            try:
                next(watch)
            except ProcessForked:
                watch.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert len(sockets(home)) == 1
        team(node).state.set("a", 1)
        assert next(watch).key == "a"
        watch.close()


# --- what the stories are made of --------------------------------------------------------------


def _json(value: Any) -> bytes:
    import msgspec

    return msgspec.json.encode(value)


def _play(home: Path, story: Callable[[AsyncNode, AsyncMesh], Any]) -> None:
    async def play() -> None:
        async with holdfast.aopen(home, sync="normal") as node:
            await story(node, await node.mesh("team"))

    asyncio.run(play())


async def _keys(watch: AsyncChangeWatch[LogChange], count: int) -> list[str]:
    found: list[str] = []
    async for change in watch:
        found.append(change.key)
        if len(found) == count:
            break
    await watch.close()
    return found


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)
