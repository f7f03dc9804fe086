"""The rules of the quorum, against a second statement of them, on random committed orders."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from holdfast.rules.bodies import TaskCreate, TaskTurn
from holdfast.rules.envelope import Envelope
from holdfast.rules.ids import id_text
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.intents import (
    Guard,
    IntentAbandon,
    LeaseAcquire,
    LeaseExpire,
    LeaseRelease,
    LeaseRenew,
    OperationKind,
)
from model.quorum_model import QuorumModel
from support.envelopes import make_id
from support.quorum_state import QuorumState, change, intent, operation
from support.seeds import seeds

PEERS = ("ana", "bob", "cyd")
LEASES = ("deploy", "index")
NAMES = ("mission", "milestone", "slice", "feature", "task", "task", "task_metadata")
PARENTS = {
    "milestone": ("missionId", "mission"),
    "slice": ("milestoneId", "milestone"),
    "feature": ("sliceId", "slice"),
}
STEPS = 90


class Order:
    """A random order of commits: each entry as an envelope with its fence, and as the model has
    it.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.made: list[tuple[Envelope, dict[str, Any]]] = []
        self.sessions: list[tuple[str, bytes]] = []
        self.tasks: list[str] = []
        self.epoch, self.sequence = 1, 0
        self.lamport = 0
        self.about: dict[str, Any] = {}
        self.epochs: dict[int, int] = {}
        """The lease epoch of each number."""

    def step(self, model: QuorumModel) -> tuple[Envelope, FenceToken, dict[str, Any]]:
        draw = self.random
        if draw.random() < 0.08:
            self.epoch += 1
        self.sequence += draw.choice((1, 1, 1, 3))
        roll = draw.random()
        if self.made and roll < 0.15:
            envelope, entry = draw.choice(self.made)
            if roll < 0.03:
                entry = {**entry, "print": bytes(32)}
                envelope = msgspec.structs.replace(envelope, fingerprint=bytes(32))
        else:
            envelope, entry = self.make(model)
            # A few come late, or never: giving them up is then a race.
            self.made.append((envelope, entry))
        by = PEERS[self.epoch % 3]
        entry = {**entry, "epoch": self.epoch, "by": by, "number": self.sequence}
        return envelope, FenceToken(1, self.epoch, by, self.sequence), entry

    def make(self, model: QuorumModel) -> tuple[Envelope, dict[str, Any]]:
        draw = self.random
        self.lamport += 1
        about = {
            "origin": draw.choice(PEERS),
            # Offline writers come with older stamps.
            "lamport": draw.randint(1, self.lamport) if draw.random() < 0.3 else self.lamport,
            "id": make_id(len(self.made) + 1),
        }
        maker = draw.choices(
            (self.change, self.abandon, self.lease, self.turn), weights=(60, 6, 20, 14)
        )[0]
        envelope, entry = maker(model, about)
        return envelope, {
            **entry,
            **about,
            "id": envelope.id,
            "print": envelope.fingerprint,
            "op": envelope.op,
        }

    # --- entities ---

    def change(self, model: QuorumModel, about: Any) -> tuple[Envelope, dict[str, Any]]:
        changes: dict[tuple[str, str], dict[str, Any]] = {}
        self.about = about
        if self.random.random() < 0.1:
            for one in self.family(model):
                changes[one["type"], one["id"]] = one
        else:
            for _ in range(self.random.choice((1, 1, 1, 2, 3))):
                one = self.one_change(model)
                changes[one["type"], one["id"]] = one
        listed = list(changes.values())
        operations = [
            operation(
                one["kind"],
                one["type"],
                one["id"],
                one["fields"],
                base=one["base"],
                removed=one["removed"],
                epoch=one["epoch"],
                guard=None if one["guard"] is None else self.guard(*one["guard"]),
            )
            for one in listed
        ]
        return change(*operations, **about), {"changes": listed}

    def family(self, model: QuorumModel) -> list[dict[str, Any]]:
        """Deletes something together with what stands below it, or moves that away."""
        live = [key for key in model.versions if model.live(*key) is not None]
        pairs = [
            (above, below)
            for below in live
            for above in [model.parent(below, model.live(*below) or {})]
            if above in live
        ]
        if not pairs:
            return [self.one_change(model)]
        above, below = self.random.choice(pairs)
        gone = [self.plain("delete", above), self.plain("delete", below)]
        if below[0] in PARENTS and self.random.random() < 0.5:
            name, parent = PARENTS[below[0]]
            gone[1] = self.plain("patch", below, {name: f"{parent[0]}{self.random.randint(1, 3)}"})
        if below[0] == "task_metadata":
            gone[1]["base"] = len(model.versions[below])
        return self.random.sample(gone, 2)

    def plain(self, kind: str, key: Any, fields: Any = None) -> dict[str, Any]:
        return {
            "kind": kind,
            "type": key[0],
            "id": key[1],
            "base": None,
            "fields": fields or {},
            "removed": (),
            "epoch": None,
            "guard": None,
        }

    def twin(self, model: QuorumModel, key: Any) -> dict[str, Any]:
        """A late write that says nearly what stands already."""
        fields = dict(model.live(*key) or {})
        if self.random.random() < 0.7:
            fields["goal"] = self.random.choice((1, True, 1.5))
        last = model.versions[key][-1]
        if self.random.random() < 0.5:
            # It waited in the queue of the very node that has written since.
            self.about |= {"origin": last["author"], "lamport": max(1, last["lamport"] - 1)}
        late = self.plain(self.random.choice(("put", "patch")), key, fields)
        late["base"] = max(1, len(model.versions[key]) - self.random.randint(1, 2))
        if not fields:
            late["kind"] = "delete"
        return late

    def one_change(self, model: QuorumModel) -> dict[str, Any]:
        draw = self.random
        type = draw.choice(NAMES)
        id = f"{type[0] if type != 'task_metadata' else 't'}{draw.randint(1, 3)}"
        kind: OperationKind = draw.choice(("put", "put", "patch", "patch", "delete"))
        count = len(model.versions.get((type, id), []))
        if count > 1 and model.live(type, id) is not None and draw.random() < 0.3:
            return self.twin(model, (type, id))
        base = draw.choice((None, count, count, count, max(count - 1, 0), count + 2))
        if type == "task_metadata" and base is None:
            base = count
        if kind != "put" and base == 0:
            base = 1 if type == "task_metadata" else None
        fields = {} if kind == "delete" else self.fields(type, whole=kind == "put")
        unset = [name for name in ("note", "goal") if name not in fields]
        wants = kind == "patch" and (not fields or draw.random() < 0.3)
        return {
            "kind": kind,
            "type": type,
            "id": id,
            "base": base,
            "fields": fields,
            "removed": tuple(unset[:1]) if wants else (),
            "epoch": self.epoch + draw.choice((-1, 0, 0)) if draw.random() < 0.05 else None,
            "guard": self.shown(model) if draw.random() < 0.1 else None,
        }

    def fields(self, type: str, *, whole: bool) -> dict[str, Any]:
        draw = self.random
        fields: dict[str, Any] = {}
        if whole or draw.random() < 0.4:
            if type != "task_metadata":
                fields["title"] = draw.choice("ab")
            if type in PARENTS:
                name, parent = PARENTS[type]
                fields[name] = f"{parent[0]}{draw.randint(1, 3)}"
        if type == "task":
            if draw.random() < 0.5:
                others = [f"t{number}" for number in range(1, 4)]
                fields["dependencies"] = draw.sample(others, draw.randint(0, 2))
            if draw.random() < 0.3:
                fields["column"] = draw.choice(("todo", "done"))
        if draw.random() < 0.5:
            fields["goal"] = draw.choice((1, 1, True, 1.5, {"x": [1]}))
        if not whole and not fields:
            return {}
        return fields

    # --- leases ---

    def shown(self, model: QuorumModel) -> tuple[str, int]:
        """The number of a grant: mostly the one that stands."""
        name = self.random.choice(LEASES)
        line = model.lines.get(name) or [{"since": 1}]
        return name, line[0]["since"] + self.random.choice((0, 0, 0, 1))

    def guard(self, name: str, since: int) -> Guard:
        return Guard(name, 1, self.epochs.get(since, 1), since)

    def lease(self, model: QuorumModel, about: Any) -> tuple[Envelope, dict[str, Any]]:
        draw = self.random
        verb = draw.choice(("acquire", "acquire", "renew", "release", "release", "expire"))
        name = draw.choice(LEASES)
        line = model.lines.get(name, [])
        if verb == "acquire":
            wait = draw.random() < 0.7
            envelope = intent("lease.acquire", name, LeaseAcquire(2_000, wait), **about)
            return envelope, {"name": name, "wait": wait}
        if verb == "expire":
            heard = line[0]["heard"] if line else 1
            heard += draw.choice((0, 0, 1))
            if draw.random() < 0.9:
                about["origin"] = PEERS[self.epoch % 3]
            due = LeaseExpire(1, self.epochs.get(heard, 1), heard)
            return intent("lease.expire", name, due, **about), {"name": name, "heard": heard}
        one: dict[str, Any] = {"session": make_id(7777), "who": "ana"}
        if line:
            one = draw.choice(line)
        if draw.random() < 0.85:
            about["origin"] = one["who"]
        session = one["session"]
        body = LeaseRenew(session, 2_000) if verb == "renew" else LeaseRelease(session)
        return intent(f"lease.{verb}", name, body, **about), {"name": name, "session": session}

    # --- tasks, giving up ---

    def turn(self, model: QuorumModel, about: Any) -> tuple[Envelope, dict[str, Any]]:
        draw = self.random
        if not self.tasks or draw.random() < 0.2:
            name = id_text(about["id"])
            self.tasks.append(name)
            envelope = intent("task.create", name, TaskCreate("title"), **about)
            return envelope, {"task": name, "kind": "create"}
        name = draw.choice(self.tasks)
        kind = draw.choice(("claim", "claim", "claim", "release", "release", "complete", "cancel"))
        generation = 0
        if name in model.turns:
            _, generation, holder = model.standing(name)
            generation = max(0, generation - draw.choice((0, 0, 0, 1)))
            if kind == "release" and holder and draw.random() < 0.8:
                about["origin"] = holder
        turn = TaskTurn(generation) if kind in ("claim", "release") else None
        envelope = intent(f"task.{kind}", name, turn, **about)
        return envelope, {"task": name, "kind": kind, "generation": generation}

    def abandon(self, model: QuorumModel, about: Any) -> tuple[Envelope, dict[str, Any]]:
        late = self.random.random() < 0.5 or not self.made
        target = make_id(len(self.made) + 2) if late else self.random.choice(self.made)[0].id
        envelope = intent("intent.abandon", id_text(target), IntentAbandon(target), **about)
        return envelope, {"intent": target}


