"""Groups of a node: begun once, entered under an id that is never used again."""

from __future__ import annotations

import pytest

from holdfast.rules.errors import (
    AlreadyExists,
    BadValue,
    LogMismatch,
    MustRejoin,
    NotAMember,
    StoreClosed,
    UnknownGroup,
    VoterReused,
)
from holdfast.storage.quorum_port import QuorumLog
from support.quorum_logs import TAG, entry, filled, write


def test_Q4_a_scope_is_begun_once(log: QuorumLog) -> None:
    group = log.init("team", tag=TAG, voter=1, config=b"voters")
    assert (group.incarnation, group.tag, group.voter, group.standing) == (1, TAG, 1, "voter")
    assert log.group("team") == group
    assert log.boundary("team").config == b"voters"
    for standing in ("voter", "removed"):
        log.set_standing("team", 1, standing)
        with pytest.raises(AlreadyExists):
            log.init("team", tag=b"u" * 16, voter=2, config=b"")
    assert log.voters_used("team") == {1}


def test_Q4_groups_are_listed_by_scope_and_strangers_are_refused(log: QuorumLog) -> None:
    for scope in ("b", "a"):
        log.init(scope, tag=TAG, voter=1, config=b"")
    assert [group.scope for group in log.groups()] == ["a", "b"]
    for look in (log.group, log.head, log.boundary, log.term_runs, log.configs, log.voters_used):
        with pytest.raises(UnknownGroup):
            look("c")
    with pytest.raises(UnknownGroup):
        log.save(write(1, scope="c", term=1))


@pytest.mark.parametrize(("tag", "voter"), [(b"short", 1), (TAG, 0), (TAG, 1 << 63)])
def test_Q4_what_can_name_no_voter_is_refused(log: QuorumLog, tag: bytes, voter: int) -> None:
    with pytest.raises(BadValue):
        log.init("team", tag=tag, voter=voter, config=b"")
    with pytest.raises(BadValue):
        log.join("team", incarnation=1, tag=tag, voter=voter)
    assert log.groups() == []


def test_Q10_a_learner_becomes_a_voter_and_is_removed_for_good(log: QuorumLog) -> None:
    assert log.join("team", incarnation=2, tag=TAG, voter=4).standing == "learner"
    log.save(write(1, voter=4, term=3))
    log.set_standing("team", 4, "voter")
    with pytest.raises(LogMismatch):
        log.save(write(2, term=3, voter=1))
    log.save(write(2, entry(1, 3), voter=4, term=3, vote=4))
    log.set_standing("team", 4, "removed")
    log.set_standing("team", 4, "removed")
    with pytest.raises(NotAMember):
        log.save(write(3, voter=4, term=4))
    with pytest.raises(NotAMember):
        log.set_standing("team", 4, "voter")


def test_Q10_a_voter_id_is_never_used_again(log: QuorumLog) -> None:
    filled(log, 1, 2)
    with pytest.raises(AlreadyExists):
        log.join("team", incarnation=1, tag=TAG, voter=2)
    log.set_standing("team", 1, "removed")
    with pytest.raises(VoterReused):
        log.join("team", incarnation=1, tag=TAG, voter=1)
    log.join("team", incarnation=1, tag=TAG, voter=2)
    log.set_standing("team", 2, "removed")
    with pytest.raises(VoterReused):
        log.join("team", incarnation=1, tag=TAG, voter=1)
    assert log.voters_used("team") == {1, 2}


def test_Q4_who_must_rejoin_saves_nothing_and_begins_with_an_empty_log(log: QuorumLog) -> None:
    filled(log, 1, 2)
    log.save(write(2, term=5, vote=3))
    log.set_standing("team", 1, "must_rejoin", "for a test")
    assert log.group("team").reason == "for a test"
    with pytest.raises(MustRejoin, match="for a test"):
        log.save(write(3, term=6))
    with pytest.raises(MustRejoin):
        log.set_standing("team", 1, "voter")
    assert [e.index for e in log.entries("team", 1, 9, 999)] == [1, 2]
    log.join("team", incarnation=1, tag=TAG, voter=7)
    head = log.head("team")
    assert (head.term, head.vote, head.last, head.written) == (5, 3, 0, 2)
    assert log.entries("team", 1, 9, 999) == []
    with pytest.raises(LogMismatch):  # it was on its way when the node was added anew
        log.save(write(3, voter=1, term=6))


def test_Q4_a_later_incarnation_goes_on_with_the_log_under_a_new_id(log: QuorumLog) -> None:
    filled(log, 1, 2)
    for incarnation, voter, error in ((1, 5, LogMismatch), (2, 1, VoterReused)):
        with pytest.raises(error):
            log.begin_incarnation("team", incarnation=incarnation, tag=TAG, voter=voter)
    log.begin_incarnation("team", incarnation=2, tag=b"u" * 16, voter=5)
    assert log.group("team").tag == b"u" * 16
    log.save(write(2, entry(3, 7), voter=5, term=7))
    assert [e.index for e in log.entries("team", 1, 9, 999)] == [1, 2, 3]


def test_Q4_a_log_that_is_closed_does_nothing(log: QuorumLog) -> None:
    filled(log, 1)
    log.close()
    log.close()
    assert log.state == "closed"
    for call in (lambda: log.head("team"), log.groups, lambda: log.save(write(2, term=2))):
        with pytest.raises(StoreClosed):
            call()
