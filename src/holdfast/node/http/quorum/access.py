"""Who may use the routes of the source document, and which mesh a call is about.

A caller proves itself by a token of this home (the source's node API key), or by the session that
its signed hello gave it. A zone that this node trusts with a mesh may read it and write to it, as
over the bus; a token for reading reads. Auth material is for this node's user, and for the peers
that the settings name.
"""

from __future__ import annotations

from typing import Final

from holdfast.node.bus.auth_channel import AuthChannel
from holdfast.node.http.bus import bus_of
from holdfast.node.http.context import NodeRequest
from holdfast.rules.errors import BadInput, NotGranted, NoVoters
from holdfast.service.http.route import Param

PROJECT: Final = Param("projectId", "The mesh; the only one with a quorum if it is not given.")
_SOURCES_TERMS: Final = "use a token of this home on its own machine, or a trusted zone's session"


def project_of(call: NodeRequest, named: str | None) -> str:
    """The mesh that is meant."""
    if named is not None:
        return call.api.engine.require_mesh(named).slug
    found = call.api.engine.read("quorum.list", lambda tx: [row.mesh for row in tx.quorum_list()])
    if not found:
        raise NoVoters(
            "no mesh of this home has voters", hint="give it some: holdfast quorum init MESH"
        )
    if len(found) > 1:
        raise BadInput(
            f"several meshes of this home have voters: {', '.join(found)}",
            hint="name one as projectId",
        )
    return found[0]


def check_may_read(call: NodeRequest, mesh: str) -> None:
    reads = call.caller.reads
    if reads is not None and mesh not in reads:
        raise NotGranted(f"{call.caller.kind} {call.caller.name!r} may not read {mesh!r}")


def check_may_write(call: NodeRequest, mesh: str) -> None:
    if not (call.caller.is_local or call.caller.kind == "zone"):
        raise NotGranted(
            f"{call.caller.kind} {call.caller.name!r} may only read", hint=_SOURCES_TERMS
        )
    check_may_read(call, mesh)


def auth_channel(call: NodeRequest) -> AuthChannel:
    """The channel of auth material, if it is open and this caller may use it."""
    channel = bus_of(call).auth
    channel.check_open()
    if call.caller.is_local:
        return channel
    if call.caller.kind != "zone":
        raise NotGranted(
            f"{call.caller.kind} {call.caller.name!r} may not exchange auth material",
            hint=_SOURCES_TERMS,
        )
    channel.check_peer(call.caller.name)
    return channel
