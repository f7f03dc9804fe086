"""Holdfast: shared state that stays alive on machines that come and go.

    import holdfast

    with holdfast.open("home", peer="ana", create=True) as node:
        team = node.mesh("team", create=True)
        team.state.set("build", {"status": "green"})
        team.state.get("build")

Names are loaded when they are first used, so that a program pays only for what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from holdfast.node.core.change import Receipt
    from holdfast.node.library.aio import AsyncMesh, AsyncNode, aopen
    from holdfast.node.library.node import Mesh, Node
    from holdfast.node.library.node import open_node as open
    from holdfast.rules.errors import Broken, HoldfastError, Refused, Unknown
    from holdfast.rules.vectors import Model

_WHERE = {
    "open": ("holdfast.node.library.node", "open_node"),
    "aopen": ("holdfast.node.library.aio", "aopen"),
    "Node": ("holdfast.node.library.node", "Node"),
    "Mesh": ("holdfast.node.library.node", "Mesh"),
    "AsyncNode": ("holdfast.node.library.aio", "AsyncNode"),
    "AsyncMesh": ("holdfast.node.library.aio", "AsyncMesh"),
    "Receipt": ("holdfast.node.core.change", "Receipt"),
    "Model": ("holdfast.rules.vectors", "Model"),
    "HoldfastError": ("holdfast.rules.errors", "HoldfastError"),
    "Refused": ("holdfast.rules.errors", "Refused"),
    "Unknown": ("holdfast.rules.errors", "Unknown"),
    "Broken": ("holdfast.rules.errors", "Broken"),
}

__all__ = [
    "AsyncMesh",
    "AsyncNode",
    "Broken",
    "HoldfastError",
    "Mesh",
    "Model",
    "Node",
    "Receipt",
    "Refused",
    "Unknown",
    "aopen",
    "open",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _WHERE[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
