"""What goes to the broker next, and what becomes of what it refuses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.limits import BACKOFF_MS_MAX, HOUR_MS, OUTBOX_ATTEMPTS_MAX, REASON_CHARS_MAX
from holdfast.rules.outbox import (
    EXPIRED,
    LanePlan,
    OutboxState,
    Policy,
    after_abort,
    after_expiry,
    after_refusal,
    after_retry,
    entity_of,
    is_expired,
    is_permanent,
    lane_of,
    mesh_of,
    plan,
    waits_until,
)
from holdfast.rules.rows import OutboxRow
from support.stores import outbox_row

ORDERED = (Policy.PARK, Policy.HALT)


def row(number: int, entity: str = "", **fields: Any) -> OutboxRow:
    return outbox_row(number, number=number, entity=entity, **fields)


def numbers(found: LanePlan) -> list[int]:
    return [one.number for one in found.go]


# --- names ---------------------------------------------------------------------------------------


def test_D12_a_lane_is_named_after_its_mesh() -> None:
    assert lane_of("team") == "broker:team"
    assert mesh_of(lane_of("team")) == "team"


def test_D12_a_message_keeps_no_order_and_a_change_that_of_its_entity() -> None:
    assert entity_of("message.send", "", "topic/news") == ""
    assert entity_of("state.set", "", "k") == entity_of("state.delete", "", "k")
    different = {
        entity_of("state.set", "", "k"),
        entity_of("memory.set", "ana", "k"),
        entity_of("memory.set", "bob", "k"),
        entity_of("fact.append", "", "k"),
        entity_of("state.set", "", "l"),
    }
    assert len(different) == 5


# --- what goes next ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", Policy)
def test_D12_when_nothing_fails_all_goes_by_priority(policy: Policy) -> None:
    due = [row(3, rank=0), row(1), row(2, "a"), row(4, "b", rank=2)]
    found = plan(due, [], policy, 99)
    assert numbers(found) == [3, 1, 2, 4]
    assert found.blocked == {}
    assert numbers(plan(due, [], policy, 2)) == [3, 1], "no more than there is room for"
    assert plan(due, [], policy, 0) == LanePlan([], {})


@pytest.mark.parametrize("policy", Policy)
def test_D12_an_urgent_change_does_not_overtake_an_earlier_one_of_its_entity(
    policy: Policy,
) -> None:
    due = [row(5, "a", rank=0), row(1, "b"), row(2, "a"), row(9, "a"), row(3, "a", rank=2)]
    assert numbers(plan(due, [], policy, 99)) == [2, 3, 5, 9, 1]
    assert numbers(plan(due, [], policy, 2)) == [2, 3]


def test_D12_halt_holds_back_everything_that_was_written_after_it() -> None:
    failing = row(4, "a", attempts=2, not_before=99)
    due = [row(7, rank=0), row(2), row(3, "a"), row(5, "b"), row(6, "a")]
    found = plan(due, [failing], Policy.HALT, 99)
    assert numbers(found) == [2, 3]
    assert found.blocked == {7: 4, 5: 4, 6: 4}


def test_D12_park_holds_back_what_is_about_the_same_entity() -> None:
    failing = [row(4, "a", attempts=1, state="dead"), row(1, attempts=3)]
    due = [row(7, rank=0), row(2), row(3, "a"), row(5, "b"), row(6, "a")]
    found = plan(due, failing, Policy.PARK, 99)
    assert numbers(found) == [7, 2, 3, 5], "messages wait for nobody"
    assert found.blocked == {6: 4}


def test_D12_quarantine_holds_back_nothing() -> None:
    failing = row(1, "a", attempts=1, state="dead")
    due = [row(2), row(3, "a"), row(4, "b")]
    found = plan(due, [failing], Policy.QUARANTINE, 99)
    assert numbers(found) == [2, 3, 4]
    assert found.blocked == {}


@pytest.mark.parametrize("policy", Policy)
def test_D12_the_failing_one_itself_goes_when_its_time_has_come(policy: Policy) -> None:
    failing = row(4, "a", attempts=2)
    found = plan([failing, row(6, "a")], [failing], policy, 99)
    assert found.go[0] == failing
    assert (6 in found.blocked) == (policy is not Policy.QUARANTINE)


def test_D12_one_that_is_tried_again_waits_for_what_left_after_it() -> None:
    failing = row(4, "a", attempts=1)
    inflight = [row(5, "a", state="inflight"), row(6, "b", state="inflight")]
    found = plan([failing, row(7, "b")], [failing], Policy.PARK, 99, inflight)
    assert numbers(found) == [7]
    assert found.blocked == {4: 5}


# --- a lane's life -------------------------------------------------------------------------------


class Lane:
    """A lane as the store keeps it, played by hand."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.rows: dict[int, OutboxRow] = {}
        self.now = 1

    def of(self, *states: str) -> list[OutboxRow]:
        return [one for one in self.rows.values() if one.state in states]

    def write(self, entity: str, rank: int) -> None:
        number = len(self.rows) + 1
        # Changes of an entity have one rank, as all changes have.
        self.rows[number] = row(number, entity, rank=1 if entity else rank)

    def failing(self) -> list[OutboxRow]:
        return [one for one in self.of("pending", "dead") if one.attempts]

    def plan(self, room: int) -> LanePlan:
        due = [one for one in self.of("pending") if one.not_before <= self.now]
        due.sort(key=lambda one: (one.rank, one.number))
        return plan(due, self.failing(), self.policy, room, self.of("inflight"))

    def send(self, room: int) -> None:
        found = self.plan(room)
        assert len(found.go) <= room
        failing = self.failing()
        for one in found.go:
            self.check(one, failing)
            self.rows[one.number] = msgspec.structs.replace(one, state="inflight")

    def check(self, one: OutboxRow, failing: list[OutboxRow]) -> None:
        of_entity = [other for other in self.rows.values() if other.entity == one.entity]
        if one.entity and self.policy in ORDERED:
            earlier = [other for other in of_entity if other.number < one.number]
            assert all(other.state in ("done", "aborted", "inflight") for other in earlier), (
                "an earlier change of the entity was left behind"
            )
        if one.entity:
            later = [other for other in of_entity if other.number > one.number]
            assert all(other.state != "inflight" for other in later), "a later one is under way"
        if self.policy is Policy.HALT:
            assert all(other.number >= one.number for other in failing), "the lane is halted"

    def answer(self, number: int, status: int | None) -> None:
        one = self.rows[number]
        if status is None:  # the connection is gone
            changed = msgspec.structs.replace(one, state="pending")
        elif status == 201:
            changed = msgspec.structs.replace(one, state="done")
        else:
            changed = after_refusal(
                one,
                status=status,
                code="no",
                message="",
                now_ms=self.now,
                jitter=0.5,
                policy=self.policy,
            )
        self.rows[number] = changed

    def care(self, number: int, drop: bool) -> None:
        one = self.rows[number]
        self.rows[number] = after_abort(one, self.now, "") if drop else after_retry(one)


