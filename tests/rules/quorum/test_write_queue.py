"""Q6, Q7: the queue of strong writes."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.errors import AlreadyResolved
from holdfast.rules.limits import REASON_CHARS_MAX
from holdfast.rules.quorum.write_queue import (
    QueuedWrite,
    WriteCounts,
    WriteFailure,
    WriteStatus,
    count_writes,
    decided,
    failed_try,
    is_retryable,
    next_created_at,
    queued,
    recovered,
    replay_key,
    resolved,
    started,
    to_replay,
)
from holdfast.rules.reconcile import Outcome
from support.envelopes import make_id
from support.quorum_state import fence

PENDING, REPLAYING = WriteStatus.PENDING, WriteStatus.REPLAYING
APPLIED, FAILED = WriteStatus.APPLIED, WriteStatus.FAILED
OUTAGE = WriteFailure(503, "no_quorum", "two of three do not answer")


def row(number: int = 1, created_at: int = 5, target: str = "") -> QueuedWrite:
    return QueuedWrite(id=make_id(number), mesh="team", created_at=created_at, target=target)


@pytest.mark.parametrize(
    ("status", "again"),
    [
        (400, False), (401, False), (403, False), (404, False), (409, False), (422, False),
        (405, False), (410, False), (413, False), (501, False), (505, False),
        (502, True), (503, True), (504, True), (408, True), (429, True), (500, True), (507, True),
        (599, True), (None, True),
    ],
)  # fmt: skip
def test_Q6_statuses_are_retryable_or_permanent_as_listed(status: int | None, again: bool) -> None:
    failure = WriteFailure(status)
    assert is_retryable(failure) is again
    # What is permanent is never queued; what is not always is.
    assert queued(row(), failure, 9).status is (PENDING if again else FAILED)
    assert queued(row(), failure, 9).ended_at == (None if again else 9)


@pytest.mark.parametrize(
    "code",
    [
        *("ECONNREFUSED", "ENOTFOUND", "ETIMEDOUT", "ECONNRESET", "timeout", "abort", "TypeError"),
        *("no_quorum", "no_leader", "outcome_unknown"),
    ],
)
def test_Q6_transport_errors_are_retryable(code: str) -> None:
    assert is_retryable(WriteFailure(None, code))
    assert is_retryable(WriteFailure(409, code))  # an etcd's status says less than its code
    assert not is_retryable(WriteFailure(429, "over_limit"))


@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        ("applied", APPLIED),
        ("noop_already_applied", APPLIED),
        ("superseded", APPLIED),
        ("conflict_requires_merge", FAILED),
        ("rejected_fenced", FAILED),
        (None, FAILED),
    ],
)
def test_Q7_every_outcome_has_its_end(outcome: str | None, end: WriteStatus) -> None:
    found = None if outcome is None else Outcome(outcome)
    done = decided(started(row(), fence(1), 6), found, 7, "why", "x" * 5000)
    assert (done.status, done.outcome, done.reason, done.ended_at) == (end, found, "why", 7)
    assert len(done.detail) == REASON_CHARS_MAX
    assert decided(done, found, 99) is done
    with pytest.raises(AlreadyResolved):
        started(done, fence(2), 8)
    with pytest.raises(AlreadyResolved):
        failed_try(done, OUTAGE, 8)


def test_Q6_every_try_counts_and_is_fenced_anew_with_the_old_tokens_kept() -> None:
    one = queued(row(), OUTAGE, 5)
    assert (one.attempts, one.reason) == (0, "no_quorum")
    tokens = [fence(3), fence(9, 2, "bob"), fence(9, 2, "bob"), fence(12, 4, "cyd")]
    for number, token in enumerate(tokens, 1):
        one = started(one, token, 10 + number)
        assert (one.status, one.attempts, one.attempted_at) == (REPLAYING, number, 10 + number)
        one = failed_try(one, OUTAGE, 20)
        assert one.status is PENDING
    assert one.fence == tokens[-1]
    assert one.earlier_fences == (tokens[0], tokens[1])
    assert failed_try(started(one, None, 30), WriteFailure(422), 31).status is FAILED
    assert failed_try(started(one, None, 30), WriteFailure(422), 31).reason == "http_422"


def test_Q8_what_was_under_way_at_a_restart_waits_again() -> None:
    under_way = started(row(), fence(1), 6)
    assert recovered(under_way).status is PENDING
    assert recovered(under_way).attempts == 1
    done = decided(under_way, Outcome.APPLIED, 7)
    assert recovered(done) is done


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=12))
def test_Q6_replay_goes_by_creation_then_id(made: list[tuple[int, int]]) -> None:
    rows = [row(number, at) for at, number in made]
    shuffled = rows[:]
    random.Random(1).shuffle(shuffled)
    keys = [replay_key(one) for one in to_replay(shuffled)]
    assert keys == sorted((at, make_id(number)) for at, number in made)


def test_Q6_only_what_waits_is_replayed_and_of_one_target_if_asked() -> None:
    rows = [row(1, target="bob"), row(2, target="cyd"), started(row(3), None, 1)]
    rows.append(decided(row(4), Outcome.APPLIED, 1))
    assert [one.id for one in to_replay(rows)] == [make_id(1), make_id(2)]
    assert [one.id for one in to_replay(rows, "cyd")] == [make_id(2)]


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=20))
def test_Q6_created_at_never_runs_backwards(clock: list[int]) -> None:
    last = 0
    for now in clock:
        following = next_created_at(last, now)
        assert following >= max(last, now)
        last = following
    assert last == max(clock)


def test_Q6_what_was_resolved_no_longer_counts_and_stays() -> None:
    rows = [
        row(1),
        started(row(2), None, 1),
        decided(row(3), Outcome.APPLIED, 1),
        decided(row(4), Outcome.CONFLICT_REQUIRES_MERGE, 1),
        decided(row(5), None, 1, "orphaned"),
    ]
    assert count_writes(rows) == WriteCounts(4, 2, 2)
    rows[3] = resolved(rows[3], "policy: ours")
    assert count_writes(rows) == WriteCounts(3, 2, 1)
    assert rows[3].outcome is Outcome.CONFLICT_REQUIRES_MERGE
    for ended in (rows[0], rows[2], rows[3]):
        with pytest.raises(AlreadyResolved):
            resolved(ended, "again")
    assert count_writes([]) == WriteCounts()


def test_Q6_states_have_the_words_of_the_source() -> None:
    assert list(WriteStatus) == ["pending", "replaying", "applied", "failed"]
    assert msgspec.json.decode(msgspec.json.encode(row()))["status"] == "pending"
