"""The order of one mesh in an etcd: a `MeshOrder` on an `EtcdEngine`.

Any node appends by itself, under the epoch of whoever coordinates: there is nobody to forward to.
So a coordinator that is away delays nobody's writes. What it does beside that, leases and lost
nodes, is decided by the rules: an entry of somebody who does not coordinate does nothing there.

Nothing is answered before this node's own fold has the entry: what a caller then reads at home is
what it wrote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Final

from holdfast.node.core.commit import Committed
from holdfast.node.core.engine import NodeEngine
from holdfast.node.quorum.etcd.coordination import Coordination, OrderTiming
from holdfast.node.quorum.etcd.engine import EtcdEngine, OrderEnd
from holdfast.node.quorum.etcd.order_fold import OrderFold, Write
from holdfast.node.quorum.ports import OrderPart, OrderStatus, order_moved
from holdfast.rules.backoff import RetryPlan, backoff_ms
from holdfast.rules.envelope import decode
from holdfast.rules.errors import (
    BadAnswer,
    BadEnvelope,
    DiskFull,
    EtcdDenied,
    EtcdRefused,
    EtcdTooOld,
    HoldfastError,
    IdReused,
    IntentAbandoned,
    MustRejoin,
    NoQuorum,
    OutcomeUnknown,
    QuorumSetBack,
    TooMany,
    TooOld,
    Truncated,
    UnknownMesh,
    Unreachable,
)
from holdfast.rules.etcd.outcome import EntryAppended
from holdfast.rules.etcd.payload import TimedEnvelope, encode_timed
from holdfast.rules.limits import SECOND_MS
from holdfast.service.problem import Problem
from holdfast.service.supervision import Supervision
from holdfast.service.supervisor import TaskUnit, UnitStatus
from holdfast.transport.etcd_gateway import EtcdGateway

NOT_DONE: Final = (
    Unreachable,
    EtcdRefused,
    EtcdDenied,
    EtcdTooOld,
    UnknownMesh,
    TooMany,
    DiskFull,
    BadAnswer,
)
"""What an etcd, or the way to it, says when certainly nothing was done. All else that it can say
after a write was sent is OutcomeUnknown."""
_FOR_GOOD: Final = (MustRejoin, QuorumSetBack, Truncated, UnknownMesh)
"""After these this node cannot go on by itself."""
_ENDS_S: Final = 5.0


class FollowState(StrEnum):
    """How this node follows an order."""

    FOLLOWING = "following"
    WAITING = "waiting"
    """The etcd or the store fails; it is tried again."""
    STUCK = "stuck"
    """It waits for a person."""
    ENDED = "ended"


class _FollowStatus(UnitStatus[FollowState, None]):
    def _view(self) -> None:
        return None


class EtcdOrder:
    """Belongs to one event loop. `start` comes first, `close` last."""

    def __init__(
        self,
        engine: NodeEngine,
        mesh: str,
        write: Write,
        gateway: EtcdGateway,
        etcd: EtcdEngine,
        *,
        timing: OrderTiming | None = None,
        found: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`found` begins the order in the etcd, where that is for this node to do."""
        self.mesh = mesh
        self.on_moved: Callable[[], None] = lambda: None
        """Hears that the order has ended, to go on with another engine."""
        self.on_cut_off: Callable[[], None] = lambda: None
        """Hears that the etcd does not answer any more."""
        self._found = found
        self.on_change: Callable[[], None] = lambda: None
        self.on_folded: Callable[[Sequence[Committed]], None] = lambda results: None
        self.etcd, self.gateway = etcd, gateway
        self._engine, self._timing = engine, timing or OrderTiming()
        self.fold = OrderFold(engine, mesh, write, gateway, etcd, patience_ms=self._timing.lost_ms)
        self.fold.on_folded = self._folded
        self.fold.on_resumed = self._resumed
        self.coordination = Coordination(etcd, engine.ctx.peer, self, self._timing)
        self._status: _FollowStatus | None = None
        self._unit: TaskUnit[FollowState, EtcdOrder] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._told: object = None
        self._end = 0
        self._confirmed: float | None = None
        self._answered: float | None = None
        self._missed = ""
        self._incarnation = 0
        self._open = 0

    # --- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        self._status = _FollowStatus(
            f"the order of {self.mesh}",
            FollowState.FOLLOWING,
            FollowState.ENDED,
            self._engine.ctx.now_ms,
            lambda view: self._tell(),
        )
        self._unit = TaskUnit(self._status, self)
        self._looking = asyncio.create_task(self.coordination.run())

    async def close(self) -> None:
        """Ends what runs. Another node takes over if this one coordinates."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self._unit is not None:
            self._unit.stop()
            await self._unit.join(_ENDS_S)

    # --- AsyncWork: following ------------------------------------------------------------------

    async def run(self) -> FollowState | None:
        if self._found is not None:
            await self._found()
            self._found = None
            self.coordination.wake()  # its first look has found no order
        await self.fold.run()
        self.on_moved()
        return FollowState.ENDED

    async def end(self) -> None: ...

    def _resumed(self) -> None:
        if self._status is not None:
            self._status.apply(Supervision.worked)
            self._status.enter(FollowState.FOLLOWING)

    def plan(self, error: Exception, attempts: int, jitter: float) -> RetryPlan[FollowState]:
        state = FollowState.STUCK if isinstance(error, _FOR_GOOD) else FollowState.WAITING
        return RetryPlan(state, backoff_ms(attempts + 1, jitter))

    # --- LookListener --------------------------------------------------------------------------

    def looked(self, end: OrderEnd, begun: float) -> None:
        self._heard(end, begun)
        if self.fold.standing().engine != "etcd":  # a neighbour has brought the end of the order
            self.fold.close()
            self.on_moved()
            return
        if self.fold.position >= end.point.position:
            # Everything committed before the look is here.
            self._confirmed = max(begun, self._confirmed or begun)
        is_next = end.state.incarnation > self._incarnation
        self._incarnation = end.state.incarnation
        if self._unit is not None and self._status is not None:
            state = self._status.state
            # The etcd answers again, or somebody has recovered its order.
            if state is FollowState.WAITING or (state is FollowState.STUCK and is_next):
                self._unit.wake()
        self._tell()

    def missed(self, error: HoldfastError) -> None:
        was_cut_off, self._missed = self.is_cut_off, error.message
        if not was_cut_off:
            self.on_cut_off()
        self._tell()

    def _heard(self, end: OrderEnd, begun: float) -> None:
        self._end = max(self._end, end.point.position)
        self._answered = max(begun, self._answered or begun)
        self._missed = ""

    def _tell(self) -> None:
        """Tells that something is different, if it is."""
        status = self.status()
        told = (status.part, status.coordinator, status.lease_epoch, status.has_quorum)
        if told != self._told:
            self._told = told
            self.on_change()

    def _folded(self, results: Sequence[Committed]) -> None:
        self.on_folded(results)

    # --- MeshOrder -----------------------------------------------------------------------------

    async def propose(self, id: bytes, raw: bytes, *, timeout_ms: int) -> Committed:
        envelope = decode(raw)
        if envelope.id != id or envelope.mesh != self.mesh:
            raise BadEnvelope("the envelope is of another mesh or id than its proposal")
        self._check_open()
        self._check_part()
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_ms / SECOND_MS
        body = encode_timed(TimedEnvelope(self._engine.ctx.now_ms(), raw))
        coming = self.fold.expect(id, raw)
        self._open += 1
        try:
            position = await self._append(id, envelope.fingerprint, body, timeout_ms)
            if position is None:
                return Committed(id, None, IntentAbandoned.code, "its id was given up")
            try:
                async with asyncio.timeout_at(until):
                    await self.fold.reached(position)
            except TimeoutError:
                raise OutcomeUnknown(
                    f"it stands in the order of {self.mesh!r} at {position}, and this node has "
                    f"folded it only up to {self.fold.position} in time",
                    hint="ask again with the same id: it is applied once at most",
                ) from None
            return coming.result() if coming.done() else await self.fold.again(raw)
        finally:
            self._open -= 1
            self.fold.forget(id, raw, coming)

    async def _append(
        self, id: bytes, fingerprint: bytes, body: bytes, timeout_ms: int
    ) -> int | None:
        """Where the entry with this id stands, ours or another; None if the id was given up."""
        try:
            got = await self.etcd.append(id, fingerprint, body, timeout_ms=timeout_ms)
        except IdReused:
            # The rules say what follows, as for every intent whose id was committed before.
            return await self._place(id, timeout_ms)
        except TooOld:
            known = self._engine.read(
                "quorum.intent", lambda tx: tx.intents_known(self.mesh, [id]).get(id)
            )
            if known is None:
                raise
            return self.fold.position
        except NOT_DONE as error:
            raise _no_quorum(self.mesh, error) from error
        return got.position if isinstance(got, EntryAppended) else None

    async def _place(self, id: bytes, timeout_ms: int) -> int:
        try:
            found = await self.etcd.find(id, timeout_ms=timeout_ms)
        except NOT_DONE as error:
            raise _no_quorum(self.mesh, error) from error
        return self.fold.position if found is None else found.point.position

    async def confirm(self, *, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        self._check_open()
        self._check_part()
        self._open += 1
        try:
            async with asyncio.timeout_at(begun + timeout_ms / SECOND_MS):
                end = await self.etcd.end(timeout_ms=timeout_ms)
                self._heard(end, begun)
                await self.fold.reached(end.point.position)
        except NOT_DONE as error:
            raise _no_quorum(self.mesh, error) from error
        except TimeoutError:
            raise NoQuorum(
                f"the order of {self.mesh!r} was not confirmed and folded within {timeout_ms} ms",
                hint=self._problem() or "see: holdfast quorum status",
            ) from None
        finally:
            self._open -= 1
        self._check_open()  # the next order may have come further by now
        # Everything committed before the call is here: it was confirmed as of then.
        self._confirmed = max(begun, self._confirmed or begun)

    def _check_open(self) -> None:
        if self.fold.closed:
            raise order_moved(self.mesh)

    def _check_part(self) -> None:
        if self.part in ("must_rejoin", "failed"):
            raise NoQuorum(
                f"this node takes no part in the order of {self.mesh!r}: {self._problem()}"
            )

    def status(self) -> OrderStatus:
        """No members are named: those of the etcd are its own (`cluster.member_statuses`), and no
        node of the mesh votes.
        """
        state = self.etcd.known
        row = self.fold.standing()
        return OrderStatus(
            mesh=self.mesh,
            engine="etcd",
            incarnation=row.incarnation if state is None else state.incarnation,
            part=self.part,
            lease_epoch=0 if state is None else state.epoch,
            coordinator="" if state is None else state.coordinator,
            committed=max(self._end, self.fold.position),
            applied=self.fold.position,
            confirmed_ms=self._age_ms(self._confirmed),
            has_quorum=self.has_quorum,
            waiting=self._open,
            problem=self._problem(),
        )

    @property
    def part(self) -> OrderPart:
        problem = self._stuck()
        if problem is not None:
            return "failed" if problem.code == QuorumSetBack.code else "must_rejoin"
        return "coordinator" if self.coordination.leads else "member"

    @property
    def follow_state(self) -> FollowState:
        return FollowState.ENDED if self._status is None else self._status.state

    @property
    def has_quorum(self) -> bool:
        """Whether the etcd answered lately: it answers only where it has a majority."""
        age = self._age_ms(self._answered)
        return not self._missed and age is not None and age < self._timing.lost_ms

    @property
    def is_cut_off(self) -> bool:
        """Whether the etcd did not answer when it was asked last."""
        return bool(self._missed)

    def _stuck(self) -> Problem | None:
        if self._status is None or self._status.state is not FollowState.STUCK:
            return None
        return self._status.supervision.last_error

    def _problem(self) -> str:
        if self._status is not None and self._status.state is not FollowState.FOLLOWING:
            last = self._status.supervision.last_error
            if last is not None:
                return last.message
        return self._missed

    def _age_ms(self, at: float | None) -> int | None:
        if at is None:
            return None
        return max(0, round((asyncio.get_running_loop().time() - at) * SECOND_MS))


def _no_quorum(mesh: str, error: HoldfastError) -> NoQuorum:
    return NoQuorum(
        f"the etcd of {mesh!r} has not taken part: {error.message}", hint=error.hint or None
    )
