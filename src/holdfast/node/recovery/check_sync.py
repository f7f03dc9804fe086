"""Checks of the doctor about this node and its brokers. They change nothing."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.node.recovery.checks import Check, fail, ok, warn
from holdfast.node.sync.terms import stops
from holdfast.rules.limits import DAY_MS, SYNC_SILENT_WARN_MS
from holdfast.rules.outbox import OutboxState, lane_of
from holdfast.rules.rows import MeshRow
from holdfast.storage.ports import Reader

Checks = Iterator[Check]


def check_sync(reader: Reader, now_ms: int) -> Checks:
    rows = [row for row in reader.mesh_list() if row.shared]
    if not rows:
        return
    for url, problem in stops(reader):
        yield fail("sync", f"nothing is exchanged with {url}: {problem.message}", problem.hint)
    counts = reader.outbox_counts()
    for row in rows:
        yield from _mesh(reader, row, counts, now_ms)
    yield ok("sync", f"{len(rows)} {'meshes are' if len(rows) > 1 else 'mesh is'} shared")


def _mesh(reader: Reader, row: MeshRow, counts: dict[tuple[str, str], int], now_ms: int) -> Checks:
    lane = lane_of(row.slug)
    waiting = sum(
        counts.get((lane, str(state)), 0) for state in (OutboxState.PENDING, OutboxState.INFLIGHT)
    )
    if row.sync_paused:
        what = f"{row.slug} is paused: {waiting} changes and messages wait"
        fix = "look at what failed: holdfast outbox list; then: holdfast doctor --resume-sync"
        yield warn("sync", what, fix)
    if dead := counts.get((lane, str(OutboxState.DEAD)), 0):
        what = f"{dead} changes and messages of {row.slug} were refused by the broker"
        yield warn("sync", what, "holdfast outbox list --failed")
    oldest = reader.outbox_oldest(lane)
    if oldest is not None and now_ms - oldest > SYNC_SILENT_WARN_MS:
        days = (now_ms - oldest) // DAY_MS
        what = f"changes of {row.slug} have waited for {days} days; {waiting} wait"
        yield warn("sync", what, "is the daemon up, and the broker? holdfast status")
    if quarantined := reader.quarantine_count(lane):
        what = f"{quarantined} envelopes of {row.slug} were refused here and are in quarantine"
        yield warn("sync", what, f"holdfast link quarantine {lane}")
