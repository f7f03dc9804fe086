"""`mesh.presence`: what the peers of a mesh say of themselves, for callers that wait.

All of it is read from this node's own rows: it answers without a network, and says when each peer
was last heard of.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.node.core import operations
from holdfast.node.core.change import Receipt
from holdfast.node.core.engine import NodeEngine
from holdfast.node.library.verbs import writes
from holdfast.rules import presence
from holdfast.rules.arguments import checked, checks_arguments
from holdfast.rules.limits import PEER_STALE_MS
from holdfast.rules.listed import listed_rows
from holdfast.rules.names import named_peer
from holdfast.rules.presence import Introduction, checked_presence, presence_of
from holdfast.rules.shown import Shown, ShownFace
from holdfast.storage.ports import Reader, Work


class PeerPresence(Shown, msgspec.Struct, frozen=True):
    """A peer of a mesh: what it says of itself, and when this node last heard of it."""

    peer: str
    display_name: str
    status: str
    summary: str
    updated_at: int | None
    """When it said so, by its own clock; None if it says nothing."""
    last_seen_at: int | None
    """None for this node itself, and for a member that was only told of."""
    stale: bool


@checks_arguments()
class PeerPresences(ShownFace):
    """What peers say of themselves. Each writes its own, and nobody another's."""

    def __init__(self, engine: NodeEngine, mesh: str) -> None:
        self._engine = engine
        self._mesh = mesh

    @writes("presence.set")
    def set(
        self,
        *,
        display_name: str | None = None,
        status: str | None = None,
        summary: str | None = None,
        id: str | None = None,
    ) -> Work[Receipt]:
        """Says of this node's peer what is given. What is not given stays as it is; an empty text
        takes it back.

        >>> team.presence.set(display_name="Ana", status="busy", summary="Paints the hull")
        """
        given = {"display_name": display_name, "status": status, "summary": summary}
        said = self._said(self._engine.ctx.peer)
        said = msgspec.structs.replace(said, **{n: t for n, t in given.items() if t is not None})
        value = checked_presence(said).document()
        return operations.memory_set(self._engine.ctx, self._mesh, presence.KEY, value, (), id)

    def get(self, peer: str | None = None) -> PeerPresence:
        """What one peer says of itself, else what this node's own does.

        >>> team.presence.get("eve").status
        """
        name = self._engine.ctx.peer if peer is None else named_peer(peer)
        return presence_in(self.list(), name)

    @listed_rows(PeerPresence)
    @checked
    @listed_rows(PeerPresence)
    @checked
    def list(self) -> list[PeerPresence]:
        """All peers of the mesh that this node knows of, by name, with itself.

        >>> [known.peer for known in team.presence.list()]
        ['ana', 'eve']
        """
        own, now = self._engine.ctx.peer, self._engine.ctx.now_ms()

        def read(tx: Reader) -> list[PeerPresence]:
            memories = {row.owner: row for row in tx.memory_all(self._mesh, presence.KEY)}
            seen: dict[str, int | None] = {own: None, **dict.fromkeys(memories)}
            for member in tx.known_members_list(self._mesh):
                seen[member.name] = _later(seen.get(member.name), member.seen_at)
            for row in tx.peer_list(self._mesh):
                seen[row.peer] = _later(seen.get(row.peer), row.last_seen_at)
            seen[own] = None
            return [
                _shown(
                    name,
                    presence_of(memories.get(name)),
                    memories[name].updated_at if name in memories else None,
                    at,
                    stale=at is not None and now - at > PEER_STALE_MS,
                )
                for name, at in sorted(seen.items())
            ]

        return self._engine.read("presence.list", read)

    def _said(self, peer: str) -> Introduction:
        return presence_of(
            self._engine.read(
                "presence.get", lambda tx: tx.memory_get(self._mesh, peer, presence.KEY)
            )
        )

    def _shown_rows(self) -> Iterable[Any]:
        return self.list()


def presence_in(rows: Iterable[PeerPresence], peer: str) -> PeerPresence:
    """What a peer says of itself; nothing, if this node does not know of it."""
    found = next((row for row in rows if row.peer == peer), None)
    return found or _shown(peer, Introduction(), None, None, stale=False)


def _later(one: int | None, other: int | None) -> int | None:
    return max(one or 0, other or 0) or None


def _shown(
    peer: str, said: Introduction, updated_at: int | None, seen_at: int | None, *, stale: bool
) -> PeerPresence:
    return PeerPresence(
        peer, said.display_name, said.status, said.summary, updated_at, seen_at, stale
    )
