"""Tasks through the library and through the door: first claim wins, and everyone agrees."""

from __future__ import annotations

import random
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.node.library.node import Node
from holdfast.rules.errors import TaskEnded, TaskTaken, UnknownTask
from holdfast.rules.order import Version
from holdfast.rules.reconcile import Outcome
from holdfast.rules.tasks import TaskStatus
from support import envelopes as e
from support.envelopes import make_id
from support.nodes import Nodes, deliver, store_of, team
from support.snapshot import differences, snapshot
from support.source import START_MS, HandClock


def events(node: Node, task: str) -> list[tuple[str, str]]:
    return [(row.version.peer, row.event) for row in team(node).tasks.events(task)]


# --- one node -------------------------------------------------------------------------------------


def test_S10_a_task_goes_from_open_to_its_end(node: Node, clock: HandClock) -> None:
    tasks = team(node).tasks
    task = tasks.create("paint", description="the fence")
    assert (task.status, task.title, task.description) == (TaskStatus.OPEN, "paint", "the fence")
    assert (task.created_by, task.created_at, task.claimed_by) == ("ana", clock.at_ms, None)
    clock.advance(10)
    assert tasks.claim(task.task).claimed_by == "ana"
    assert tasks.release(task.task).status is TaskStatus.OPEN
    claimed = tasks.claim(task.task)
    assert (claimed.generation, claimed.claimed_at) == (1, clock.at_ms)
    done = tasks.complete(task.task)
    assert (done.status, done.claimed_by, done.ended_at) == (
        TaskStatus.COMPLETED,
        "ana",
        clock.at_ms,
    )
    assert [event for _, event in events(node, task.task)] == [
        *("created", "claimed", "released", "claimed", "completed")
    ]
    assert tasks.get(task.task) == done


def test_S10_the_turns_that_a_task_does_not_allow_are_refused(nodes: Nodes) -> None:
    ana, bob = nodes.open("ana"), nodes.open("bob")
    open_task = team(ana).tasks.create("open")
    taken = team(ana).tasks.create("taken")
    ended = team(ana).tasks.create("ended")
    team(ana).tasks.claim(taken.task)
    team(ana).tasks.cancel(ended.task)
    deliver(ana, bob)
    tasks = team(bob).tasks
    for act in (tasks.release, tasks.complete):
        with pytest.raises(TaskTaken):
            act(open_task.task)
    for act in (tasks.claim, tasks.release, tasks.complete):
        with pytest.raises(TaskTaken, match="claimed by ana"):
            act(taken.task)
    for act in (tasks.claim, tasks.release, tasks.complete, tasks.cancel):
        with pytest.raises(TaskEnded, match="cancelled by ana"):
            act(ended.task)
    for verb in ("claim", "release", "complete", "cancel", "get", "events"):
        with pytest.raises(UnknownTask):
            getattr(tasks, verb)("unknown")
    assert bob.log.head().offset == ana.log.head().offset, "nothing was written"
    assert tasks.cancel(taken.task).status is TaskStatus.CANCELLED, "anyone may cancel"


def test_S10_tasks_are_listed_by_status(node: Node) -> None:
    tasks = team(node).tasks
    made = [tasks.create(f"t{n}").task for n in range(5)]
    tasks.claim(made[1])
    tasks.cancel(made[2])
    assert {row.task for row in tasks.list()} == set(made)
    assert [row.task for row in tasks.list(status="claimed")] == [made[1]]
    assert {row.task for row in tasks.list(status=TaskStatus.OPEN)} == {made[0], made[3], made[4]}


# --- the four branches of an inbound claim --------------------------------------------------------


def test_S10_an_inbound_claim_takes_an_open_task(node: Node) -> None:
    task = team(node).tasks.create(e.TASK).task
    (applied,) = node.apply([e.task_claim(task, lamport=5)])
    assert applied.outcome is Outcome.APPLIED
    row = team(node).tasks.get(task)
    assert (row.status, row.claimed_by, row.claimed_at) == (
        TaskStatus.CLAIMED,
        "bob",
        START_MS + 5,
    )


