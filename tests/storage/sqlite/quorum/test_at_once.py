"""A lone write is saved in the caller's thread where the disk is quick, and nowhere else."""

from __future__ import annotations

from pathlib import Path

from holdfast.rules.errors import LogMismatch
from holdfast.rules.limits import QUICK_COMMIT_MS, QUICK_COMMITS, QUORUM_WAL_PAGES
from holdfast.storage.sqlite.quorum.quorum_log import SqliteQuorumLog
from support.quorum_logs import entry, filled, opened, write


class Stopwatch:
    """A clock that runs on by so much with each look at it."""

    def __init__(self) -> None:
        self.step_ms = 0.0
        self._at = 0.0

    def __call__(self) -> float:
        self._at += self.step_ms / 1000
        return self._at


def quick(home: Path, watch: Stopwatch, mark_writes: int = 1024) -> tuple[SqliteQuorumLog, int]:
    """A log whose disk was quick so often that writes may be saved at once; and the next index."""
    log = opened(home, clock=watch, mark_writes=mark_writes)
    filled(log, 1)
    commits, at = 2, 2  # the group was begun, and its first entry saved
    while log.save_at_once(write(at, entry(at, 1))) is None:
        log.save(write(at, entry(at, 1)))
        commits, at = commits + 1, at + 1
    assert commits == QUICK_COMMITS
    return log, at + 1


def test_Q3_a_lone_write_to_a_quick_disk_is_saved_at_once(tmp_path: Path) -> None:
    log, at = quick(tmp_path, Stopwatch())
    answer = log.save_at_once(write(at, entry(at, 1)))
    assert answer is not None
    assert answer.error is None
    assert answer.saved is not None
    assert (answer.saved.number, answer.saved.last) == (at, at)
    assert log.oldest_unsynced_ms() is None
    log.abort()
    again = opened(tmp_path)
    assert again.entries("team", at, at + 1, 999) == [entry(at, 1)]
    again.close()


def test_Q3_a_slow_sync_sends_writes_back_to_the_thread(tmp_path: Path) -> None:
    watch = Stopwatch()
    log, at = quick(tmp_path, watch)
    watch.step_ms = QUICK_COMMIT_MS + 1
    assert log.save_at_once(write(at, entry(at, 1))) is not None, "nobody knew before"
    watch.step_ms = 0.0
    assert log.save_at_once(write(at + 1, entry(at + 1, 1))) is None
    assert log.head("team").last == at, "and nothing has happened"
    log.close()


def test_Q3_a_write_that_does_not_fit_gets_its_error_at_once(tmp_path: Path) -> None:
    log, at = quick(tmp_path, Stopwatch())
    answer = log.save_at_once(write(at, entry(at + 5, 1)))
    assert answer is not None
    assert isinstance(answer.error, LogMismatch)
    assert answer.saved is None
    log.save(write(at, entry(at, 1)))
    log.close()


def test_Q3_nothing_is_saved_at_once_while_another_write_is_under_way(tmp_path: Path) -> None:
    log, at = quick(tmp_path, Stopwatch())
    found: list[object] = []
    log.writer.between_groups(lambda: found.append(log.save_at_once(write(at, entry(at, 1)))), None)
    assert found == [None]
    log.close()


def test_Q3_the_mark_is_left_to_the_thread(tmp_path: Path) -> None:
    log, at = quick(tmp_path, Stopwatch(), mark_writes=QUICK_COMMITS + 4)
    marks = (tmp_path / "quorum.mark").read_bytes()
    while log.save_at_once(write(at, entry(at, 1))) is not None:
        at += 1
    assert (tmp_path / "quorum.mark").read_bytes() == marks
    log.save(write(at, entry(at, 1)))
    assert (tmp_path / "quorum.mark").read_bytes() != marks
    log.close()


def test_Q3_a_long_wal_is_left_to_the_thread(tmp_path: Path) -> None:
    log, at = quick(tmp_path, Stopwatch())
    while log.save_at_once(write(at, entry(at, 1, b"x" * 65536))) is not None:
        at += 1
    assert log._engine._wal_pages >= QUORUM_WAL_PAGES, "that is why"
    log.save(write(at, entry(at, 1)))
    log.save(write(at + 1, entry(at + 1, 1)))
    assert log._engine._wal_pages < QUORUM_WAL_PAGES, "and begins anew"
    log.close()