def run(seed: int) -> tuple[QuorumState, list[tuple[Envelope, FenceToken]], set[Any]]:
    order, state, model = Order(seed), QuorumState(), QuorumModel()
    entries: list[tuple[Envelope, FenceToken]] = []
    seen: set[Any] = set()
    for step in range(STEPS):
        envelope, token, entry = order.step(model)
        order.epochs[token.sequence] = token.lease_epoch
        decision = state.fold(envelope, token, 1_000 + step)
        answer = model.fold(entry)
        found = (None if decision.outcome is None else decision.outcome.value, decision.reason)
        assert found == answer, f"seed {seed}, step {step}: {entry}, {decision.detail}"
        compare(state, model)
        entries.append((envelope, token))
        seen.add((envelope.op, *answer))
    return state, entries, seen


def compare(state: QuorumState, model: QuorumModel) -> None:
    rows = {
        key: (row.revision, None if row.deleted else json.loads(row.fields))
        for key, row in state.entities.items()
    }
    assert rows == {
        key: (len(versions), versions[-1]["fields"]) for key, versions in model.versions.items()
    }
    leases = {
        row.name: [(row.holder, row.session), *((one.holder, one.session) for one in row.waiting)]
        for row in state.leases.values()
    }
    assert leases == {
        name: [(one["who"], one["session"]) for one in line]
        for name, line in model.lines.items()
        if line
    }
    for row in state.leases.values():
        first = model.lines[row.name][0]
        assert row.grant is not None
        assert row.renewed is not None
        assert (row.grant.sequence, row.renewed.sequence) == (first["since"], first["heard"])
    for name, task in state.tasks.items():
        status, generation, holder = model.standing(name)
        held = task.holder.peer if task.status == "claimed" and task.holder else None
        assert (task.status, task.generation) == (status, generation)
        assert status != "claimed" or held == holder


