"""Tasks in a mesh with voters: the same turns as everywhere, in commit order.

Without voters a task is the fold of its turns in stamp order, because no other order is known to
all. Here there is one: the first claim that is committed holds the task, and nothing that comes
later can take its place. The rules of a single turn are those of `holdfast.rules.tasks`.

A task of a lost node changes hands by `task.handoff`: in one entry it is released in the name of
its holder, which opens the next generation, and claimed by whoever is to go on. The old holder's
own turns name the generation before, so they lose, whenever they come.

A task from before there were voters is none of theirs until `task.adopt` brings it into the order,
with the turns that one node had of it: the first adoption stands. From then on it is what the order
makes of it, on every node, whatever stamps had made of it there (docs/decisions, 0087).

What a commit did to its task follows from its envelope and the outcome on its record
(`committed_turns`), so whoever has both needs nothing else of the mesh to fold a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.rules import tasks
from holdfast.rules.bodies import Body, TaskCreate, TaskTurn
from holdfast.rules.envelope import Envelope
from holdfast.rules.errors import (
    BadEnvelope,
    NodeNotLost,
    NotOurs,
    NotTheCoordinator,
    UnknownTask,
)
from holdfast.rules.order import Version
from holdfast.rules.quorum.entities import MESH_SETTINGS_ID, PARK, TO_LOCAL, read_fields
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.intents import NodeLost, TaskAdopt, TaskHandoff
from holdfast.rules.quorum.view import NodeRow, PutNode, PutTask, Ruling, View, holder_of
from holdfast.rules.reconcile import Outcome
from holdfast.rules.tasks import DISCARDED, Judged, Task, Turn


def rule_turn(view: View, envelope: Envelope, body: Body) -> Ruling:
    """What a turn does to its task."""
    task = view.task(envelope.entity)
    kind = envelope.op.partition(".")[2]
    if task is None and kind != "create":
        raise UnknownTask(f"there is no task {envelope.entity!r}")
    after, judged = tasks.step(task or Task(), turn_of(envelope, body))
    outcome = Outcome.SUPERSEDED if judged.event in DISCARDED else Outcome.APPLIED
    return Ruling(outcome=outcome, writes=(PutTask(envelope.entity, after, judged),))


def rule_adopt(view: View, envelope: Envelope, body: TaskAdopt) -> Ruling:
    """What the adoption of a task does: its turns are taken one after the other, once for all."""
    task = view.task(envelope.entity)
    if task is not None:
        return Ruling(outcome=Outcome.SUPERSEDED)
    task, writes = Task(), []
    for turn in adopted_turns(body):
        task, judged = tasks.step(task, turn)
        writes.append(PutTask(envelope.entity, task, judged))
    return Ruling(outcome=Outcome.APPLIED, writes=tuple(writes))


def rule_handoff(view: View, envelope: Envelope, body: TaskHandoff) -> Ruling:
    """What taking a task from a lost node does. What has changed since it was planned makes it
    superseded: whoever plans looks again.
    """
    if not _is_lost(view, body.holder):
        raise NodeNotLost(f"{body.holder!r} has not been declared lost")
    policy = handoff_policy(view)
    if policy == TO_LOCAL and body.to != envelope.origin:
        raise NotOurs(f"by the policy {policy!r} a node takes tasks for itself only")
    task = view.task(envelope.entity)
    if task is None:
        raise UnknownTask(f"there is no task {envelope.entity!r}")
    holder = holder_of(task)
    moved = holder is None or holder.peer != body.holder or task.generation != body.generation
    if moved or policy == PARK or (body.to and _is_lost(view, body.to)):
        return Ruling(outcome=Outcome.SUPERSEDED)
    writes = []
    for turn in handoff_turns(envelope, body):
        task, judged = tasks.step(task, turn)
        writes.append(PutTask(envelope.entity, task, judged))
    return Ruling(outcome=Outcome.APPLIED, writes=tuple(writes))


def turn_of(envelope: Envelope, body: Body) -> Turn:
    """The turn that an envelope makes."""
    return Turn(
        Version(envelope.lamport, envelope.origin, envelope.id),
        envelope.op.partition(".")[2],
        body.generation if isinstance(body, TaskTurn) else 0,
        envelope.created_at,
        body.title if isinstance(body, TaskCreate) else "",
        body.description if isinstance(body, TaskCreate) else "",
    )


def handoff_turns(envelope: Envelope, body: TaskHandoff) -> list[Turn]:
    """The turns of a handoff that is applied: a release in the name of the lost holder, and a claim
    of the next generation if somebody is to go on.
    """
    lamport, id, at = envelope.lamport, envelope.id, envelope.created_at
    turns = [Turn(Version(lamport, body.holder, id), "release", body.generation, at)]
    if body.to:
        turns.append(Turn(Version(lamport, body.to, id), "claim", body.generation + 1, at))
    return turns


def adopted_turns(body: TaskAdopt) -> list[Turn]:
    """The turns that an adoption brings, as their origins made them."""
    return [
        Turn(one.version, one.kind, one.generation, one.event_time, one.title, one.description)
        for one in body.turns
    ]


def committed_turns(envelope: Envelope, body: Body, outcome: Outcome | None) -> list[Turn]:
    """What a commit of a `task.…` op with this outcome has added to the turns of its task."""
    if isinstance(body, TaskHandoff):
        return handoff_turns(envelope, body) if outcome is Outcome.APPLIED else []
    if isinstance(body, TaskAdopt):
        return adopted_turns(body) if outcome is Outcome.APPLIED else []
    # A turn that lost is part of the history; one that was refused never was a turn.
    return [] if outcome is None else [turn_of(envelope, body)]


def fold_both(stamped: Iterable[Turn], committed: Sequence[Turn]) -> tuple[Task, list[Judged]]:
    """The task that its turns make, those that stamps decided and those that were committed, in
    commit order. As soon as there is one of the latter the former are history only: what was
    adopted of them is among the committed ones.
    """
    task, history = tasks.fold(stamped)
    if not committed:
        return task, history
    adopted = {turn.version for turn in committed}
    task, history = Task(), [one for one in history if one.turn.version not in adopted]
    for turn in committed:
        task, judged = tasks.step(task, turn)
        history.append(judged)
    return task, history


def rule_node(
    view: View, envelope: Envelope, body: Body, fence: FenceToken, committed_at: int
) -> Ruling:
    """What `node.lost` and `node.back` decide. Only the coordinator may declare a node lost; that
    one is back it may say itself.
    """
    lost = isinstance(body, NodeLost)
    peer = envelope.entity
    if lost and peer == fence.coordinator:
        raise BadEnvelope(f"{peer!r} coordinates, and so it is not lost")
    if envelope.origin != fence.coordinator and (lost or envelope.origin != peer):
        raise NotTheCoordinator(
            f"{envelope.origin!r} decides about {peer!r}, and {fence.coordinator!r} coordinates"
        )
    if _is_lost(view, peer) == lost:
        return Ruling(outcome=Outcome.SUPERSEDED)
    row = NodeRow(peer=peer, lost=lost, fence=fence, committed_at=committed_at)
    return Ruling(outcome=Outcome.APPLIED, writes=(PutNode(row),))


def handoff_policy(view: View) -> str:
    row = view.entity("mesh_settings", MESH_SETTINGS_ID)
    found = PARK if row is None else read_fields(row.fields).get("handoff", PARK)
    return str(found)


def _is_lost(view: View, peer: str) -> bool:
    row = view.node(peer)
    return row is not None and row.lost
