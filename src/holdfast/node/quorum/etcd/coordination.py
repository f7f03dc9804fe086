"""Who coordinates an order, as one node sees it: looks from time to time, beats while it is this
node, and takes over where nobody shows signs of life (`rules/etcd/coordinating.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from holdfast.node.quorum.etcd.engine import EtcdEngine, OrderEnd
from holdfast.rules.errors import AlreadyExists, HoldfastError, NoQuorum
from holdfast.rules.etcd.coordinating import CoordinatorSeen, is_let_go, seen, takes_over
from holdfast.rules.limits import ETCD_BEAT_MS, ETCD_LOST_MS, SECOND_MS


class OrderTiming(msgspec.Struct, frozen=True, kw_only=True):
    """How patient the nodes of an order are with each other."""

    beat_ms: int = ETCD_BEAT_MS
    lost_ms: int = ETCD_LOST_MS


class LookListener(Protocol):
    """Who hears what a look has shown."""

    def looked(self, end: OrderEnd, begun: float) -> None:
        """`begun` is when the question was asked, by the loop's time."""

    def missed(self, error: HoldfastError) -> None:
        """Nobody answered."""


class Coordination:
    """This node's part in coordinating one order. Belongs to one event loop."""

    def __init__(
        self, etcd: EtcdEngine, me: str, listener: LookListener, timing: OrderTiming
    ) -> None:
        self._etcd, self._me, self._listener, self._timing = etcd, me, listener, timing
        self._loop = asyncio.get_running_loop()
        self._last: CoordinatorSeen | None = None
        self._led = 0
        """The version of the epoch that this node has taken in this life; 0: none, or let go."""
        self._first = True
        self._now = asyncio.Event()
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def leads(self) -> bool:
        state = self._etcd.known
        return state is not None and self._led != 0 and state.epoch_version == self._led

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            self._now.clear()
            try:
                await self.look()
            except HoldfastError as error:
                self._listener.missed(error)
            try:
                async with asyncio.timeout(self._timing.beat_ms / SECOND_MS):
                    await self._now.wait()
            except TimeoutError:
                continue

    def wake(self) -> None:
        """There is something to see, before the next look is due."""
        self._now.set()

    async def look(self) -> None:
        """Looks once, and does what follows."""
        begun = self._loop.time()
        end = await self._etcd.look(timeout_ms=self._timing.beat_ms)
        now_ms = int(self._loop.time() * SECOND_MS)
        self._last = seen(self._last, end.state, end.beats, now_ms)
        first, self._first = self._first, False
        if self.leads and is_let_go(end.state, end.beat):
            self._led = 0
        elif self.leads:
            await self._etcd.beat(end.state, end.beats, timeout_ms=self._timing.beat_ms)
        elif takes_over(
            self._me,
            end.state,
            end.beat,
            self._last,
            first=first,
            now_ms=now_ms,
            lost_ms=self._timing.lost_ms,
        ):
            taken = await self._etcd.take_over(end.state, timeout_ms=self._timing.beat_ms)
            self._led = self._led if taken is None else taken.epoch_version
        self._listener.looked(end, begun)
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    async def settled(self) -> None:
        """Returns when somebody coordinates, and this node follows that."""
        await self._until(lambda: (state := self._etcd.known) is not None and state.epoch_version)

    async def let_go(self, to: str, *, timeout_ms: int) -> None:
        """Wants somebody else to coordinate, and returns when that is so."""
        async with asyncio.timeout(timeout_ms / SECOND_MS):
            asked = await self.ask(to, timeout_ms=timeout_ms)
            await self._until(
                lambda: (
                    (state := self._etcd.known) is not None
                    and state.epoch_version > asked
                    and (not to or state.coordinator == to)
                )
            )

    async def ask(self, to: str, *, timeout_ms: int) -> int:
        """Says so under the epoch that there is, and returns its version."""
        while True:
            end = await self._etcd.look(timeout_ms=timeout_ms)
            if to and end.state.coordinator == to:
                raise AlreadyExists(f"{to!r} coordinates already")
            done = await self._etcd.beat(
                end.state, end.beats, let_go=True, to=to, timeout_ms=timeout_ms
            )
            if done:
                self._now.set()
                return end.state.epoch_version

    async def _until(self, holds: Callable[[], object]) -> None:
        while not holds():
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.add(waiter)
            try:
                await waiter
            finally:
                self._waiting.discard(waiter)


def not_handed_over(to: str, mesh: str) -> NoQuorum:
    return NoQuorum(
        f"{to or 'no other node'} has not taken over in {mesh!r}",
        hint="another node of the mesh has to follow the same etcd: see holdfast quorum status",
    )
