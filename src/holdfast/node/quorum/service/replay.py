"""Strong writes that wait for their quorum are tried again: one after the other, in their order.

A unit of the supervisor runs for a mesh as long as writes of it wait. A pass takes the rows of the
lane by (created_at, id). A row is marked as being replayed, durably, with the fence under which it
is tried, and proposed. What the quorum decides ends the row in the very transaction that folds it
(`node/core/commit.py`). A failure for good ends it as failed, and the next row has its turn. An
outage puts it back and ends the pass: what came later must not overtake it. The next pass begins
when the order has changed, or when the time of a back-off is over.

Nothing is tried before the members and the coordinator are known: a write that is proposed to
nobody would count an attempt for nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from typing import NamedTuple

from holdfast.node.quorum.api import ReplaySummary
from holdfast.node.quorum.ports import MeshOrder, OrderStatus
from holdfast.node.quorum.service.lane import WriteLane
from holdfast.node.quorum.service.receipts import failure_of, was_decided
from holdfast.rules.backoff import RetryPlan, backoff_ms
from holdfast.rules.errors import HoldfastError, NoQuorum
from holdfast.rules.limits import QUORUM_COMMIT_MS, SECOND_MS
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.write_queue import (
    QueuedWrite,
    WriteStatus,
    is_retryable,
    replay_key,
)
from holdfast.service.supervisor import TaskUnit, UnitStatus


class ReplayState(StrEnum):
    """How the replay of a mesh stands."""

    IDLE = "idle"
    REPLAYING = "replaying"
    WAITING = "waiting"
    """For a quorum."""
    PAUSED = "paused"
    ENDED = "ended"


class ReplayView(NamedTuple):
    mesh: str
    state: ReplayState
    attempts: int
    """Passes in a row that an outage ended."""


class _ReplayStatus(UnitStatus[ReplayState, ReplayView]):
    def _view(self) -> ReplayView:
        return ReplayView(self.name, self.state, self.attempts)


class _Tally:
    """What one pass has come to so far."""

    def __init__(self) -> None:
        self.attempted = self.applied = self.failed = 0

    def count(self, row: QueuedWrite | None) -> None:
        self.applied += row is not None and row.status is WriteStatus.APPLIED
        self.failed += row is not None and row.status is WriteStatus.FAILED


class WriteReplay:
    """Replays the waiting writes of one mesh. Belongs to one event loop."""

    def __init__(
        self,
        order: MeshOrder,
        lane: WriteLane,
        now_ms: Callable[[], int],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._order, self._lane, self._now_ms, self._chance = order, lane, now_ms, chance
        self._turn = asyncio.Lock()
        self._status: _ReplayStatus | None = None
        self._unit: TaskUnit[ReplayState, WriteReplay] | None = None
        self._drained: list[asyncio.Future[None]] = []
        self.waiting = 0
        """Writes that wait, as far as this process knows without looking."""

    @property
    def state(self) -> ReplayState:
        return ReplayState.IDLE if self._status is None else self._status.state

    # --- what wakes it -----------------------------------------------------------------------

    async def load(self) -> None:
        """Reads the queue from the disk, once, before anything is tried."""
        self.waiting = await self._lane.load()
        if self.waiting:
            self.wake()

    def look_again(self) -> None:
        """Somebody else may have added to the queue."""
        self._lane.forget_counts()
        if self._look():
            self.wake()

    def added(self) -> None:
        """A write waits now."""
        self.waiting += 1
        self.wake()

    def wake(self) -> None:
        """Something has changed: if writes wait they are tried now."""
        if self._unit is not None:
            self._unit.wake()
        elif self.waiting:
            mesh = self._lane.mesh
            self._status = _ReplayStatus(
                f"replay of {mesh}", ReplayState.IDLE, ReplayState.ENDED, self._now_ms, _unheard
            )
            self._unit = TaskUnit(self._status, self, self._chance)

    async def drained(self, timeout_ms: int) -> bool:
        """Waits until no write waits any more; False if some still do when time is over."""
        if not self.waiting:
            return True
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._drained.append(done)
        self.wake()
        try:
            async with asyncio.timeout(timeout_ms / SECOND_MS):
                await done
        except TimeoutError:
            return False
        finally:
            if done in self._drained:
                self._drained.remove(done)
        return True

    async def close(self) -> None:
        unit, self._unit = self._unit, None
        if unit is not None:
            unit.stop()
            await unit.join(QUORUM_COMMIT_MS / SECOND_MS)
        # Who waits in line here finds the order gone, and stands in the queue of the next one.
        for done in self._drained:
            if not done.done():
                done.set_result(None)
        self._drained.clear()

    # --- AsyncWork ---------------------------------------------------------------------------

    async def run(self) -> ReplayState | None:
        """One pass, as far as it gets."""
        if self._lane.is_paused:
            return ReplayState.PAUSED
        async with self._turn:
            await self._pass(_Tally(), None)
        return ReplayState.IDLE

    async def end(self) -> None: ...

    def plan(self, error: Exception, attempts: int, jitter: float) -> RetryPlan[ReplayState]:
        return RetryPlan(ReplayState.WAITING, backoff_ms(attempts + 1, jitter))

    # --- a pass ------------------------------------------------------------------------------

    async def replay(self, target: str | None) -> ReplaySummary:
        """A pass that somebody asked for; with a target only over the rows of that node."""
        tally = _Tally()
        if not self._lane.is_paused:
            async with self._turn:
                try:
                    await self._pass(tally, target)
                except HoldfastError as error:
                    if not _is_outage(error):
                        raise
        pending = self._look()
        return ReplaySummary(
            attempted=tally.attempted, applied=tally.applied, failed=tally.failed, pending=pending
        )

    async def _pass(self, tally: _Tally, target: str | None) -> None:
        """Raises when an outage ends it."""
        if self._look():
            if self._status is not None:
                self._status.enter(ReplayState.REPLAYING)
            async for row in self._rows(target):
                await self._try(row, tally)
                if self._lane.is_paused:
                    break
            self._look()

    async def _rows(self, target: str | None) -> AsyncIterator[QueuedWrite]:
        """Rows that wait, in the order of (created_at, id)."""
        after = 0
        while page := self._lane.page(after):
            after = page[-1][0]
            for row in sorted((row for _, row in page), key=replay_key):
                if target is None or row.target == target:
                    yield row

    async def _try(self, row: QueuedWrite, tally: _Tally) -> None:
        fence = authority(self._order.status())
        begun = await self._lane.start(row.id, fence)
        if begun is None:
            return
        tally.attempted += 1
        try:
            committed = await self._order.propose(row.id, begun.raw, timeout_ms=QUORUM_COMMIT_MS)
            if not was_decided(committed):
                raise NoQuorum(committed.detail)
        except HoldfastError as error:
            after = await self._lane.fail(row.id, failure_of(error))
            tally.count(after)
            if after is not None and after.status is WriteStatus.PENDING:
                raise
        else:
            tally.count(await self._lane.settle(row.id, committed))

    def _look(self) -> int:
        """How many wait, by the disk; tells those who wait for none."""
        self.waiting = self._lane.counts().pending
        if not self.waiting:
            for done in self._drained:
                if not done.done():
                    done.set_result(None)
            self._drained.clear()
        return self.waiting


def authority(status: OrderStatus) -> FenceToken:
    """The fence under which something is tried now. NoQuorum if it is not known who coordinates,
    who the members are, or whether there is a majority.
    """
    # The members of an etcd are its own.
    knows_members = bool(status.members) or status.part == "member" or status.engine == "etcd"
    if not status.coordinator or not knows_members or not status.has_quorum:
        raise NoQuorum(
            status.problem or f"no coordinator of {status.mesh!r} with a quorum is known"
        )
    return FenceToken(status.incarnation, status.lease_epoch, status.coordinator, status.committed)


def _is_outage(error: HoldfastError) -> bool:
    return is_retryable(failure_of(error))


def _unheard(view: ReplayView) -> None: ...
