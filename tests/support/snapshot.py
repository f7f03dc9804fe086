"""What a store holds, in a form that two nodes can be compared by.

Left out is what may differ between nodes that agree: the offset of a change in a node's own log,
and times by a node's own clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.storage.ports import Reader, Store

_ALL = 1 << 40
_OWN = {"offset", "applied_at"}


def snapshot(store: Store, *, dead: bool = True) -> dict[str, Any]:
    """Every family of every mesh; `dead` rows are left out on demand (they may be swept)."""
    with store.read() as reader:
        return {row.slug: _mesh(reader, row.slug, dead) for row in reader.mesh_list()}


def _mesh(reader: Reader, mesh: str, dead: bool) -> dict[str, Any]:
    state = reader.state_scan(mesh, "", "", _ALL)
    memory = reader.memory_scan(mesh, None, ("", ""), _ALL)
    files = reader.file_scan(mesh, None, ("", ""), _ALL)
    vectors = [row for _, row in reader.vector_scan(mesh, None, 0, _ALL, live_only=not dead)]
    tasks = reader.task_scan(mesh, None, "", _ALL)
    return {
        "state": _plain(row for row in state if dead or not row.tombstone),
        "memory": _plain(row for row in memory if dead or not row.tombstone),
        "file": _plain(row for row in files if dead or not row.tombstone),
        "blobs": {row.sha256: reader.blob_refs(row.sha256) for row in files if row.in_blob},
        "vector": sorted(_plain(vectors), key=_version),
        "task": _plain(tasks),
        "turns": {row.task: _plain(reader.task_events(mesh, row.task)) for row in tasks},
    }


def _version(row: dict[str, Any]) -> Any:
    return row["lamport"], row["peer"], row["id"]


def _plain(rows: Any) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in msgspec.structs.asdict(row).items() if name not in _OWN}
        for row in rows
    ]


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Where two snapshots part, as lines for a failure message."""
    found = []
    for mesh in sorted(one.keys() | other.keys()):
        for family in one.get(mesh, {}):
            a, b = one[mesh][family], other.get(mesh, {}).get(family)
            if a != b:
                found.append(f"{mesh} {family}:\n  {_part(a, b)}\n  {_part(b, a)}")
    return found


def _part(of: Any, without: Any) -> str:
    if isinstance(of, dict):
        return str({key: value for key, value in of.items() if (without or {}).get(key) != value})
    return str([row for row in of or [] if row not in (without or [])])


Snapshot = Callable[[Store], dict[str, Any]]
