"""Q12: which tasks of a lost node change hands, and to whom."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.rules.bodies import TaskCreate, TaskTurn
from holdfast.rules.errors import BadValue
from holdfast.rules.ids import id_text
from holdfast.rules.limits import HANDOFF_TASKS_MAX, QUORUM_LOST_AFTER_MS
from holdfast.rules.order import Version
from holdfast.rules.quorum.handoff import is_silent, lost_after_ms, plan_handoff
from holdfast.rules.quorum.intents import NodeLost
from holdfast.rules.reconcile import Outcome
from holdfast.rules.tasks import Task, TaskStatus
from support.envelopes import make_id
from support.quorum_state import QuorumState, change, intent, operation


def held(by: str, generation: int = 0) -> Task:
    holder = Version(1, by, make_id(1))
    return Task(known=True, status=TaskStatus.CLAIMED, generation=generation, holder=holder)


TASKS = [
    ("t3", held("cyd", 2)),
    ("t1", held("cyd")),
    ("t2", held("bob")),
    ("t4", Task(known=True, holder=Version(1, "cyd", make_id(1)))),
]


def test_Q12_parked_tasks_wait_for_their_holder() -> None:
    assert plan_handoff("park", "cyd", TASKS, local="ana", healthy=["ana", "bob"]) == []


def test_Q12_the_node_that_looks_takes_all_that_the_lost_one_holds() -> None:
    plan = plan_handoff("reassign-to-local", "cyd", TASKS, local="ana")
    assert [(one.task, one.body.to, one.body.generation) for one in plan] == [
        ("t1", "ana", 0),
        ("t3", "ana", 2),
    ]
    assert plan_handoff("reassign-to-local", "cyd", TASKS, local="cyd") == []


def test_Q12_healthy_nodes_share_them_those_with_the_fewest_first() -> None:
    tasks = [(f"t{number}", held("cyd")) for number in range(9)]
    healthy = ["ana", "bob", "cyd", "dan"]
    plan = plan_handoff(
        "reassign-any-healthy", "cyd", tasks, local="ana", healthy=healthy, held={"dan": 3}
    )
    assert Counter(one.body.to for one in plan) == {"ana": 4, "bob": 4, "dan": 1}
    again = plan_handoff(
        "reassign-any-healthy", "cyd", tasks[::-1], local="bob", healthy=healthy, held={"dan": 3}
    )
    assert again == plan
    assert plan_handoff("reassign-any-healthy", "cyd", tasks, local="ana", healthy=["cyd"]) == []


def test_Q12_a_plan_has_an_end_and_a_policy_a_name() -> None:
    tasks = [(f"t{number:05}", held("cyd")) for number in range(HANDOFF_TASKS_MAX + 5)]
    plan = plan_handoff("reassign-to-local", "cyd", tasks, local="ana")
    assert [one.task for one in plan] == [name for name, _ in tasks[:HANDOFF_TASKS_MAX]]
    with pytest.raises(BadValue):
        plan_handoff("drop", "cyd", tasks, local="ana")


def test_Q12_a_plan_of_committed_tasks_is_carried_out_by_its_entries() -> None:
    state = QuorumState()
    for number in range(4):
        id = make_id(500 + number)
        state.fold(intent("task.create", id_text(id), TaskCreate("t"), id=id))
        state.fold(intent("task.claim", id_text(id), TaskTurn(0), origin="cyd"))
    policy = {"handoff": "reassign-any-healthy", "lostAfterMs": 5_000}
    state.fold(change(operation("put", "mesh_settings", "quorum", policy)))
    assert (lost_after_ms(state), lost_after_ms(QuorumState())) == (5_000, QUORUM_LOST_AFTER_MS)
    assert is_silent(state, 5_000)
    assert not is_silent(state, 4_999)
    state.fold(intent("node.lost", "cyd", NodeLost(6_000), origin="ana"))
    tasks = state.tasks_of("cyd", 10)
    plan = plan_handoff("reassign-any-healthy", "cyd", tasks, local="ana", healthy=["ana", "bob"])
    for _ in range(2):
        outcomes = {
            state.fold(intent("task.handoff", one.task, one.body, origin="ana")).outcome
            for one in plan
        }
        assert len(outcomes) == 1
    assert outcomes == {Outcome.SUPERSEDED}
    holders = Counter(task.holder.peer for task in state.tasks.values() if task.holder)
    assert holders == {"ana": 2, "bob": 2}