def test_Q7_outcomes_and_state_are_those_of_a_second_statement_after_every_entry() -> None:
    seen: set[Any] = set()
    for seed in seeds(90):
        _, _, found = run(seed)
        seen |= found
    # The orders are worth something only if they reach what there is to be decided.
    wanted = {
        ("entity.change", outcome, reason)
        for outcome, reason in (
            ("applied", ""),
            ("noop_already_applied", ""),
            ("superseded", ""),
            ("conflict_requires_merge", "revision_moved"),
            ("conflict_requires_merge", "id_reused"),
            ("rejected_fenced", "fence_too_old"),
            (None, "orphaned"),
            (None, "has_children"),
            (None, "dependency_cycle"),
            (None, "base_required"),
            (None, "unknown_entity"),
            (None, "intent_abandoned"),
        )
    }
    wanted |= {("lease.expire", "applied", ""), ("lease.expire", "superseded", "")}
    wanted |= {("lease.renew", "rejected_fenced", "lease_not_held"), ("lease.renew", "applied", "")}
    wanted |= {("lease.acquire", None, "lease_held"), ("task.claim", "superseded", "")}
    wanted |= {("intent.abandon", "applied", ""), ("intent.abandon", "noop_already_applied", "")}
    assert wanted <= seen, wanted - seen


