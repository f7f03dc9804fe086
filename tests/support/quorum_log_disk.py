"""The Raft logs on a disk that fails: a workload, and what must be left of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

from blake3 import blake3

from holdfast.rules.errors import DiskFull, HoldfastError
from holdfast.rules.quorum.log_rows import GroupWrite
from holdfast.simulate.disk.workload import Acknowledge
from holdfast.storage.sqlite.quorum import engine
from holdfast.storage.sqlite.quorum.quorum_log import SqliteQuorumLog
from support.quorum_logs import TAG, entry, snapshot, write

CONTENT = b"a snapshot"
BALLAST = 512
"""Bytes; what is released is not seen by a disk that only plays to be full."""


def opened(directory: Path, vfs: str | None = None, sync: str = "full") -> SqliteQuorumLog:
    return SqliteQuorumLog(
        directory,
        vfs=vfs,
        sync=sync,
        file_number=lambda path: 0,
        random=lambda size: b"r" * size,
        mark_writes=3,
        ballast_bytes=BALLAST,
    )


def prepare(directory: Path) -> None:
    log = opened(directory)
    for scope in ("one", "two"):
        log.init(scope, tag=TAG, voter=1, config=b"voters")
    log.save(write(1, *(entry(at, 1) for at in range(1, 5)), scope="one", term=1, commit=3))
    log.close()


WRITES: Sequence[GroupWrite] = (
    write(2, scope="one", term=2, vote=3),
    write(1, entry(1, 2, b"x" * 5000), scope="two", term=2),
    write(3, entry(4, 2), entry(5, 2), scope="one", term=2, vote=3, commit=3, cut=4),
    write(2, scope="two", term=3, vote=1),
    write(3, entry(2, 3), scope="two", term=3, vote=1, commit=1),
)


def workload(directory: Path, vfs: str, acknowledge: Acknowledge, sync: str = "full") -> None:
    with patch.object(engine, "QUORUM_WAL_PAGES", 12):  # a checkpoint in the middle
        log = opened(directory, vfs, sync)
        try:
            for one in WRITES:
                log.save(one)
                acknowledge((one.scope, one.number))
            log.compact("one", 3, b"voters at 3")
            acknowledge(("compacted", 3))
            log.intake_begin("two", 1, snapshot(9, 3, CONTENT))
            log.intake_add("two", 0, CONTENT[:4])
            acknowledge(("part", 4))
            log.intake_add("two", 4, CONTENT[4:])
            log.intake_install("two", 1, 4)
            acknowledge(("two", 4))
            log.begin_incarnation("one", incarnation=2, tag=TAG, voter=5)
            acknowledge(("voter", 5))
            log.set_standing("two", 1, "removed")
            acknowledge(("removed", 1))
            log.join("two", incarnation=1, tag=TAG, voter=6)
            acknowledge(("voter", 6))
        finally:
            # Not closed as after good work: what a failing disk left is to be found as it is.
            log.abort() if log.state == "failed" else log.close()


def check(directory: Path, acknowledged: Sequence[object], error: BaseException | None) -> None:
    assert error is None or isinstance(error, HoldfastError), repr(error)
    if isinstance(error, DiskFull):
        told = [thing for thing in acknowledged if isinstance(thing, tuple)]
        assert len(told) == len(acknowledged)
    log = opened(directory)
    try:
        for scope in ("one", "two"):
            group, head = log.group(scope), log.head(scope)
            assert group.standing != "must_rejoin", group.reason
            done = [n for s, n in _pairs(acknowledged) if s == scope]
            assert head.written >= max(done, default=0), f"write {max(done)} of {scope} is lost"
            _check_promises(scope, head.written, (head.term, head.vote))
            entries = log.entries(scope, head.first, 1 << 30, 1 << 30)
            assert [e.index for e in entries] == list(range(head.first, head.last + 1))
            assert {e.index: e.term for e in entries} == {
                index: run.term
                for run in log.term_runs(scope)
                for index in range(run.first, run.last + 1)
            }
        for thing, scope, voter in ((("voter", 5), "one", 5), (("voter", 6), "two", 6)):
            assert thing not in acknowledged or log.group(scope).voter == voter
        if ("removed", 1) in acknowledged:
            assert (log.group("two").voter, log.group("two").standing) != (1, "voter")
        if ("compacted", 3) in acknowledged:
            assert log.boundary("one").config == b"voters at 3"
        if ("part", 4) in acknowledged and log.group("two").voter == 1:
            intake = log.intake("two")
            assert intake is not None
            assert intake.received >= 4
            if intake.installed:
                assert blake3(_content(log)).digest() == intake.snapshot.digest
    finally:
        log.close()


def _pairs(acknowledged: Sequence[object]) -> list[tuple[str, int]]:
    return [thing for thing in acknowledged if isinstance(thing, tuple)]


def _check_promises(scope: str, written: int, found: tuple[int, int]) -> None:
    """Term and vote are those of exactly the writes that are there."""
    expected = (1, 0) if scope == "one" else (0, 0)
    for one in WRITES:
        if one.scope == scope and one.number <= written and one.hard is not None:
            expected = (one.hard.term, one.hard.vote)
    assert found == expected, f"{scope} after write {written} is in {found}, not {expected}"


def _content(log: SqliteQuorumLog) -> bytes:
    content = b""
    while part := log.intake_part("two", len(content)):
        content += part
    return content
