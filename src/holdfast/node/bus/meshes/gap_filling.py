"""Takes snapshots of what no neighbour has in its log any more.

A word that tells of truncated numbers makes it look, a while later: somebody who still has the
entries may only be late. One snapshot of a mesh is taken at a time. A source that refuses, or a
link that breaks, ends it; what was stored of it stays, and the next word goes on from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from holdfast.node.bus.meshes.mesh_context import MeshContext
from holdfast.node.bus.meshes.mesh_link import MeshLink
from holdfast.rules.bus.meshes.truncated import choose_snapshots
from holdfast.rules.limits import BUS_SNAPSHOT_MS, SECOND_MS

log = logging.getLogger("holdfast")


class GapFilling:
    """One for all links of a node."""

    def __init__(self, context: MeshContext, links: Mapping[str, MeshLink]) -> None:
        self._context, self._links = context, links
        self._alarm: asyncio.TimerHandle | None = None
        self._taking: dict[str, str] = {}
        """By mesh, the link over which its snapshot is taken."""

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
        if self._alarm is not None:
            self._alarm.cancel()

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
