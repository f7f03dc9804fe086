"""What an agent has to know first: who it is here, and what there is."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast import __version__
from holdfast.apps.mcp.tools.call import AgentCall
from holdfast.apps.mcp.tools.declare import AgentTools, ToolAnswer, ToolArguments
from holdfast.node.library.node import Mesh
from holdfast.rules.errors import NotAllowed
from holdfast.rules.rows import MeshRow

INFO = AgentTools()


class InfoAsked(ToolArguments, frozen=True):
    pass


class PeerShown(msgspec.Struct, frozen=True, kw_only=True):
    peer: str
    display_name: str
    status: str
    summary: str
    last_seen_at: int | None
    """Milliseconds since 1970; null for this peer itself."""
    stale: bool
    """Nothing was heard of it for a while."""


class MeshShown(msgspec.Struct, frozen=True, kw_only=True):
    mesh: str
    name: str
    shared: bool
    """Others are members of it: through a broker, or over the bus."""
    lamport: int
    counts: dict[str, int]
    """How many live rows there are, by family."""
    open_tasks: int
    open_conflicts: int
    peers: tuple[PeerShown, ...]


class InfoAnswered(ToolAnswer, frozen=True):
    peer: str
    """Your name: what you write bears it."""
    version: str
    meshes: tuple[MeshShown, ...]
    unread: int | None
    """Messages in the inbox; null if you may not read it."""


_COUNTED = 1000


@INFO.reads("info", "About this node", InfoAsked, InfoAnswered)
def info(call: AgentCall, asked: InfoAsked) -> InfoAnswered:
    """Who you are here, which meshes there are, who else is in them, and what waits for you: unread
    messages, open tasks, conflicts. Call it first.
    """
    named = None if asked.mesh is None else call.mesh(asked.mesh).slug
    rows = [row for row in call.node.meshes() if named in (None, row.slug)]
    return InfoAnswered(
        peer=call.node.peer,
        version=__version__,
        meshes=tuple(_mesh(call, row) for row in rows),
        unread=_unread(call),
    )


def _mesh(call: AgentCall, row: MeshRow) -> MeshShown:
    mesh = call.node.mesh(row.slug)
    return MeshShown(
        mesh=row.slug,
        name=row.name,
        shared=row.broker_url is not None or row.on_bus,
        lamport=mesh.clock().lamport,
        counts=mesh.counts(),
        open_tasks=_count(mesh.tasks.list(status="open")),
        open_conflicts=_count(call.node.conflicts(row.slug)),
        peers=peers_shown(mesh),
    )


def peers_shown(mesh: Mesh) -> tuple[PeerShown, ...]:
    return tuple(
        PeerShown(
            peer=one.peer,
            display_name=one.display_name,
            status=one.status,
            summary=one.summary,
            last_seen_at=one.last_seen_at,
            stale=one.stale,
        )
        for one in mesh.presence.list()
    )


def _count(rows: Iterable[object]) -> int:
    """How many there are; it stops counting at a thousand."""
    count = 0
    for _ in rows:
        count += 1
        if count == _COUNTED:
            break
    return count


def _unread(call: AgentCall) -> int | None:
    try:
        return call.node.inbox.counts()[1]
    except NotAllowed:
        return None
