"""What completes an argument of a prompt or a resource: names that are there."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from holdfast.apps.mcp.tools.call import AgentCall
from holdfast.rules.limits import MCP_COMPLETIONS_MAX


def complete(
    call: AgentCall, argument: str, begun: str, others: dict[str, str]
) -> tuple[list[str], bool]:
    """Values of an argument that begin with what was typed, and whether there are more. `others`
    are the arguments that are known already.
    """
    found = list(islice(_values(call, argument, begun, others), MCP_COMPLETIONS_MAX + 1))
    return found[:MCP_COMPLETIONS_MAX], len(found) > MCP_COMPLETIONS_MAX


def _values(call: AgentCall, argument: str, begun: str, others: dict[str, str]) -> Iterable[str]:
    if argument == "mesh":
        return (slug for slug in sorted(call.slugs()) if slug.startswith(begun))
    if argument not in ("key", "task", "path", "to"):
        return ()
    mesh = call.mesh(others.get("mesh"))
    if argument == "key":
        return (row.key for row in mesh.state.list(begun))
    if argument == "task":
        return (row.task for row in mesh.tasks.list() if row.task.startswith(begun))
    if argument == "path":
        rows = mesh.files.list(peer=call.node.peer)
        return (row.path for row in rows if row.path.startswith(begun))
    peers = (one.peer for one in mesh.presence.list() if one.peer != call.node.peer)
    return (peer for peer in peers if peer.startswith(begun))
