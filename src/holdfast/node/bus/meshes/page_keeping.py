"""How what a peer sent is stored with the objects that it names, however long that takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

from holdfast.node.bus.meshes.mesh_context import MeshContext
from holdfast.node.bus.meshes.mesh_objects import ObjectPull
from holdfast.node.core.object_transfer import ObjectGone
from holdfast.rules.arrivals import Named
from holdfast.rules.backoff import backoff_ms
from holdfast.rules.errors import (
    BadAnswer,
    ForgedOrigin,
    HoldfastError,
    NotGranted,
    PeerUnreachable,
    UnknownMesh,
)
from holdfast.rules.limits import SECOND_MS

log = logging.getLogger("holdfast")

T = TypeVar("T")


class PageKeeping:
    """Stores what came over one link. `tell` is told what stands in the way, and when nothing does
    any more.
    """

    def __init__(
        self, context: MeshContext, peer: str, pull: ObjectPull, tell: Callable[[str], None]
    ) -> None:
        self._context, self._peer, self._pull, self._tell = context, peer, pull, tell

    async def keep(
        self, objects: Callable[[], list[Named]], store: Callable[[Collection[str]], T]
    ) -> T:
        """Fetches the objects, then stores, again and again while the disk is full or the
        quarantine has no room.
        """
        context, failures = self._context, 0
        while True:
            try:
                wanted = await context.run(objects)
                absent = await self._pull.pull(wanted) if wanted else set()
                stored = await context.run(partial(store, absent))
            except ObjectGone:
                continue  # a sweep was faster
            except (NotGranted, UnknownMesh, ForgedOrigin, BadAnswer, PeerUnreachable):
                raise
            except HoldfastError as error:
                failures += 1
                self._tell(error.message)
                log.warning("%s: a page is not stored: %s", self._peer, error.message)
                await asyncio.sleep(backoff_ms(failures, context.jitter()) / SECOND_MS)
            else:
                if failures:
                    self._tell("")
                return stored
