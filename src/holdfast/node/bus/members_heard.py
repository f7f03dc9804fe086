"""How long members of a mesh have been silent that belong to no group of voters.

A coordinator need not have links to all members, so a link is not the only sign of life: whatever a
member wrote and anybody brought counts too (`peer_seen`). Silence is counted by this node's
monotonic clock, from the first look that found neither. So it is never longer than it was: a member
may be called lost up to one look later than it could be, and never earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from holdfast.node.bus.member_peers import MemberPeers
from holdfast.node.bus.voters import MeshVoters
from holdfast.node.core.engine import NodeEngine


class _Last(NamedTuple):
    sign: tuple[int, int]
    """When it was last seen and its highest stamp, as the store has them."""
    silent_since_ms: int | None
    """None: it was heard when we last looked."""
    heard: bool
    """It was heard in this life of the process."""


class MembersHeard:
    """A `PeersHeard` of the bus of a home. Belongs to its event loop."""

    def __init__(
        self,
        engine: NodeEngine,
        peers: MemberPeers,
        voters: MeshVoters,
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._engine, self._peers, self._voters = engine, peers, voters
        self._monotonic_ms = monotonic_ms
        self._last: dict[str, dict[str, _Last]] = {}

    def __call__(self, mesh: str) -> dict[str, int | None]:
        """By name; None for a member that was not heard in this life of the process."""
        linked = self._linked(mesh)
        rows = self._engine.read("peer.list", lambda tx: tx.peer_list(mesh))
        signs = {row.peer: (row.last_seen_at, row.last_lamport) for row in rows}
        before, now = self._last.get(mesh, {}), self._monotonic_ms()
        after = {
            peer: _look(before.get(peer), signs.get(peer, (0, 0)), linked.get(peer, False), now)
            for peer in {*linked, *signs}
            if peer != self._engine.ctx.peer
        }
        self._last[mesh] = after
        return {peer: _silence(last, now) for peer, last in after.items()}

    def _linked(self, mesh: str) -> dict[str, bool]:
        held = self._peers.held_mesh(mesh)
        if held is None:
            return {}
        keys = self._voters.linked()
        return {one.name: one.key in keys for one in held.members.members}


def _look(last: _Last | None, sign: tuple[int, int], linked: bool, now: int) -> _Last:
    if linked or (last is not None and last.sign != sign):
        return _Last(sign, None, True)
    if last is None:
        return _Last(sign, now, False)
    since = now if last.silent_since_ms is None else last.silent_since_ms
    return _Last(sign, since, last.heard)


def _silence(last: _Last, now: int) -> int | None:
    if not last.heard:
        return None
    return 0 if last.silent_since_ms is None else now - last.silent_since_ms
