"""Everything that a store answers, so that two moments of it can be compared."""

from __future__ import annotations

from typing import Any

from holdfast.rules.filters import Filter
from holdfast.rules.vectors import pack
from holdfast.storage.ports import Reader
from support.envelopes import MODEL, make_id

_ALL = 1 << 40
IDS = range(60)
"""The numbers of the ids that a test may have used."""
JOBS = ("work", "other")


def _committed(tx: Reader, mesh: str) -> dict[str, Any]:
    """What a quorum has committed in a mesh."""
    missions = tx.entity_list(mesh, "mission", "", _ALL, live_only=False)
    return {
        "entities": missions,
        "revisions": [tx.entity_revisions(mesh, "mission", row.id, 0, _ALL) for row in missions],
        "commits": tx.commit_range(mesh, 0, _ALL),
        "intents": tx.intents_known(mesh, [make_id(n) for n in IDS]),
        "leases": tx.lease_list(mesh, "", _ALL),
        "nodes": tx.node_list(mesh),
        "conflicts": tx.waiting_conflicts(mesh, 0, _ALL, open_only=False),
        "snapshot": tx.snapshot_latest(mesh),
    }


def dump(tx: Reader) -> dict[str, Any]:
    meshes = tx.mesh_list()
    return {
        "peer": tx.peer_name(),
        "epoch": tx.epoch(),
        "meshes": meshes,
        "bounds": tx.log_bounds(),
        "blocked": tx.blocked_list(),
        "ended": tx.ended_meshes(),
        "holes": tx.log_holes(0, _ALL),
        "turns": tx.log_turns(),
        "log": tx.log_range(0, _ALL, _ALL),
        "found": [tx.log_find(make_id(n)) for n in IDS],
        "forgotten": [tx.forgotten(make_id(n)) for n in IDS],
        "seen": {
            (row.slug, one.key): tx.state_seen(row.slug, one.key)
            for row in meshes
            for one in tx.state_scan(row.slug, "", "", _ALL)
        },
        "buried": [tx.buried(row.slug, letter * 16) for row in meshes for letter in (b"n", b"m")],
        "consumers": tx.consumer_list(),
        "jobs": [tx.job_get(name) for name in JOBS],
        "blobs": tx.blob_scan("", _ALL),
        "released": tx.blob_released(_ALL),
        "models": tx.model_list(),
        "conflicts": tx.conflict_list(None, open_only=False, after=0, limit=_ALL),
        "warnings": tx.warning_list(None),
        "audit": [tx.audit_scan(row.slug, None, None, ("", "", -1, 0), _ALL) for row in meshes],
        "chains": [tx.audit_chains(row.slug, ("", "", -1), _ALL) for row in meshes],
        "telemetry": [tx.telemetry_scan(row.slug, None, ("", ""), _ALL) for row in meshes],
        "telemetry_count": [tx.telemetry_count(row.slug) for row in meshes],
        "zones": tx.zone_list(),
        "tokens": tx.token_list(),
        "links": tx.link_list(),
        "quarantine": tx.quarantine_list(None, 0, _ALL),
        "objects": tx.fact_objects(_ALL, _ALL),
        "spool": tx.outbox_list(None, (), 0, _ALL),
        "inbox": tx.inbox_list(None, False, 0, _ALL),
        "quorums": tx.quorum_list(),
        "committed": {row.slug: _committed(tx, row.slug) for row in meshes},
        "notes": [tx.queue_note(number) for number in range(1, 9)],
        "streams": {
            row.slug: [
                (stream, tx.stream_page(stream.number, 0, _ALL, _ALL, _ALL))
                for stream in tx.stream_list(row.slug)
            ]
            for row in meshes
        },
        "heard": {
            (row.slug, epoch): tx.broker_positions_above(row.slug, epoch, 0, 0, _ALL)
            for row in meshes
            for epoch in range(3)
        },
        "mates": {row.slug: tx.known_members_list(row.slug) for row in meshes},
        "through zones": {
            zone.name: tx.log_page(0, _ALL, _ALL, _ALL, Filter(beyond=zone.name))
            for zone in tx.zone_list()
        },
        "families": {row.slug: _families(tx, row.slug) for row in meshes},
    }


def _families(tx: Reader, mesh: str) -> dict[str, Any]:
    tasks = tx.task_scan(mesh, None, "", _ALL)
    return {
        "peers": tx.peer_list(mesh),
        "about k": tx.log_of(mesh, "k", _ALL),
        "counts": tx.family_counts(mesh),
        "state": tx.state_scan(mesh, "", "", _ALL),
        "memory": tx.memory_scan(mesh, None, ("", ""), _ALL),
        "files": tx.file_scan(mesh, None, ("", ""), _ALL),
        "vectors": tx.vector_scan(mesh, None, 0, _ALL, live_only=False),
        "near": tx.vector_search(mesh, MODEL, pack((0, 0), 2), 50, exact=True),
        "tasks": tasks,
        "turns": [tx.task_events(mesh, task.task) for task in tasks],
    }
