"""The numbers that a bus gives to what it sends: one counter for all peers, taken in blocks.

A block is durable before a number of it is used. The next one is reserved before the last one is
used up, so that a sender seldom waits for a disk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from holdfast.bus.context import BusContext, log
from holdfast.bus.guard import guarded
from holdfast.rules.backoff import backoff_ms
from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.bus.replay import leap_past
from holdfast.rules.errors import BusError
from holdfast.rules.limits import BUS_BLOCK, BUS_LEAP_AGAIN_MAX, BUS_LEAP_MAX


class Numbers:
    """Gives numbers, each once, and always greater ones."""

    def __init__(self, context: BusContext, on_ready: Callable[[], None]) -> None:
        """`on_ready` is called when there are numbers again."""
        self._context, self._on_ready = context, on_ready
        self._blocks: deque[range] = deque()
        self._floor = 0
        """All numbers up to this one are used, or some peer has seen them."""
        self._leapt: dict[PeerKey, None] = {}
        """For whose sake we have leapt."""
        self._reserving = False
        self._failures = 0
        self._one_at_a_time = asyncio.Lock()

    @property
    def at_hand(self) -> int:
        """How many consecutive numbers can be taken now. If few are left, more are reserved."""
        while self._blocks and self._blocks[0].stop - 1 <= self._floor:
            self._blocks.popleft()
        if len(self._blocks) < 2 and self._left() < BUS_BLOCK // 2:
            self._reserve_soon()
        if not self._blocks:
            return 0
        first = self._blocks[0]
        return first.stop - max(first.start, self._floor + 1)

    def take(self, count: int) -> int:
        """The first of so many consecutive numbers; there must be as many `at_hand`."""
        block = self._blocks[0]
        first = max(block.start, self._floor + 1)
        assert first + count <= block.stop, "more numbers than are at hand"
        self._floor = first + count - 1
        return first

    async def one(self) -> int:
        """The next number, when there is one. Raises BusError if none can be reserved."""
        while not self.at_hand:
            await self._reserve(above=self._floor)
        return self.take(1)

    async def leap(self, peer: PeerKey, seen: int) -> None:
        """Goes on above a number that a peer has seen. Raises BadSequence if that is too far. Each
        peer can make us leap far once: one that lies again and again cannot wear the numbers out.
        """
        if not self.at_hand:
            await self._reserve(above=self._floor)
        expected = max(self._floor + 1, self._blocks[0].start)
        most = BUS_LEAP_AGAIN_MAX if peer in self._leapt else BUS_LEAP_MAX
        if leap_past(expected, seen, most) == expected:
            return
        self._leapt[peer] = None
        self._context.counts["leaps"] += 1
        self._floor = max(self._floor, seen)
        await self._reserve(above=seen)

    def _left(self) -> int:
        return sum(len(block) for block in self._blocks) - max(
            0, self._floor + 1 - self._blocks[0].start if self._blocks else 0
        )

    def _reserve_soon(self) -> None:
        if not self._reserving and not self._context.is_closed:
            self._reserving = True
            self._context.spawn(self._refill(), "numbers")

    async def _refill(self) -> None:
        try:
            await self._reserve(above=self._floor)
            self._failures = 0
        except BusError as error:
            # Whatever is to be sent waits in the outbox; the store is asked again after a while.
            self._failures += 1
            log.warning("no numbers can be reserved: %s (%s)", error.message, error.hint)
            await asyncio.sleep(backoff_ms(self._failures, self._context.jitter()) / 1000)
        finally:
            self._reserving = False
        self._on_ready()

    async def _reserve(self, above: int) -> None:
        async with self._one_at_a_time:
            block = await guarded(self._context.store.reserve(BUS_BLOCK, above))
            if self._blocks:
                assert block.start >= self._blocks[-1].stop, "a store gave numbers twice"
            self._blocks.append(block)
