"""Figures of the whole broker, counted once for all who ask within a while.

To count members and queues takes as long as there are members and messages in queues
(`service/count_pause.py`). Whoever asks while they are counted waits for the same count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from holdfast.rules.broker_rows import MeshStanding, QueueCounts
from holdfast.service.count_pause import CountPause
from holdfast.storage.broker.port import BrokerStore


class BrokerFigures(msgspec.Struct, frozen=True):
    """What the store holds."""

    counts: dict[str, int]
    meshes: list[MeshStanding]
    queues: dict[str, list[QueueCounts]]
    """By mesh; only of meshes that have queues."""


class FigureCount:
    """Counts the figures, unless they were counted a short while ago."""

    def __init__(self, store: BrokerStore, ticks: Callable[[], float]) -> None:
        """`ticks` are seconds that never go back."""
        self._store = store
        self._counting = asyncio.Lock()
        self._pause: CountPause[BrokerFigures] = CountPause(ticks)

    async def latest(self) -> BrokerFigures:
        async with self._counting:
            found = self._pause.begin()
            if found is not None:
                return found
            figures = await self._count()
            # Messages and ids are counted where they are stored: they cost nothing here.
            counts = figures.counts
            names = ("meshes", "members", "ready", "taken", "dead", "objects", "snapshots")
            return self._pause.counted(figures, sum(counts[name] for name in names))

    async def _count(self) -> BrokerFigures:
        store = self._store
        meshes = await store.standings()
        queues = {slug: await store.queue_counts(slug) for slug in await store.queue_meshes()}
        return BrokerFigures(await store.counts(), meshes, queues)
