"""Opening and closing a home: real processes, real kills, clocks and files that jump."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec
import pytest

from holdfast.node.core.metrics import summarise
from holdfast.node.core.operations import state_set
from holdfast.node.home.opening import LogMark
from holdfast.node.library.node import open_node
from holdfast.rules import limits
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    BadPeerId,
    NoHome,
    NotOurs,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreFailed,
)
from holdfast.storage.files import presence
from holdfast.storage.files.home import HomePaths
from holdfast.storage.ports import Transaction
from holdfast.storage.sqlite.integrity import integrity, newest_integrity
from holdfast.storage.sqlite.snapshot_copy import open_immutable
from holdfast.storage.tickets import Ticket
from support.keeping import LARGE, MODEL, fill, garbage, make_home, overwrite, team

SCRIPT = """
import sys
from holdfast.node.library.node import open_node

node = open_node(sys.argv[1])
node.mesh("team").state.set("written", "by the other")
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Other:
    """A real process that has the home open and does what it is told."""

    def __init__(self, home: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self._answer("ready")

    def run(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        self._answer("done")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> None:
        self._process.communicate()

    def _answer(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == f"{word}\n"


@contextmanager
def other_process(home: Path) -> Iterator[Other]:
    other = Other(home)
    try:
        yield other
    finally:
        other.kill()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with make_home(tmp_path / "home") as node:
        fill(team(node))
    return tmp_path / "home"


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="holdfast")
    return caplog


# --- where and whose -----------------------------------------------------------------------------


def test_S1_a_home_is_made_on_demand_only(tmp_path: Path) -> None:
    with pytest.raises(NoHome):
        open_node(tmp_path / "home")
    with pytest.raises(BadPeerId):
        open_node(tmp_path / "home", create=True)
    assert not (tmp_path / "home").exists()
    with open_node(tmp_path / "home", peer="ana", create=True) as node:
        assert node.peer == "ana"
    with open_node(tmp_path / "home", create=True) as node:
        assert node.peer == "ana"


def test_S1_a_home_belongs_to_the_peer_it_was_made_for(home: Path) -> None:
    with pytest.raises(AlreadyExists, match="belongs to peer 'ana'"):
        open_node(home, peer="bob")
    with open_node(home, peer="ana") as node:
        assert node.peer == "ana"


def test_S1_every_file_of_an_open_home_is_for_our_eyes_only(home: Path) -> None:
    with open_node(home) as node:
        team(node).state.set("a", 1)
        for folder, _, files in os.walk(home):
            assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
            for file in files:
                assert stat.S_IMODE(os.stat(Path(folder) / file).st_mode) == 0o600, file


def test_S1_modes_that_drifted_are_mended_and_told(
    home: Path, told: pytest.LogCaptureFixture
) -> None:
    (home / "data.db").chmod(0o644)
    (home / "blobs").chmod(0o755)
    with open_node(home):
        assert stat.S_IMODE((home / "data.db").stat().st_mode) == 0o600
        assert stat.S_IMODE((home / "blobs").stat().st_mode) == 0o700
    assert [record.message.split()[0] for record in told.records] == [
        str(home / "blobs"),
        str(home / "data.db"),
    ]


def test_S1_a_database_of_another_program_is_left_alone(home: Path) -> None:
    (home / "data.db").unlink()
    other = apsw.Connection(str(home / "data.db"))
    other.execute("CREATE TABLE theirs (a)")
    other.close()
    before = (home / "data.db").read_bytes()
    with pytest.raises(NotOurs):
        open_node(home)
    tables = apsw.Connection(str(home / "data.db"))
    assert [row[0] for row in tables.execute("SELECT name FROM sqlite_schema")] == ["theirs"]
    tables.close()
    assert len((home / "data.db").read_bytes()) == len(before)


@pytest.mark.parametrize("sync", ["off", "fast", "FULLER"])
def test_S2_a_durability_that_is_not_known_is_refused(home: Path, sync: str) -> None:
    with pytest.raises(BadInput):
        open_node(home, sync=sync)
    with pytest.raises(BadInput):
        open_node(home, environ={"HOLDFAST_STORE_SYNC": sync})


# --- two processes -------------------------------------------------------------------------------


def test_S1_a_second_process_works_in_the_same_home(home: Path) -> None:
    with other_process(home) as other, open_node(home) as node:
        mesh = team(node)
        assert mesh.state.get("written") == "by the other"
        mesh.state.set("ours", 1)
        other.run("assert node.mesh('team').state.get('ours') == 1")
        other.run("node.mesh('team').state.set('ours', 2)")
        assert mesh.state.get("ours") == 2
        lamports = [entry.lamport for entry in node.log.range()]
        assert lamports == sorted(set(lamports)), "one clock for both"
        other.run("node.close()")


def test_S1_whoever_holds_the_write_lock_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BUSY_TIMEOUT_MS", 20)
    with other_process(home) as other, open_node(home) as node:
        other.run("node._opened.store._con.execute('BEGIN IMMEDIATE')")
        with pytest.raises(StoreBusy, match=f"process {other.pid}"):
            team(node).state.set("a", 1)
        # Reads never wait for a writer.
        assert team(node).state.get("written") == "by the other"
        other.run("node._opened.store._con.execute('ROLLBACK')")
        team(node).state.set("a", 1)
        other.run("node.close()")


# --- bad ends ------------------------------------------------------------------------------------


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which checks the openings of this test have made."""
    made: list[str] = []

    def full(path: Path, *, vfs: str | None = None) -> list[str]:
        made.append("all")
        return integrity(path, vfs=vfs)

    def newest(path: Path) -> list[str]:
        made.append("newest")
        return newest_integrity(path)

    monkeypatch.setattr("holdfast.storage.sqlite.integrity.integrity", full)
    monkeypatch.setattr("holdfast.storage.sqlite.integrity.newest_integrity", newest)
    return made


@pytest.fixture
def restart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    """The machine is started again: what was not on the disk is gone, for all that we can know."""

    def restart() -> None:
        (tmp_path / "boot").write_text("another start of this machine\n", encoding="utf-8")
        monkeypatch.setattr(presence, "_BOOT_ID", tmp_path / "boot")

    return restart


def test_S12_a_killed_process_is_noticed_and_what_it_wrote_last_is_checked(
    home: Path, told: pytest.LogCaptureFixture, checked: list[str]
) -> None:
    with other_process(home) as other:
        other.kill()
        with open_node(home) as node:
            assert team(node).state.get("written") == "by the other"
    assert checked == ["newest"]
    assert ["not closed cleanly" in record.message for record in told.records] == [True]
    told.clear()
    open_node(home).close()
    assert told.records == []
    assert len(checked) == 1


def test_S12_the_whole_database_is_checked_when_the_machine_went_down_too(
    home: Path, checked: list[str], restart: Callable[[], None]
) -> None:
    with other_process(home) as other:
        other.kill()
    restart()
    with open_node(home) as node:
        assert team(node).state.get("written") == "by the other"
    assert checked == ["all"]


def test_S12_the_whole_database_is_checked_unless_it_is_the_file_that_the_process_had(
    home: Path, tmp_path: Path, checked: list[str]
) -> None:
    with other_process(home) as other:
        shutil.copytree(home, tmp_path / "copy", ignore=shutil.ignore_patterns("*.sock"))
        other.kill()
    open_node(tmp_path / "copy").close()
    shutil.copy(home / "data.db", tmp_path / "same.db")
    (tmp_path / "same.db").replace(home / "data.db")
    open_node(home).close()
    assert checked == ["all", "all"]


@pytest.mark.parametrize("gone", ["log", "end of the log", "sign"])
def test_S12_the_whole_database_is_checked_when_the_log_or_the_sign_cannot_tell(
    home: Path, checked: list[str], gone: str
) -> None:
    paths = HomePaths(home)
    with other_process(home) as other:
        other.kill()
    match gone:
        case "log":
            paths.wal.unlink()
        case "end of the log":
            end = paths.wal.stat().st_size - 100
            with open(paths.wal, "r+b") as wal:
                wal.seek(end)
                byte = wal.read(1)[0]
                wal.seek(end)
                wal.write(bytes([byte ^ 1]))
        case "sign":
            next(paths.processes.iterdir()).write_bytes(b"")
    open_node(home).close()
    assert checked == ["all"]


def test_S12_after_an_error_of_the_disk_a_killed_process_is_not_relied_on(
    home: Path, told: pytest.LogCaptureFixture
) -> None:
    with open_immutable(home / "data.db") as reader:
        root = reader.connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'memory'"
        ).get
    overwrite(home / "data.db", root, garbage(1))
    with other_process(home) as other:
        other.kill()
    open_node(home).close()  # it wrote elsewhere, and has seen nothing
    with other_process(home) as other:
        read = "node.mesh('team').memory.get('thing-1')"
        other.run(
            f"import pytest, holdfast; pytest.raises(holdfast.errors.StoreCorrupt, lambda: {read})"
        )
        other.kill()
    with pytest.raises(StoreCorrupt):
        open_node(home)
    assert "checking its database" in told.records[-1].message


def test_S12_damage_to_what_a_killed_process_wrote_last_is_found(
    home: Path, told: pytest.LogCaptureFixture
) -> None:
    with other_process(home) as other:
        other.run("node._opened.store._con.wal_checkpoint(mode=3)")
        other.kill()
    data = (home / "data.db").read_bytes()
    at = data.rindex(b"by the other")
    with open(home / "data.db", "r+b") as file:
        for found in re.finditer(b"by the other", data):
            file.seek(found.start())
            file.write(b"By")
    assert at > 0
    with pytest.raises(StoreCorrupt, match="the entry at offset"):
        open_node(home)
    assert "what was written last" in told.records[-1].message


def test_S12_a_clean_end_asks_for_no_check(home: Path, told: pytest.LogCaptureFixture) -> None:
    with other_process(home) as other:
        other.run("node.close()")
        other.end()
        open_node(home).close()
    assert told.records == []


def test_S12_damage_found_after_a_bad_end_keeps_the_home_closed_until_it_is_repaired(
    home: Path, restart: Callable[[], None]
) -> None:
    with other_process(home) as other:
        other.kill()
    restart()
    size = (home / "data.db").stat().st_size
    overwrite(home / "data.db", size // 4096 // 2, garbage(1))
    for _ in range(2):
        with pytest.raises(StoreCorrupt) as caught:
            open_node(home)
        assert "--repair" in caught.value.hint


def test_S12_reads_go_on_where_they_can(home: Path) -> None:
    with open_immutable(home / "data.db") as reader:
        root = reader.connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'memory'"
        ).get
    overwrite(home / "data.db", root, garbage(1))
    with open_node(home) as node:
        mesh = team(node)
        with pytest.raises(StoreCorrupt):
            mesh.memory.get("thing-1")
        with pytest.raises(StoreCorrupt):
            mesh.memory.set("thing-1", 1)
        assert mesh.state.get("key-1")["n"] == 1
        assert mesh.files.read("large.bin") == LARGE
        assert mesh.vectors.search([0, 1, 2], model=MODEL)
        mesh.state.set("key-1", "still written")
        assert mesh.state.get("key-1") == "still written"


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.7, 0.99])
def test_S12_a_wal_that_was_cut_gives_what_is_whole_in_it(
    tmp_path: Path, told: pytest.LogCaptureFixture, keep: float
) -> None:
    paths = HomePaths(tmp_path / "home")
    make_home(paths.root).close()
    with other_process(paths.root) as other:
        for number in range(30):
            other.run(f"node.mesh('team').state.set('n', {number})")
        other.kill()
    size = paths.wal.stat().st_size
    os.truncate(paths.wal, int(size * keep))
    with open_node(paths.root) as node:
        entries = list(node.log.range())
        assert [entry.offset for entry in entries] == list(range(1, len(entries) + 1))
        # One entry is the script's own; what the log tells last is what the table says.
        assert team(node).state.get("n") == (len(entries) - 2 if len(entries) > 1 else None)


# --- going back in time --------------------------------------------------------------------------


def test_S13_a_database_that_has_gone_back_counts_on_in_a_new_epoch(
    home: Path, tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    shutil.copy(home / "data.db", tmp_path / "old.db")
    with open_node(home) as node:
        head = node.log.head()
        lost = team(node).state.set("lost", 1)
    shutil.copy(tmp_path / "old.db", home / "data.db")
    with open_node(home) as node:
        assert node.log.head() == head._replace(epoch=head.epoch + 1)
        again = team(node).state.set("new", 1)
        assert again.offset == lost.offset, "the same place, told apart by the epoch"
        assert again.lamport > lost.lamport
    assert any("gone back" in record.message for record in told.records)
    told.clear()
    with open_node(home) as node:
        assert node.log.head().epoch == head.epoch + 1
    assert told.records == []


def test_S13_the_mark_says_how_far_the_log_had_got(home: Path) -> None:
    with open_node(home) as node:
        team(node).state.set("a", 1)
        head = node.log.head()
    mark = msgspec.json.decode((home / "log.mark").read_bytes(), type=LogMark)
    assert (mark.epoch, mark.offset) == (head.epoch, head.offset)


def test_S13_a_mark_that_cannot_be_read_is_told_and_written_anew(
    home: Path, told: pytest.LogCaptureFixture
) -> None:
    (home / "log.mark").write_bytes(b"{")
    open_node(home).close()
    assert any("cannot be read" in record.message for record in told.records)
    assert msgspec.json.decode((home / "log.mark").read_bytes(), type=LogMark).epoch == 1


# --- closing -------------------------------------------------------------------------------------


def test_S16_closing_leaves_one_file_and_nobody_at_the_door(home: Path) -> None:
    paths = HomePaths(home)
    with open_node(home) as node:
        team(node).state.set("a", 1)
        assert paths.wal.stat().st_size > 0
    assert not paths.wal.exists()
    assert not paths.shm.exists()
    assert list(paths.processes.iterdir()) == []


def test_S16_closing_twice_is_closing_once_and_then_nothing_works(home: Path) -> None:
    node = open_node(home)
    node.close()
    node.close()
    with pytest.raises(StoreClosed):
        team(node)


def test_S16_what_waits_is_written_before_the_store_closes(home: Path) -> None:
    node = open_node(home)
    writer, busy = node._opened.store.writer, threading.Event()

    def slow(tx: Transaction) -> None:
        busy.set()
        while writer.state == "open":
            busy.wait(0.001)

    answered: list[Ticket] = []
    thread = threading.Thread(target=lambda: node._engine.write("slow", slow))
    thread.start()
    assert busy.wait(30)
    works = [state_set(node._engine.ctx, "team", f"waits-{n}", n) for n in range(5)]
    writer.submit([Ticket(work, answered.extend) for work in works])
    node.close()
    thread.join(30)
    assert [ticket.error for ticket in answered] == [None] * 5
    with open_node(home) as again:
        assert [team(again).state.get(f"waits-{number}") for number in range(5)] == list(range(5))


def test_S16_a_write_that_hangs_does_not_hold_the_shutdown_up(
    home: Path, told: pytest.LogCaptureFixture
) -> None:
    hang = (
        "import threading; from holdfast.rules import limits; limits.SHUTDOWN_MS_MAX = 50; "
        "limits.SHUTDOWN_SWEEP_MS_MAX = 10; busy = threading.Event(); go = threading.Event(); "
        "slow = lambda tx: (busy.set(), go.wait(30)); "
        "thread = threading.Thread(target=lambda: node._engine.write('slow', slow)); "
        "thread.start(); busy.wait(30); node.close(); go.set(); thread.join(30)"
    )
    with other_process(home) as other:
        other.run(hang)
        other.end()
    with open_node(home) as node:
        assert team(node).state.get("written") == "by the other"
    assert any("not closed cleanly" in record.message for record in told.records)


def test_S16_closing_on_a_failing_disk_does_not_fail_and_the_next_start_checks(
    home: Path, told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, data: bytes) -> None:
        raise StoreFailed(f"could not write {path}")

    node = open_node(home)
    team(node).state.set("a", 1)
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.node.home.opening.durable_replace", fail)
        node.close()
    assert any("could not write" in record.message for record in told.records)
    told.clear()
    with open_node(home) as again:
        assert team(again).state.get("a") == 1
    assert any("not closed cleanly" in record.message for record in told.records)


def test_S13_every_process_adds_a_line_to_the_local_metrics(home: Path) -> None:
    with open_node(home) as node:
        team(node).state.set("a", 1)
        with pytest.raises(NoHome):
            open_node(home / "nowhere")
    found = summarise(home / "logs" / "metrics.jsonl")
    assert found["launches"] == 2
    assert found["verbs"]["state.set"]["count"] >= 1
