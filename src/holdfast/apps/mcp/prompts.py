"""Prompts: what a user can start with one click. Each brings what is known now, and says what to do
with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types
import msgspec

from holdfast.apps.mcp.tools.call import AgentCall, page
from holdfast.apps.mcp.tools.conflicts import conflict_shown
from holdfast.apps.mcp.tools.info import peers_shown
from holdfast.apps.mcp.tools.messages import message_listed
from holdfast.apps.mcp.tools.tasks import task_shown
from holdfast.node.library.node import Mesh
from holdfast.rules.errors import BadInput, NotAllowed
from holdfast.rules.limits import MCP_ROWS_DEFAULT

Arguments = dict[str, str]


@dataclass(frozen=True)
class AgentPrompt:
    """One prompt."""

    name: str
    title: str
    said: str
    takes: dict[str, str]
    """Its arguments, none of which has to be given, and what they are."""
    words: Callable[[AgentCall, Mesh, Arguments], tuple[str, dict[str, Any]]]
    """What is to be done, and what is known."""


def prompt_text(call: AgentCall, name: str, arguments: Arguments) -> str:
    """A prompt with what is known now."""
    prompt = BY_NAME.get(name)
    if prompt is None:
        raise BadInput(f"there is no prompt {name!r}", hint=f"use one of: {', '.join(BY_NAME)}")
    if unknown := sorted(arguments.keys() - prompt.takes.keys()):
        takes = ", ".join(prompt.takes)
        raise BadInput(f"{name} does not take {', '.join(unknown)}", hint=f"it takes: {takes}")
    mesh = call.mesh(arguments.get("mesh") or None)
    words, known = prompt.words(call, mesh, arguments)
    facts = msgspec.json.format(msgspec.json.encode(known), indent=1).decode()
    return f"{words}\n\nWhat is known now of the mesh {mesh.slug!r}:\n\n{facts}\n"


def _standup(call: AgentCall, mesh: Mesh, arguments: Arguments) -> tuple[str, dict[str, Any]]:
    words = (
        f"Give a standup for {call.node.peer}, in a few lines: what was done, what is in progress "
        "and with whom, what waits for somebody, and what needs a decision. Name tasks by their "
        "titles. Leave out what is empty. Then say what you would do next, and ask before you do "
        "it."
    )
    return words, {
        "you": call.node.peer,
        "peers": peers_shown(mesh),
        "in_progress": _tasks(mesh, "claimed"),
        "waiting": _tasks(mesh, "open"),
        "done": _tasks(mesh, "completed"),
        "unread": _unread(mesh),
        "conflicts": _conflicts(call, mesh),
    }


def _resolve(call: AgentCall, mesh: Mesh, arguments: Arguments) -> tuple[str, dict[str, Any]]:
    words = (
        "These are conflicts: two peers wrote the same thing without having seen each other, and "
        "one version was discarded. Go through them one by one. Show what lost and what stands "
        "there now, say which is right or how they go together, and why. When the user agrees: "
        "`conflict` with action `restore` if the one that lost is right; `state_set` with the "
        "merged value and then `conflict` with `dismiss` if both are; `dismiss` alone if nothing "
        "is lost."
    )
    return words, {"conflicts": _conflicts(call, mesh)}


def _hand_over(call: AgentCall, mesh: Mesh, arguments: Arguments) -> tuple[str, dict[str, Any]]:
    to = arguments.get("to") or ""
    whom = to or "whoever takes over"
    tell = f", and tell {to} with `send` (dm)" if to else ""
    mine = [one for one in _tasks(mesh, "claimed") if one.claimed_by == call.node.peer]
    words = (
        f"Hand your work over to {whom}. For each task that you have claimed write down what is "
        "done, what is not, and what the next step is; keep it with `remember` under the key "
        "`hand_over/` and the id of the task, so that others can read it. Then release the task "
        f"with `task`{tell}. Do not complete what is not done. At the end list what you have "
        "handed over."
    )
    return words, {"you": call.node.peer, "yours": mine, "peers": peers_shown(mesh)}


def _tasks(mesh: Mesh, status: str) -> tuple[Any, ...]:
    rows = mesh.tasks.list(status=status)
    return page(rows, MCP_ROWS_DEFAULT, task_shown, lambda row: row.task)[0]


def _unread(mesh: Mesh) -> tuple[Any, ...]:
    try:
        rows = mesh.inbox.list(unread=True)
        return page(rows, MCP_ROWS_DEFAULT, message_listed, lambda row: row.id)[0]
    except NotAllowed:
        return ()


def _conflicts(call: AgentCall, mesh: Mesh) -> tuple[Any, ...]:
    rows = call.node.conflicts(mesh.slug)
    return page(
        rows, MCP_ROWS_DEFAULT, lambda row: conflict_shown(call, row), lambda row: row.entity
    )[0]


_MESH: Final = {"mesh": "The mesh; it may be left out where there is only one."}
ALL: Final = (
    AgentPrompt(
        "standup",
        "Standup",
        "What was done, what is in progress, what waits.",
        _MESH,
        _standup,
    ),
    AgentPrompt(
        "resolve_conflicts",
        "Resolve conflicts",
        "Goes through what merges discarded, one by one.",
        _MESH,
        _resolve,
    ),
    AgentPrompt(
        "hand_over",
        "Hand over",
        "Writes down where your tasks stand, and gives them back.",
        {**_MESH, "to": "The peer that takes over; it is told."},
        _hand_over,
    ),
)
BY_NAME: Final = {prompt.name: prompt for prompt in ALL}


def described() -> list[types.Prompt]:
    return [
        types.Prompt(
            name=prompt.name,
            title=prompt.title,
            description=prompt.said,
            arguments=[
                types.PromptArgument(name=name, description=said, required=False)
                for name, said in prompt.takes.items()
            ],
        )
        for prompt in ALL
    ]