@pytest.mark.parametrize("seed", seeds(6))
def test_Q8_a_node_that_folds_a_part_again_after_a_crash_ends_with_the_same_bytes(
    seed: int,
) -> None:
    state, entries, _ = run(seed)
    draw = random.Random(seed)
    crashed = QuorumState()
    for place, (envelope, token) in enumerate(entries):
        crashed.fold(envelope, token, 1_000 + place)
        if draw.random() < 0.1:
            back = draw.randint(0, place)
            for again, (old, its_token) in enumerate(entries[back : place + 1], back):
                assert not crashed.fold(old, its_token, 1_000 + again).counts
    assert crashed.records == state.records
    assert crashed.entities == state.entities
    assert crashed.leases == state.leases
    assert crashed.tasks == state.tasks
    assert crashed.history == state.history


@pytest.mark.parametrize("seed", seeds(6))
def test_Q4_fences_of_one_lease_only_grow_and_no_two_hold_it(seed: int) -> None:
    _, entries, _ = run(seed)
    state = QuorumState()
    granted: dict[str, list[Any]] = {}
    for place, (envelope, token) in enumerate(entries):
        before = dict(state.leases)
        state.fold(envelope, token, 1_000 + place)
        for name in LEASES:
            row, was = state.leases.get(name), before.get(name)
            if row is not None and (was is None or was.session != row.session):
                assert row.grant is not None
                granted.setdefault(name, []).append(row.grant.order)
                # A grant is made only where nobody held it any more, by the very entry that ends
                # the one before.
                assert row.grant == token
    for orders in granted.values():
        assert orders == sorted(set(orders))
