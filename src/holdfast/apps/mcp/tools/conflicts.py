"""Conflicts for agents: what merges discarded, and what is to become of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from holdfast.apps.mcp.tools.call import AgentCall, page
from holdfast.apps.mcp.tools.declare import (
    DEFAULT_ROWS,
    AgentTools,
    Id,
    Limit,
    ToolAnswer,
    ToolArguments,
)
from holdfast.node.library.node import Mesh
from holdfast.protocol.body_json import body_fields
from holdfast.rules.bodies import decode_loose, decode_value
from holdfast.rules.errors import BadInput, UnknownConflict
from holdfast.rules.order import Stamp
from holdfast.rules.rows import ConflictRow

CONFLICTS = AgentTools()


class ConflictAsked(ToolArguments, frozen=True):
    action: Annotated[
        Literal["list", "restore", "dismiss"],
        msgspec.Meta(
            description="`list` what was discarded; `restore` one: it is written again, and wins; "
            "`dismiss` one: the outcome stays as it is."
        ),
    ] = "list"
    number: Annotated[int | None, msgspec.Meta(description="The number of the conflict.")] = None
    open_only: Annotated[bool, msgspec.Meta(description="To list: not those settled before.")] = (
        True
    )
    limit: Limit = DEFAULT_ROWS
    after: Annotated[
        int, msgspec.Meta(description="Goes on after this: the `next` of the last answer.", ge=0)
    ] = 0
    id: Id = None


class ConflictShown(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    mesh: str
    family: str
    key: str
    reason: str
    lost: dict[str, Any]
    """What the version that lost says."""
    lost_stamp: str
    won_stamp: str
    now: Any = None
    """Of a state: the value that stands there now."""
    found_at: int
    """Milliseconds since 1970."""
    resolution: str | None


class ConflictsAnswered(ToolAnswer, frozen=True):
    conflicts: tuple[ConflictShown, ...] = ()
    next: int | None = None
    """Where the rest begins; null if this is all."""
    done: str | None = None
    """What was done with it."""
    id: str | None = None
    """Of a restore: the same call with this id is written once."""


@CONFLICTS.writes("conflict", "Conflicts", ConflictAsked, ConflictsAnswered)
def conflict(call: AgentCall, asked: ConflictAsked) -> ConflictsAnswered:
    """What was written by two peers at once, so that one version was discarded. `list` shows both
    sides. If the one that lost is right, `restore` it; if not, `dismiss` it; if both are, write the
    merged value with `state_set` and then `dismiss` it.
    """
    if asked.action == "list":
        slug = None if asked.mesh is None else call.mesh(asked.mesh).slug
        rows = call.node.conflicts(slug, open_only=asked.open_only, after=asked.after)
        meshes: dict[str, Mesh] = {}
        items, more = page(
            rows,
            asked.limit,
            lambda row: conflict_shown(call, row, meshes),
            lambda row: str(row.number),
        )
        return ConflictsAnswered(conflicts=items, next=None if more is None else int(more))
    if asked.number is None:
        raise BadInput(f"{asked.action} is about one conflict", hint="give its `number`")
    row = call.node.conflict(asked.number)
    if asked.mesh not in (None, row.mesh):
        raise UnknownConflict(f"conflict {asked.number} is not of the mesh {asked.mesh!r}")
    if asked.action == "dismiss":
        call.node.dismiss_conflict(asked.number)
        return ConflictsAnswered(done=f"conflict {asked.number} was dismissed")
    done = call.node.restore_conflict(asked.number, id=call.id(asked.id, call.mesh(row.mesh)))
    return ConflictsAnswered(done=f"{row.entity} was restored at {done.stamp}", id=done.id)


def conflict_shown(
    call: AgentCall, row: ConflictRow, meshes: dict[str, Mesh] | None = None
) -> ConflictShown:
    now = None
    if row.family == "state":
        known = {} if meshes is None else meshes
        if row.mesh not in known:
            known[row.mesh] = call.mesh(row.mesh)
        now = known[row.mesh].state.get(row.entity)
    return ConflictShown(
        number=row.number,
        mesh=row.mesh,
        family=row.family,
        key=row.entity,
        reason=row.reason,
        lost=_said(row),
        lost_stamp=str(Stamp(row.loser.lamport, row.loser.peer)),
        won_stamp=str(Stamp(row.winner.lamport, row.winner.peer)),
        now=now,
        found_at=row.found_at,
        resolution=row.resolution,
    )


def _said(row: ConflictRow) -> dict[str, Any]:
    """What the version that lost says; of a turn on a task nothing is kept."""
    if row.family == "task":
        return {}
    return body_fields(decode_loose(row.loser_op, row.loser_body), decode_value)
