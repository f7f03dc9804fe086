"""Mistakes that others made in their Raft, to be planted in ours: each replaces one decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from holdfast.rules.quorum.raft import (
    commit,
    disk,
    election,
    following,
    membership,
    reads,
    replication,
)
from holdfast.rules.quorum.raft.log import RaftLog

Patch = Callable[[pytest.MonkeyPatch], None]


class RaftBug(NamedTuple):
    name: str
    finders: tuple[str, ...]
    """Who must find it: `walk` or `reads` with the first seed to try, `rounds` or `messages` with
    the search, `scenario` with its name."""
    plant: Patch


def _ack_before_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(following, "ack_waits", lambda: False)


def _vote_before_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(election, "vote_waits", lambda: False)


def _older_term_by_counting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commit, "may_commit", lambda log, index, term: True)


def _own_disk_not_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commit, "own_match", lambda state: state.log.last)


def _change_before_term_is_settled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "settled_in_term", lambda state: True)


def _two_changes_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "change_in_flight", lambda state: False)


def _cut_on_match(patch: pytest.MonkeyPatch) -> None:
    def first_new(log: RaftLog, prev: int, entries: tuple[object, ...]) -> int:
        return 0

    patch.setattr(following, "first_new", first_new)


def _votes_counted_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(election, "count_vote", lambda votes, voter, granted: (*votes, (voter, granted)))


def _read_confirmed_by_an_old_round(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reads, "confirms", lambda echoed, round: echoed > 0)


def _read_before_the_first_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reads, "may_serve", lambda state: True)


def _vote_forgotten_by_a_restore(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(election, "may_vote", lambda state: True)


def _late_ack_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk, "counted", lambda write, wrote: wrote.last)


def _restored_voter_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replication, "went_back", lambda peer, answer: False)


BUGS = (
    RaftBug(
        "ack before disk",
        (
            "scenario: ack_waits_for_disk",
            "walk: 15",
            "rounds: disks that lag",
            "messages: a crash under way",
        ),
        _ack_before_disk,
    ),
    RaftBug(
        "vote before disk",
        (
            "scenario: vote_waits_for_disk",
            "walk: 233",
            "rounds: disks that lag",
            "messages: an election with a crash",
        ),
        _vote_before_disk,
    ),
    RaftBug(
        "commit of an older term by counting",
        ("rounds: four terms",),
        _older_term_by_counting,
    ),
    RaftBug(
        "leader's own disk not counted",
        ("scenario: ack_waits_for_disk", "walk: 31", "rounds: disks that lag"),
        _own_disk_not_asked,
    ),
    RaftBug(
        "change before the term is settled",
        (
            "scenario: config_needs_settled_term",
            "rounds: two removals",
        ),
        _change_before_term_is_settled,
    ),
    RaftBug(
        "two changes in flight",
        (
            "scenario: config_needs_settled_term",
            "rounds: a promotion",
        ),
        _two_changes_in_flight,
    ),
    RaftBug(
        "truncation on match",
        (
            "scenario: late_append",
            "messages: a doubled message",
        ),
        _cut_on_match,
    ),
    RaftBug(
        "votes counted twice",
        (
            "scenario: duplicate_votes",
            "rounds: four voters",
        ),
        _votes_counted_twice,
    ),
    RaftBug(
        "read confirmed by an old round",
        (
            "scenario: read_needs_a_new_round",
            "reads: 5",
        ),
        _read_confirmed_by_an_old_round,
    ),
    RaftBug(
        "read before the first commit",
        (
            "scenario: read_before_no_op",
            "reads: 4",
        ),
        _read_before_the_first_commit,
    ),
    RaftBug(
        "vote forgotten by a restore",
        (
            "scenario: restored_voter_is_barred",
            "rounds: a restore",
        ),
        _vote_forgotten_by_a_restore,
    ),
    RaftBug(
        "restored voter counted",
        (
            "scenario: restored_voter",
            "rounds: a restore",
        ),
        _restored_voter_counted,
    ),
    RaftBug(
        "late disk ack counted",
        ("scenario: late_disk_ack", "walk: 21", "messages: a late disk"),
        _late_ack_counted,
    ),
)
