"""What follows for the tasks of a node that was declared lost.

The policy is a setting of the mesh, decided by the quorum as all else:

    park                   nothing: the tasks wait for their holder (the default)
    reassign-to-local      the node that looks takes them for itself
    reassign-any-healthy   they are spread over the healthy nodes, those with the fewest first

A plan is a list of entries to propose, one a task. Each names the holder and the claim generation
that the plan saw; whatever has changed when it is committed makes it superseded (`task_turns`). So
two nodes may plan at the same time, and a plan may be proposed twice.

Only tasks move, and only by what is committed of them. A lost node's running work stays where it
is: nobody takes over another node's scheduler or the memory of its processes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple

from holdfast.rules.errors import BadValue
from holdfast.rules.limits import HANDOFF_TASKS_MAX, QUORUM_LOST_AFTER_MS
from holdfast.rules.quorum.entities import (
    HANDOFF_POLICIES,
    MESH_SETTINGS_ID,
    PARK,
    TO_LOCAL,
    read_fields,
)
from holdfast.rules.quorum.intents import TaskHandoff
from holdfast.rules.quorum.view import View, holder_of
from holdfast.rules.tasks import Task


class PlannedHandoff(NamedTuple):
    """An entry to propose: the task, and what becomes of it."""

    task: str
    body: TaskHandoff


def plan_handoff(
    policy: str,
    lost: str,
    tasks: Sequence[tuple[str, Task]],
    *,
    local: str,
    healthy: Collection[str] = (),
    held: Mapping[str, int] | None = None,
) -> list[PlannedHandoff]:
    """The entries to propose for the tasks of a lost node, at most `HANDOFF_TASKS_MAX` of them.

    `local` is the node that plans, `healthy` the nodes that may get tasks, `held` how many each of
    them has already. Without a healthy node nothing is planned: the tasks wait.
    """
    if policy not in HANDOFF_POLICIES:
        raise BadValue(
            f"there is no policy {policy!r}", hint=f"use one of: {', '.join(HANDOFF_POLICIES)}"
        )
    if policy == PARK or (policy == TO_LOCAL and local == lost):
        return []
    mine = [
        (name, task.generation)
        for name, task in tasks
        if (holder := holder_of(task)) is not None and holder.peer == lost
    ]
    mine = sorted(mine)[:HANDOFF_TASKS_MAX]
    if policy == TO_LOCAL:
        return [PlannedHandoff(name, TaskHandoff(lost, number, local)) for name, number in mine]
    load = [((held or {}).get(peer, 0), peer.encode(), peer) for peer in set(healthy) - {lost}]
    if not load:
        return []
    heapify(load)
    plan = []
    for name, number in mine:
        count, key, peer = load[0]
        plan.append(PlannedHandoff(name, TaskHandoff(lost, number, peer)))
        heapreplace(load, (count + 1, key, peer))
    return plan


def lost_after_ms(view: View) -> int:
    """How long a node is silent in this mesh before its coordinator proposes that it is lost."""
    row = view.entity("mesh_settings", MESH_SETTINGS_ID)
    if row is None:
        return QUORUM_LOST_AFTER_MS
    return int(read_fields(row.fields).get("lostAfterMs", QUORUM_LOST_AFTER_MS))


def is_silent(view: View, silent_ms: int) -> bool:
    """Whether a coordinator may propose `node.lost`, by its own monotonic clock."""
    return silent_ms >= lost_after_ms(view)
