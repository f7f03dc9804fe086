"""Checks of the doctor about the peer bus: what waits for peers, and what they refused. They change
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.node.recovery.checks import Check, joined_names, ok, warn
from holdfast.rules.limits import DAY_MS, SYNC_SILENT_WARN_MS
from holdfast.rules.outbox import OutboxState, is_peer_lane, peer_lane_of, peer_of
from holdfast.storage.ports import Reader


def check_bus(reader: Reader, now_ms: int) -> Iterator[Check]:
    counts = {
        (peer_of(lane), state): count
        for (lane, state), count in reader.outbox_counts().items()
        if is_peer_lane(lane)
    }
    dead = sorted(peer for peer, state in counts if state == OutboxState.DEAD)
    if dead:
        yield warn(
            "bus",
            f"messages for {joined_names(dead)} were refused, or came too late",
            "holdfast outbox list --failed",
        )
    waiting = sorted(peer for peer, state in counts if state == OutboxState.PENDING)
    yield from (
        warn(
            "bus",
            f"messages for {peer} have waited for {(now_ms - oldest) // DAY_MS} days",
            "is it up, and does it trust this node? holdfast peer ping " + peer,
        )
        for peer in waiting
        if (oldest := reader.outbox_oldest(peer_lane_of(peer))) is not None
        and now_ms - oldest > SYNC_SILENT_WARN_MS
    )
    if counts:
        total = sum(counts.get((peer, "pending"), 0) for peer in waiting)
        yield ok("bus", f"{total} messages wait for {len(waiting)} peers")
