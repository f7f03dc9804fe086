"""What a node does costs what it touches, however much its home holds.

Two homes are filled alike, one with eight times as much of everything, and every verb runs on both.
A verb whose work grows with the home turns red, unless it is named here among those that answer
with all of something, or count it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Final

from holdfast.node.core.intake import Intake
from holdfast.node.library.node import Node, open_node
from holdfast.rules.filters import Filter
from holdfast.rules.outbox import lane_of
from holdfast.rules.vectors import Model
from holdfast.storage.ports import Reader
from support import envelopes as e
from support.envelopes import MESH, make_id
from support.growth import TIMES, counted_work, grown
from support.nodes import share, store_of, team
from support.source import HandClock
from support.stores import known_member

_SMALL: Final = 25
_LANE: Final = lane_of(MESH)
_MODEL: Final = Model(provider="test", name="m", dim=8)
_GROWS: Final = {
    "conflicts": "lists them all",
    "mesh.counts": "counts every family, for people",
    "tasks.events": "the whole history of a task",
    "consumer_list": "lists them all",
    "inbox.counts": "counts; a daemon counts it after pauses",
    "outbox_counts": "counts; a daemon counts it after pauses",
}


def fill(node: Node, rows: int) -> str:
    """So many of everything. Returns the task with a long history."""
    share(node)
    mesh = team(node)
    store_of(node).write(lambda tx: tx.known_members_put(MESH, [known_member("b", name="bob")]))
    for n in range(rows):
        mesh.state.set(f"k{n}", n)
        mesh.state.set("often", n)
        mesh.memory.set(f"k{n}", n)
        mesh.files.share(f"f{n}", b"content")
        mesh.facts.append("s", "p", n)
        mesh.vectors.store(f"v{n}", [float(n)] * 8, model=_MODEL)
        mesh.tasks.create(f"t{n}")
        mesh.send("hello", dm="bob")
        node.log.add_consumer(f"reader-{n}")
    task = mesh.tasks.create("round and round").task
    for _ in range(rows):
        mesh.tasks.claim(task)
        mesh.tasks.release(task)
    # Older than what is here, by a peer that had not seen it: a conflict.
    node.apply(e.state_set(f"k{n}", 0, lamport=1, id=make_id(n + 1)) for n in range(rows))
    messages = [
        e.message_send("topic", "news", b"hi", lamport=9 + n, id=make_id(9000 + n))
        for n in range(rows)
    ]
    store_of(node).write(
        Intake(node._engine.ctx, messages, delivered={raw: b"B" * 16 for raw in messages})
    )
    return task


def library(node: Node, task: str) -> dict[str, Callable[[], object]]:
    """Every verb of the library, each as something that can be done again."""
    mesh, number = team(node), count(100_000)

    def late(kind: Callable[..., bytes], generation: int) -> None:
        given = {"lamport": 300, "origin": "cyd", "id": make_id(next(number))}
        (applied,) = node.apply([kind(task, generation, **given)])
        assert applied.error is None

    def turn_of_a_task() -> None:
        mesh.tasks.claim(task)
        mesh.tasks.release(task)

    def short_task() -> None:
        made = mesh.tasks.create("short").task
        mesh.tasks.claim(made)
        mesh.tasks.complete(made)
        mesh.tasks.cancel(mesh.tasks.create("short").task)

    def conflict() -> None:
        node.apply([e.state_set("k3", 1, lamport=2, id=make_id(next(number)))])
        first: dict[str, Any] = {"open_only": True, "after": 0, "limit": 1}
        (found,) = node._engine.read("test", lambda tx: tx.conflict_list(None, **first))
        node.dismiss_conflict(found.number)

    return {
        "state.set": lambda: mesh.state.set("k1", 5),
        "state.set, often": lambda: mesh.state.set("often", 5),
        "state.get": lambda: mesh.state.get("k1"),
        "state.delete": lambda: (mesh.state.set("k2", 1), mesh.state.delete("k2")),
        "state.list": lambda: list(mesh.state.list("k1x")),
        "memory.set": lambda: mesh.memory.set("k1", 5),
        "memory.recall": lambda: mesh.memory.recall("k1", scope="all"),
        "memory.forget": lambda: (mesh.memory.set("k2", 1), mesh.memory.forget("k2")),
        "files": lambda: mesh.files.share("f1", b"other"),
        "files.read": lambda: mesh.files.read("f1"),
        "files.delete": lambda: (mesh.files.share("f2", b"c"), mesh.files.delete("f2")),
        "facts.append": lambda: mesh.facts.append("s", "p", 1),
        "vectors.store": lambda: mesh.vectors.store("v1", [2.0] * 8, model=_MODEL),
        "vectors.search": lambda: mesh.vectors.search([2.0] * 8, model=_MODEL, limit=3),
        "vectors.delete": lambda: (
            mesh.vectors.store("v2", [3.0] * 8, model=_MODEL),
            mesh.vectors.delete("v2", model=_MODEL),
        ),
        "tasks": short_task,
        "tasks, one with a history": turn_of_a_task,
        "tasks, a late claim": lambda: late(e.task_claim, 1),
        "tasks, a late release": lambda: late(e.task_release, 2),
        "tasks, a claim that waits": lambda: late(e.task_claim, 9999),
        "tasks.get": lambda: mesh.tasks.get(task),
        "tasks.events": lambda: mesh.tasks.events(task),
        "send": lambda: mesh.send("hello", topic="news"),
        "log.head": lambda: node.log.head(),
        "inbox": lambda: node.inbox.page(unread=True, after=0, limit=5),
        "inbox.counts": lambda: node.inbox.counts(),
        "log.tail": lambda: node.log.tail(5),
        "log.fetch": lambda: node.log.fetch("reader-1", 5),
        "log.confirm": lambda: node.log.confirm("reader-1", 3),
        "conflict": conflict,
        "conflicts": lambda: list(node.conflicts()),
        "warnings": lambda: node.take_warnings(),
        "mesh.counts": lambda: mesh.counts(),
        "peers": lambda: mesh.peers(),
        "apply, known": lambda: node.apply([e.state_set("k1", 0, lamport=1, id=make_id(2))]),
    }


def readers(node: Node) -> dict[str, Callable[[], object]]:
    """What sync, links and upkeep read again and again."""

    def read(work: Callable[[Reader], Any]) -> Callable[[], object]:
        return lambda: node._engine.read("test", work)

    return {
        "outbox_due": read(lambda tx: tx.outbox_due(_LANE, 1 << 60, 5)),
        "outbox_next_at": read(lambda tx: tx.outbox_next_at(_LANE)),
        "outbox_failing": read(lambda tx: tx.outbox_failing(_LANE, ["state//k1"])),
        "outbox_list": read(lambda tx: tx.outbox_list(_LANE, ("pending",), 0, 5)),
        "outbox_counts": read(lambda tx: tx.outbox_counts()),
        "outbox_oldest": read(lambda tx: tx.outbox_oldest(_LANE)),
        "outbox_floor": read(lambda tx: tx.outbox_floor()),
        "outbox_old": read(lambda tx: tx.outbox_old(_LANE, 0, 1 << 60, 5)),
        "inbox_unhooked": read(lambda tx: tx.inbox_unhooked(5)),
        "inbox_last": read(lambda tx: tx.inbox_last()),
        "inbox_floor": read(lambda tx: tx.inbox_floor(0)),
        "inbox_list": read(lambda tx: tx.inbox_list(MESH, True, 0, 5)),
        "quarantine_count": read(lambda tx: tx.quarantine_count(_LANE)),
        "consumer_list": read(lambda tx: tx.consumer_list()),
        "log_page": read(lambda tx: tx.log_page(3, 1 << 40, 5, 1 << 20, Filter())),
        "log_at": read(lambda tx: tx.log_at(1 << 60, 1 << 60)),
        "log_bounds": read(lambda tx: tx.log_bounds()),
        "log_of": read(lambda tx: tx.log_of(MESH, "k1", 1 << 40)),
        "blob_released": read(lambda tx: tx.blob_released(5)),
        "fact_objects": read(lambda tx: tx.fact_objects(1 << 40, 5)),
        "broker_positions": read(lambda tx: tx.broker_positions_above(MESH, 1, 0, 0, 5)),
        "task_scan": read(lambda tx: tx.task_scan(MESH, None, "", 3)),
    }


def work_of(folder: Path, rows: int) -> dict[str, int]:
    with counted_work() as meter:
        node = open_node(folder, peer="ana", create=True, sync="normal", source=HandClock())
        try:
            node.create_mesh(MESH)
            task = fill(node, rows)
            calls = library(node, task) | readers(node)
            return {name: meter.of(call) for name, call in calls.items()}
        finally:
            node.close()


def test_S3_what_a_verb_costs_does_not_grow_with_the_home(tmp_path: Path) -> None:
    small = work_of(tmp_path / "small", _SMALL)
    large = work_of(tmp_path / "large", TIMES * _SMALL)
    found = grown(small, large)
    assert found.keys() - _GROWS.keys() == set(), found
    assert set(_GROWS) <= found.keys(), "these do not grow any more: take them off the list"
