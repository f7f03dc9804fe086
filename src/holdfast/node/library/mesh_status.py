"""How a mesh stands with its broker, in one word.

In the daemon, its sync knows. Every other process goes by the store, where the daemon notes now and
then that it has reached the broker, also when there was nothing to send.
"""

from __future__ import annotations

from holdfast.node.core.engine import NodeEngine
from holdfast.rules.broker_sync import SyncState, status_name
from holdfast.rules.limits import SEEN_MS
from holdfast.rules.rows import MeshRow


def mesh_status(engine: NodeEngine, row: MeshRow) -> str:
    if engine.sync_word is not None:
        return engine.sync_word(row.slug, row.kind, row.sync_paused)
    at = row.last_sync_at
    there = at is not None and engine.ctx.now_ms() - at < 2 * SEEN_MS
    return status_name(row.kind, row.sync_paused, SyncState.IDLE if there else None)
