"""Shared state for agents: read, write, delete."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

import msgspec

from holdfast.apps.mcp.tools.call import AgentCall, page
from holdfast.apps.mcp.tools.declare import (
    DEFAULT_ROWS,
    After,
    AgentTools,
    Confirm,
    Expect,
    Id,
    Limit,
    ToolAnswer,
    ToolArguments,
    ToolReceipt,
)
from holdfast.node.core.views import StateEntry
from holdfast.node.library.node import Mesh
from holdfast.rules.errors import BadInput

STATE = AgentTools()

Key = Annotated[str, msgspec.Meta(description="A key, like `build/status`.")]


class PointInTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of these."""

    at: Annotated[
        str | None, msgspec.Meta(description="A time with its zone, like 2026-11-19T09:00:00Z.")
    ] = None
    lamport: Annotated[int | None, msgspec.Meta(description="The number in a stamp.")] = None
    offset: Annotated[int | None, msgspec.Meta(description="A place in this node's log.")] = None


class StateValue(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    value: Any
    stamp: str
    """For `expect`."""
    peer: str
    """Who wrote it."""
    updated_at: int
    """Milliseconds since 1970."""


class StateGetAsked(ToolArguments, frozen=True):
    key: Annotated[
        str | None, msgspec.Meta(description="Exactly this key; else all, or those of a prefix.")
    ] = None
    prefix: Annotated[
        str, msgspec.Meta(description="Only keys that begin with this, like `build/`.")
    ] = ""
    as_of: Annotated[
        PointInTime | None, msgspec.Meta(description="As it was then, not as it is now.")
    ] = None
    limit: Limit = DEFAULT_ROWS
    after: After = None


class StateFound(ToolAnswer, frozen=True):
    mesh: str
    items: tuple[StateValue, ...]
    next: str | None
    """Where the rest begins; null if this is all."""


@STATE.reads("state_get", "Read shared state", StateGetAsked, StateFound)
def state_get(call: AgentCall, asked: StateGetAsked) -> StateFound:
    """Reads what the team shares: one value per key, the same for every member of the mesh. Give a
    `key`, or a `prefix` to list keys, or neither for all of them. `as_of` answers from the past. A
    key that is not there gives no items.
    """
    mesh = call.mesh(asked.mesh)
    items, more = page(_found(mesh, asked), asked.limit, state_value, lambda row: row.key)
    return StateFound(mesh=mesh.slug, items=items, next=more)


def _found(mesh: Mesh, asked: StateGetAsked) -> Iterable[StateEntry]:
    if asked.as_of is not None:
        return _past(mesh, asked, asked.as_of)
    if asked.key is None:
        return mesh.state.list(asked.prefix, after=asked.after or "")
    entry = mesh.state.entry(asked.key)
    return () if entry is None else (entry,)


def _past(mesh: Mesh, asked: StateGetAsked, point: PointInTime) -> Iterable[StateEntry]:
    rows = mesh.state.as_of(
        asked.key, offset=point.offset, lamport=point.lamport, at_ms=_at_ms(point.at)
    )
    behind = asked.after or ""
    return (row for row in rows if row.key.startswith(asked.prefix) and row.key > behind)


def _at_ms(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise BadInput(
            f"{text!r:.60} is no time with its zone", hint="write it like 2026-11-19T09:00:00Z"
        )
    return int(at.timestamp() * 1000)


def state_value(row: StateEntry) -> StateValue:
    return StateValue(
        key=row.key,
        value=row.value,
        stamp=str(row.stamp),
        peer=row.peer,
        updated_at=row.updated_at,
    )


class StateSetAsked(ToolArguments, frozen=True):
    key: Key
    value: Annotated[Any, msgspec.Meta(description="Any JSON.")]
    expect: Expect = None
    id: Id = None


@STATE.writes("state_set", "Write shared state", StateSetAsked, ToolReceipt)
def state_set(call: AgentCall, asked: StateSetAsked) -> ToolReceipt:
    """Gives a key its value, for every member of the mesh; the last writer wins. Use it for what
    the team has to agree on; for what only you have to know use `remember`.
    """
    mesh = call.mesh(asked.mesh)
    id = call.id(asked.id, mesh)
    return ToolReceipt(
        **call.receipt(mesh, mesh.state.set(asked.key, asked.value, id=id, expect=asked.expect))
    )


class StateDeleteAsked(ToolArguments, frozen=True):
    key: Key
    expect: Expect = None
    confirm: Confirm = False
    id: Id = None


def _delete_question(asked: StateDeleteAsked) -> str:
    where = f"mesh {asked.mesh!r}" if asked.mesh else "the mesh"
    return f"Delete the key {asked.key!r} of {where}, for every member?"


@STATE.removes(
    "state_delete", "Delete shared state", StateDeleteAsked, ToolReceipt, _delete_question
)
def state_delete(call: AgentCall, asked: StateDeleteAsked) -> ToolReceipt:
    """Removes a key for every member of the mesh. The user is asked before. What it was can be read
    with `state_get` and `as_of` afterwards.
    """
    mesh = call.mesh(asked.mesh)
    id = call.id(asked.id, mesh)
    return ToolReceipt(
        **call.receipt(mesh, mesh.state.delete(asked.key, id=id, expect=asked.expect))
    )
