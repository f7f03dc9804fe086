"""How this node stands with its brokers and their meshes, for people and for metrics.

Counts begin with the daemon: what must outlast it stands in the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.sync.mesh_state import MeshState
from holdfast.node.sync.session import BrokerAddress, brokers
from holdfast.rules.broker_sync import SyncState, status_name
from holdfast.rules.outbox import OutboxState, lane_of
from holdfast.rules.rows import MeshRow
from holdfast.service.problem import Problem
from holdfast.service.supervision import Supervision
from holdfast.service.supervisor import UnitStatus
from holdfast.storage.ports import Reader


class MeshStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A shared mesh at one moment."""

    mesh: str
    kind: str
    state: str
    """`active`, `idle`, `offline`, `paused`, `stopped`, `needs_snapshot`, or the code of what is
    wrong."""
    trouble: Problem | None = None
    epoch: int
    cursor: int
    broker_seq: int | None = None
    """The last seq of the mesh at its broker that this node knows of."""
    lag: int | None = None
    last_sync_at: int | None = None
    pending: int = 0
    inflight: int = 0
    dead: int = 0
    oldest_pending_at: int | None = None
    waiting_for_objects: int = 0
    quarantined: int = 0
    pushed: int = 0
    received: int = 0
    duplicates: int = 0
    refused: int = 0
    pruned: int = 0
    """Envelopes that the broker knew and no longer held when they were sent again."""


class BrokerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A broker at one moment, with the meshes that are shared through it."""

    broker: str
    url: str
    card: str
    state: SyncState
    since: int
    attempts: int
    """How many times in a row it has failed; 0 after a success."""
    retry_at: int | None
    last_error: Problem | None
    connections: int
    meshes: list[MeshStatus]


class BrokerStatusTracker(UnitStatus[SyncState, Supervision[SyncState]]):
    """The state of one connection, written in the loop."""

    def __init__(
        self,
        broker: BrokerAddress,
        now_ms: Callable[[], int],
        on_change: Callable[[Supervision[SyncState]], None],
        first: SyncState = SyncState.RECONNECTING,
    ) -> None:
        super().__init__(f"broker {broker.name}", first, SyncState.STOPPED, now_ms, on_change)
        self.broker = broker
        self.active_at = now_ms()
        self.connections = 0
        self.totals: dict[str, list[int]] = {}
        """By mesh, what connections that are over have counted."""

    def _view(self) -> Supervision[SyncState]:
        return self.supervision

    def connected(self) -> None:
        self.connections += 1
        self.apply(Supervision.worked)
        self.active_at = self._now_ms()
        self.enter(SyncState.ACTIVE)

    def active(self) -> None:
        """Something was sent, or came."""
        self.active_at = self._now_ms()
        if self.state is SyncState.IDLE:
            self.enter(SyncState.ACTIVE)

    def counted(self, mesh: MeshState) -> None:
        """A connection is over: what it counted is kept."""
        before = self.totals.setdefault(mesh.slug, [0] * len(_COUNTED))
        for at, more in enumerate(_counts(mesh)):
            before[at] += more


_COUNTED: Final = ("pushed", "received", "duplicates", "refused", "pruned")
"""What a mesh counts on one connection."""


def _counts(mesh: MeshState) -> list[int]:
    return [getattr(mesh, name) for name in _COUNTED]


class _Stored(msgspec.Struct):
    rows: dict[str, MeshRow]
    counts: dict[tuple[str, str], int]
    oldest: dict[str, int | None]
    quarantined: dict[str, int]


def _read(tx: Reader, counts: dict[tuple[str, str], int]) -> _Stored:
    rows = {row.slug: row for row in tx.mesh_list() if row.shared}
    lanes = [lane_of(slug) for slug in rows]
    return _Stored(
        rows,
        counts,
        {lane: tx.outbox_oldest(lane) for lane in lanes},
        {lane: tx.quarantine_count(lane) for lane in lanes},
    )


def broker_status(
    engine: NodeEngine, trackers: list[tuple[BrokerStatusTracker, dict[str, MeshState]]]
) -> list[BrokerStatus]:
    """All brokers with their meshes, as they are now."""
    counts = engine.message_count.latest().outbox
    stored = engine.read("sync.status", lambda tx: _read(tx, counts))
    return [_broker(tracker, meshes, stored) for tracker, meshes in trackers]


def stored(engine: NodeEngine) -> list[BrokerStatus]:
    """All brokers where no daemon runs: none is connected, and the store says how far each got."""
    now = engine.ctx.now_ms()
    trackers = [
        BrokerStatusTracker(broker, lambda: now, lambda unit: None, first=SyncState.STOPPED)
        for broker in brokers(engine)
    ]
    return broker_status(engine, [(tracker, {}) for tracker in trackers])


def _broker(
    tracker: BrokerStatusTracker, meshes: dict[str, MeshState], stored: _Stored
) -> BrokerStatus:
    broker = tracker.broker
    ours = [
        row
        for row in stored.rows.values()
        if (row.broker_url, row.broker_card) == (broker.url, broker.card)
    ]
    return BrokerStatus(
        broker=broker.name,
        url=broker.url,
        card=broker.card,
        **tracker.supervision.shown(),
        connections=tracker.connections,
        meshes=[_mesh(row, meshes.get(row.slug), tracker, stored) for row in ours],
    )


def _mesh(
    row: MeshRow, live: MeshState | None, tracker: BrokerStatusTracker, stored: _Stored
) -> MeshStatus:
    lane = lane_of(row.slug)

    def count(state: OutboxState) -> int:
        return stored.counts.get((lane, str(state)), 0)

    totals = tracker.totals.get(row.slug, [0] * len(_COUNTED))
    known: dict[str, Any] = {}
    if live is not None:
        totals = [a + b for a, b in zip(totals, _counts(live), strict=True)]
        lag = max(0, live.last - row.broker_seq)
        known = {"broker_seq": live.last, "lag": lag, "waiting_for_objects": len(live.held)}
    return MeshStatus(
        mesh=row.slug,
        kind=row.kind,
        state=status_name(row.kind, row.sync_paused, tracker.state, problem_code(live)),
        trouble=None if live is None else live.trouble,
        epoch=row.broker_epoch,
        cursor=row.broker_seq,
        last_sync_at=row.last_sync_at,
        pending=count(OutboxState.PENDING),
        inflight=count(OutboxState.INFLIGHT),
        dead=count(OutboxState.DEAD),
        oldest_pending_at=stored.oldest[lane],
        quarantined=stored.quarantined[lane],
        **dict(zip(_COUNTED, totals, strict=True)),
        **known,
    )


def problem_code(live: MeshState | None) -> str:
    """What keeps a mesh from being synced, in one word; empty if nothing does."""
    if live is None:
        return ""
    if live.trouble is not None:
        return live.trouble.code
    return "needs_snapshot" if live.snapshot is not None else ""
