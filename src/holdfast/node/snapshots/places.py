"""Where links begin in a home that was made from a snapshot.

A snapshot says how far it covers the log of each node. This is stored per mesh, and a link to one
of those nodes begins there instead of at the beginning: what came before is in the snapshot, or was
superseded by something that is.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.node.snapshots.manifest import SnapshotManifest
from holdfast.rules.rows import JobRow
from holdfast.storage.ports import Reader, Transaction


def remember(tx: Transaction, manifest: SnapshotManifest, now_ms: int) -> None:
    """Stores how far the logs are covered, for every mesh of the snapshot, and the ids of their
    last entries.
    """
    places = {place.log: [place.epoch, place.offset] for place in manifest.logs}
    for mesh in manifest.meshes:
        cursor = {"digest": manifest.digest, "logs": places}
        tx.job_put(JobRow(name=_job(mesh), cursor=cursor, updated_at=now_ms))
    for place in manifest.logs:
        for id, fingerprint in place.tail:
            # A link checks that it knows the last entries before its place. Superseded ones are
            # not in the snapshot, so their ids are stored as known.
            raw_id = bytes.fromhex(id)
            if tx.log_find(raw_id) is None:
                tx.forgotten_add(raw_id, bytes.fromhex(fingerprint), now_ms)


def restored_from(tx: Reader, mesh: str) -> str | None:
    """The digest of the snapshot that a mesh of this home was made from."""
    job = tx.job_get(_job(mesh))
    return None if job is None else str(job.cursor["digest"])


def place_of(tx: Reader, zone: str, meshes: Collection[str]) -> tuple[int, int]:
    """Epoch and cursor for a new link to a zone; zeros if it has to begin at the beginning. That is
    so unless all its meshes come from snapshots that cover this log.
    """
    places = []
    for mesh in meshes:
        job = tx.job_get(_job(mesh))
        place = None if job is None else job.cursor["logs"].get(zone)
        if place is None:
            return 0, 0
        places.append((int(place[0]), int(place[1])))
    if not places or len({epoch for epoch, _ in places}) > 1:
        return 0, 0
    return min(places)


def _job(mesh: str) -> str:
    return f"snapshot:{mesh}"
