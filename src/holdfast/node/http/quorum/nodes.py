"""`/api/nodes` of the source document: who is there, and auth material to or from another node."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.node.http.context import NodeRequest, waited
from holdfast.node.http.quorum.access import PROJECT, auth_channel, check_may_read, project_of
from holdfast.node.http.quorum.held import ANY_CALL, quorum_of
from holdfast.node.quorum.ports import OrderStatus
from holdfast.protocol.fusion_routes import (
    AuthSyncAnswer,
    AuthSyncRequest,
    NodeEntry,
    NodeListAnswer,
    NodeStatus,
)
from holdfast.rules.errors import (
    AuthChannelClosed,
    BadChecksum,
    BadInput,
    NoResponder,
    NotAuthMaterial,
    NotGranted,
    PeerUnreachable,
    RequestRefused,
    RequestTimedOut,
    UnknownPeer,
    WrongKey,
)
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Routes

routes = Routes()


@routes.get(
    "/api/nodes",
    answers={200: NodeListAnswer},
    params=(PROJECT,),
    errors=(BadInput, NotGranted, *ANY_CALL),
)
async def _nodes(call: NodeRequest) -> Response:
    """The nodes that decide in a mesh, and those that the quorum has declared lost. `lost` is a
    decision of the quorum; `offline` is only what this node sees.
    """
    mesh = project_of(call, call.one("projectId"))
    check_may_read(call, mesh)
    order = await quorum_of(call).status(mesh)
    lost = await call.api.run(
        call.api.engine.read,
        "node.list",
        lambda tx: {row.peer for row in tx.node_list(mesh) if row.lost},
    )
    nodes = _entries(order, call.api.node.peer, lost)
    return call.answer(NodeListAnswer(project_id=mesh, nodes=nodes))


def _entries(order: OrderStatus, own: str, lost: set[str]) -> list[NodeEntry]:
    found: dict[str, NodeEntry] = {}
    for one in order.members:
        is_local = one.peer == own
        status: NodeStatus = "online" if one.linked or is_local else "offline"
        found[one.peer] = NodeEntry(
            id=one.peer,
            status="lost" if one.peer in lost else status,
            role="coordinator" if one.leads else one.place,
            is_local=is_local,
            last_heard_ms=one.heard_ms,
        )
    found.setdefault(own, NodeEntry(id=own, status="online", role="member", is_local=True))
    for peer in lost - found.keys():
        found[peer] = NodeEntry(id=peer, status="lost", role="member")
    return [found[peer] for peer in sorted(found)]


@routes.post(
    "/api/nodes/{id}/auth/sync",
    request=AuthSyncRequest,
    answers={200: AuthSyncAnswer},
    errors=(
        *(AuthChannelClosed, BadChecksum, NoResponder, NotAuthMaterial, NotGranted),
        *(PeerUnreachable, RequestRefused, RequestTimedOut, UnknownPeer, WrongKey),
    ),
    example="""-d '{"direction":"push"}'""",
    local_only=True,
)
async def _auth_sync(call: NodeRequest) -> Response:
    """Send this node's auth material to another node, or fetch that of the other. Both nodes must
    have opened their channel for each other. It travels over the bus, sealed for the other's key.
    """
    channel = auth_channel(call)
    direction = (await json_body(call, AuthSyncRequest)).direction
    peer = call.path["id"]
    work = channel.push(peer) if direction == "push" else channel.pull(peer)
    told = await waited(call, work)
    return call.answer(
        AuthSyncAnswer(
            node_id=peer, direction=direction, providers=told.providers, count=told.count
        )
    )
