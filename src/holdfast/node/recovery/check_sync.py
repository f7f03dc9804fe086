"""Checks of the doctor about this node and its brokers. They change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.node.recovery.checks import Check, fail, ok, warn
from holdfast.node.sync.terms import stops
from holdfast.rules.ids import id_text
from holdfast.rules.limits import DAY_MS, DOCTOR_ITEMS_MAX, SYNC_SILENT_WARN_MS
from holdfast.rules.outbox import PARK, OutboxState, Policies, Policy, lane_of
from holdfast.rules.rows import MeshRow, OutboxRow
from holdfast.storage.ports import Reader

Checks = Iterator[Check]

_POLICIES: Final = {
    Policy.HALT: "behind an item that the broker refuses everything waits (halt)",
    Policy.PARK: "behind an item that the broker refuses waits what is about the same thing (park)",
    Policy.QUARANTINE: "behind an item that the broker refuses nothing waits (quarantine)",
}


def check_sync(reader: Reader, now_ms: int, policies: Policies) -> Checks:
    rows = [row for row in reader.mesh_list() if row.shared]
    if not rows:
        return
    for url, problem in stops(reader):
        yield fail("sync", f"nothing is exchanged with {url}: {problem.message}", problem.hint)
    counts = reader.outbox_counts()
    for row in rows:
        yield from _mesh(reader, row, counts, now_ms, policies)
    yield ok("sync", f"{len(rows)} {'meshes are' if len(rows) > 1 else 'mesh is'} shared")


def _failing(item: OutboxRow) -> Check:
    id = id_text(item.id)
    about = item.entity.partition("/")[2] or item.entity or "a message"
    what = f"{id} ({about}) of {item.mesh} was refused: {item.code}, {item.error}"
    fix = f"try it again: holdfast outbox retry {id}; or give it up: holdfast outbox drop {id}"
    return warn("sync", what, fix)


def _chosen(policies: Policies, mesh: str) -> str:
    if mesh in policies.by_mesh or policies.usual is not PARK.usual:
        return ", as the settings say"
    return ", the default: one bad item stops nothing else, and order is kept where it counts"


def _mesh(
    reader: Reader,
    row: MeshRow,
    counts: dict[tuple[str, str], int],
    now_ms: int,
    policies: Policies,
) -> Checks:
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
        for item in reader.outbox_list(lane, (OutboxState.DEAD,), 0, DOCTOR_ITEMS_MAX):
            yield _failing(item)
    yield ok("sync", f"{row.slug}: {_POLICIES[policies.of(row.slug)]}{_chosen(policies, row.slug)}")
    oldest = reader.outbox_oldest(lane)
    if oldest is not None and now_ms - oldest > SYNC_SILENT_WARN_MS:
        days = (now_ms - oldest) // DAY_MS
        what = f"changes of {row.slug} have waited for {days} days; {waiting} wait"
        yield warn("sync", what, "is the daemon up, and the broker? holdfast status")
    if quarantined := reader.quarantine_count(lane):
        what = f"{quarantined} envelopes of {row.slug} were refused here and are in quarantine"
        yield warn("sync", what, f"holdfast link quarantine {lane}")
