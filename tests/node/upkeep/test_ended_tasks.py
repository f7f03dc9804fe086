"""Tasks that have ended are forgotten, and nothing that comes late brings one back."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.node.library.node import Node
from holdfast.node.log.digests import _rows
from holdfast.node.recovery.doctor import diagnose
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules import digests as rules
from holdfast.rules.errors import TooOld, UnknownTask
from holdfast.rules.ids import id_text
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.rules.rows import TaskRow
from holdfast.storage.ports import Reader
from support import envelopes as e
from support.envelopes import MESH, make_id
from support.nodes import Nodes, store_of, team
from support.source import HandClock

DAY_MS = 24 * 3600 * 1000
ENDED = ("completed", "cancelled")
NOW = Ttl(task_ms=0)


def text(number: int) -> str:
    return id_text(make_id(500_000 + number))


def tasks_of(node: Node) -> dict[str, TaskRow]:
    with store_of(node).read() as tx:
        return {row.task: row for row in tx.task_scan(MESH, None, "", 999, known_only=False)}


def test_S20_an_ended_task_goes_when_it_is_old_and_everyone_has_read_it(
    node: Node, clock: HandClock
) -> None:
    tasks = team(node).tasks
    done, open_ = tasks.create("done"), tasks.create("open")
    tasks.claim(done.task)
    tasks.complete(done.task)
    node.log.add_consumer("reader")
    assert node.sweep().tasks == 0, "too young and unread"
    clock.advance(90 * DAY_MS + 1)
    assert node.sweep().tasks == 0, "unread"
    node.log.confirm("reader", 3)
    assert node.sweep().tasks == 0, "its end is unread"
    node.log.confirm("reader", 4)
    assert node.sweep().tasks == 1
    assert set(tasks_of(node)) == {open_.task}
    with pytest.raises(UnknownTask):
        tasks.claim(done.task)
    with store_of(node).read() as tx:
        assert tx.task_events(MESH, done.task) == []


def test_S20_a_task_that_was_touched_lately_stays(node: Node, clock: HandClock) -> None:
    """Also by a turn that changes nothing: whoever made it may still ask what became of it."""
    tasks = team(node).tasks
    task = tasks.create("done").task
    tasks.cancel(task)
    clock.advance(90 * DAY_MS + 1)
    node.apply([e.task_claim(task, lamport=900, origin="bo")])
    assert node.sweep().tasks == 0
    clock.advance(90 * DAY_MS + 1)
    assert node.sweep().tasks == 1


@pytest.mark.parametrize("lamport", [2, 3, 900_000])
def test_S20_no_turn_brings_back_a_forgotten_task_whatever_its_stamp(
    node: Node, clock: HandClock, lamport: int
) -> None:
    node.apply([e.task_create(e.TASK, lamport=2), e.raw("task.cancel", e.TASK, lamport=3)])
    node.apply([e.state_set("next", 1, lamport=4)])
    clock.advance(1)
    assert node.sweep(NOW).tasks == 1
    # While the id of its creation is known, that is a repetition; later it is not.
    for _ in range(2):
        node.sweep(Ttl(log_ms=0, dedupe_ms=0))
        clock.advance(1)
    node.apply([e.state_set("last", 1, lamport=5)])
    results = node.apply(
        [
            e.task_create(e.TASK, lamport=lamport),
            e.task_claim(e.TASK, lamport=lamport + 1),
            e.task_release(e.TASK, lamport=lamport + 2),
            e.raw("task.complete", e.TASK, lamport=lamport + 3),
        ]
    )
    assert all(isinstance(one.error, TooOld) for one in results)
    assert tasks_of(node) == {}


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_S20_with_late_deliveries_a_task_is_as_everywhere_or_has_ended_and_is_forgotten(
    seed: int, sweeps: int
) -> None:
    """One node hears everything in some order and forgets in between; the other never forgets."""
    dice, clock = random.Random(seed), HandClock()
    turns = _turns(dice)
    nodes = Nodes("memory", None, clock)  # type: ignore[arg-type]
    keeps, forgets = nodes.open("keeps"), nodes.open("forgets")
    try:
        keeps.apply(turns)
        order = dice.sample(turns, len(turns)) + dice.sample(turns, len(turns) // 3)
        for number, one in enumerate(order):
            forgets.apply([one])
            if number % sweeps == 0:
                clock.advance(1)
                forgets.sweep(Ttl(task_ms=0, log_ms=0, dedupe_ms=0))
        kept, left = tasks_of(keeps), tasks_of(forgets)
        for task, row in kept.items():
            mine = left.get(task)
            if mine is None:
                assert row.status in ENDED, "what is open is never forgotten"
            else:
                assert _known(mine) == _known(row)
    finally:
        nodes.close()


def _known(row: TaskRow) -> tuple[Any, ...]:
    return (row.status, row.holder, row.generation, row.title)


def _turns(dice: random.Random) -> list[bytes]:
    turns = []
    for number in range(5):
        task, peers = text(number), ("ana", "bo", "cy")
        turns.append(e.task_create(task, lamport=number + 1, origin=dice.choice(peers)))
        for lamport in range(10, 10 + dice.randrange(5)):
            op = dice.choice(("claim", "release"))
            make = e.task_claim if op == "claim" else e.task_release
            turns.append(make(task, dice.randrange(3), lamport=lamport, origin=dice.choice(peers)))
        for _ in range(dice.randrange(3)):
            end = dice.choice(("task.complete", "task.cancel"))
            turns.append(
                e.raw(end, task, lamport=dice.randrange(15, 30), origin=dice.choice(peers))
            )
    return turns


def test_S20_doctor_and_digests_know_what_was_forgotten(nodes: Nodes, clock: HandClock) -> None:
    """The log here is kept for longer than the task, and another node still has it."""
    node, other = nodes.open("ana"), nodes.open("bo")
    batch = [
        e.task_create(e.TASK, lamport=2),
        e.raw("task.complete", e.TASK, lamport=3),
        e.task_create(text(1), lamport=4),
        e.state_set("k", 1, lamport=5),
    ]
    for one in (node, other):
        one.apply(batch)
    clock.advance(1)
    assert node.sweep(NOW).tasks == 1
    assert _covered(node, node) == _covered(other, node)
    assert _covered(other, other) > _covered(other, node), "nothing is left out before"
    if nodes.kind == "sqlite":
        assert [c for c in diagnose(node.home, full=True).checks if c.status == "fail"] == []


def _covered(node: Node, as_seen_by: Node) -> set[bytes]:
    forgotten = team(as_seen_by).info().forgotten_lamport

    def look(tx: Reader) -> set[bytes]:
        return {
            rules.row_digest(table, values)
            for table, values in _rows(tx, MESH)
            if rules.is_covered(table, values, forgotten)
        }

    with store_of(node).read() as tx:
        return look(tx)


def test_S20_names_beyond_the_limit_are_forgotten_the_oldest_first_and_below_nobody_knows(
    node: Node, monkeypatch: pytest.MonkeyPatch, clock: HandClock
) -> None:
    monkeypatch.setattr("holdfast.rules.limits.BURIED_TASKS_MAX", 2)
    for number in range(4):
        node.apply([e.task_create(text(number), lamport=number + 1)])
        node.apply([e.raw("task.cancel", text(number), lamport=10 + number)])
    clock.advance(1)
    assert node.sweep(NOW).tasks == 4
    with store_of(node).read() as tx:
        assert [tx.task_forgotten(MESH, text(n)) for n in range(6)] == [True] * 4 + [False] * 2
    (old, new) = node.apply(
        [e.task_claim(text(-1), lamport=30), e.task_create(text(9), lamport=31)]
    )
    assert isinstance(old.error, TooOld), "it may be one of those"
    assert new.error is None


def test_S20_tasks_that_voters_decided_stay(node: Node, clock: HandClock) -> None:
    node.apply([e.task_create(e.TASK, lamport=2), e.raw("task.cancel", e.TASK, lamport=3)])
    row = QuorumRow(mesh=MESH, engine="embedded", incarnation=1, tag=b"t" * 16, voter=1)
    store_of(node).write(lambda tx: tx.quorum_put(row))
    clock.advance(1)
    assert node.sweep(NOW).tasks == 0
