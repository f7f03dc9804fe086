"""Memory for agents: what this peer remembers, and what others do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from holdfast.apps.mcp.tools.call import AgentCall, page, pair, read_pair
from holdfast.apps.mcp.tools.declare import (
    DEFAULT_ROWS,
    After,
    AgentTools,
    Confirm,
    Expect,
    Id,
    Limit,
    Scope,
    ToolAnswer,
    ToolArguments,
    ToolReceipt,
)
from holdfast.node.core.views import Memory

MEMORY = AgentTools()


class RememberAsked(ToolArguments, frozen=True):
    key: Annotated[str, msgspec.Meta(description="What to find it by, like `user/likes`.")]
    value: Annotated[Any, msgspec.Meta(description="Any JSON; plain text is fine.")]
    tags: Annotated[
        tuple[str, ...], msgspec.Meta(description="Words to find it by, besides its key.")
    ] = ()
    expect: Expect = None
    id: Id = None


@MEMORY.writes("remember", "Remember", RememberAsked, ToolReceipt)
def remember(call: AgentCall, asked: RememberAsked) -> ToolReceipt:
    """Remembers a value under a key, as this peer: it is there in later sessions, and other members
    of the mesh can read it but not change it. What was under the key before is replaced.
    """
    mesh = call.mesh(asked.mesh)
    id = call.id(asked.id, mesh)
    return ToolReceipt(
        **call.receipt(
            mesh,
            mesh.memory.set(asked.key, asked.value, tags=asked.tags, id=id, expect=asked.expect),
        )
    )


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    peer: str
    """Whose memory it is."""
    key: str
    value: Any
    tags: tuple[str, ...]
    stamp: str
    """For `expect`."""
    updated_at: int
    """Milliseconds since 1970."""


class RecallAsked(ToolArguments, frozen=True):
    key: Annotated[
        str | None, msgspec.Meta(description="Exactly this key; else everything of the scope.")
    ] = None
    tag: Annotated[str | None, msgspec.Meta(description="Only what bears this tag.")] = None
    scope: Scope = "self"
    limit: Limit = DEFAULT_ROWS
    after: After = None


class Recalled(ToolAnswer, frozen=True):
    mesh: str
    items: tuple[Remembered, ...]
    next: str | None
    """Where the rest begins; null if this is all."""


@MEMORY.reads("recall", "Recall", RecallAsked, Recalled)
def recall(call: AgentCall, asked: RecallAsked) -> Recalled:
    """Reads what was remembered: one key, or everything, narrowed down to a tag. `scope` says
    whose: your own, or that of all peers or of one. Begin a session with it.
    """
    mesh = call.mesh(asked.mesh)
    rows: Iterable[Memory]
    if asked.key is not None:
        rows = mesh.memory.recall(asked.key, scope=asked.scope)
    else:
        rows = mesh.memory.list(scope=asked.scope, after=read_pair(asked.after))
    if asked.tag is not None:
        rows = (row for row in rows if asked.tag in row.tags)
    items, more = page(rows, asked.limit, _remembered, lambda row: pair(row.peer, row.key))
    return Recalled(mesh=mesh.slug, items=items, next=more)


def _remembered(row: Memory) -> Remembered:
    return Remembered(
        peer=row.peer,
        key=row.key,
        value=row.value,
        tags=row.tags,
        stamp=str(row.stamp),
        updated_at=row.updated_at,
    )


class ForgetAsked(ToolArguments, frozen=True):
    key: Annotated[str, msgspec.Meta(description="The key that was remembered.")]
    confirm: Confirm = False
    id: Id = None


def _forget_question(asked: ForgetAsked) -> str:
    return f"Forget what is remembered under {asked.key!r}?"


@MEMORY.removes("forget", "Forget", ForgetAsked, ToolReceipt, _forget_question)
def forget(call: AgentCall, asked: ForgetAsked) -> ToolReceipt:
    """Removes what this peer remembers under a key. The user is asked before. Nobody can forget
    what another peer remembers.
    """
    mesh = call.mesh(asked.mesh)
    id = call.id(asked.id, mesh)
    return ToolReceipt(**call.receipt(mesh, mesh.memory.forget(asked.key, id=id)))
