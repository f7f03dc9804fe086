"""Holdfast: shared state that stays alive on machines that come and go.

    import holdfast

    with holdfast.open("home", peer="ana", create=True) as node:
        team = node.mesh("team", create=True)
        team.state.set("build", {"status": "green"})
        team.state.get("build")

`holdfast.errors` holds every error by its name, such as `holdfast.errors.NotShared`. Names are
loaded when they are first used, so that a program pays only for what it needs. Type checkers see
plain imports instead, so that they know a name which does not exist.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know the name; importing typing costs the cold path

__version__ = "0.1.0"

if TYPE_CHECKING:
    from typing import Any

    from holdfast import errors
    from holdfast.bus.base_store import BaseMeshStore
    from holdfast.bus.bus import Bus
    from holdfast.bus.memory_store import MemoryMeshStore
    from holdfast.bus.options import BusOptions
    from holdfast.node.core.change import Receipt
    from holdfast.node.core.views import FileInfo, Hit, KeyVersion, Memory, StateEntry
    from holdfast.node.library.aio import AsyncMesh, AsyncNode, aopen
    from holdfast.node.library.aio_entities import Entity, entity_operation
    from holdfast.node.library.aio_lease import AsyncLease
    from holdfast.node.library.lease import Lease
    from holdfast.node.library.node import Mesh, Node
    from holdfast.node.library.node import open_node as open
    from holdfast.node.quorum.api import ReadDemand
    from holdfast.node.remote.aio import aconnect
    from holdfast.node.remote.opening import connect_node as connect
    from holdfast.pipeline import read_lake as lake
    from holdfast.rules.errors import Broken, HoldfastError, Refused, Unknown
    from holdfast.rules.expected import ABSENT
    from holdfast.rules.order import Stamp
    from holdfast.rules.rows import TaskRow
    from holdfast.rules.vectors import Model
    from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore

_WHERE = {
    "ABSENT": "rules.expected",
    "AsyncLease": "node.library.aio_lease",
    "AsyncMesh": "node.library.aio",
    "AsyncNode": "node.library.aio",
    "BaseMeshStore": "bus.base_store",
    "Broken": "rules.errors",
    "Bus": "bus.bus",
    "BusOptions": "bus.options",
    "Entity": "node.library.aio_entities",
    "FileInfo": "node.core.views",
    "Hit": "node.core.views",
    "HoldfastError": "rules.errors",
    "KeyVersion": "node.core.views",
    "Lease": "node.library.lease",
    "Memory": "node.core.views",
    "MemoryMeshStore": "bus.memory_store",
    "Mesh": "node.library.node",
    "Model": "rules.vectors",
    "Node": "node.library.node",
    "ReadDemand": "node.quorum.api",
    "Receipt": "node.core.change",
    "Refused": "rules.errors",
    "SqliteMeshStore": "storage.sqlite.bus.mesh_store",
    "Stamp": "rules.order",
    "StateEntry": "node.core.views",
    "TaskRow": "rules.rows",
    "Unknown": "rules.errors",
    "aconnect": "node.remote.aio",
    "aopen": "node.library.aio",
    "connect": "node.remote.opening",
    "entity_operation": "node.library.aio_entities",
    "errors": "errors",
    "lake": "pipeline",
    "open": "node.library.node",
}
_NAMED = {"connect": "connect_node", "open": "open_node", "lake": "read_lake"}
"""What a name is called where it is."""

__all__ = [
    "ABSENT",
    "AsyncLease",
    "AsyncMesh",
    "AsyncNode",
    "BaseMeshStore",
    "Broken",
    "Bus",
    "BusOptions",
    "Entity",
    "FileInfo",
    "Hit",
    "HoldfastError",
    "KeyVersion",
    "Lease",
    "Memory",
    "MemoryMeshStore",
    "Mesh",
    "Model",
    "Node",
    "ReadDemand",
    "Receipt",
    "Refused",
    "SqliteMeshStore",
    "Stamp",
    "StateEntry",
    "TaskRow",
    "Unknown",
    "aconnect",
    "aopen",
    "connect",
    "entity_operation",
    "errors",
    "lake",
    "open",
]


if not TYPE_CHECKING:

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
