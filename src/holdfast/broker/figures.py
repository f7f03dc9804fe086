"""Figures of the whole broker, counted once for all who ask within a while.

To count members and queues takes as long as there are members and messages in queues. The metrics
are scraped as often as somebody likes, and that must not slow down those who use the broker. So a
count is followed by a pause that is `FIGURES_PAUSE` times as long, in which everybody gets the last
figures; whoever asks while they are counted waits for the same count. A small broker's figures are
always fresh.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from holdfast.rules.broker_rows import MeshStanding, QueueCounts
from holdfast.rules.limits import FIGURES_PAUSE
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
        self._store, self._ticks = store, ticks
        self._counting = asyncio.Lock()
        self._last: BrokerFigures | None = None
        self._good_until = 0.0

    async def latest(self) -> BrokerFigures:
        async with self._counting:
            if self._last is None or self._ticks() >= self._good_until:
                began = self._ticks()
                self._last = await self._count()
                ended = self._ticks()
                self._good_until = ended + FIGURES_PAUSE * (ended - began)
            return self._last

    async def _count(self) -> BrokerFigures:
        store = self._store
        meshes = await store.standings()
        queues = {slug: await store.queue_counts(slug) for slug in await store.queue_meshes()}
        return BrokerFigures(await store.counts(), meshes, queues)
