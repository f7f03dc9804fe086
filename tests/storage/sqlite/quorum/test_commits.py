"""What shares a sync, what a hung or failed disk does to callers, and that nothing waits for the
home's own database.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.rules.errors import (
    DiskFull,
    OutcomeUnknown,
    StoreBusy,
    StoreFailed,
    UnknownGroup,
)
from holdfast.rules.quorum.log_rows import SaveAnswer
from holdfast.simulate.disk.disk import FaultyDisk
from holdfast.simulate.disk.faults import DiskCall, Kind
from holdfast.storage.sqlite.quorum import engine, quorum_log
from holdfast.storage.sqlite.quorum.engine import QuorumStep
from holdfast.storage.sqlite.quorum.writes import QuorumWrites
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.tickets import Ticket
from support.quorum_logs import TAG, entry, filled, opened, write
from support.small_disk import fill, mounted


class Disk:
    """A disk on which one kind of call can be held up, or fails."""

    def __init__(self) -> None:
        self.op, self.file = "", ""
        self.kind: Kind | None = None
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.holds = False

    def __call__(self, call: DiskCall) -> Kind | None:
        if call.op != self.op or call.file != self.file:
            return None
        if self.holds:
            self.holds = False
            self.reached.set()
            assert self.go_on.wait(30)
        return self.kind

    def hold(self, op: str, file: str) -> None:
        self.op, self.file, self.holds = op, file, True

    def fail(self, op: str, file: str, kind: Kind = "ioerr") -> None:
        self.op, self.file, self.kind = op, file, kind


@pytest.fixture
def plan() -> Disk:
    return Disk()


@pytest.fixture
def disk(plan: Disk) -> Iterator[FaultyDisk]:
    with FaultyDisk(plan) as disk:
        yield disk


class Answers:
    """Collects what came of submitted writes."""

    def __init__(self, expected: int) -> None:
        self.got: list[SaveAnswer] = []
        self._expected, self._done = expected, threading.Event()

    def __call__(self, some: list[SaveAnswer]) -> None:
        self.got.extend(some)
        if len(self.got) >= self._expected:
            self._done.set()

    def wait(self) -> list[SaveAnswer]:
        assert self._done.wait(30)
        return self.got


def test_Q4_what_comes_while_a_commit_is_synced_shares_the_next(
    tmp_path: Path, plan: Disk, disk: FaultyDisk
) -> None:
    log = opened(tmp_path, vfs=disk.name)
    scopes = [f"team-{at}" for at in range(10)]
    for scope in scopes:
        filled(log, 1, scope=scope)
    plan.hold("sync", "quorum.db-wal")
    first, others = Answers(1), Answers(10)
    log.submit([write(2, entry(2, 1), scope=scopes[0])], first)
    assert plan.reached.wait(30)
    assert not first.got
    log.submit(
        [write(2 if at else 3, term=1, scope=scope) for at, scope in enumerate(scopes)], others
    )
    syncs = disk.counts["sync"]
    plan.go_on.set()
    assert [answer.error for answer in (*first.wait(), *others.wait())] == [None] * 11
    assert disk.counts["sync"] - syncs == 1, "ten groups, one sync"
    log.close()


def test_Q3_a_step_that_raises_undoes_itself_alone(tmp_path: Path) -> None:
    log = opened(tmp_path)
    filled(log, 1)
    filled(log, 1, scope="other")
    answers, failed = Answers(2), list[Ticket]()

    def half(tx: QuorumWrites) -> None:
        tx.save(write(2, entry(2, 1), scope="other"))
        raise ZeroDivisionError

    def together() -> None:
        log.submit([write(2, entry(2, 1))], answers)
        step: Any = QuorumStep("other", half, adds=True)
        log.writer.submit([Ticket(step, failed.extend)])
        log.submit([write(3, entry(3, 1))], answers)

    log.writer.between_groups(together, None)
    assert [answer.error for answer in answers.wait()] == [None, None]
    assert isinstance(failed[0].error, ZeroDivisionError)
    assert log.state == "open"
    log.save(write(4, entry(4, 1)))
    log.save(write(2, entry(2, 1), scope="other"))
    log.close()
    log = opened(tmp_path)
    assert [log.head(scope).last for scope in ("team", "other")] == [4, 2]
    assert len(log.entries("team", 1, 9, 999)) == 4
    log.close()


def test_Q3_the_age_of_what_is_not_synced_tells_that_the_disk_hangs(
    tmp_path: Path, plan: Disk, disk: FaultyDisk
) -> None:
    now = [100.0]
    log = opened(tmp_path, vfs=disk.name, clock=lambda: now[0])
    filled(log, 1)
    assert log.oldest_unsynced_ms() is None
    plan.hold("sync", "quorum.db-wal")
    answers = Answers(2)
    log.submit([write(2, term=1)], answers)
    assert plan.reached.wait(30)
    now[0] += 3
    log.submit([write(3, term=1)], answers)
    now[0] += 1
    assert log.oldest_unsynced_ms() == 4000
    plan.go_on.set()
    answers.wait()
    log.save(write(4, term=1))
    assert log.oldest_unsynced_ms() is None
    log.close()


HOLDER = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


def is_held(database: Path) -> bool:
    connection = apsw.Connection(str(database))
    try:
        connection.execute("BEGIN IMMEDIATE")
    except apsw.BusyError:
        return True
    finally:
        connection.close()
    return False


def test_Q4_votes_are_saved_while_another_process_holds_the_homes_database(tmp_path: Path) -> None:
    database = tmp_path / "data.db"
    SqliteStore(database).stop()
    log = opened(tmp_path)
    filled(log, 1)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(database)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        for term in range(2, 30):
            log.save(write(term, entry(term, term), term=term, vote=2))
        assert is_held(database), "all that time nobody could write there"
        holder.communicate()
    assert not is_held(database)
    log.close()


@pytest.mark.parametrize("op", ["write", "sync"])
def test_Q3_a_disk_that_fails_closes_the_log_for_good(
    tmp_path: Path, plan: Disk, disk: FaultyDisk, op: str
) -> None:
    log = opened(tmp_path, vfs=disk.name)
    filled(log, 1)
    plan.fail(op, "quorum.db-wal")
    with pytest.raises(OutcomeUnknown):
        log.save(write(2, term=2, vote=1))
    assert log.state == "failed"
    plan.fail("", "")
    calls = disk.calls
    for call in (lambda: log.save(write(2, term=2)), lambda: log.head("team")):
        with pytest.raises(StoreFailed):
            call()
    answers = Answers(1)
    with pytest.raises(StoreFailed):
        log.submit([write(2, term=2)], answers)
    assert disk.calls == calls, "the disk was not asked again"
    log.close()
    assert log.state == "failed"
    log = opened(tmp_path)
    assert log.group("team").standing == "voter"
    assert log.head("team").term in (1, 2)
    log.close()


def test_Q3_a_read_that_fails_within_a_write_closes_the_log_too(
    tmp_path: Path, plan: Disk, disk: FaultyDisk
) -> None:
    log = opened(tmp_path)
    filled(log, *[1] * 200)
    log.close()
    log = opened(tmp_path, vfs=disk.name)
    plan.fail("read", "quorum.db")
    with pytest.raises(StoreFailed):
        log.save(write(2, cut=100))
    assert log.state == "failed"
    log.abort()


def test_Q3_a_checkpoint_that_fails_takes_nothing_back_and_closes_the_log(
    tmp_path: Path, plan: Disk, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "QUORUM_WAL_PAGES", 1)
    log = opened(tmp_path, vfs=disk.name)
    filled(log, 1)
    plan.fail("sync", "quorum.db")
    assert log.save(write(2, entry(2, 1))).last == 2
    assert log.state == "failed"
    log.abort()
    plan.fail("", "")
    log = opened(tmp_path)
    assert log.head("team").last == 2
    log.close()


def test_Q3_a_mark_that_cannot_be_written_leaves_a_vote_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path)
    filled(log, 1)

    def fail(*args: object, **kwargs: object) -> None:
        raise StoreFailed("for a test")

    monkeypatch.setattr(log, "_write_mark", fail)
    log.save(write(2, entry(2, 1)))  # it promises nothing, so it needs no mark
    with pytest.raises(OutcomeUnknown):
        log.save(write(3, term=2, vote=2))
    assert log.state == "failed"
    log.abort()


def test_Q3_on_a_full_disk_votes_have_room_and_entries_are_refused(
    tmp_path: Path, plan: Disk, disk: FaultyDisk
) -> None:
    log = opened(tmp_path, vfs=disk.name)
    filled(log, 1)
    filled(log, 1, scope="other")
    ballast = log._reserve.ballast
    assert ballast.present()
    full = [True]

    def has_room(call: DiskCall) -> Kind | None:
        if full[0] and call.op == "write" and call.file == "quorum.db-wal" and ballast.present():
            return "full"
        return None

    disk.plan = has_room
    answers = Answers(4)
    log.writer.between_groups(
        lambda: log.submit(
            [
                write(2, entry(2, 1)),
                write(3, term=2, vote=3),
                write(2, term=5, scope="other"),
                write(3, entry(2, 5), scope="other"),
            ],
            answers,
        ),
        None,
    )
    errors = [type(answer.error) for answer in answers.wait()]
    assert errors == [DiskFull, type(None), type(None), DiskFull]
    assert not ballast.present()
    assert (log.head("team").vote, log.head("team").last) == (3, 1)
    assert log.head("other").term == 5
    assert log.state == "open"
    full[0] = False
    log.save(write(4, entry(2, 2)))  # the real disk of the test has room, so the ballast is back
    assert ballast.present()
    log.close()


def test_Q3_on_a_disk_without_a_free_byte_votes_are_saved(tmp_path: Path) -> None:
    with mounted(tmp_path, 2048) as place:
        log = opened(place, ballast_bytes=256 * 1024)
        filled(log, 1)
        filler = fill(place)
        number, refused = 2, False
        while not refused:
            try:
                log.save(write(number, entry(number, 1, b"x" * 20_000)))
                number += 1
            except DiskFull:
                refused = True
        for term in range(2, 12):
            log.save(write(number + term, term=term, vote=3))
        assert log.state == "open"
        filler.unlink()
        log.save(write(number + 20, entry(number, 11)))
        log.close()
        log = opened(place, ballast_bytes=256 * 1024)
        head = log.head("team")
        assert (log.group("team").standing, head.term, head.vote) == ("voter", 11, 3)
        log.close()


def test_Q3_entries_stay_refused_until_there_is_room_for_the_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path)
    filled(log, 1)
    monkeypatch.setattr("holdfast.storage.sqlite.quorum.reserve.free_bytes", lambda folder: 0)
    log._reserve.met_end()
    with pytest.raises(DiskFull):
        log.save(write(2, entry(2, 1)))
    with pytest.raises(DiskFull):
        log.init("new", tag=TAG, voter=1, config=b"")
    log.save(write(2, term=9, vote=2))
    log.close()


def test_Q3_a_log_that_was_opened_on_a_full_disk_reads_and_writes_by_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quorum_log, "is_alone", lambda connection: True)
    log = opened(tmp_path)
    filled(log, 1, 2)
    log.save(write(2, entry(3, 2), term=3, vote=2))
    assert [e.index for e in log.entries("team", 1, 9, 999)] == [1, 2, 3]
    assert [group.scope for group in log.groups()] == ["team"]
    assert log.head("team").vote == 2
    with pytest.raises(UnknownGroup):
        log.head("other")
    log.close()


def test_Q4_one_process_at_a_time_has_the_raft_logs(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(StoreBusy):
        opened(tmp_path)
    log.close()
    opened(tmp_path).close()