ENTITIES = st.sampled_from(("a", "a", "b", ""))
ANSWERS = st.sampled_from((201, 404, 413, None, "keep"))
ROUNDS = st.lists(
    st.tuples(
        st.lists(st.tuples(ENTITIES, st.integers(0, 2)), max_size=3),
        st.integers(1, 4),
        st.lists(ANSWERS, min_size=4, max_size=4),
        st.sampled_from((0, BACKOFF_MS_MAX)),
        st.sampled_from(("leave", "leave", "retry", "drop")),
    ),
    min_size=2,
    max_size=12,
)


@given(st.sampled_from(Policy), ROUNDS)
def test_D12_no_change_overtakes_another_of_its_entity_and_nothing_starves(
    policy: Policy, rounds: list[tuple[Any, ...]]
) -> None:
    lane = Lane(policy)
    for written, room, answers, wait_ms, care in rounds:
        for entity, rank in written:
            lane.write(entity, rank)
        lane.send(room)
        for one, answer in zip(lane.of("inflight"), answers, strict=False):
            if answer != "keep":
                lane.answer(one.number, answer)
        lane.now += wait_ms
        for one in lane.of("dead")[:1]:
            if care != "leave":
                lane.care(one.number, drop=care == "drop")
    # From here on the broker takes everything, and somebody cares for what is dead.
    for one in lane.of("dead"):
        lane.care(one.number, drop=False)
    for _ in range(2 * len(lane.rows) + 1):
        lane.now += 2 * BACKOFF_MS_MAX
        for one in lane.of("inflight"):
            lane.answer(one.number, 201)
        lane.send(1)
    assert {one.state for one in lane.rows.values()} <= {"done", "aborted", "inflight"}


