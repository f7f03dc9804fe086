"""Q4, Q5, Q7: what a committed entry does."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.rules.bodies import NOTHING
from holdfast.rules.errors import (
    BadEnvelope,
    FenceForged,
    FenceTooOld,
    IdReused,
    IntentAbandoned,
    RevisionMoved,
    UnsupportedProtocol,
)
from holdfast.rules.ids import id_text
from holdfast.rules.quorum.commit_record import decode_record, state_of
from holdfast.rules.quorum.decide import REFUSALS, decide, error_of
from holdfast.rules.quorum.fence import FenceOrder
from holdfast.rules.quorum.intents import (
    Guard,
    IntentAbandon,
    LeaseAcquire,
    LeaseRelease,
    decode_intent,
)
from holdfast.rules.reconcile import Outcome
from support.envelopes import make_id
from support.quorum_state import QuorumState, change, fence, intent, operation

APPLIED, NOOP = Outcome.APPLIED, Outcome.NOOP_ALREADY_APPLIED
SUPERSEDED, CONFLICT = Outcome.SUPERSEDED, Outcome.CONFLICT_REQUIRES_MERGE
FENCED = Outcome.REJECTED_FENCED


@pytest.fixture
def state() -> QuorumState:
    return QuorumState()


def fields(state: QuorumState, id: str, type: str = "mission") -> object:
    return msgspec.json.decode(state.entities[type, id].fields)


def test_Q5_revisions_count_one_two_three_also_over_a_deletion(state: QuorumState) -> None:
    numbers = []
    for one in (
        operation("put", "mission", "m", {"title": "a"}, base=0),
        operation("patch", "mission", "m", {"goal": "g"}, base=1),
        operation("delete", "mission", "m", base=2),
        operation("put", "mission", "m", {"title": "b"}, base=0),
    ):
        decision = state.fold(change(one))
        assert decision.outcome is APPLIED
        numbers += [revision.revision for revision in decision.revisions]
    assert numbers == [1, 2, 3, 4]
    assert fields(state, "m") == {"title": "b"}


def test_Q7_the_same_intent_again_is_a_noop_with_the_first_revisions(state: QuorumState) -> None:
    first = change(operation("put", "mission", "m", {"title": "a"}))
    done = state.fold(first)
    state.fold(change(operation("put", "mission", "m", {"title": "b"})))
    before = dict(state.entities)
    # With a newer fence, as a coordinator that retried; and with the old one, after a crash.
    for token in (fence(9, 2, "bob"), fence(1)):
        again = state.fold(first, token)
        assert (again.outcome, again.revisions, again.writes) == (NOOP, done.revisions, ())
    assert state.entities == before
    assert len(state.records) == 2


def test_Q7_the_same_id_with_other_content_is_a_conflict(state: QuorumState) -> None:
    first = change(operation("put", "mission", "m", {"title": "a"}))
    state.fold(first)
    other = change(operation("put", "mission", "m", {"title": "b"}), id=first.id)
    decision = state.fold(other)
    assert (decision.outcome, decision.reason) == (CONFLICT, IdReused.code)
    assert decision.first is not None
    assert decision.first.fingerprint == first.fingerprint
    assert fields(state, "m") == {"title": "a"}
    assert not decision.counts


def test_Q4_an_entry_with_an_old_or_forged_fence_changes_and_records_nothing(
    state: QuorumState,
) -> None:
    state.fold(change(operation("put", "mission", "m", {"title": "a"})), fence(7, 3, "ana"))
    late = change(operation("put", "mission", "m", {"title": "late"}))
    for token, reason in (
        (fence(8, 2, "bob"), FenceTooOld.code),
        (fence(7, 3, "ana"), FenceTooOld.code),
        (fence(8, 3, "bob"), FenceForged.code),
    ):
        decision = state.fold(late, token)
        assert (decision.outcome, decision.reason) == (FENCED, reason)
        assert not decision.counts
    assert fields(state, "m") == {"title": "a"}
    # It was never decided: somebody with authority may still commit it.
    assert state.fold(late, fence(8, 4, "bob")).outcome is APPLIED


def test_Q4_the_expected_lease_epoch_must_be_the_one_that_commits(state: QuorumState) -> None:
    wants = operation("put", "mission", "m", {"title": "a"}, epoch=3)
    assert state.fold(change(wants), fence(1, 3)).outcome is APPLIED
    late = change(wants)
    decision = state.fold(late, fence(2, 4, "bob"))
    assert (decision.outcome, decision.reason) == (FENCED, FenceTooOld.code)
    # This one was committed, and so it is decided for ever.
    assert state.fold(late, fence(3, 4, "bob")).outcome is FENCED
    assert state.intents[late.id].outcome is FENCED


def test_Q4_a_write_under_a_lease_counts_only_while_it_is_held(state: QuorumState) -> None:
    asks = intent("lease.acquire", "deploy", LeaseAcquire(5_000))
    state.fold(asks)
    row = state.leases["deploy"]
    assert row.grant is not None
    guard = Guard("deploy", *row.grant.order)
    guarded = operation("put", "mission", "m", {"title": "a"}, guard=guard)
    assert state.fold(change(guarded)).outcome is APPLIED
    other = Guard("deploy", *FenceOrder(1, 1, 99))
    forged = operation("put", "mission", "m", {"title": "b"}, guard=other)
    assert state.fold(change(forged)).outcome is FENCED
    state.fold(intent("lease.release", "deploy", LeaseRelease(asks.id)))
    assert state.fold(change(guarded)).outcome is FENCED
    state.fold(intent("lease.acquire", "deploy", LeaseAcquire(5_000)))
    assert state.fold(change(guarded)).outcome is FENCED
    assert fields(state, "m") == {"title": "a"}


# --- bases ---------------------------------------------------------------------------------------


def test_Q5_a_base_that_moved_on_both_sides_is_a_conflict_that_names_them(
    state: QuorumState,
) -> None:
    state.fold(change(operation("put", "mission", "m", {"title": "a", "goal": 1})))
    state.fold(change(operation("patch", "mission", "m", {"title": "b"}, base=1), origin="ana"))
    mine = operation("patch", "mission", "m", {"title": "c", "goal": 1}, base=1)
    decision = state.fold(change(mine))
    assert (decision.outcome, decision.reason) == (CONFLICT, RevisionMoved.code)
    clash = decision.clashes[0]
    assert (clash.base, clash.revision, clash.kind, clash.fields) == (1, 2, "moved", ("title",))
    assert fields(state, "m") == {"title": "b", "goal": 1}
    # Strict, also where the fields are others; without a base only its own fields are touched.
    apart = operation("patch", "mission", "m", {"note": "n"}, base=1)
    assert state.fold(change(apart)).outcome is CONFLICT
    loose = operation("patch", "mission", "m", {"note": "n"})
    assert state.fold(change(loose)).outcome is APPLIED
    assert fields(state, "m") == {"title": "b", "goal": 1, "note": "n"}


def test_Q7_a_write_whose_content_stands_already_is_superseded(state: QuorumState) -> None:
    state.fold(change(operation("put", "mission", "m", {"title": "a"})))
    state.fold(change(operation("put", "mission", "m", {"title": "b", "goal": 1}), origin="ana"))
    for covered in (
        operation("put", "mission", "m", {"title": "b"}, base=1),
        operation("put", "mission", "m", {"title": "b"}, base=0),
        operation("patch", "mission", "m", {"goal": 1}, removed=("note",), base=1),
    ):
        assert state.fold(change(covered)).outcome is SUPERSEDED, covered
    for other in (
        operation("put", "mission", "m", {"title": "b", "goal": True}, base=1),
        operation("patch", "mission", "m", {"goal": 1.0}, base=1),
        operation("patch", "mission", "m", {"title": "b"}, removed=("goal",), base=1),
        operation("delete", "mission", "m", base=1),
    ):
        assert state.fold(change(other)).outcome is CONFLICT, other
    assert state.entities["mission", "m"].revision == 2


def test_Q7_a_delete_of_what_is_gone_is_superseded_and_a_patch_of_it_a_conflict(
    state: QuorumState,
) -> None:
    state.fold(change(operation("put", "mission", "m", {"title": "a"})))
    state.fold(change(operation("delete", "mission", "m", base=1)))
    for base in (None, 1, 2):
        gone = operation("delete", "mission", "m", base=base)
        assert state.fold(change(gone)).outcome is SUPERSEDED
    late = operation("patch", "mission", "m", {"title": "b"}, base=1)
    assert state.fold(change(late)).outcome is CONFLICT
    knows = operation("patch", "mission", "m", {"title": "b"}, base=2)
    decision = state.fold(change(knows))
    assert (decision.outcome, decision.reason) == (None, "unknown_entity")


def test_Q7_an_authors_own_later_whole_write_supersedes_the_earlier_one(
    state: QuorumState,
) -> None:
    state.fold(change(operation("put", "mission", "m", {"title": "a"})))
    early = change(operation("put", "mission", "m", {"title": "b"}, base=1), lamport=5)
    later = change(operation("put", "mission", "m", {"title": "c"}, base=1), lamport=6)
    assert state.fold(later).outcome is APPLIED
    assert state.fold(early).outcome is SUPERSEDED
    # A patch says nothing about the rest, and another author has not decided for this one.
    state.fold(change(operation("patch", "mission", "m", {"goal": 1}), lamport=8))
    early = change(operation("put", "mission", "m", {"title": "d"}, base=1), lamport=7)
    assert state.fold(early).outcome is CONFLICT
    state.fold(change(operation("put", "mission", "m", {"title": "e"}), lamport=9, origin="ana"))
    early = change(operation("put", "mission", "m", {"title": "f"}, base=1), lamport=8)
    assert state.fold(early).outcome is CONFLICT


def test_Q5_a_base_ahead_of_everything_is_a_conflict(state: QuorumState) -> None:
    for wild in (
        operation("put", "mission", "m", {"title": "a"}, base=4),
        operation("patch", "mission", "m", {"title": "a"}, base=4),
        operation("delete", "mission", "m", base=4),
    ):
        decision = state.fold(change(wild))
        assert decision.outcome is CONFLICT
        assert decision.clashes[0].kind == "ahead"
    assert not state.entities


def test_Q5_several_entities_change_together_or_not_at_all(state: QuorumState) -> None:
    state.fold(change(operation("put", "mission", "a", {"title": "a"})))
    state.fold(change(operation("put", "mission", "b", {"title": "b"})))
    state.fold(change(operation("patch", "mission", "b", {"goal": 1}), origin="ana"))
    fits = operation("put", "mission", "a", {"title": "x"}, base=1)
    covered = operation("patch", "mission", "b", {"goal": 1}, base=1)
    clashes = operation("put", "mission", "b", {"title": "y"}, base=1)
    unknown = operation("patch", "mission", "c", {"title": "z"})
    assert state.fold(change(fits, clashes)).outcome is CONFLICT
    assert state.fold(change(fits, covered)).outcome is CONFLICT
    assert state.fold(change(fits, unknown)).outcome is None
    assert fields(state, "a") == {"title": "a"}
    now = operation("put", "mission", "b", {"title": "y"}, base=2)
    decision = state.fold(change(fits, now))
    assert decision.outcome is APPLIED
    assert [one.revision for one in decision.revisions] == [2, 3]


# --- giving up -----------------------------------------------------------------------------------


def test_Q6_an_intent_that_was_given_up_first_is_void_for_ever(state: QuorumState) -> None:
    late = change(operation("put", "mission", "m", {"title": "a"}))
    gives_up = intent("intent.abandon", id_text(late.id), IntentAbandon(late.id))
    decision = state.fold(gives_up)
    assert decision.outcome is APPLIED
    assert decision.first is None
    for _ in range(2):
        decision = state.fold(late)
        assert (decision.outcome, decision.reason) == (None, IntentAbandoned.code)
        assert not decision.counts
    assert not state.entities


def test_Q6_giving_up_what_was_committed_says_what_became_of_it(state: QuorumState) -> None:
    done = change(operation("put", "mission", "m", {"title": "a"}))
    state.fold(done)
    gives_up = intent("intent.abandon", id_text(done.id), IntentAbandon(done.id))
    decision = state.fold(gives_up)
    assert decision.outcome is NOOP
    assert decision.first is not None
    assert decision.first.outcome is APPLIED
    assert state.fold(done).outcome is NOOP
    again = intent("intent.abandon", id_text(make_id(5)), IntentAbandon(make_id(5)))
    state.fold(again)
    second = intent("intent.abandon", id_text(make_id(5)), IntentAbandon(make_id(5)))
    decision = state.fold(second)
    assert decision.outcome is NOOP
    assert decision.first is not None
    assert decision.first.void


# --- what is refused for good --------------------------------------------------------------------


def test_Q7_an_entry_that_cannot_be_read_is_refused_for_good_and_on_record(
    state: QuorumState,
) -> None:
    bad = intent("entity.change", "mission/m", fingerprint=b"\1" * 32)
    decision = state.fold(bad)
    assert (decision.outcome, decision.reason) == (None, BadEnvelope.code)
    assert decision.counts
    again = state.fold(bad)
    assert (again.outcome, again.reason, again.counts) == (None, BadEnvelope.code, False)


@pytest.mark.parametrize(
    "fields",
    [
        {"write_class": "queued"},
        {"intent": make_id(9)},
        {"intent": None},
        {"state": "committed"},
        {"committed_at": 5},
        {"epoch": 1},
        {"owner": "bob"},
        {"reply_to": id_text(make_id(3))},
        {"op": "state.set"},
        {"op": "quorum.unknown"},
        {"entity": "mission/other"},
    ],
)
def test_Q2_an_intent_says_nothing_about_its_commit_and_is_of_its_form(
    state: QuorumState, fields: dict[str, object]
) -> None:
    good = change(operation("put", "mission", "m", {"title": "a"}))
    bad = msgspec.structs.replace(good, **fields)
    decision = state.fold(bad)
    assert decision.outcome is None
    assert decision.reason in ("bad_envelope", "bad_value")
    assert not state.entities


def test_Q7_every_reason_has_its_error(state: QuorumState) -> None:
    for code, kind in REFUSALS.items():
        error = error_of(code, "why")
        assert type(error) is kind
        assert error.message == "why"
    assert error_of("") is None
    assert type(error_of("what_a_later_version_says")) is BadEnvelope


def test_Q7_a_body_that_was_read_before_gives_the_same_decision(state: QuorumState) -> None:
    made = change(operation("put", "mission", "m", {"title": "a"}, base=0))
    read = decide(state, made, fence(1), 5, decode_intent(made))
    assert read == decide(state, made, fence(1), 5)
    assert read.outcome is APPLIED


# --- records -------------------------------------------------------------------------------------


def test_Q2_the_commit_record_says_fence_outcome_and_revisions(state: QuorumState) -> None:
    done = change(operation("put", "mission", "m", {"title": "a"}))
    state.fold(done, fence(4, 2), 77)
    state.fold(change(operation("patch", "mission", "x", {"title": "a"})), fence(6, 2), 78)
    first, second = map(decode_record, state.records)
    assert (first.number, first.fence, first.committed_at) == (1, fence(4, 2), 77)
    assert (first.outcome, state_of(first)) == (APPLIED, "committed")
    assert [(one.type, one.id, one.revision) for one in first.revisions] == [("mission", "m", 1)]
    assert (second.number, second.outcome, second.reason) == (2, None, "unknown_entity")
    assert state_of(second) == "rejected"
    assert (first.id, first.fingerprint) == (done.id, done.fingerprint)


def test_Q2_a_record_from_outside_is_read_only_in_its_canonical_form(state: QuorumState) -> None:
    state.fold(change(operation("put", "mission", "m", {"title": "a"})))
    raw = state.records[0]
    assert decode_record(raw).mesh == "team"
    fields = msgspec.msgpack.decode(raw)
    later = msgspec.msgpack.encode([2, *fields[1:], "more"])
    assert decode_record(later).version == 2
    for bad in (
        b"",
        NOTHING,
        raw + b"\0",
        raw[:-1],
        msgspec.msgpack.encode([*fields, "more"]),
        msgspec.msgpack.encode([0, *fields[1:]]),
        msgspec.msgpack.encode([1, "No Mesh", *fields[2:]]),
        msgspec.msgpack.encode([*fields[:5], [0, 1, "ana", 1], *fields[6:]]),
        msgspec.msgpack.encode([*fields[:5], [1, 1, "", 1], *fields[6:]]),
        msgspec.msgpack.encode([*fields[:7], None, "", []]),
        msgspec.msgpack.encode([*fields[:7], "won", "", []]),
    ):
        with pytest.raises((BadEnvelope, UnsupportedProtocol)):
            decode_record(bad)
