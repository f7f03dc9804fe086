"""What the source document calls its persistence methods (§12), on this home's store.

    recordMeshSnapshot           record_mesh_snapshot
    getLatestMeshSnapshot        get_latest_mesh_snapshot
    enqueueMeshWrite             enqueue_mesh_write
    listPendingMeshWrites        list_pending_mesh_writes
    markMeshWriteReplayStarted   mark_mesh_write_replay_started
    markMeshWriteApplied         mark_mesh_write_applied
    markMeshWriteFailed          mark_mesh_write_failed
    getMeshDegradedReadState     LocalQuorum.get_mesh_degraded_read_state
    replayPendingWritesForNode   LocalQuorum.replay_pending_writes_for_node
    onNodeRecovered              LocalQuorum.on_node_recovered

A program that uses `mesh.entities` needs none of these: its writes are queued and replayed for it.
They are for tools that look into the queue, and for programs that bring a queue of their own. Each
returns when the disk has it. The rows are those of the one outbox, and follow the same rules
(`rules/quorum/write_queue.py`): a row that has ended cannot be marked again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.write_queue import queue_add, queue_get, queue_list, queue_put
from holdfast.rules.envelope import Envelope, decode
from holdfast.rules.errors import UnknownMessage
from holdfast.rules.ids import id_text, parse_id
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.quorum.degraded_read import SharedSnapshot, make_snapshot
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.write_queue import (
    QueuedWrite,
    WriteFailure,
    WriteStatus,
    decided,
    failed_try,
    started,
)
from holdfast.rules.reconcile import Outcome
from holdfast.storage.ports import Reader, Transaction


class MeshWriteFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which writes to list."""

    statuses: tuple[WriteStatus, ...] = (WriteStatus.PENDING,)
    target: str | None = None


class MeshWriteApplyResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a write came to that somebody else has replayed."""

    outcome: Outcome = Outcome.APPLIED
    detail: str = ""


class SharedMeshStore:
    """Snapshots and waiting writes of one mesh, by the source's names; safe to use from threads."""

    def __init__(self, engine: NodeEngine, mesh: str) -> None:
        engine.require_mesh(mesh)
        self._engine, self._mesh = engine, mesh

    # --- snapshots ---------------------------------------------------------------------------

    def record_mesh_snapshot(self, state: Mapping[str, Any]) -> SharedSnapshot:
        """Keeps what is known of the mesh now, in place of this node's last snapshot. Its version
        is the SHA-256 of its canonical payload.
        """
        ctx = self._engine.ctx
        snapshot = make_snapshot(self._mesh, ctx.peer, ctx.now_ms(), state)
        self._engine.write("quorum.snapshot", lambda tx: tx.snapshot_put(snapshot))
        return snapshot

    def get_latest_mesh_snapshot(self, source: str | None = None) -> SharedSnapshot | None:
        """The newest snapshot, or the one of a node."""
        return self._engine.read(
            "quorum.snapshot", lambda tx: tx.snapshot_latest(self._mesh, source)
        )

    # --- writes that wait ----------------------------------------------------------------------

    def enqueue_mesh_write(
        self, envelope: Envelope | bytes, failure: WriteFailure, target: str = ""
    ) -> QueuedWrite:
        """Keeps an intent whose first try failed: pending after an outage, else failed at once."""
        made = decode(envelope) if isinstance(envelope, bytes) else envelope
        return self._engine.write(
            "quorum.queue", lambda tx: queue_add(tx, self._engine.ctx, made, failure, target)
        )

    def list_pending_mesh_writes(
        self, filter: MeshWriteFilter | None = None, *, after: int = 0, limit: int = CHUNK_ROWS
    ) -> list[tuple[int, QueuedWrite]]:
        """Writes with a number > after that a filter lets through, and their numbers: at most
        `limit` rows are looked at.
        """
        chosen = MeshWriteFilter() if filter is None else filter
        most = min(max(1, limit), CHUNK_ROWS)
        rows = self._engine.read(
            "quorum.queue.list", lambda tx: queue_list(tx, self._mesh, after, most)
        )
        return [(number, row) for number, row in rows if _passes(row, chosen)]

    def mark_mesh_write_replay_started(self, id: str, fence: FenceToken | None) -> QueuedWrite:
        """A try of a write begins, and counts."""
        return self._mark(id, lambda row, now: started(row, fence, now))

    def mark_mesh_write_applied(self, id: str, result: MeshWriteApplyResult) -> QueuedWrite:
        """The quorum has decided a write. `applied`, `noop_already_applied` and `superseded` end it
        as applied, the other outcomes as failed.
        """
        return self._mark(
            id, lambda row, now: decided(row, result.outcome, now, detail=result.detail)
        )

    def mark_mesh_write_failed(self, id: str, failure: WriteFailure) -> QueuedWrite:
        """A try came to no decision: after an outage the write waits again, else it has failed."""
        return self._mark(id, lambda row, now: failed_try(row, failure, now))

    def _mark(self, id: str, change: Callable[[QueuedWrite, int], QueuedWrite]) -> QueuedWrite:
        raw = parse_id(id)

        def work(tx: Transaction) -> QueuedWrite:
            return queue_put(tx, change(self._require(tx, raw), self._engine.ctx.now_ms()))

        return self._engine.write("quorum.replay", work)

    def _require(self, tx: Reader, id: bytes) -> QueuedWrite:
        row = queue_get(tx, self._mesh, id)
        if row is None:
            raise UnknownMessage(f"no write {id_text(id)} waits for the quorum of {self._mesh!r}")
        return row


def _passes(row: QueuedWrite, filter: MeshWriteFilter) -> bool:
    statuses: Collection[WriteStatus] = filter.statuses
    return row.status in statuses and (filter.target is None or row.target == filter.target)
