"""Random orders of commits on real homes: entities, tasks, leases, handoffs, much of it refused.

One home is the only voter of the mesh, and others take its pages as nodes without a vote do. What
the writers ask for is often wrong on purpose: old bases, patches of what is gone, turns of earlier
generations. What becomes of it, the nodes decide.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec

from holdfast.node.core.commit import Committed
from holdfast.node.library.node import Node, open_node
from holdfast.rules.bodies import TaskCreate, TaskTurn
from holdfast.rules.envelope import Envelope, decode, encode
from holdfast.rules.ids import id_text
from holdfast.rules.quorum.intents import (
    EntityOperation,
    IntentAbandon,
    LeaseAcquire,
    NodeLost,
    TaskHandoff,
)
from holdfast.storage.ports import Transaction
from support.commit_pages import page_of, take
from support.envelopes import MESH, make_id
from support.quorum_state import change, intent, operation
from support.sole_voter import SoleVoter, give_voters

PEERS = ("ana", "bob", "cyd")


class StrongOrder:
    """Makes intents and commits them on a home that votes alone."""

    def __init__(self, seed: int, home: Path, *, tasks: int = 4, incarnation: int = 1) -> None:
        self.home = home
        self.outcomes: set[tuple[str, str]] = set()
        self.number = 0
        """Of the last commit."""
        self._draw = random.Random(seed)
        self._lamport = 1000
        self._made = seed * 10_000
        self._tasks: list[str] = []
        self._seen: dict[tuple[str, str], int] = {}
        with open_node(home, sync="normal") as node:
            # Before there were voters, stamps decided tasks.
            for number in range(tasks):
                task = node.mesh(MESH).tasks.create(f"task {number}")
                self._tasks.append(task.task)
                if number % 2:
                    node.mesh(MESH).tasks.claim(task.task)
            if node._engine.read("test", lambda tx: tx.quorum_get(MESH)) is None:
                give_voters(node._engine, MESH)
            elif incarnation > 1:
                self._recover(node, incarnation)
        self._setup()

    def _recover(self, node: Node, incarnation: int) -> None:
        """Makes this home the only voter of a new group, which goes on from where the home is."""

        def work(tx: Transaction) -> None:
            row = tx.quorum_get(MESH)
            assert row is not None
            tag = b"r" * 16
            tx.quorum_put(
                msgspec.structs.replace(row, incarnation=incarnation, applied=0, tag=tag, voter=1)
            )

        node._engine.store.write(work)

    def _setup(self) -> None:
        """Tasks of a lost node go to anybody."""
        with open_node(self.home, sync="normal") as node:
            policy = {"handoff": "reassign-any-healthy"}
            self._commit(
                node, change(operation("put", "mesh_settings", "quorum", policy), **self._about())
            )

    def grow(self, steps: int) -> None:
        with open_node(self.home, sync="normal") as node:
            for _ in range(steps):
                self._commit(node, self._intent(node))

    def spread(self, other: Path) -> None:
        """Lets another home follow, as a member without a vote does."""
        with open_node(self.home, sync="normal") as source, open_node(other, sync="normal") as node:
            mine = node._engine.read("test", lambda tx: tx.quorum_get(MESH))
            at = 1 if mine is None else mine.number + 1
            entries = source._engine.read("test", lambda tx: tx.log_range(0, 1 << 40, 1 << 40))
            weak = [one.raw for one in entries if decode(one.raw).write_class != "strong"]
            assert [one.error for one in node.apply(weak) if one.error] == []
            while True:
                page = page_of(source._engine.store, at)
                if not page.rows:
                    return
                taken = take(node._engine.store, page)
                assert not taken.trouble, taken.trouble
                at += len(page.rows)

    def _commit(self, node: Node, envelope: Envelope) -> Committed:
        made = SoleVoter(node._engine, MESH).commit(encode(envelope))
        outcome = "refused" if made.outcome is None else made.outcome.value
        self.outcomes.add((envelope.op, outcome))
        self.number = made.number or self.number
        for one in made.revisions:
            self._seen[one.type, one.id] = one.revision
        return made

    def _about(self) -> dict[str, Any]:
        self._made += 1
        self._lamport += self._draw.randint(0, 2)
        # Writers that were offline come with older stamps.
        late = self._draw.randint(0, 30) if self._draw.random() < 0.3 else 0
        return {
            "origin": self._draw.choice(PEERS),
            "lamport": self._lamport - late,
            "id": make_id(self._made),
        }

    def _intent(self, node: Node) -> Envelope:
        draw, about = self._draw, self._about()
        roll = draw.random()
        if roll < 0.55:
            changes = {}
            for _ in range(draw.choice((1, 1, 2, 3))):
                one = self._operation()
                changes[one.type, one.id] = one
            return change(*changes.values(), **about)
        if roll < 0.6:
            gone = make_id(self._made + draw.randint(-5, 5))
            if gone != about["id"]:
                return intent("intent.abandon", id_text(gone), IntentAbandon(gone), **about)
        if roll < 0.65:
            return intent("lease.acquire", draw.choice("xy"), LeaseAcquire(2_000, True), **about)
        if roll < 0.7:
            about["origin"] = node.peer
            lost = draw.choice(("bob", "cyd"))
            if draw.random() < 0.4:
                return intent("node.back", lost, **about)
            return intent("node.lost", lost, NodeLost(5_000), **about)
        return self._turn(node, about)

    def _operation(self) -> EntityOperation:
        draw = self._draw
        type, id = draw.choice(
            (
                *(("mission", f"m{draw.randint(1, 3)}"), ("milestone", f"i{draw.randint(1, 3)}")),
                *(("task", f"t{draw.randint(1, 3)}"), ("project_settings", "all")),
            )
        )
        kind = draw.choice(("put", "patch", "patch", "patch", "delete"))
        at = self._seen.get((type, id), 0)
        base = draw.choice((None, None, at, at, max(0, at - 1)))
        if kind == "delete":
            return operation("delete", type, id, base=base or None)
        fields: dict[str, Any] = {draw.choice("abc"): draw.choice((1, "é", None, [1, {"x": 2}]))}
        if kind == "put" or draw.random() < 0.2:
            fields |= {"title": f"title {draw.randint(1, 9)}"}
            fields |= {"missionId": f"m{draw.randint(1, 3)}"} if type == "milestone" else {}
        if kind == "put":
            return operation("put", type, id, fields, base=base)
        removed = tuple(name for name in "abc" if name not in fields and draw.random() < 0.2)
        return operation("patch", type, id, fields, base=base or None, removed=removed)

    def _turn(self, node: Node, about: dict[str, Any]) -> Envelope:
        draw = self._draw
        if draw.random() < 0.15:
            name = id_text(about["id"])
            self._tasks.append(name)
            return intent("task.create", name, TaskCreate("later", "on"), **about)
        name = draw.choice([*self._tasks, *self._tasks, id_text(make_id(5))])
        row = node._engine.read("test", lambda tx: tx.task_get(MESH, name))
        generation = 0 if row is None else max(0, row.generation - draw.choice((0, 0, 0, 1)))
        holder = None if row is None or row.holder is None else row.holder.peer
        kind = draw.choices(
            ("claim", "release", "complete", "cancel", "handoff"), weights=(8, 6, 1, 1, 5)
        )[0]
        if kind == "handoff":
            to = draw.choice(("", *PEERS))
            holder = holder or "bob"
            to = "" if to == holder else to
            return intent("task.handoff", name, TaskHandoff(holder, generation, to), **about)
        if kind == "release" and holder and draw.random() < 0.8:
            about["origin"] = holder
        turn = TaskTurn(generation) if kind in ("claim", "release") else None
        return intent(f"task.{kind}", name, turn, **about)
