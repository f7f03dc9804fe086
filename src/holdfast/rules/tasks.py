"""Tasks: first claim wins, a release opens the next generation, an end is final.

A task is the fold of its turns in stamp order. Since the order is total and every node folds the
same set in the same order, any order of delivery gives the same task and the same history: a join.
Within one claim generation the lowest stamp therefore wins, a terminal state beats any claim, and
of two terminal states the lowest stamp holds.

A claim names the generation that its peer saw. A claim of an earlier generation has lost, even if
the task is open again by now: its peer knows that it lost, and does not get a task it no longer
expects. A claim of a later generation can exist too: its peer saw a release that a late claim has
since undone. It waits, and takes its place among the claims of that generation when another release
opens it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

from holdfast.rules.order import Version, order_key


class TaskStatus(StrEnum):
    OPEN = "open"
    CLAIMED = "claimed"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


TERMINAL: Final = frozenset({TaskStatus.COMPLETED, TaskStatus.CANCELLED})


class TaskEvent(StrEnum):
    """The effect of a turn. The history of a task is its turns, each with its event."""

    CREATED = "created"
    CLAIMED = "claimed"
    RENEWED = "renewed"
    """The holder claimed again; nothing changes."""
    SUPERSEDED = "superseded"
    REJECTED_TERMINAL = "rejected_terminal"
    RELEASED = "released"
    IGNORED = "ignored"
    """A release by a peer that did not hold the task."""
    COMPLETED = "completed"
    CANCELLED = "cancelled"


_OF_A_GENERATION: Final = frozenset({"claim", "release"})
DISCARDED: Final = frozenset({TaskEvent.SUPERSEDED, TaskEvent.REJECTED_TERMINAL})


class Turn(msgspec.Struct, frozen=True):
    """One op on a task, as its origin made it."""

    version: Version
    kind: str
    """`create`, `claim`, `release`, `complete` or `cancel`."""
    generation: int = 0
    event_time: int = 0
    title: str = ""
    description: str = ""


class Task(msgspec.Struct, frozen=True):
    """A task as the turns so far make it."""

    known: bool = False
    """Whether its creation has arrived. Turns of other peers may arrive before it."""
    title: str = ""
    description: str = ""
    created_by: str = ""
    created_at: int = 0
    status: TaskStatus = TaskStatus.OPEN
    generation: int = 0
    holder: Version | None = None
    """The claim that holds the task, or that held it when it ended."""
    claimed_at: int | None = None
    ended: Version | None = None
    ended_at: int | None = None


class TaskStanding(msgspec.Struct, frozen=True, array_like=True):
    """How a task stands after one of its turns: all that the turns behind it depend on."""

    status: TaskStatus = TaskStatus.OPEN
    generation: int = 0
    holder: Version | None = None
    claimed_at: int | None = None
    ended: Version | None = None
    ended_at: int | None = None

    @classmethod
    def of(cls, task: Task) -> TaskStanding:
        return cls(
            task.status, task.generation, task.holder, task.claimed_at, task.ended, task.ended_at
        )


class Judged(msgspec.Struct, frozen=True):
    """A turn with its effect, and the version that it lost against."""

    turn: Turn
    event: TaskEvent
    against: Version | None = None


def step(task: Task, turn: Turn) -> tuple[Task, Judged]:
    """The task after the next turn in stamp order, and the effect of that turn."""
    if turn.kind == "create":
        return _create(task, turn)
    if task.status in TERMINAL:
        return task, Judged(turn, TaskEvent.REJECTED_TERMINAL, task.ended)
    if turn.kind == "claim":
        return _claim(task, turn)
    if turn.kind == "release":
        return _release(task, turn)
    assert turn.kind in ("complete", "cancel"), turn.kind
    status = TaskStatus.COMPLETED if turn.kind == "complete" else TaskStatus.CANCELLED
    # After a release the last holder is on record for late claims only: it did not hold the end.
    holder = task.holder if task.status is TaskStatus.CLAIMED else None
    ended = msgspec.structs.replace(
        task, status=status, holder=holder, ended=turn.version, ended_at=turn.event_time
    )
    return ended, Judged(turn, TaskEvent(status.value))


def fold(turns: Iterable[Turn]) -> tuple[Task, list[Judged]]:
    """The task that a set of turns makes, in whatever order they arrived, and its history.

    It takes as long as the history. A node that stores turns as they arrive adds each to what it
    has: `holdfast.rules.task_join`.
    """
    task, history, _ = fold_with_standings(turns)
    return task, history


def fold_with_standings(turns: Iterable[Turn]) -> tuple[Task, list[Judged], list[TaskStanding]]:
    """As `fold`, and how the task stood after each turn of the history."""
    standings: list[TaskStanding] = []
    task, history = Task(), list[Judged]()
    early: dict[int, list[int]] = {}
    """Places in the history of turns that named a generation before it began."""
    for turn in sorted(turns, key=lambda turn: order_key(turn.version)):
        task, judged = step(task, turn)
        history.append(judged)
        if names_later(turn, task.generation):
            early.setdefault(turn.generation, []).append(len(history) - 1)
        while task.status is TaskStatus.OPEN and task.generation in early:
            for place in early.pop(task.generation):
                task, history[place] = step(task, history[place].turn)
        standings.append(TaskStanding.of(task))
    return task, history, standings


def names_later(turn: Turn, generation: int) -> bool:
    """Whether a turn belongs to a generation that begins after this one."""
    return turn.kind in _OF_A_GENERATION and turn.generation > generation


def _create(task: Task, turn: Turn) -> tuple[Task, Judged]:
    if task.known:
        # Only a copied home makes one id twice; the lower stamp names the task.
        return task, Judged(turn, TaskEvent.IGNORED)
    created = msgspec.structs.replace(
        task,
        known=True,
        title=turn.title,
        description=turn.description,
        created_by=turn.version.peer,
        created_at=turn.event_time,
    )
    return created, Judged(turn, TaskEvent.CREATED)


def _claim(task: Task, turn: Turn) -> tuple[Task, Judged]:
    if turn.generation != task.generation:
        return task, Judged(turn, TaskEvent.SUPERSEDED, task.holder)
    if task.status is TaskStatus.CLAIMED:
        assert task.holder is not None
        if task.holder.peer == turn.version.peer:
            return task, Judged(turn, TaskEvent.RENEWED)
        return task, Judged(turn, TaskEvent.SUPERSEDED, task.holder)
    claimed = msgspec.structs.replace(
        task, status=TaskStatus.CLAIMED, holder=turn.version, claimed_at=turn.event_time
    )
    return claimed, Judged(turn, TaskEvent.CLAIMED)


def _release(task: Task, turn: Turn) -> tuple[Task, Judged]:
    if (
        task.status is not TaskStatus.CLAIMED
        or task.holder is None
        or task.holder.peer != turn.version.peer
        or task.generation != turn.generation
    ):
        return task, Judged(turn, TaskEvent.IGNORED, task.holder)
    # The holder stays on record: late claims of this generation lost against it.
    opened = msgspec.structs.replace(
        task, status=TaskStatus.OPEN, generation=task.generation + 1, claimed_at=None
    )
    return opened, Judged(turn, TaskEvent.RELEASED)
