"""The daemon: one for each home, awake when something is written, and ended in good order."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import queue
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.node.daemon.daemon import Daemon
from holdfast.node.library.node import open_node
from holdfast.node.settings import Settings, load, parse_size
from holdfast.node.watching.log_watch import LogWatch, WakeSocket
from holdfast.rules import limits
from holdfast.rules.errors import AlreadyExists, BadInput, NoHome, StoreClosed
from holdfast.service import instance_lock
from holdfast.service.address import ListenAddress, parse_address
from holdfast.service.instance_lock import LOCK, DaemonLock, DaemonNote, daemon_note
from holdfast.service.systemd import READY, Notifier
from holdfast.storage.files.home import HomePaths, socket_path, wake_path
from holdfast.storage.ports import Transaction
from holdfast.transport.unix_socket import notify_daemon
from support.daemon import (
    PATIENCE_S,
    Plain,
    UpInThread,
    ask,
    connect,
    make_home,
    process,
    running,
    start,
)

NEVER_MS = 3_600_000


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_home(tmp_path / "home")


def fetch(up: Any, consumer: str = "c", wait_ms: int = limits.LONG_POLL_MS_MAX) -> Plain:
    body = json.dumps({"consumer": consumer, "wait_ms": wait_ms}).encode()
    return ask(up.unix, "POST", "/v1/facts/fetch", body)


def register(up: Any, consumer: str = "c") -> None:
    body = json.dumps({"consumer": consumer, "from": "now"}).encode()
    assert ask(up.unix, "POST", "/v1/consumers", body).status in (200, 201)


def in_thread(work: Callable[[], Plain]) -> queue.Queue[Plain]:
    answers: queue.Queue[Plain] = queue.Queue()
    threading.Thread(target=lambda: answers.put(work()), daemon=True).start()
    return answers


def until(up: UpInThread, holds: Callable[[], bool]) -> None:
    """Waits, turn by turn of the daemon's loop, until something holds."""

    async def look() -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                await asyncio.sleep(0.001)

    asyncio.run_coroutine_threadsafe(look(), up.loop).result(PATIENCE_S)


def polls(up: UpInThread) -> int:
    return up.daemon.api.gate.now["poll"]


# --- waking --------------------------------------------------------------------------------------


def test_Z2_only_those_are_woken_who_wait_for_less() -> None:
    async def main() -> None:
        head = 5
        reads = 0

        def read_head() -> int:
            nonlocal reads
            reads += 1
            return head

        log_watch = LogWatch(read_head)
        assert await log_watch.wait(4, 0)
        assert not await log_watch.wait(5, 0)
        near = asyncio.create_task(log_watch.wait(5, PATIENCE_S))
        far = asyncio.create_task(log_watch.wait(7, PATIENCE_S))
        await asyncio.sleep(0)
        before = reads
        head = 7
        for _ in range(100):
            log_watch.ring()
        assert await near
        assert not far.done()
        assert reads == before + 1, "a hundred commits in one turn of the loop are one look"
        assert not await log_watch.wait(7, 0.01), "time is up"
        log_watch.close()
        assert not await far
        assert not await log_watch.wait(7, PATIENCE_S), "nobody waits at a node that closes"

    asyncio.run(main())


def test_Z2_a_commit_while_the_end_is_being_read_is_not_missed() -> None:
    async def main() -> None:
        head = 1

        def read_head() -> int:
            nonlocal head
            seen = head
            if head == 2:
                head = 3  # committed just after it was read, by another thread
                log_watch.ring()
            return seen

        log_watch = LogWatch(read_head)
        head = 2
        log_watch.ring()
        assert await log_watch.wait(2, PATIENCE_S)

    asyncio.run(main())


def test_Z2_every_commit_wakes_however_they_fall() -> None:
    async def main() -> None:
        head = 1
        log_watch = LogWatch(lambda: head)
        go = threading.Semaphore(0)

        def writer() -> None:
            nonlocal head
            for _ in range(500):
                go.acquire()
                head += 1
                log_watch.ring()

        thread = threading.Thread(target=writer)
        thread.start()
        for seen in range(1, 501):
            go.release()
            assert await log_watch.wait(seen, PATIENCE_S)
        thread.join()

    asyncio.run(main())


