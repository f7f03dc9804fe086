"""How fresh a read of this home's store is, and the snapshots that degraded reads name.

A linearizable read waits until this node has folded everything that was committed before it was
asked for. A bounded one is served if the last such confirmation is young enough, by monotonic time;
if it is not, one is asked for. Everything else is served as it is. In each case the record says so.

A snapshot here is the place in commit order up to which this node had everything at some time: the
commit's number and fence tell one state of the mesh from every other. The state itself is in the
store, and goes on being there. One task records the snapshots of all meshes, in one write each
time, of those meshes that were confirmed since the last time.
"""

from __future__ import annotations

from holdfast.node.core.engine import NodeEngine
from holdfast.node.quorum.api import ReadDemand
from holdfast.node.quorum.service.strong_writes import StrongWrites
from holdfast.rules.errors import NoQuorum, NotFresh, OutcomeUnknown, TooStale
from holdfast.rules.limits import QUORUM_SNAPSHOT_MS
from holdfast.rules.quorum.degraded_read import (
    DegradedRead,
    SharedSnapshot,
    check_demand,
    degraded,
    fresh,
    make_snapshot,
)
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.storage.ports import Reader


async def confirmed_read(
    engine: NodeEngine, writes: StrongWrites, demand: ReadDemand, timeout_ms: int
) -> DegradedRead:
    """NotFresh or TooStale if what can be read is older than the demand allows."""
    if demand.linearizable or _is_too_old(writes, demand):
        try:
            await writes.order.confirm(timeout_ms=timeout_ms)
        except (NoQuorum, OutcomeUnknown) as error:
            kind = NotFresh if demand.linearizable else TooStale
            raise kind(f"{writes.mesh!r}: {error.message}") from error
        return fresh(engine.ctx.peer, engine.ctx.now_ms(), writes.lane.counts())
    return degraded_state(engine, writes)


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


def due_snapshots(engine: NodeEngine, meshes: list[StrongWrites]) -> list[SharedSnapshot]:
    """Snapshots of the meshes that were confirmed since the last time, as the store has them."""
    young = [
        writes
        for writes in meshes
        if (since := writes.order.status().confirmed_ms) is not None and since <= QUORUM_SNAPSHOT_MS
    ]

    def read(tx: Reader) -> list[QuorumRow]:
        rows = (tx.quorum_get(writes.mesh) for writes in young)
        return [row for row in rows if row is not None]

    peer, now = engine.ctx.peer, engine.ctx.now_ms()
    rows = engine.read("quorum.snapshot", read) if young else []
    return [make_snapshot(row.mesh, peer, now, standing_of(row)) for row in rows]


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
