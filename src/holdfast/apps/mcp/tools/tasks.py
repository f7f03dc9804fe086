"""Tasks for agents: find work, take it on, end it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from holdfast.apps.mcp.tools.call import AgentCall, page
from holdfast.apps.mcp.tools.declare import (
    DEFAULT_ROWS,
    After,
    AgentTools,
    Id,
    Limit,
    ToolAnswer,
    ToolArguments,
)
from holdfast.node.library.node import Mesh
from holdfast.rules.errors import BadInput
from holdfast.rules.rows import TaskRow

TASKS = AgentTools()


class TaskAsked(ToolArguments, frozen=True):
    action: Annotated[
        Literal["list", "create", "claim", "release", "complete", "cancel"],
        msgspec.Meta(
            description="`list` tasks; `create` one; `claim` it before you work on it; `release` "
            "it for others; `complete` it when it is done; `cancel` it if nobody shall do it."
        ),
    ]
    task: Annotated[
        str | None, msgspec.Meta(description="The id of the task; to list: only this one.")
    ] = None
    title: Annotated[
        str | None, msgspec.Meta(description="To create: what is to be done, in one line.")
    ] = None
    description: Annotated[str, msgspec.Meta(description="To create: the rest of it.")] = ""
    status: Annotated[
        Literal["open", "claimed", "completed", "cancelled"] | None,
        msgspec.Meta(description="To list: only these."),
    ] = None
    limit: Limit = DEFAULT_ROWS
    after: After = None
    id: Id = None


class TaskShown(msgspec.Struct, frozen=True, kw_only=True):
    task: str
    title: str
    description: str
    status: str
    created_by: str
    claimed_by: str | None
    generation: int
    """How often it was released."""
    updated_at: int
    """Milliseconds since 1970."""


class TasksAnswered(ToolAnswer, frozen=True):
    mesh: str
    tasks: tuple[TaskShown, ...]
    """After a turn: the task as it stands."""
    next: str | None = None
    """Where the rest of the list begins; null if this is all."""


@TASKS.writes("task", "Tasks", TaskAsked, TasksAnswered)
def task(call: AgentCall, asked: TaskAsked) -> TasksAnswered:
    """Work that one peer at a time takes on. `claim` a task before you work on it: if another peer
    has it, the answer is an error with the code task_taken, and you choose another one. A claim may
    still lose against an earlier one that arrives later; `warnings` say so.
    """
    mesh = call.mesh(asked.mesh)
    if asked.action == "list":
        return _list(mesh, asked)
    id = call.id(asked.id, mesh)
    if asked.action == "create":
        if not asked.title:
            raise BadInput("a task has a title", hint="say what is to be done as `title`")
        row = mesh.tasks.create(asked.title, description=asked.description, id=id)
    elif asked.task is None:
        raise BadInput(f"{asked.action} is about one task", hint="say which one as `task`")
    else:
        row = getattr(mesh.tasks, asked.action)(asked.task, id=id)
    return TasksAnswered(mesh=mesh.slug, tasks=(task_shown(row),))


def _list(mesh: Mesh, asked: TaskAsked) -> TasksAnswered:
    if asked.task is not None:
        return TasksAnswered(mesh=mesh.slug, tasks=(task_shown(mesh.tasks.get(asked.task)),))
    rows = mesh.tasks.list(status=asked.status, after=asked.after or "")
    items, more = page(rows, asked.limit, task_shown, lambda row: row.task)
    return TasksAnswered(mesh=mesh.slug, tasks=items, next=more)


def task_shown(row: TaskRow) -> TaskShown:
    return TaskShown(
        task=row.task,
        title=row.title,
        description=row.description,
        status=str(row.status),
        created_by=row.created_by,
        claimed_by=row.claimed_by,
        generation=row.generation,
        updated_at=row.updated_at,
    )