def test_Z2_a_store_that_cannot_be_read_wakes_nobody_and_harms_nothing() -> None:
    async def main() -> None:
        closed = False

        def read_head() -> int:
            if closed:
                raise StoreClosed("closed")
            return 1

        log_watch = LogWatch(read_head)
        closed = True
        log_watch.look()
        assert log_watch.head == 1

    asyncio.run(main())


def test_Z2_news_are_kept_for_a_moment_and_bounded() -> None:
    async def main() -> None:
        log_watch = LogWatch(lambda: 1)
        waiting = asyncio.create_task(log_watch.wait(1, PATIENCE_S, after=0))
        deaf = asyncio.create_task(log_watch.wait(1, PATIENCE_S))
        await asyncio.sleep(0)
        for number in range(limits.NEWS_KEPT_MAX + 10):
            log_watch.post("link", {"number": number})
        assert await waiting
        assert not deaf.done()
        deaf.cancel()
        kept = log_watch.news(0)
        assert len(kept) == limits.NEWS_KEPT_MAX
        assert [news.number for news in log_watch.news(log_watch.last_notice - 2)] == [
            log_watch.last_notice - 1,
            log_watch.last_notice,
        ]

    asyncio.run(main())


def test_Z2_a_ring_after_the_loops_end_is_harmless() -> None:
    async def main() -> LogWatch:
        return LogWatch(lambda: 1)

    log_watch = asyncio.run(main())
    log_watch.ring()
    log_watch.post("link", {})


def test_Z2_a_nudge_wakes_and_many_nudges_do_not_pile_up(tmp_path: Path) -> None:
    async def main() -> None:
        head = 1
        log_watch = LogWatch(lambda: head)
        wake = WakeSocket(tmp_path / "wake.sock", log_watch)
        assert stat.S_IMODE((tmp_path / "wake.sock").stat().st_mode) == 0o600
        waiting = asyncio.create_task(log_watch.wait(1, PATIENCE_S))
        await asyncio.sleep(0)
        head = 2
        for _ in range(5000):
            notify_daemon(
                tmp_path / "wake.sock"
            )  # more than its buffer holds: none of them may wait
        assert await waiting
        wake.close()
        assert not (tmp_path / "wake.sock").exists()
        notify_daemon(tmp_path / "wake.sock")

    asyncio.run(main())


