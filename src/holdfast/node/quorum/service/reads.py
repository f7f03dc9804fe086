"""How fresh a read of this home's store is, and the snapshots that degraded reads name.

A linearizable read waits until this node has folded everything that was committed before it was
asked for. A bounded one is served if the last such confirmation is young enough, by monotonic time;
if it is not, one is asked for. Everything else is served as it is. In each case the record says so.

A snapshot here is the place in commit order up to which this node had everything at some time: the
commit's number and fence tell one state of the mesh from every other. The state itself is in the
store, and goes on being there. One task records the snapshots of all meshes, at an interval and in
one write: of those that were confirmed lately, and of those in which something was committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from holdfast.node.core.engine import NodeEngine
from holdfast.node.quorum.api import ReadDemand
from holdfast.node.quorum.service.lane import LoopWrite
from holdfast.node.quorum.service.strong_writes import StrongWrites
from holdfast.rules.errors import HoldfastError, NotFresh, TooStale
from holdfast.rules.limits import QUORUM_COMMIT_MS
from holdfast.rules.quorum.degraded_read import (
    DegradedRead,
    check_demand,
    degraded,
    fresh,
    make_snapshot,
)
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.storage.ports import Transaction

log = logging.getLogger("holdfast.quorum")


async def confirmed_read(
    engine: NodeEngine, writes: StrongWrites, demand: ReadDemand, timeout_ms: int
) -> DegradedRead:
    """NoQuorum or OutcomeUnknown if what can be read may be older than the demand allows: see
    `unconfirmed`.
    """
    if demand.linearizable or _is_too_old(writes, demand):
        await writes.order.confirm(timeout_ms=timeout_ms)
        return fresh(engine.ctx.peer, engine.ctx.now_ms(), writes.lane.counts())
    return degraded_state(engine, writes)


def unconfirmed(mesh: str, demand: ReadDemand, error: HoldfastError) -> NotFresh | TooStale:
    """What a caller hears whose read nobody confirms, and why."""
    kind = NotFresh if demand.linearizable else TooStale
    return kind(f"{mesh!r}: {error.message}")


def degraded_state(engine: NodeEngine, writes: StrongWrites) -> DegradedRead:
    """What a read says that nobody confirms now."""
    snapshot = engine.read("quorum.snapshot", lambda tx: tx.snapshot_latest(writes.mesh))
    since = writes.order.status().confirmed_ms
    return degraded(snapshot, engine.ctx.now_ms(), since, writes.lane.counts())


def _is_too_old(writes: StrongWrites, demand: ReadDemand) -> bool:
    try:
        check_demand(
            linearizable=False,
            confirmed=False,
            staleness_ms_max=demand.staleness_ms_max,
            since_confirmed_ms=writes.order.status().confirmed_ms,
        )
    except TooStale:
        return True
    return False


class SnapshotRecorder:
    """Records, for all meshes of a node, up to where it had everything. Belongs to one event
    loop.
    """

    def __init__(self, engine: NodeEngine, write: LoopWrite) -> None:
        self._engine, self._write = engine, write
        self._recorded: dict[str, int] = {}
        """By mesh: the commit that the last snapshot stands at."""

    async def record(self, meshes: Sequence[StrongWrites], interval_ms: int) -> int:
        """Records those that are fresh; how many. A mesh in which something was committed since its
        last snapshot is confirmed first. One that rests is left alone: to ask would wake its group.
        """
        rows = await asyncio.gather(*(self._fresh(one, interval_ms) for one in meshes))
        found = [row for row in rows if row is not None]
        peer, now = self._engine.ctx.peer, self._engine.ctx.now_ms()
        made = [make_snapshot(row.mesh, peer, now, standing_of(row)) for row in found]

        def work(tx: Transaction) -> int:
            return sum(tx.snapshot_put(row) for row in made)

        count = await self._write("quorum.snapshot", work) if made else 0
        self._recorded |= {row.mesh: row.number for row in found}
        return count

    async def _fresh(self, writes: StrongWrites, interval_ms: int) -> QuorumRow | None:
        row = self._standing(writes.mesh)
        since = writes.order.status().confirmed_ms
        if row is None or (since is not None and since <= interval_ms):
            return row
        if row.number == self._recorded.get(writes.mesh, 0):
            return None
        try:
            await writes.order.confirm(timeout_ms=min(interval_ms, QUORUM_COMMIT_MS))
        except HoldfastError as error:
            log.info("%s is not fresh, and no snapshot is recorded: %s", writes.mesh, error.message)
            return None
        return self._standing(writes.mesh)

    def _standing(self, mesh: str) -> QuorumRow | None:
        return self._engine.read("quorum.standing", lambda tx: tx.quorum_get(mesh))


def standing_of(row: QuorumRow) -> dict[str, object]:
    """The place of a node in commit order, as a snapshot holds it."""
    return {
        "mesh": row.mesh,
        "engine": row.engine,
        "incarnation": row.incarnation,
        "number": row.number,
        "fence": None if row.fence is None else str(row.fence),
        "committedAt": row.committed_at,
    }
