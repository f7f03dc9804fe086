"""Every table of a store, row by row, as it lies there."""

from __future__ import annotations

from typing import Any

from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.ports import Store
from holdfast.storage.sqlite.store import SqliteStore

_KEPT_APART = ("sqlite_", "vec_")


def tables(store: Store) -> dict[str, Any]:
    """Rows in the order in which they lie. What a store keeps by key alone has none, in memory."""
    if isinstance(store, MemoryStore):
        kept = store._engine._tables._tables
        return {name: dict(table) for name, table in kept.items() if table}
    assert isinstance(store, SqliteStore)
    names = [
        name
        for (name,) in store._con.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        if not str(name).startswith(_KEPT_APART)
    ]
    found: dict[str, Any] = {
        name: store._con.execute(f"SELECT * FROM {name}").fetchall() for name in names
    }
    # The sum of its leaf hashes lies there in lanes that may have run over into each other or not.
    with store.read() as reader:
        found["stream"] = [reader.stream_list(mesh.slug) for mesh in reader.mesh_list()]
    return found