def test_Z2_a_long_poll_is_answered_by_a_write_in_the_daemon(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.node.watching.log_watch.WATCH_MS", NEVER_MS)
    with running(home) as up:
        register(up)
        answer = in_thread(lambda: fetch(up))
        until(up, lambda: polls(up) == 1)
        up.daemon.api.node.mesh("team").facts.append("pump:7", "pressure", 4.2)
        assert len(answer.get(timeout=PATIENCE_S).json["entries"]) == 1


def test_Z2_a_long_poll_is_answered_by_a_write_of_another_process(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody looks by himself in this test: only the nudge can wake.
    monkeypatch.setattr("holdfast.node.watching.log_watch.WATCH_MS", NEVER_MS)
    with running(home) as up:
        register(up)
        answer = in_thread(lambda: fetch(up))
        until(up, lambda: polls(up) == 1)
        words = ["fact", "append", "pump:7", "pressure", "4.2", "--home", str(home)]
        subprocess.run([sys.executable, "-m", "holdfast", *words], check=True, capture_output=True)
        assert len(answer.get(timeout=PATIENCE_S).json["entries"]) == 1


def test_Z2_a_nudge_that_gets_lost_is_made_up_for(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.node.watching.log_watch.WATCH_MS", 20)
    with running(home) as up:
        register(up)
        answer = in_thread(lambda: fetch(up))
        until(up, lambda: polls(up) == 1)
        with open_node(home, sync="normal", nudges=False) as other:
            other.mesh("team").facts.append("pump:7", "pressure", 4.2)
        assert len(answer.get(timeout=PATIENCE_S).json["entries"]) == 1


def test_Z2_a_confirmation_wakes_nobody(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.node.watching.log_watch.WATCH_MS", NEVER_MS)
    with running(home) as up:
        register(up, "c")
        register(up, "d")
        node = up.daemon.api.node
        answer = in_thread(lambda: fetch(up))
        until(up, lambda: polls(up) == 1)
        for _ in range(20):
            node.log.confirm("d", offset=0)
        up.run(lambda: None)
        assert polls(up) == 1
        node.mesh("team").state.set("k", 1)
        assert answer.get(timeout=PATIENCE_S).status == 200


def test_Z2_a_write_without_a_daemon_needs_none(home: Path) -> None:
    wake = wake_path(HomePaths(home))
    with holdfast.open(home, sync="normal") as node:
        node.mesh("team").state.set("k", 1)
        # What a dead daemon leaves: a name that nobody answers to.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
            dead.bind(str(wake))
        node.mesh("team").state.set("k", 2)
        wake.unlink()
        wake.write_text("no socket at all")
        node.mesh("team").state.set("k", 3)
    wake.unlink()


# --- one for each home ---------------------------------------------------------------------------


def test_S16_a_second_daemon_is_refused_and_told_which_process_has_it(home: Path) -> None:
    with process(home) as up:
        other = start(home)
        out, err = other.communicate(timeout=PATIENCE_S)
        assert other.returncode == 5
        assert out == b""
        said = json.loads(err)["error"]
        assert said["code"] == "already_exists"
        assert f"process {up.pid}" in said["message"]
        assert "holdfast down" in said["hint"]
        assert ask(up.unix, "GET", "/healthz").status == 200
        note = daemon_note(HomePaths(home))
        assert note is not None
        assert (note.pid, note.addresses) == (up.pid, up.addresses)
    assert daemon_note(HomePaths(home)) is None


def test_S16_after_a_kill_the_next_one_takes_over_what_was_left(home: Path) -> None:
    with process(home) as up:
        ask(up.unix, "GET", "/v1/log")
        up.kill()
    assert socket_path(HomePaths(home)).exists()
    assert daemon_note(HomePaths(home)) is None
    with process(home) as up:
        assert ask(up.unix, "GET", "/readyz").status == 200
        assert up.stop() == 0
    assert not socket_path(HomePaths(home)).exists()


def test_S16_who_only_looks_does_not_keep_a_daemon_from_starting(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = HomePaths(home)
    DaemonLock(paths).close()
    looker = os.open(home / LOCK, os.O_RDONLY)
    fcntl.flock(looker, fcntl.LOCK_SH)
    tried: list[int] = []

    def locks(fd: int, kind: int, locks: Callable[[int, int], bool] = instance_lock._locks) -> bool:
        taken = locks(fd, kind)
        tried.append(kind)
        if len(tried) == 2:
            os.close(looker)  # it has seen enough
        return taken

    with monkeypatch.context() as patched:
        patched.setattr(instance_lock, "_locks", locks)
        DaemonLock(paths).close()
    assert tried == [fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_EX]
    held = DaemonLock(paths)
    with pytest.raises(AlreadyExists, match=f"process {os.getpid()}"):
        DaemonLock(paths)
    held.close()
    assert (home / LOCK).stat().st_size == 0


def test_S16_a_daemon_that_cannot_listen_leaves_the_home_closed_and_free(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AlreadyExists), running(home, Settings(tcp=f"127.0.0.1:{port}")):
            raise AssertionError("it must not start")
    assert list((home / "processes").iterdir()) == []
    assert daemon_note(HomePaths(home)) is None
    with pytest.raises(NoHome), running(home / "none"):
        raise AssertionError("there is no home to serve")


# --- ending --------------------------------------------------------------------------------------


def test_S16_waiting_calls_and_streams_are_answered_at_the_end(home: Path) -> None:
    with running(home) as up:
        register(up)
        answer = in_thread(lambda: fetch(up))
        stream = connect(up.unix)
        stream.request("GET", "/v1/events")
        events = stream.getresponse()
        assert events.readline() == b"retry: 1000\n"
        until(up, lambda: polls(up) == 1)
        up.stop()
        found = answer.get(timeout=PATIENCE_S)
        assert (found.status, found.json["entries"]) == (200, [])
        events.read()  # raises if the stream did not come to a proper end
        stream.close()
    assert list((home / "processes").iterdir()) == []
    wal = home / "data.db-wal"
    assert not wal.exists() or not wal.stat().st_size
    assert not socket_path(HomePaths(home)).exists()
    assert not wake_path(HomePaths(home)).exists()


def test_S16_what_was_answered_is_there_after_the_end(home: Path) -> None:
    with process(home) as up:
        body = json.dumps({"mesh": "team", "subject": "s", "predicate": "p", "object": 1}).encode()
        receipts = [ask(up.unix, "POST", "/v1/facts/append", body) for _ in range(20)]
        assert up.stop() == 0
    assert {receipt.status for receipt in receipts} == {201}
    with holdfast.open(home) as node:
        assert node.log.head().offset == 20


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_S16_a_signal_ends_it_with_its_exit_code(
    home: Path, number: signal.Signals, code: int
) -> None:
    with start(home) as started:
        assert started.stdout is not None
        assert json.loads(started.stdout.readline())["event"] == "ready"
        started.send_signal(number)
        events = [json.loads(line)["event"] for line in started.stdout]
        assert started.wait(PATIENCE_S) == code
        assert events == ["stopping", "stopped"]


def stuck_upload(address: str) -> socket.socket:
    """A request whose body does not come: it keeps a stopping daemon waiting."""
    client = socket.socket(socket.AF_UNIX)
    client.connect(address.removeprefix("unix:"))
    client.sendall(
        b"PUT /v1/objects HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n"
        b"expect: 100-continue\r\n\r\n"
    )
    # It is inside the handler once it asks for the body.
    assert client.recv(100).startswith(b"HTTP/1.1 100 ")
    return client


def test_S16_a_call_that_does_not_end_is_given_up(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SHUTDOWN_DRAIN_MS_MAX", 1000)
    with running(home) as up, stuck_upload(up.unix) as client:
        up.stop()
        assert not up.overtime.is_set()
        client.settimeout(PATIENCE_S)
        try:
            left = client.recv(1000)
        except ConnectionResetError:
            left = b""
        assert b" 200 " not in left
        assert b" 201 " not in left
    assert list((home / "processes").iterdir()) == []


def test_S16_a_second_signal_ends_it_at_once(home: Path) -> None:
    with start(home) as started:
        assert started.stdout is not None
        ready = json.loads(started.stdout.readline())
        with stuck_upload(ready["listening"][0]):
            started.send_signal(signal.SIGTERM)
            assert json.loads(started.stdout.readline())["event"] == "stopping"
            started.send_signal(signal.SIGTERM)
            assert started.stdout.readline() == b"", "it did not end in good order"
            assert started.wait(PATIENCE_S) == 1
    with holdfast.open(home) as node:
        node.mesh("team").state.set("k", 1)


def test_S16_ending_that_takes_too_long_is_cut_short(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SHUTDOWN_MS_MAX", 200)
    monkeypatch.setattr(limits, "SHUTDOWN_SWEEP_MS_MAX", 50)
    inside, go = threading.Event(), threading.Event()

    def hang(tx: Transaction) -> None:
        inside.set()
        assert go.wait(PATIENCE_S)

    with running(home) as up:
        store = up.daemon.api.engine.store
        hanging = threading.Thread(target=store.write, args=(hang,))
        hanging.start()
        assert inside.wait(PATIENCE_S)
        up.ask_to_stop()
        assert up.overtime.wait(PATIENCE_S), "as a process it would have ended here"
        go.set()
        hanging.join(PATIENCE_S)
        up.join()


# --- the service manager -------------------------------------------------------------------------


@pytest.mark.parametrize("abstract", [False, True])
def test_U7_the_service_manager_hears_of_every_step(
    home: Path, tmp_path: Path, abstract: bool
) -> None:
    name = f"@holdfast-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    address = f"\0{name[1:]}" if abstract else name
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(PATIENCE_S)
        env = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "40000"}
        with process(home, env=env) as up:
            heard = [manager.recv(4096).decode()]
            while not heard[-1].startswith("READY=1"):
                heard.append(manager.recv(4096).decode())
            assert f"STATUS=serving {up.unix}" in heard[-1]
            while heard.count("WATCHDOG=1") < 3:
                heard.append(manager.recv(4096).decode())
            up.stop()
            while heard[-1] != "STOPPING=1":
                heard.append(manager.recv(4096).decode())


def test_U7_without_a_service_manager_nothing_is_sent() -> None:
    assert Notifier({}).watchdog_s is None
    Notifier({}).tell(READY)
    Notifier({"NOTIFY_SOCKET": "/no/such/socket"}).tell(READY)
    Notifier({"NOTIFY_SOCKET": "relative"}).tell(READY)
    assert Notifier({"WATCHDOG_USEC": "2000000"}).watchdog_s == 1.0
    assert Notifier({"WATCHDOG_USEC": "0"}).watchdog_s is None
    assert Notifier({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}).watchdog_s is None


def test_U4_of_a_link_out_of_reach_is_told_once(home: Path) -> None:
    async def main() -> None:
        told: list[tuple[str, Any]] = []
        daemon = Daemon(
            home, Settings(), on_event=lambda kind, document: told.append((kind, document["state"]))
        )
        log_watch = LogWatch(lambda: 1)
        for talkative in (False, True):
            daemon._talkative = talkative
            for state in ("connecting", "live", *["waiting", "connecting"] * 5, "live"):
                daemon._news(log_watch, "link", {"name": "l", "state": state})
        assert told == [("link", "live"), ("link", "waiting"), ("link", "live")]
        await asyncio.sleep(0)
        assert len(log_watch.news(0)) == 26, "those who listen hear of every step"

    asyncio.run(main())


# --- settings ------------------------------------------------------------------------------------


def test_U7_settings_come_from_flags_then_the_file_then_what_is_usual(tmp_path: Path) -> None:
    assert load({}, {"tcp": None}) == Settings()
    file = tmp_path / "holdfast.toml"
    file.write_text('listen = "0.0.0.0:7411"\ntcp = "127.0.0.1:1"\ndisk_limit = "20 GiB"\n')
    found = load({"HOLDFAST_CONFIG": str(file)}, {"tcp": "[::1]:2", "socket": False})
    assert found == Settings(
        socket=False, tcp="[::1]:2", listen="0.0.0.0:7411", disk_limit="20 GiB"
    )
    assert found.tcp_address == ListenAddress("::1", 2)
    assert found.disk_limit_bytes == 20 * 1024**3


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('listen = "x"', "listen"),
        ("socket = 1", "bool"),
        ("= 1", "holdfast.toml"),
        ('tcp = "0.0.0.0:80"', "other machines"),
        ('listen = "nowhere"', "nowhere"),
        ("socket = false", "nowhere"),
        ('tls_cert = "x"', "go together"),
        ('disk_limit = "much"', "no size"),
        ("disk_limit = 0", "no size"),
        ("\xff", "holdfast.toml"),
    ],
)
def test_U7_a_file_that_is_not_understood_is_refused_in_words(
    tmp_path: Path, text: str, named: str
) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInput, match=named) as caught:
        load({"HOLDFAST_CONFIG": str(file)}, {})
    assert caught.value.hint
    with pytest.raises(BadInput, match="cannot be read"):
        load({"HOLDFAST_CONFIG": str(tmp_path / "none")}, {})


@pytest.mark.parametrize(
    "text", ["", ":80", "host", "host:", "host:x", "host:65536", "a/b:1", "h:-1"]
)
def test_U7_a_place_is_a_host_and_a_port(text: str) -> None:
    with pytest.raises(BadInput):
        parse_address(text)


@pytest.mark.parametrize("host", ["192.0.2.1", "0.0.0.0", "[::]", "example.org", "127.0.0.1.evil"])
def test_D10_plain_tcp_stays_on_this_machine(host: str) -> None:
    with pytest.raises(BadInput, match="other machines") as caught:
        Settings(tcp=f"{host}:80").check()
    assert "--listen" in caught.value.hint
    for ours in ("127.0.0.1:0", "127.8.8.8:80", "[::1]:80", "localhost:80"):
        Settings(tcp=ours).check()


def test_U7_sizes_are_written_as_people_write_them() -> None:
    assert parse_size("1") == 1
    assert parse_size(500) == 500
    assert parse_size("500M") == 500 * 1000**2
    assert parse_size("20GiB") == parse_size("20 gib") == 20 * 1024**3
    for text in ("", "M", "1.5G", "-1", "0", "1X", "1iB", "9" * 30):
        with pytest.raises(BadInput):
            parse_size(text)


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="this system does not tell")
def test_S16_a_daemon_that_had_no_room_for_its_note_is_found(tmp_path: Path) -> None:
    """Else `down` could not end it."""
    paths = HomePaths(make_home(tmp_path / "home"))
    lock = DaemonLock(paths)
    try:
        os.truncate(paths.root / LOCK, 0)
        assert daemon_note(paths) == DaemonNote(os.getpid())
    finally:
        lock.close()
    assert daemon_note(paths) is None