@pytest.mark.parametrize("end", ["complete", "cancel"])
def test_S10_an_inbound_claim_on_an_ended_task_is_kept_as_rejected(node: Node, end: str) -> None:
    tasks = team(node).tasks
    task = tasks.create(e.TASK).task
    tasks.claim(task)
    before = getattr(tasks, end)(task)
    (applied,) = node.apply([e.task_claim(task, lamport=50)])
    assert applied.outcome is Outcome.SUPERSEDED
    after = tasks.get(task)
    assert (after.status, after.ended, after.holder) == (before.status, before.ended, before.holder)
    last = tasks.events(task)[-1]
    assert (last.event, last.version.peer, last.against) == (
        "rejected_terminal",
        "bob",
        before.ended,
    )


def test_S10_an_inbound_claim_by_the_holder_is_harmless(node: Node) -> None:
    task = team(node).tasks.create(e.TASK).task
    node.apply([e.task_claim(task, lamport=5, id=make_id(5))])
    (applied,) = node.apply([e.task_claim(task, lamport=9)])
    assert applied.outcome is Outcome.APPLIED
    row = team(node).tasks.get(task)
    assert row.holder == Version(5, "bob", make_id(5))
    assert events(node, task)[-1] == ("bob", "renewed")
    assert list(node.conflicts()) == []


def test_S10_an_inbound_claim_that_is_later_than_ours_loses(node: Node) -> None:
    tasks = team(node).tasks
    task = tasks.create(e.TASK).task
    ours = tasks.claim(task)
    (applied,) = node.apply([e.task_claim(task, lamport=40)])
    assert applied.outcome is Outcome.SUPERSEDED
    assert tasks.get(task).claimed_by == "ana"
    last = tasks.events(task)[-1]
    assert (last.event, last.version.peer, last.against) == ("superseded", "bob", ours.holder)
    assert node.take_warnings() == [], "it was not our claim that lost"


def test_S10_an_inbound_claim_that_is_earlier_than_ours_wins(node: Node) -> None:
    node.apply([e.task_create(e.TASK, lamport=1, origin="cyd")])
    tasks = team(node).tasks
    ours = tasks.claim(e.TASK)
    assert ours.holder is not None
    assert ours.holder.lamport == 3
    (applied,) = node.apply([e.task_claim(e.TASK, lamport=2, id=make_id(2))])
    assert applied.outcome is Outcome.APPLIED
    row = tasks.get(e.TASK)
    assert (row.claimed_by, row.holder) == ("bob", Version(2, "bob", make_id(2)))
    assert events(node, e.TASK) == [("cyd", "created"), ("bob", "claimed"), ("ana", "superseded")]
    assert tasks.events(e.TASK)[-1].against == row.holder


# --- several nodes --------------------------------------------------------------------------------


def test_S10_of_two_peers_that_claim_apart_the_first_keeps_the_task(nodes: Nodes) -> None:
    ana, bob, cyd = (nodes.open(peer) for peer in ("ana", "bob", "cyd"))
    task = team(cyd).tasks.create(e.TASK).task
    deliver(cyd, ana)
    deliver(cyd, bob)
    team(ana).state.set("other", 1)  # so that ana's claim is the later one
    team(ana).tasks.claim(task)
    team(bob).tasks.claim(task)
    for source, target in permutations((ana, bob, cyd), 2):
        deliver(source, target)
    for source, target in permutations((ana, bob, cyd), 2):
        deliver(source, target)
    assert {team(node).tasks.get(task).claimed_by for node in (ana, bob, cyd)} == {"bob"}
    assert events(ana, task) == events(bob, task) == events(cyd, task)
    with pytest.raises(TaskTaken):
        team(ana).tasks.complete(task)


def test_S10_a_claim_of_a_generation_that_has_not_come_yet_is_no_poison(node: Node) -> None:
    """Turns come by several ways: a claim may be here before the release that it rests on."""
    turns = [
        e.task_create(e.TASK, lamport=1, origin="cyd"),
        e.task_claim(e.TASK, lamport=2, origin="bob"),
        e.task_release(e.TASK, lamport=3, origin="bob"),
        e.task_claim(e.TASK, 1, lamport=4, origin="cyd"),
    ]
    first, second, third, fourth = (node.apply([turns[n]])[0] for n in (3, 0, 2, 1))
    assert [result.error for result in (first, second, third, fourth)] == [None] * 4
    row = team(node).tasks.get(e.TASK)
    assert (row.claimed_by, row.generation) == ("cyd", 1)
    assert events(node, e.TASK) == [
        *(("cyd", "created"), ("bob", "claimed"), ("bob", "released"), ("cyd", "claimed"))
    ]
    assert list(node.conflicts()) == [], "nothing was lost in the end"


