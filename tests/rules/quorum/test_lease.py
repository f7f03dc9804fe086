"""Q4: users' leases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.envelope import Envelope
from holdfast.rules.limits import LEASE_TTL_MS_MAX, LEASE_TTL_MS_MIN, LEASE_WAITERS_MAX
from holdfast.rules.quorum.decide import Decision
from holdfast.rules.quorum.intents import LeaseAcquire, LeaseExpire, LeaseRelease, LeaseRenew
from holdfast.rules.quorum.lease import (
    LeaseTimers,
    holder_renews_at_ms,
    holder_stops_at_ms,
)
from holdfast.rules.quorum.view import LeaseRow, LeaseWaiter
from holdfast.rules.reconcile import Outcome
from support.envelopes import make_id
from support.quorum_state import QuorumState, fence, intent

APPLIED, SUPERSEDED, FENCED = Outcome.APPLIED, Outcome.SUPERSEDED, Outcome.REJECTED_FENCED


@pytest.fixture
def state() -> QuorumState:
    return QuorumState()


def asks(origin: str, *, wait: bool = False) -> Envelope:
    return intent("lease.acquire", "deploy", LeaseAcquire(5_000, wait), origin=origin)


def releases(asked: Envelope, origin: str | None = None) -> Envelope:
    body = LeaseRelease(asked.id)
    return intent("lease.release", "deploy", body, origin=origin or asked.origin)


def renews(asked: Envelope, origin: str | None = None) -> Envelope:
    body = LeaseRenew(asked.id, 5_000)
    return intent("lease.renew", "deploy", body, origin=origin or asked.origin)


def expires(state: QuorumState, origin: str = "ana", row: LeaseRow | None = None) -> Envelope:
    row = row or state.leases["deploy"]
    assert row.renewed is not None
    return intent("lease.expire", "deploy", LeaseExpire(*row.renewed.order), origin=origin)


def who(state: QuorumState) -> str | None:
    row = state.leases.get("deploy")
    return None if row is None else row.holder


def refused(decision: Decision) -> str:
    assert decision.outcome is None
    return decision.reason


def test_Q4_the_fence_of_a_grant_is_that_of_the_entry_that_gave_it(state: QuorumState) -> None:
    first, second = asks("bob"), asks("cyd", wait=True)
    assert state.fold(first, fence(3, 2)).outcome is APPLIED
    assert state.leases["deploy"].grant == fence(3, 2)
    assert state.fold(second, fence(5, 2)).outcome is APPLIED
    assert who(state) == "bob"
    assert state.fold(releases(first), fence(9, 2)).outcome is APPLIED
    assert (who(state), state.leases["deploy"].grant) == ("cyd", fence(9, 2))


def test_Q4_who_does_not_wait_is_told_that_it_is_held(state: QuorumState) -> None:
    first = asks("bob")
    state.fold(first)
    assert refused(state.fold(asks("cyd"))) == "lease_held"
    # Not re-entrant: another request of the same peer is another session.
    assert refused(state.fold(asks("bob"))) == "lease_held"
    assert state.fold(releases(first)).outcome is APPLIED
    assert who(state) is None
    assert state.fold(asks("cyd")).outcome is APPLIED


def test_Q4_those_who_wait_get_it_in_the_order_of_their_commits(state: QuorumState) -> None:
    first = asks("bob")
    state.fold(first)
    waiting = [asks(peer, wait=True) for peer in ("cyd", "dan", "eve")]
    for one in waiting:
        assert state.fold(one).outcome is APPLIED
    assert state.fold(releases(waiting[1])).outcome is APPLIED  # dan goes away
    got = []
    for holder in (first, waiting[0], waiting[2]):
        got.append(who(state))
        assert state.fold(releases(holder)).outcome is APPLIED
    assert got == ["bob", "cyd", "eve"]
    assert who(state) is None


def test_Q4_so_many_may_wait_and_no_more(state: QuorumState) -> None:
    state.fold(asks("bob"))
    row = state.leases["deploy"]
    crowd = tuple(LeaseWaiter("cyd", make_id(n), 5_000) for n in range(LEASE_WAITERS_MAX - 1))
    state.leases["deploy"] = LeaseRow(
        name="deploy", holder="bob", session=row.session, waiting=crowd
    )
    assert state.fold(asks("dan", wait=True)).outcome is APPLIED
    assert refused(state.fold(asks("eve", wait=True))) == "lease_held"


def test_Q4_only_the_holder_renews_and_releases(state: QuorumState) -> None:
    first = asks("bob")
    state.fold(first)
    assert refused(state.fold(renews(first, "cyd"))) == "not_ours"
    assert refused(state.fold(releases(first, "cyd"))) == "not_ours"
    waits = asks("dan", wait=True)
    state.fold(waits)
    assert refused(state.fold(releases(waits, "bob"))) == "not_ours"
    assert state.fold(renews(waits)).outcome is FENCED  # who waits has nothing to renew
    assert state.fold(renews(first)).outcome is APPLIED
    assert state.leases["deploy"].grant != state.leases["deploy"].renewed
    state.fold(releases(first))
    late = state.fold(renews(first))
    assert (late.outcome, late.reason) == (FENCED, "lease_not_held")
    assert state.fold(releases(first)).outcome is SUPERSEDED
    assert who(state) == "dan"


def test_Q4_an_expiry_counts_only_if_nothing_was_renewed_since(state: QuorumState) -> None:
    first = asks("bob")
    state.fold(first)
    early = expires(state)
    state.fold(renews(first))
    assert state.fold(early).outcome is SUPERSEDED
    assert who(state) == "bob"
    forged = expires(state, origin="bob")
    assert refused(state.fold(forged)) == "not_the_coordinator"
    due = expires(state)
    row = state.leases["deploy"]
    assert state.fold(due).outcome is APPLIED
    assert who(state) is None
    # The next holder's grant is another entry: an old expiry cannot end it.
    state.fold(asks("cyd"))
    assert state.fold(expires(state, row=row)).outcome is SUPERSEDED
    assert who(state) == "cyd"


# --- time ----------------------------------------------------------------------------------------


def held(name: str, sequence: int, ttl_ms: int) -> LeaseRow:
    token = fence(sequence)
    return LeaseRow(name=name, holder="bob", grant=token, renewed=token, ttl_ms=ttl_ms)


def test_Q4_a_coordinator_proposes_each_expiry_once_when_the_time_is_over() -> None:
    timers = LeaseTimers([held("a", 1, 3_000), held("b", 2, 1_000)], now_ms=100)
    assert timers.next_ms() == 1_100
    assert timers.take_due(1_099) == []
    assert timers.take_due(1_100) == [("b", LeaseExpire(1, 1, 2))]
    assert timers.take_due(1_100) == []
    timers.note(held("a", 7, 3_000), 2_000)
    assert timers.take_due(4_999) == []
    # A row that changed otherwise, as by somebody who waits, was not renewed by it.
    timers.note(held("a", 7, 3_000), 4_000)
    assert timers.take_due(5_000) == [("a", LeaseExpire(1, 1, 7))]
    timers.note(held("c", 9, 1_000), 5_000)
    timers.note(LeaseRow(name="c"), 5_500)
    assert timers.next_ms() is None


def test_Q4_a_new_coordinator_gives_every_holder_its_whole_time_again() -> None:
    rows = [held("a", 1, 3_000)]
    assert LeaseTimers(rows, now_ms=0).next_ms() == 3_000
    assert LeaseTimers(rows, now_ms=2_900).next_ms() == 5_900


@given(
    ttl_ms=st.integers(LEASE_TTL_MS_MIN, LEASE_TTL_MS_MAX),
    sent_at_ms=st.integers(0, 2**40),
    travel_ms=st.integers(0, 10_000),
)
def test_Q4_a_holder_stops_before_its_coordinator_can_let_it_expire(
    ttl_ms: int, sent_at_ms: int, travel_ms: int
) -> None:
    stops = holder_stops_at_ms(sent_at_ms, ttl_ms)
    timers = LeaseTimers([held("a", 1, ttl_ms)], now_ms=sent_at_ms + travel_ms)
    assert timers.take_due(stops) == []
    assert sent_at_ms < holder_renews_at_ms(sent_at_ms, ttl_ms) < stops
    assert stops - sent_at_ms <= ttl_ms * 2 / 3
