"""A snapshot comes in by parts, goes on after a break, and is installed in one step."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.rules.errors import BadValue, LogMismatch, MustRejoin, OverLimit, StoreCorrupt
from holdfast.rules.limits import QUORUM_PART_BYTES_MAX
from holdfast.rules.quorum.log_rows import HardStateRow
from holdfast.storage.quorum_port import QuorumLog
from support.quorum_logs import TAG, entry, filled, snapshot, write

CONTENT = b"state of the machine"


def come_in(log: QuorumLog, index: int, term: int, content: bytes = CONTENT) -> None:
    log.intake_begin("team", 1, snapshot(index, term, content))
    log.intake_add("team", 0, content[:5])
    log.intake_add("team", 5, content[5:])


def test_Q8_a_snapshot_goes_on_where_it_stopped(log: QuorumLog) -> None:
    filled(log, 1)
    assert log.intake("team") is None
    coming = snapshot(9, 1, CONTENT)
    assert log.intake_begin("team", 1, coming) == 0
    assert log.intake_add("team", 0, CONTENT[:8]) == 8
    assert log.intake_begin("team", 1, coming) == 8
    for offset, content in ((0, b"x"), (9, b"x"), (8, CONTENT)):
        with pytest.raises(LogMismatch):
            log.intake_add("team", offset, content)
    with pytest.raises(LogMismatch):
        log.intake_install("team", 1, 2)
    assert log.intake_add("team", 8, b"") == 8
    assert log.intake_add("team", 8, CONTENT[8:]) == len(CONTENT)
    assert (log.intake_part("team", 0), log.intake_part("team", 8)) == (CONTENT[:8], CONTENT[8:])
    assert log.intake_part("team", len(CONTENT)) == b""


def test_Q8_another_snapshot_begins_anew(log: QuorumLog) -> None:
    filled(log, 1)
    come_in(log, 9, 1)
    assert log.intake_begin("team", 1, snapshot(10, 1, CONTENT)) == 0
    assert log.intake_part("team", 0) == b""
    log.intake_drop("team")
    assert log.intake("team") is None
    with pytest.raises(LogMismatch):
        log.intake_add("team", 0, b"x")
    with pytest.raises(LogMismatch):
        log.intake_install("team", 1, 2)


def test_Q8_a_log_that_does_not_reach_the_snapshot_is_dropped(log: QuorumLog) -> None:
    filled(log, 1, 1, 2)
    come_in(log, 9, 2)
    saved = log.intake_install("team", 1, 2)
    assert (saved.number, saved.last, saved.last_term) == (2, 9, 2)
    boundary = log.boundary("team")
    assert (boundary.index, boundary.term, boundary.config) == (9, 2, b"voters at 9")
    assert (log.term_runs("team"), log.head("team").commit) == ([], 9)
    intake = log.intake("team")
    assert intake is not None
    assert intake.installed
    assert log.intake_part("team", 5) == CONTENT[5:]
    log.save(write(3, entry(10, 2)))
    assert [e.index for e in log.entries("team", 10, 99, 999)] == [10]
    log.intake_drop("team")


def test_Q8_entries_that_follow_the_snapshot_stay(log: QuorumLog) -> None:
    filled(log, 1, 1, 2, 2)
    come_in(log, 3, 2)
    assert log.intake_install("team", 1, 2).last == 4
    assert [e.index for e in log.entries("team", 4, 9, 999)] == [4]
    assert [(r.first, r.last, r.term) for r in log.term_runs("team")] == [(4, 4, 2)]


def test_Q8_entries_of_another_past_go(log: QuorumLog) -> None:
    filled(log, 1, 1, 1, 1)
    log.save(write(2, term=3))
    come_in(log, 3, 2)
    assert log.intake_install("team", 1, 3).last == 3
    assert log.term_at("team", 3) == 2
    assert log.term_at("team", 4) is None


def test_Q8_what_is_committed_is_not_replaced_by_another_past(log: QuorumLog) -> None:
    filled(log, 1, 1, 1)
    log.save(write(2, term=2, commit=3))
    come_in(log, 2, 2)
    with pytest.raises(LogMismatch, match="committed"):
        log.intake_install("team", 1, 3)
    assert log.head("team").base == 0


def test_Q8_a_snapshot_that_is_not_what_was_announced_is_given_up(log: QuorumLog) -> None:
    filled(log, 1)
    log.intake_begin("team", 1, snapshot(9, 1, CONTENT))
    log.intake_add("team", 0, b"X" * len(CONTENT))
    with pytest.raises(StoreCorrupt):
        log.intake_install("team", 1, 2)
    assert log.intake("team") is None
    assert log.head("team").last == 1


def test_Q8_a_snapshot_that_leads_nowhere_is_refused(log: QuorumLog) -> None:
    filled(log, 2, 2)
    log.save(write(2, term=2, commit=2))
    log.compact("team", 2, b"")
    for index, term, voter in ((2, 2, 1), (1, 1, 1), (9, 1, 1), (9, 3, 1), (9, 2, 5)):
        with pytest.raises(LogMismatch):
            log.intake_begin("team", voter, snapshot(index, term, CONTENT))
    with pytest.raises(OverLimit):
        log.intake_add("team", 0, b"x" * (QUORUM_PART_BYTES_MAX + 1))
    come_in(log, 9, 2)
    with pytest.raises(LogMismatch, match="late"):
        log.intake_install("team", 1, 2)
    log.set_standing("team", 1, "must_rejoin")
    with pytest.raises(MustRejoin):
        log.intake_begin("team", 1, snapshot(9, 2, CONTENT))
    log.join("team", incarnation=1, tag=TAG, voter=2)
    assert log.intake("team") is None


def test_Q8_the_largest_part_fits_and_an_empty_snapshot_too(log: QuorumLog) -> None:
    filled(log, 1)
    content = b"x" * QUORUM_PART_BYTES_MAX
    log.intake_begin("team", 1, snapshot(9, 1, content))
    assert log.intake_add("team", 0, content) == len(content)
    log.intake_begin("team", 1, snapshot(9, 1, b""))
    assert log.intake_install("team", 1, 2).last == 9
    less = msgspec.structs.replace(snapshot(12, 1, b""), size=-1)
    with pytest.raises(BadValue):
        log.intake_begin("team", 1, less)


def test_Q8_a_later_term_comes_with_the_snapshot_in_one_step(log: QuorumLog) -> None:
    filled(log, 1)
    log.save(write(2, term=3, vote=2))
    come_in(log, 9, 2)
    with pytest.raises(LogMismatch, match="vote"):
        log.intake_install("team", 1, 3, HardStateRow(term=3, vote=1))
    with pytest.raises(LogMismatch, match="term"):
        log.intake_install("team", 1, 3, HardStateRow(term=2))
    assert log.head("team").last == 1
    assert log.intake_install("team", 1, 3, HardStateRow(term=5, vote=4, commit=9)).last == 9
    head = log.head("team")
    assert (head.term, head.vote, head.commit, head.base) == (5, 4, 9, 9)


def test_Q8_entries_of_another_past_go_though_the_snapshot_says_that_it_is_committed(
    log: QuorumLog,
) -> None:
    filled(log, 1, 1, 1, 1)
    log.save(write(2, term=3, commit=2))
    come_in(log, 3, 2)
    assert log.intake_install("team", 1, 3, HardStateRow(term=3, commit=3)).last == 3
    head = log.head("team")
    assert (head.base, head.base_term, head.commit) == (3, 2, 3)
