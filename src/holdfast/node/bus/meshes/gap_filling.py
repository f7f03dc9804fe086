"""Takes snapshots of what no neighbour has in its log any more.

A word that tells of truncated numbers makes it look, a while later: somebody who still has the
entries may only be late. One snapshot of a mesh is taken at a time. A source that refuses, or a
link that breaks, ends it; what was stored of it stays, and the next word goes on from there. One
that owes a part for too long is given up, so that others are asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from holdfast.node.bus.meshes.mesh_context import MeshContext
from holdfast.node.bus.meshes.mesh_link import MeshLink
from holdfast.rules.bus.meshes.truncated import choose_snapshots
from holdfast.rules.limits import BUS_SNAPSHOT_MS, BUS_SNAPSHOT_PATIENCE_MS, SECOND_MS

log = logging.getLogger("holdfast")


class GapFilling:
    """One for all links of a node."""

    def __init__(self, context: MeshContext, links: Mapping[str, MeshLink]) -> None:
        self._context, self._links = context, links
        self._alarm: asyncio.TimerHandle | None = None
        self._taking: dict[str, str] = {}
        """By mesh, the link over which its snapshot is taken."""
        self._watches: dict[str, asyncio.TimerHandle] = {}

    def soon(self) -> None:
        """Something may be lacking that only a snapshot brings."""
        if self._alarm is None:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(BUS_SNAPSHOT_MS / SECOND_MS, self._look)

    def ended(self, mesh: str) -> None:
        """A snapshot is taken, or will not be."""
        if self._taking.pop(mesh, None) is not None:
            self.soon()

    def close(self) -> None:
        for alarm in (self._alarm, *self._watches.values()):
            if alarm is not None:
                alarm.cancel()

    def _look(self) -> None:
        self._alarm = None
        for mesh, label in list(self._taking.items()):
            if label not in self._links:
                del self._taking[mesh]
        offers = {label: link.offers() for label, link in self._links.items()}
        for choice in choose_snapshots(self._context.spread.mine, offers, self._taking):
            link = self._links[choice.link]
            self._taking[choice.mesh] = choice.link
            log.warning(
                "%s: %s has truncated what this node lacks; its snapshot is taken, without what "
                "was replaced since and without old facts",
                *(choice.mesh, link.peer),
            )
            self._context.start(link.take_snapshot(choice))
            self._watch(choice.mesh, choice.link, BUS_SNAPSHOT_PATIENCE_MS / SECOND_MS)

    def _watch(self, mesh: str, label: str, wait_s: float) -> None:
        old = self._watches.pop(mesh, None)
        if old is not None:
            old.cancel()
        loop = asyncio.get_running_loop()
        self._watches[mesh] = loop.call_later(wait_s, self._is_late, mesh, label)

    def _is_late(self, mesh: str, label: str) -> None:
        """Gives a snapshot up whose next part does not come, or looks again later."""
        del self._watches[mesh]
        link = self._links.get(label)
        if link is None or self._taking.get(mesh) != label:
            return
        patience_s = BUS_SNAPSHOT_PATIENCE_MS / SECOND_MS
        since = link.snapshots.waits_since(mesh)
        left = patience_s
        if since is not None:
            left = since + patience_s - asyncio.get_running_loop().time()
        if left > 0:
            self._watch(mesh, label, left)
        else:
            link.problem = link.snapshots.refused(mesh, f"{link.peer} owes a part of a snapshot")
