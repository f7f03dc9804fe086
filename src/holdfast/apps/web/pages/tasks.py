"""The tasks of a mesh, as a board: a column for each status."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from holdfast.apps.web.page import Action, ConsolePage, Field
from holdfast.apps.web.view import PageView
from holdfast.rules.limits import CONSOLE_ROWS
from holdfast.rules.tasks import TaskStatus


async def board(view: PageView) -> Mapping[str, Any]:
    path = f"/v1/meshes/{view.param('mesh')}/tasks"
    pages = await asyncio.gather(
        *(view.get(path, status=status.value, limit=CONSOLE_ROWS) for status in TaskStatus)
    )
    return {
        "columns": [
            {"status": status.value, "tasks": page["items"], "more": bool(page.get("next"))}
            for status, page in zip(TaskStatus, pages, strict=True)
        ],
        "own": view.name,
    }


async def task(view: PageView) -> Mapping[str, Any]:
    path = f"/v1/meshes/{view.param('mesh')}/tasks/{view.param('task')}"
    row, turns = await asyncio.gather(view.get(path), view.get(f"{path}/events"))
    return {"row": row, "turns": turns["items"], "own": view.name}


CREATE: Final = Action(
    "task.create",
    label="Add",
    call="POST /v1/meshes/{mesh}/tasks",
    command="holdfast task create {title}[ --description {description}] --mesh {mesh}",
    done="{title} is on the board.",
    fields={"title": Field(needed=True), "description": Field()},
    tone="main",
    undone="task.cancel",
)


def _turn(
    verb: str, label: str, done: str, *, asks: str = "", undone: str = "", tone: str = ""
) -> Action:
    return Action(
        f"task.{verb}",
        label=label,
        call=f"POST /v1/meshes/{{mesh}}/tasks/{{task}}/{verb}",
        command=f"holdfast task {verb} {{task}} --mesh {{mesh}}",
        done=done,
        asks=asks,
        undone=undone,
        tone=tone,
    )


CLAIM: Final = _turn("claim", "Claim", "It is yours.", undone="task.release")
RELEASE: Final = _turn("release", "Give back", "Others can claim it.", undone="task.claim")
COMPLETE: Final = _turn(
    "complete",
    "Done",
    "It is done.",
    asks="Is it done? What has ended cannot be opened again.",
    tone="main",
)
CANCEL: Final = _turn(
    "cancel",
    "Cancel",
    "It is cancelled.",
    asks="Cancel this task for every member? What has ended cannot be opened again.",
    tone="danger",
)
TURNS: Final = (CLAIM, RELEASE, COMPLETE, CANCEL)

PAGES: Final = (
    ConsolePage(
        path="/meshes/{mesh}/tasks",
        title="Tasks of {mesh}",
        template="tasks.html",
        load=board,
        live=("board",),
        tab="Tasks",
        actions=(CREATE, *TURNS),
    ),
    ConsolePage(
        path="/meshes/{mesh}/tasks/{task}",
        title="A task of {mesh}",
        template="task.html",
        load=task,
        live=("about",),
        under="/meshes/{mesh}/tasks",
        actions=TURNS,
    ),
)