@given(st.lists(st.tuples(ENTITIES, st.integers(0, 2)), max_size=20), st.integers(0, 25))
def test_D12_what_goes_is_ordered_by_priority_apart_from_entities(
    written: list[tuple[str, int]], room: int
) -> None:
    lane = Lane(Policy.PARK)
    for entity, rank in written:
        lane.write(entity, rank)
    go = lane.plan(room).go
    assert len(go) == min(room, len(written)), "whatever may go goes"
    messages = [(one.rank, one.number) for one in go if not one.entity]
    assert messages == sorted(messages)
    waiting = [one for one in lane.rows.values() if one not in go]
    assert all(
        (one.rank, one.number) >= max(messages, default=(0, 0)) for one in waiting if not one.entity
    )


# --- what becomes of a row -----------------------------------------------------------------------


def refused(one: OutboxRow, status: int, policy: Policy = Policy.PARK) -> OutboxRow:
    return after_refusal(
        one,
        status=status,
        code="not_granted",
        message="x" * 5000,
        now_ms=7_000,
        jitter=0.5,
        policy=policy,
    )


@pytest.mark.parametrize("status", [400, 405, 409, 413, 415, 422])
@pytest.mark.parametrize("policy", Policy)
def test_D11_what_will_never_pass_is_dead_at_once(status: int, policy: Policy) -> None:
    assert is_permanent(status)
    found = refused(row(1, state="inflight"), status, policy)
    assert (found.state, found.attempts, found.ended_at) == (OutboxState.DEAD, 1, 7_000)
    assert (found.code, len(found.error)) == ("not_granted", REASON_CHARS_MAX)


@pytest.mark.parametrize("status", [403, 404, 429, 500, 503])
def test_D11_what_may_pass_later_waits_longer_each_time_and_not_for_ever(status: int) -> None:
    one, waits = row(1), []
    for _ in range(OUTBOX_ATTEMPTS_MAX - 1):
        one = refused(msgspec.structs.replace(one, state="inflight"), status)
        assert one.state == OutboxState.PENDING
        assert one.tried_at == 7_000
        waits.append(one.not_before - 7_000)
    assert waits == sorted(waits)
    assert 0 < waits[0] < waits[-1] <= BACKOFF_MS_MAX
    assert refused(one, status).state == OutboxState.DEAD
    assert refused(one, status).attempts == OUTBOX_ATTEMPTS_MAX


def test_D12_a_lane_that_halts_gives_up_nothing_by_itself() -> None:
    worn = row(1, attempts=OUTBOX_ATTEMPTS_MAX + 5)
    assert refused(worn, 404, Policy.HALT).state == OutboxState.PENDING
    assert refused(worn, 404, Policy.QUARANTINE).state == OutboxState.DEAD


def test_D8_a_message_expires_and_a_change_does_not() -> None:
    assert not is_expired(row(1, created_at=0), 72 * HOUR_MS, 72, 10**9)
    assert is_expired(row(1, created_at=0), 72 * HOUR_MS + 1, 72, 10**9)
    assert not is_expired(row(1, "state//k", created_at=0), 999 * HOUR_MS, 72, 10**9)
    assert not is_expired(row(1, created_at=0), 999 * HOUR_MS, 72, 0), "the log says it is young"
    ahead = row(1, created_at=10**15)
    assert not is_expired(ahead, 999 * HOUR_MS, 72, 0), "a clock that went back"
    assert is_expired(ahead, 999 * HOUR_MS, 72, 10**9), "but the log says that it is old"


def test_S17_an_item_waits_no_longer_than_the_longest_backoff() -> None:
    assert waits_until(0, 1000) == 0
    assert waits_until(1000 + BACKOFF_MS_MAX, 1000) == 1000 + BACKOFF_MS_MAX
    assert waits_until(1001 + BACKOFF_MS_MAX, 1000) == 1000, "that was another clock"
    found = after_expiry(row(1), 5, 72)
    assert (found.state, found.code, found.ended_at) == (OutboxState.DEAD, EXPIRED, 5)
    assert found.attempts == 1, "so that it counts as failing"


def test_D11_what_is_tried_again_begins_anew() -> None:
    one = row(1, state="dead", attempts=7, not_before=9, ended_at=8, code="x", error="y")
    found = after_retry(one)
    assert (found.state, found.attempts, found.not_before) == (OutboxState.PENDING, 0, 0)
    assert found.ended_at is None
    assert (found.code, found.error) == ("x", "y"), "why it failed is told until it passes"


def test_D11_what_is_given_up_says_why_and_why_it_had_failed() -> None:
    found = after_abort(row(1, code="x", error="y"), 5, "by ana")
    assert (found.state, found.code, found.ended_at) == (OutboxState.ABORTED, "dropped", 5)
    assert found.error == "by ana; before that x: y"
    assert after_abort(row(1), 5, "by ana").error == "by ana"
