"""Committed entries enter by the door: together with their index, once, and under a newer fence."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from holdfast.node.core.change import Change
from holdfast.node.core.commit import CommitRun, Committed, CommittedEntry
from holdfast.node.core.intake import Intake
from holdfast.node.core.write_queue import queue_add, queue_counts, queue_get, queue_list
from holdfast.rules.bodies import TaskCreate, TaskTurn
from holdfast.rules.envelope import Envelope, encode
from holdfast.rules.errors import HasVoters, NotCommitted, NoVoters
from holdfast.rules.ids import id_text
from holdfast.rules.limits import LAMPORT_MAX
from holdfast.rules.quorum.intents import (
    EntityOperation,
    IntentAbandon,
    LeaseAcquire,
    NodeLost,
    TaskHandoff,
)
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.rules.quorum.write_queue import WriteCounts, WriteFailure, WriteStatus
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import MeshRow
from holdfast.storage.ports import Store, Transaction
from model.test_quorum_model import run
from support.commits import (
    assert_holds,
    commit,
    committed_state,
    context,
    entries_of,
    entry,
    with_quorum,
)
from support.envelopes import MESH, make_id, state_set, task_create
from support.nodes import KINDS
from support.quorum_state import change, fence, intent, operation
from support.seeds import seeds
from support.source import START_MS
from support.stores import make_store, read


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = make_store(request.param, tmp_path)
    yield made
    made.stop()


def put(id: str, title: str = "t", *, base: int | None = None) -> EntityOperation:
    return operation("put", "mission", id, {"title": title}, base=base)


T = id_text(make_id(500))


def create() -> Envelope:
    return intent("task.create", T, TaskCreate("build"), lamport=1, id=make_id(500))


def missions(store: Store) -> dict[str, tuple[int, bytes]]:
    rows = read(store, lambda tx: tx.entity_list(MESH, "mission", "", 100))
    return {row.id: (row.revision, row.fields) for row in rows}


def standing(store: Store) -> QuorumRow:
    row = read(store, lambda tx: tx.quorum_get(MESH))
    assert row is not None
    return row


def state_of(store: Store) -> dict[str, object]:
    return read(store, committed_state)


@pytest.mark.parametrize("seed", seeds(4))
def test_Q4_the_store_holds_what_the_rules_make_of_an_order_however_it_is_cut(
    store: Store, seed: int
) -> None:
    with_quorum(store)
    state, order, _ = run(seed)
    entries = entries_of(order)
    draw, at = random.Random(seed), 0
    while at < len(entries):
        size = draw.choice((1, 1, 2, 7, 40))
        commit(store, entries[at : at + size])
        at += size
    with store.read() as tx:
        assert_holds(tx, state)


@pytest.mark.parametrize("seed", seeds(2))
def test_Q8_entries_that_come_again_after_a_crash_change_nothing(store: Store, seed: int) -> None:
    with_quorum(store)
    state, order, _ = run(seed)
    entries = entries_of(order)
    for at in range(0, len(entries), 10):
        before = max(0, at - 15)
        commit(store, entries[before : at + 10])
    with store.read() as tx:
        assert_holds(tx, state)
    before_again = state_of(store)
    commit(store, entries)
    assert state_of(store) == before_again


def test_Q8_an_engine_that_counts_anew_applies_nothing_twice(store: Store) -> None:
    """The index is the first thing that knows an entry; the id of its intent is the second."""
    with_quorum(store)
    one = change(put("m"))
    commit(store, [entry(one, 5)])
    again = commit(store, [entry(one, 6)])
    assert [result.outcome for result in again] == [Outcome.NOOP_ALREADY_APPLIED]
    assert missions(store) == {"m": (1, b'{"title":"t"}')}
    assert (standing(store).applied, standing(store).number) == (6, 1)


class Failing:
    """A transaction that fails at one of its calls."""

    def __init__(self, tx: Transaction, at: int) -> None:
        self._tx, self._left = tx, at

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._tx, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise RuntimeError("a crash")
            return method(*args, **kwargs)

        return call


def _failing(work: CommitRun, at: int, tx: Transaction) -> Sequence[Committed]:
    return work(cast(Transaction, Failing(tx, at)))


def test_Q8_a_crash_between_any_two_steps_leaves_rows_and_index_or_neither(store: Store) -> None:
    with_quorum(store)
    waiting = change(put("w"), origin="dan", lamport=9)
    wait(store, waiting)
    task = create()
    commit(store, [entry(task, 1)])
    run_of = [
        entry(change(put("a"), put("b")), 2),
        entry(waiting, 3),
        entry(intent("task.claim", T, TaskTurn(0), lamport=4), 4),
        entry(intent("lease.acquire", "deploy", LeaseAcquire(5_000)), 5),
        entry(change(put("a", base=7)), 6),
        entry(intent("intent.abandon", id_text(make_id(77)), IntentAbandon(make_id(77))), 7),
        entry(intent("node.lost", "cyd", NodeLost(9_000), origin="ana"), 8),
    ]
    before = state_of(store)
    work = CommitRun(context(), MESH, run_of)
    for at in count():
        failing = partial(_failing, work, at)
        try:
            store.write(failing)
        except RuntimeError:
            assert state_of(store) == before, f"after {at} steps"
        else:
            break
    assert at > 10, "a crash was tried between all steps"
    assert (standing(store).applied, standing(store).number) == (8, 8)
    assert state_of(store) != before


def test_Q4_an_older_fence_changes_nothing(store: Store) -> None:
    with_quorum(store)
    commit(store, [entry(change(put("m")), 1, fence(8, epoch=3))])
    before = state_of(store)
    deposed = [
        (fence(9, epoch=2), "fence_too_old"),
        (fence(8, epoch=3), "fence_too_old"),
        (fence(9, epoch=3, coordinator="bob"), "fence_forged"),
    ]
    for index, (token, reason) in enumerate(deposed, 2):
        (result,) = commit(store, [entry(change(put("m", "mine")), index, token)])
        assert (result.outcome, result.reason) == (Outcome.REJECTED_FENCED, reason)
        assert (result.number, result.offset) == (None, None)
    after = state_of(store)
    assert after.pop("quorum") != before.pop("quorum"), "the index has moved"
    assert after == before


def test_Q4_the_voters_of_an_earlier_incarnation_commit_nothing_after_a_recovery(
    store: Store,
) -> None:
    with_quorum(store)
    commit(store, [entry(change(put("m")), 7)])
    moved = msgspec.structs.replace(standing(store), incarnation=2, applied=0, tag=b"u" * 16)
    store.write(lambda tx: tx.quorum_put(moved))
    (late,) = commit(store, [entry(change(put("m", "late")), 8, fence(9, epoch=9))])
    assert late.outcome is Outcome.REJECTED_FENCED
    (new,) = commit(store, [entry(change(put("m", "new")), 9, fence(1, incarnation=2))])
    assert (new.outcome, new.number) == (Outcome.APPLIED, 2), "numbers go on"


def test_Q4_one_fence_orders_the_entries_of_one_run_too(store: Store) -> None:
    with_quorum(store)
    results = commit(
        store, [entry(change(put("a")), 1, fence(5)), entry(change(put("b")), 2, fence(4))]
    )
    assert [one.outcome for one in results] == [Outcome.APPLIED, Outcome.REJECTED_FENCED]
    assert set(missions(store)) == {"a"}


def wait(store: Store, envelope: Envelope) -> int:
    """Queues a write of our own that found no quorum; returns where it is in the log."""
    away = WriteFailure(503, "no_quorum", "the others are away")
    write = store.write(lambda tx: queue_add(tx, context(), envelope, away))
    assert write.status is WriteStatus.PENDING
    return read(store, lambda tx: tx.log_bounds())[1]


def test_Q6_an_intent_that_waited_gets_its_record_and_its_row_ends(store: Store) -> None:
    with_quorum(store)
    good, bad, given_up = (change(put(id), origin="dan") for id in "abc")
    clashing = change(put("d", base=4), origin="dan")
    offsets = [wait(store, one) for one in (good, bad, given_up, clashing)]
    bad_fence = entry(bad, 2, fence(1))
    results = commit(
        store,
        [
            entry(good, 1, fence(3)),
            bad_fence,
            entry(intent("intent.abandon", id_text(given_up.id), IntentAbandon(given_up.id)), 4),
            entry(clashing, 5),
        ],
    )
    assert [one.offset for one in results] == [offsets[0], None, 5, offsets[3]]
    with store.read() as tx:
        assert tx.log_bounds() == (1, 5)
        writes = [queue_get(tx, MESH, one.id) for one in (good, bad, given_up, clashing)]
        assert [one and one.status for one in writes] == ["applied", "pending", "failed", "failed"]
        assert [one and (one.outcome, one.reason) for one in writes] == [
            (Outcome.APPLIED, ""),
            (None, "no_quorum"),
            (None, "intent_abandoned"),
            (Outcome.CONFLICT_REQUIRES_MERGE, "revision_moved"),
        ]
        record = tx.commit_at(offsets[0])
        assert record is not None
        assert (record.id, record.number, record.head) == (good.id, 1, 4)
        assert queue_counts(tx, MESH) == WriteCounts(3, 1, 2)
        listed = queue_list(tx, MESH, 0, 9)
        assert [write.id for _, write in listed] == [good.id, bad.id, given_up.id, clashing.id]
    (late,) = commit(store, [entry(given_up, 6)])
    assert (late.outcome, late.reason) == (None, "intent_abandoned")


def test_Q2_something_else_under_the_id_of_a_committed_envelope_makes_room(store: Store) -> None:
    """All other nodes have what was committed: one that could not take it would stand still."""
    with_quorum(store)
    one = change(put("m"))
    other = state_set("k", 1, id=one.id)
    store.write(lambda tx: tx.log_append(one.id, MESH, "state.set", "k", "bob", 1, 1, other))
    (result,) = commit(store, [entry(one, 1)])
    assert (result.outcome, result.offset) == (Outcome.APPLIED, 2)
    with store.read() as tx:
        found, kept = tx.log_find(one.id), tx.log_get(1)
        assert found is not None
        assert kept is not None
        assert (found.offset, found.raw, kept.raw) == (2, encode(one), other)


def test_Q4_what_cannot_be_read_is_passed_over_and_says_why(store: Store) -> None:
    with_quorum(store)
    foreign = encode(msgspec.structs.replace(change(put("m")), mesh="other"))
    results = commit(
        store,
        [
            CommittedEntry(b"\x00", fence(1), START_MS, 1),
            CommittedEntry(foreign, fence(2), START_MS, 2),
            entry(change(put("m")), 3),
        ],
    )
    assert [one.reason for one in results] == ["bad_envelope", "bad_envelope", ""]
    assert [one.number for one in results] == [None, None, 1]
    assert standing(store).applied == 3


def test_Q5_a_bad_intent_that_was_committed_is_on_record_and_in_the_log(store: Store) -> None:
    with_quorum(store)
    orphan = change(operation("put", "slice", "s", {"title": "t", "milestoneId": "none"}))
    (result,) = commit(store, [entry(orphan, 1)])
    assert (result.outcome, result.reason, result.number) == (None, "orphaned", 1)
    assert read(store, lambda tx: tx.log_bounds()) == (1, 1)
    known = read(store, lambda tx: tx.intents_known(MESH, [orphan.id]))
    assert known[orphan.id].reason == "orphaned"


def test_S10_commit_order_decides_a_task_and_stamps_do_not(store: Store) -> None:
    with_quorum(store)
    commit(
        store,
        [
            entry(create(), 1),
            entry(intent("task.claim", T, TaskTurn(0), origin="cyd", lamport=900), 2),
            entry(intent("task.claim", T, TaskTurn(0), origin="bob", lamport=2), 3),
        ],
    )
    with store.read() as tx:
        row = tx.task_get(MESH, T)
        assert row is not None
        assert row.claimed_by == "cyd", "its stamp is the higher one"
        events = tx.task_events(MESH, T)
        assert [(one.version.peer, one.event) for one in events] == [
            ("bob", "created"),
            ("cyd", "claimed"),
            ("bob", "superseded"),
        ]
        assert [one.task for one in tx.task_held(MESH, "cyd", 9)] == [T]


def test_Q12_whoever_a_task_was_taken_from_is_told_once(store: Store) -> None:
    with_quorum(store)
    settings = operation("put", "mesh_settings", "quorum", {"handoff": "reassign-any-healthy"})
    commit(
        store,
        [
            entry(change(settings), 1),
            entry(create(), 2),
            entry(intent("task.claim", T, TaskTurn(0), origin="dan", lamport=2), 3),
            entry(intent("node.lost", "dan", NodeLost(60_000), origin="ana"), 4),
            entry(intent("task.handoff", T, TaskHandoff("dan", 0, "bob"), origin="ana"), 5),
        ],
    )
    with store.read() as tx:
        (warning,) = tx.warning_list(MESH)
        assert (warning.entity, warning.by_peer) == (T, "bob")
        assert [one.event for one in tx.task_events(MESH, T)][-2:] == ["released", "claimed"]


def test_S4_a_committed_stamp_moves_our_clock_and_an_absurd_one_does_not(store: Store) -> None:
    with_quorum(store)
    commit(store, [entry(change(put("a"), lamport=700), 1)])
    assert read(store, lambda tx: tx.mesh_get(MESH)).lamport == 701  # type: ignore[union-attr]
    far = msgspec.structs.replace(change(put("b")), lamport=LAMPORT_MAX - 2)
    (absurd,) = commit(store, [entry(far, 2)])
    assert absurd.outcome is Outcome.APPLIED, "all nodes must do the same"
    assert read(store, lambda tx: tx.mesh_get(MESH)).lamport == 701  # type: ignore[union-attr]


def test_Q5_children_are_counted_as_the_entries_before_have_left_them(store: Store) -> None:
    with_quorum(store)
    child = operation("put", "milestone", "c", {"title": "t", "missionId": "a"})
    moved = operation("put", "milestone", "c", {"title": "t", "missionId": "b"})
    gone = [operation("delete", "mission", "a"), operation("delete", "milestone", "c")]
    results = commit(
        store,
        [
            entry(change(put("a"), put("b")), 1),
            entry(change(child), 2),
            entry(change(gone[0]), 3),
            entry(change(moved), 4),
            entry(change(gone[0]), 5),
            entry(change(operation("delete", "mission", "b")), 6),
            entry(change(gone[1]), 7),
            entry(change(operation("delete", "mission", "b")), 8),
        ],
    )
    assert [one.reason for one in results] == [
        "",
        "",
        "has_children",
        "",
        "",
        "has_children",
        "",
        "",
    ]


def test_Q1_a_strong_envelope_that_comes_alone_is_held_and_a_known_one_is_known(
    store: Store,
) -> None:
    with_quorum(store)
    one, other = change(put("m")), change(put("n"))
    commit(store, [entry(one, 1)])
    before = state_of(store)
    known, held = store.write(Intake(context(), [encode(one), encode(other)]))
    assert (known.outcome, known.offset) == (Outcome.NOOP_ALREADY_APPLIED, 1)
    assert isinstance(held.error, NotCommitted)
    assert state_of(store) == before


def test_Q1_where_there_are_voters_nobody_decides_a_task_alone(store: Store) -> None:
    with_quorum(store)
    (arrived,) = store.write(Intake(context(), [task_create(T)]))
    assert isinstance(arrived.error, HasVoters)
    with pytest.raises(HasVoters):
        store.write(Change(context(), MESH, "task.create", T, TaskCreate("build"), id=T))
    assert read(store, lambda tx: tx.log_bounds()) == (1, 0)
    kept = store.write(Intake(context(), [state_set("k", 1)]))
    assert kept[0].outcome is Outcome.APPLIED, "state is no matter of voters"


def test_Q1_a_mesh_without_voters_commits_nothing(store: Store) -> None:
    store.write(lambda tx: tx.mesh_add(MeshRow(slug=MESH, name=MESH, created_at=1, updated_at=1)))
    with pytest.raises(NoVoters):
        commit(store, [entry(change(put("m")), 1)])
