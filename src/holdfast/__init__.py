"""Holdfast: shared state that stays alive on machines that come and go.

    import holdfast

    with holdfast.open("home", peer="ana", create=True) as node:
        team = node.mesh("team", create=True)
        team.state.set("build", {"status": "green"})
        team.state.get("build")

`holdfast.errors` holds every error by its name, such as `holdfast.errors.NotShared`. Names are
loaded when they are first used, so that a program pays only for what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from holdfast.bus.base_store import BaseMeshStore
    from holdfast.bus.bus import Bus
    from holdfast.bus.memory_store import MemoryMeshStore
    from holdfast.bus.options import BusOptions
    from holdfast.node.core.change import Receipt
    from holdfast.node.library.aio import AsyncMesh, AsyncNode, aopen
    from holdfast.node.library.aio_entities import entity_operation
    from holdfast.node.library.node import Mesh, Node
    from holdfast.node.library.node import open_node as open
    from holdfast.node.quorum.api import ReadDemand
    from holdfast.pipeline import read_lake as lake
    from holdfast.rules import errors
    from holdfast.rules.errors import Broken, HoldfastError, Refused, Unknown
    from holdfast.rules.vectors import Model
    from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore

_WHERE = {
    "AsyncMesh": "node.library.aio",
    "AsyncNode": "node.library.aio",
    "BaseMeshStore": "bus.base_store",
    "Broken": "rules.errors",
    "Bus": "bus.bus",
    "BusOptions": "bus.options",
    "HoldfastError": "rules.errors",
    "MemoryMeshStore": "bus.memory_store",
    "Mesh": "node.library.node",
    "Model": "rules.vectors",
    "Node": "node.library.node",
    "ReadDemand": "node.quorum.api",
    "Receipt": "node.core.change",
    "Refused": "rules.errors",
    "SqliteMeshStore": "storage.sqlite.bus.mesh_store",
    "Unknown": "rules.errors",
    "aopen": "node.library.aio",
    "entity_operation": "node.library.aio_entities",
    "errors": "rules.errors",
    "lake": "pipeline",
    "open": "node.library.node",
}
_NAMED = {"open": "open_node", "lake": "read_lake"}
"""What a name is called where it is."""

__all__ = [
    "AsyncMesh",
    "AsyncNode",
    "BaseMeshStore",
    "Broken",
    "Bus",
    "BusOptions",
    "HoldfastError",
    "MemoryMeshStore",
    "Mesh",
    "Model",
    "Node",
    "ReadDemand",
    "Receipt",
    "Refused",
    "SqliteMeshStore",
    "Unknown",
    "aopen",
    "entity_operation",
    "errors",
    "lake",
    "open",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"holdfast.{_WHERE[name]}")
    if name == "errors":
        return module
    return getattr(module, _NAMED.get(name, name))


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
