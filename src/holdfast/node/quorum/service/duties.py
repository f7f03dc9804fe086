"""What a coordinator does beside writing: leases end, silent nodes are lost, their tasks move on.

Everything here is a proposal, decided by the same rules on every node. A coordinator that was
deposed while it slept proposes in vain: an expiry names the renewal that it saw, a handoff the
claim that it saw, and only whoever coordinates may let a lease expire or call a node lost.

Times are monotonic and this node's own. A new coordinator counts anew, from when it began: a lease
then lasts longer than it had to, and never shorter. A node that was declared lost and is alive says
so itself, as soon as it has folded that; so does the coordinator when it hears of that node again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from holdfast.node.core.commit import Committed, notable
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.fold_tasks import task_of
from holdfast.node.quorum.api import StrongReceipt
from holdfast.node.quorum.service.strong_writes import StrongWrites
from holdfast.rules.backoff import RetryPlan, backoff_ms
from holdfast.rules.bodies import Body, Nothing, encode_body
from holdfast.rules.errors import Conflict, NotAllowed, NotFound
from holdfast.rules.limits import (
    CHUNK_ROWS,
    HANDOFF_TASKS_MAX,
    QUORUM_COMMIT_MS,
    QUORUM_DUTIES_AT_ONCE,
    QUORUM_LOST_AFTER_MS,
    SECOND_MS,
)
from holdfast.rules.quorum.entities import MESH_SETTINGS_ID, PARK
from holdfast.rules.quorum.handoff import PlannedHandoff, plan_handoff
from holdfast.rules.quorum.intents import NodeLost, entity_name
from holdfast.rules.quorum.lease import LeaseTimers
from holdfast.rules.quorum.view import LeaseRow
from holdfast.rules.reconcile import Outcome
from holdfast.rules.tasks import Task
from holdfast.service.supervisor import TaskUnit, UnitStatus
from holdfast.storage.ports import Reader

log = logging.getLogger("holdfast.quorum")

PeersHeard = Callable[[str], Mapping[str, int | None]]
"""By mesh: for how many milliseconds peers have been silent, whether they belong to the group of
voters or not. None: the peer was not heard in this life of the process."""

_SETTINGS: Final = entity_name("mesh_settings", MESH_SETTINGS_ID)
_MOVED_ON = (Conflict, NotAllowed, NotFound)
"""Refusals that say: what the proposal was about is no longer so."""


class DutyState(StrEnum):
    """What this node does for a mesh."""

    IDLE = "idle"
    """Another node coordinates."""
    COORDINATING = "coordinating"
    WAITING = "waiting"
    """For a quorum."""
    ENDED = "ended"


class Heard(NamedTuple):
    """When another node was last heard."""

    silent_ms: int
    certain: bool
    """It was heard in this life of the process; else the silence counts from when we began."""


class _DutyStatus(UnitStatus[DutyState, DutyState]):
    def _view(self) -> DutyState:
        return self.state


class CoordinatorDuties:
    """The duties of this node for one mesh. Belongs to one event loop."""

    def __init__(
        self,
        engine: NodeEngine,
        writes: StrongWrites,
        heard: PeersHeard,
        monotonic_ms: Callable[[], int],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._engine, self._writes, self._heard = engine, writes, heard
        self._monotonic_ms, self._chance = monotonic_ms, chance
        self._peer, self._mesh = engine.ctx.peer, writes.mesh
        self._unit: TaskUnit[DutyState, CoordinatorDuties] | None = None
        self._status: _DutyStatus | None = None
        self._news = asyncio.Event()
        self._office: tuple[int, int] | None = None
        """Incarnation and lease epoch in which this node coordinates; None while it does not."""
        self._since_ms = 0
        self._timers = LeaseTimers((), 0)
        self._back_ms: dict[str, int] = {}
        self._may_move = True
        """Tasks of lost nodes may have to be handed over."""
        self._is_lost = False
        """The quorum has declared this node lost."""

    # --- what wakes it -----------------------------------------------------------------------

    def load(self) -> None:
        row = self._engine.read("quorum.nodes", lambda tx: tx.node_get(self._mesh, self._peer))
        self._is_lost = row is not None and row.lost
        self.wake()

    def wake(self) -> None:
        """Something has changed: who coordinates, who was heard, or what is committed."""
        self._news.set()
        if self._unit is not None:
            self._unit.wake()
        elif self._is_lost or self._coordinates() is not None:
            self._status = _DutyStatus(
                f"duties in {self._mesh}",
                DutyState.IDLE,
                DutyState.ENDED,
                self._engine.ctx.now_ms,
                _unheard,
            )
            self._unit = TaskUnit(self._status, self, self._chance)

    def folded(self, results: Sequence[Committed]) -> None:
        """Notes what was committed that concerns a duty."""
        told = False
        for result in notable(results):
            if result.op.startswith("lease."):
                told |= self._lease_changed(result.entity)
            elif result.op.startswith("node.") and result.outcome is Outcome.APPLIED:
                told = self._may_move = True
                self._node_changed(result.entity, lost=result.op == "node.lost")
            elif result.entity == _SETTINGS:
                told = self._may_move = True
        if told:
            self.wake()

    def _lease_changed(self, name: str) -> bool:
        if self._office is None:
            return False
        row = self._engine.read("quorum.leases", lambda tx: tx.lease_get(self._mesh, name))
        self._timers.note(row or LeaseRow(name=name), self._monotonic_ms())
        return True

    def _node_changed(self, peer: str, *, lost: bool) -> None:
        if peer == self._peer:
            self._is_lost = lost
        if not lost:
            self._back_ms[peer] = self._monotonic_ms()

    async def close(self) -> None:
        unit, self._unit = self._unit, None
        if unit is not None:
            unit.stop()
            await unit.join(QUORUM_COMMIT_MS / SECOND_MS)

    # --- AsyncWork ---------------------------------------------------------------------------

    async def run(self) -> DutyState | None:
        """Works while this node coordinates."""
        if self._is_lost:
            await self._say_back(self._peer)
        while (office := self._coordinates()) is not None:
            self._news.clear()
            self._take(office)
            await self._expire()
            await self._judge_silence()
            await self._hand_over()
            await self._wait()
        self._office = None
        return DutyState.IDLE

    async def end(self) -> None: ...

    def plan(self, error: Exception, attempts: int, jitter: float) -> RetryPlan[DutyState]:
        return RetryPlan(DutyState.WAITING, backoff_ms(attempts + 1, jitter))

    def _coordinates(self) -> tuple[int, int] | None:
        status = self._writes.order.status()
        if status.part != "coordinator":
            return None
        return status.incarnation, status.lease_epoch

    def _take(self, office: tuple[int, int]) -> None:
        """Begins anew after each election: the time of a lease counts from now."""
        if self._office == office:
            return
        self._office, self._since_ms = office, self._monotonic_ms()
        self._back_ms.clear()
        self._may_move = True
        after = ""

        def page(tx: Reader) -> list[LeaseRow]:
            nonlocal after
            rows = tx.lease_list(self._mesh, after, CHUNK_ROWS)
            after = rows[-1].name if rows else after
            return rows

        self._timers = LeaseTimers(self._engine.pages(page), self._since_ms)
        if self._status is not None:
            self._status.enter(DutyState.COORDINATING)

    async def _wait(self) -> None:
        """Until something is due, or has changed."""
        now = self._monotonic_ms()
        due = [self._timers.next_ms(), self._next_silence_ms(now)]
        at = min((one for one in due if one is not None), default=None)
        delay = None if at is None else max(0, at - now) / SECOND_MS
        try:
            async with asyncio.timeout(delay):
                await self._news.wait()
        except TimeoutError:
            return

    # --- leases ------------------------------------------------------------------------------

    async def _expire(self) -> None:
        due = self._timers.take_due(self._monotonic_ms())
        ended = await self._propose_all([("lease.expire", *one) for one in due])
        for (name, _), result in zip(due, ended, strict=True):
            if isinstance(result, BaseException):
                self._lease_changed(name)  # it is still held, and is looked at again
        _raise_first(ended)

    # --- silence -----------------------------------------------------------------------------

    async def _judge_silence(self) -> None:
        lost, lost_after = self._lost(), self._lost_after_ms()
        for peer, heard in self._silences().items():
            if peer in lost:
                if heard.certain and heard.silent_ms < lost_after:
                    await self._say_back(peer)
            elif heard.silent_ms >= lost_after and self._matters(peer):
                log.warning("%s was silent for %d ms in %s", peer, heard.silent_ms, self._mesh)
                await self._propose("node.lost", peer, NodeLost(heard.silent_ms))

    def _matters(self, peer: str) -> bool:
        """A voter always does; another member if it holds a task, which is what being lost is
        about.
        """
        if any(member.peer == peer for member in self._writes.order.status().members):
            return True
        held = self._engine.read("quorum.handoff", lambda tx: tx.task_held(self._mesh, peer, 1))
        return bool(held)

    async def _say_back(self, peer: str) -> None:
        await self._propose("node.back", peer, Nothing())
        if peer == self._peer:
            self._is_lost = False

    def _silences(self) -> dict[str, Heard]:
        """How long each other node has been silent."""
        now = self._monotonic_ms()
        found: dict[str, Heard] = {}
        for member in self._writes.order.status().members:
            if member.heard_ms is not None:
                found[member.peer] = Heard(member.heard_ms, True)
            elif member.linked:
                found[member.peer] = Heard(0, True)
            else:
                found[member.peer] = Heard(now - self._since_ms, False)
        for peer, ms in self._heard(self._mesh).items():
            known = found.get(peer)
            if ms is None:
                found.setdefault(peer, Heard(now - self._since_ms, False))
            elif known is None or not known.certain or ms < known.silent_ms:
                # Without a vote it has to find the new coordinator first: that has just begun.
                longest = ms if known is not None else min(ms, now - self._since_ms)
                found[peer] = Heard(longest, True)
        for peer, at in self._back_ms.items():
            known = found.get(peer)
            if known is not None and now - at < known.silent_ms:
                found[peer] = Heard(now - at, known.certain)
        found.pop(self._peer, None)
        return found

    def _next_silence_ms(self, now: int) -> int | None:
        """When the next node may have been silent for too long."""
        lost, lost_after = self._lost(), self._lost_after_ms()
        left = [
            # One that is silent and holds nothing is looked at again: it may have claimed a task.
            lost_after - heard.silent_ms if heard.silent_ms < lost_after else lost_after
            for peer, heard in self._silences().items()
            if peer not in lost
        ]
        return None if not left else now + max(1, min(left))

    def _lost(self) -> set[str]:
        rows = self._engine.read("quorum.nodes", lambda tx: tx.node_list(self._mesh))
        return {row.peer for row in rows if row.lost}

    def _lost_after_ms(self) -> int:
        found = self._writes.setting("lostAfterMs", QUORUM_LOST_AFTER_MS)
        assert isinstance(found, int), "the rules have checked it"
        return found

    # --- tasks of lost nodes -----------------------------------------------------------------

    async def _hand_over(self) -> None:
        if not self._may_move:
            return
        self._may_move = False
        policy = str(self._writes.setting("handoff", PARK))
        lost = self._lost() if policy != PARK else set()
        for peer in sorted(lost):
            moved = True
            while moved and (plan := self._plan(policy, peer, lost)):
                results = await self._propose_all(
                    [("task.handoff", one.task, one.body) for one in plan]
                )
                _raise_first(results)
                # What has moved on by itself is not planned again without end.
                moved = any(_applied(result) for result in results)

    def _plan(self, policy: str, lost_peer: str, lost: set[str]) -> list[PlannedHandoff]:
        lost_after = self._lost_after_ms()
        healthy = {self._peer} | {
            peer
            for peer, heard in self._silences().items()
            if heard.certain and heard.silent_ms < lost_after
        }
        healthy -= lost

        def held_by(tx: Reader, peer: str) -> list[tuple[str, Task]]:
            rows = tx.task_held(self._mesh, peer, HANDOFF_TASKS_MAX)
            return [(row.task, task_of(row)) for row in rows]

        def read(tx: Reader) -> list[PlannedHandoff]:
            return plan_handoff(
                policy,
                lost_peer,
                held_by(tx, lost_peer),
                local=self._peer,
                healthy=healthy,
                held={peer: len(held_by(tx, peer)) for peer in healthy},
            )

        return self._engine.read("quorum.handoff", read)

    async def _propose_all(
        self, asked: Sequence[tuple[str, str, Body]]
    ) -> list[StrongReceipt | BaseException | None]:
        """Proposes many, some at a time; what became of each, or its error."""
        found: list[StrongReceipt | BaseException | None] = []
        for at in range(0, len(asked), QUORUM_DUTIES_AT_ONCE):
            some = asked[at : at + QUORUM_DUTIES_AT_ONCE]
            found += await asyncio.gather(
                *(self._propose(*one) for one in some), return_exceptions=True
            )
        return found

    async def _propose(self, op: str, entity: str, body: Body) -> StrongReceipt | None:
        """None if what it was about has moved on meanwhile."""
        try:
            return await self._writes.intend(op, entity, encode_body(body), None, QUORUM_COMMIT_MS)
        except _MOVED_ON as error:
            log.info("%s %s in %s: %s", op, entity, self._mesh, error.message)
            return None


def _applied(result: StrongReceipt | BaseException | None) -> bool:
    return isinstance(result, StrongReceipt) and result.outcome is Outcome.APPLIED


def _raise_first(results: Iterable[object]) -> None:
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _unheard(state: DutyState) -> None: ...