def test_S10_a_claim_of_a_generation_that_never_was_loses_when_that_is_known(node: Node) -> None:
    node.apply([e.task_create(e.TASK, lamport=1)])
    node.apply([e.task_claim(e.TASK, 1, lamport=5, origin="cyd")])
    assert list(node.conflicts()) == []
    node.apply([e.task_claim(e.TASK, 0, lamport=3, origin="bob")])
    assert events(node, e.TASK)[1:] == [("bob", "claimed"), ("cyd", "superseded")]
    (conflict,) = node.conflicts()
    assert (conflict.loser.peer, conflict.winner.peer) == ("cyd", "bob")


def test_S17_a_turn_that_comes_again_after_its_id_was_forgotten_changes_nothing(
    node: Node, clock: HandClock
) -> None:
    from holdfast.node.upkeep.sweep import Ttl

    turns = [
        e.task_create(e.TASK, lamport=1),
        e.task_claim(e.TASK, lamport=2),
        e.task_release(e.TASK, lamport=3),
        e.task_claim(e.TASK, 1, lamport=4, origin="cyd"),
        e.raw("task.complete", e.TASK, lamport=5, origin="cyd"),
        e.state_set("last", 1, lamport=6),
    ]
    node.apply(turns)
    before = snapshot(store_of(node))
    clock.advance(10_000)
    assert node.sweep(Ttl(log_ms=0, dedupe_ms=0)).dedupe_rows == 5
    results = node.apply(turns[:5])
    assert [result.error for result in results] == [None] * 5
    assert differences(before, snapshot(store_of(node))) == []
    assert list(node.conflicts()) == []


PEERS = ("ana", "bob", "é", "\uffff", "\U00010000")


def _random_turns(seed: int) -> list[bytes]:
    rng = random.Random(seed)
    turns = [
        e.task_create(e.TASK, lamport=rng.randint(1, 3), origin=rng.choice(PEERS), id=make_id(0))
    ]
    for n in range(1, rng.randint(2, 9)):
        kind = rng.choice(["claim", "claim", "claim", "release", "release", "complete", "cancel"])
        fields: dict[str, Any] = {
            "lamport": rng.randint(1, 8),
            "origin": rng.choice(PEERS),
            "id": make_id(n),
        }
        if kind == "claim":
            turns.append(e.task_claim(e.TASK, rng.randint(0, 2), **fields))
        elif kind == "release":
            turns.append(e.task_release(e.TASK, rng.randint(0, 2), **fields))
        else:
            turns.append(e.raw(f"task.{kind}", e.TASK, **fields))
    return turns


@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_S10_any_order_of_delivery_gives_the_same_task_and_events(
    seed: int, rng: random.Random
) -> None:
    from pathlib import Path

    nodes = Nodes("memory", Path(), HandClock())
    turns = _random_turns(seed)
    ends = []
    for peer in ("watcher", "ana"):
        node = nodes.open(peer)
        order = [*turns, *rng.sample(turns, rng.randint(0, len(turns)))]
        rng.shuffle(order)
        cut = rng.randint(0, len(order))
        for part in (order[:cut], order[cut:]):
            assert all(result.error is None for result in node.apply(part))
        ends.append(snapshot(store_of(node)))
    assert differences(ends[0], ends[1]) == []


@pytest.mark.parametrize("seed", range(6))
def test_S10_any_order_of_delivery_gives_the_same_task_on_disk_too(nodes: Nodes, seed: int) -> None:
    turns = _random_turns(seed)
    ends = []
    for order in (turns, list(reversed(turns)), random.Random(seed).sample(turns, len(turns))):
        node = nodes.open("watcher")
        node.apply(order)
        ends.append(snapshot(store_of(node)))
    assert differences(ends[0], ends[1]) == []
    assert differences(ends[0], ends[2]) == []
