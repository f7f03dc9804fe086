"""S10, Q12: tasks in a mesh with voters, and what follows when their holder is lost."""

from __future__ import annotations

import pytest

from holdfast.rules.bodies import Nothing, TaskCreate, TaskTurn
from holdfast.rules.ids import id_text
from holdfast.rules.quorum.intents import NodeLost, TaskHandoff
from holdfast.rules.reconcile import Outcome
from holdfast.rules.tasks import TaskEvent
from support.envelopes import make_id
from support.quorum_state import QuorumState, change, intent, operation

APPLIED, SUPERSEDED = Outcome.APPLIED, Outcome.SUPERSEDED
ID = make_id(70)
TASK = id_text(ID)


@pytest.fixture
def state() -> QuorumState:
    state = QuorumState()
    state.fold(intent("task.create", TASK, TaskCreate("build"), id=ID))
    return state


def turn(state: QuorumState, kind: str, origin: str, generation: int = 0, lamport: int = 1) -> str:
    body = TaskTurn(generation) if kind in ("claim", "release") else Nothing()
    decision = state.fold(intent(f"task.{kind}", TASK, body, origin=origin, lamport=lamport))
    assert decision.outcome is not None
    return decision.outcome.value


def holder(state: QuorumState) -> str | None:
    task = state.tasks[TASK]
    return task.holder.peer if task.status == "claimed" and task.holder else None


def test_S10_the_first_committed_claim_wins_whatever_its_stamp(state: QuorumState) -> None:
    assert turn(state, "claim", "cyd", lamport=900) == "applied"
    # Without voters the lower stamp would take the task away again.
    assert turn(state, "claim", "ana", lamport=2) == "superseded"
    assert holder(state) == "cyd"
    assert turn(state, "claim", "cyd", lamport=901) == "applied"
    assert turn(state, "release", "ana") == "applied"
    assert holder(state) == "cyd"
    assert turn(state, "release", "cyd") == "applied"
    assert turn(state, "claim", "ana", generation=0) == "superseded"
    assert turn(state, "claim", "ana", generation=1) == "applied"
    assert turn(state, "complete", "ana") == "applied"
    assert turn(state, "cancel", "cyd") == "superseded"
    assert state.tasks[TASK].status == "completed"
    events = [judged.event for judged in state.history[TASK]]
    assert events[-1] is TaskEvent.REJECTED_TERMINAL
    assert TaskEvent.SUPERSEDED in events


def test_S10_a_turn_on_a_task_that_nobody_created_is_refused(state: QuorumState) -> None:
    unknown = id_text(make_id(71))
    decision = state.fold(intent("task.claim", unknown, TaskTurn(0)))
    assert (decision.outcome, decision.reason) == (None, "unknown_task")


# --- lost nodes ----------------------------------------------------------------------------------


def lost(state: QuorumState, peer: str = "cyd", origin: str = "ana") -> str:
    decision = state.fold(intent("node.lost", peer, NodeLost(60_000), origin=origin))
    return decision.reason or str(decision.outcome)


def policy(state: QuorumState, name: str) -> None:
    state.fold(change(operation("put", "mesh_settings", "quorum", {"handoff": name})))


def hand(state: QuorumState, to: str, origin: str = "ana", generation: int = 0) -> str:
    body = TaskHandoff("cyd", generation, to)
    decision = state.fold(intent("task.handoff", TASK, body, origin=origin))
    return decision.reason or str(decision.outcome)


def test_Q12_only_the_coordinator_declares_a_node_lost(state: QuorumState) -> None:
    assert lost(state, origin="bob") == "not_the_coordinator"
    assert lost(state, peer="ana") == "bad_envelope"
    assert lost(state) == "applied"
    assert lost(state) == "superseded"
    assert state.nodes["cyd"].lost
    back = intent("node.back", "cyd", origin="bob")
    assert state.fold(back).reason == "not_the_coordinator"
    assert state.fold(intent("node.back", "cyd", origin="cyd")).outcome is APPLIED
    assert state.fold(intent("node.back", "cyd", origin="ana")).outcome is SUPERSEDED
    assert not state.nodes["cyd"].lost


def test_Q12_a_task_is_taken_only_from_a_lost_node_and_not_if_it_is_parked(
    state: QuorumState,
) -> None:
    turn(state, "claim", "cyd")
    assert hand(state, "ana") == "node_not_lost"
    lost(state)
    assert hand(state, "ana") == "superseded"  # park is the default
    assert holder(state) == "cyd"
    policy(state, "reassign-to-local")
    assert hand(state, "bob") == "not_ours"
    assert hand(state, "ana", generation=1) == "superseded"
    assert hand(state, "ana") == "applied"
    assert (holder(state), state.tasks[TASK].generation) == ("ana", 1)
    events = [judged.event for judged in state.history[TASK]]
    assert events[-2:] == [TaskEvent.RELEASED, TaskEvent.CLAIMED]
    # The old holder wakes up, and cannot release or claim what is no longer its own.
    assert turn(state, "release", "cyd") == "applied"
    assert turn(state, "claim", "cyd") == "superseded"
    assert holder(state) == "ana"
    assert hand(state, "ana") == "superseded"


def test_Q12_any_healthy_node_may_get_it_or_nobody(state: QuorumState) -> None:
    turn(state, "claim", "cyd")
    lost(state)
    policy(state, "reassign-any-healthy")
    lost(state, peer="dan")
    assert hand(state, "dan") == "superseded"
    assert hand(state, "") == "applied"
    assert (holder(state), state.tasks[TASK].status) == (None, "open")
    assert turn(state, "claim", "bob", generation=1) == "applied"
    unknown = TaskHandoff("cyd", 0, "ana")
    decision = state.fold(intent("task.handoff", id_text(make_id(72)), unknown, origin="ana"))
    assert decision.reason == "unknown_task"
