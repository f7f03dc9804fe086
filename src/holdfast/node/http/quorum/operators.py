"""Operators of a quorum over HTTP: who votes, who coordinates, what waits."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.node.http.context import NodeRequest, waited
from holdfast.node.http.quorum.held import ANY_CALL, TIMEOUT, WRITES, mesh_of, quorum_of, time_of
from holdfast.node.quorum import documents
from holdfast.node.quorum.api import ReadDemand
from holdfast.node.quorum.ports import OrderStatus
from holdfast.node.quorum.standing import quorum_standing
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    EtcdDenied,
    EtcdRefused,
    EtcdTooOld,
    MustRejoin,
    NotAllowed,
    OrderContested,
    UnknownPeer,
    Unreachable,
)
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Param, Routes

_PATH = "/v1/meshes/{mesh}/quorum"
_LAST = Param("last", "Also if it is this node, and the only voter: nobody decides then.", bool)

routes = Routes()


@routes.get(_PATH, answers={200: documents.QuorumView}, errors=ANY_CALL, local_only=True)
async def _status(call: NodeRequest) -> Response:
    """How the quorum of a mesh stands: who coordinates, since which lease epoch, who votes and how
    far each is, what waits, what this node does with writes while it reaches no majority.
    """
    mesh, quorum = mesh_of(call), quorum_of(call)
    order = await quorum.status(mesh)
    read = await quorum.confirm(mesh, ReadDemand(linearizable=False))
    default = call.api.settings.quorum.minority
    around = await call.api.run(
        call.api.engine.read, "quorum.view", lambda tx: quorum_standing(tx, mesh, default)
    )
    return call.answer(around.view(order, read))


@routes.post(
    f"{_PATH}/init",
    request=documents.QuorumInit,
    answers={201: OrderStatus},
    errors=(
        *(AlreadyExists, BadInput, NotAllowed, UnknownPeer, Unreachable),
        *(EtcdTooOld, EtcdDenied, EtcdRefused, *WRITES),
    ),
    example="""-d '{"voters":["bo","cy"]}'""",
    local_only=True,
)
async def _init(call: NodeRequest) -> Response:
    """Give a mesh voters: this node and the peers that are named, or an etcd. One to seven voters
    decide; with an even number one more failure is not survived, only one more voter is needed.
    """
    asked = await json_body(call, documents.QuorumInit)
    work = quorum_of(call).init(mesh_of(call), asked.voters, engine=asked.engine)
    return call.answer(await waited(call, work), 201)


@routes.post(
    f"{_PATH}/move",
    request=documents.QuorumMove,
    answers={200: OrderStatus},
    errors=(
        *(AlreadyExists, BadInput, MustRejoin, NotAllowed, UnknownPeer, Unreachable),
        *(EtcdTooOld, EtcdDenied, EtcdRefused, *WRITES),
    ),
    example="""-d '{"engine":"etcd://127.0.0.1:2379"}'""",
    local_only=True,
)
async def _move(call: NodeRequest) -> Response:
    """Let another engine keep the order of a mesh: an etcd, or this node and the peers that are
    named. Writes wait in the queue meanwhile, leases stay, fences grow. On the other nodes it takes
    part in the order of the etcd.
    """
    asked = await json_body(call, documents.QuorumMove)
    work = quorum_of(call).move(mesh_of(call), asked.voters, engine=asked.engine)
    return call.answer(await waited(call, work))


@routes.post(
    f"{_PATH}/members/{{peer}}",
    answers={200: OrderStatus},
    params=(TIMEOUT,),
    errors=(AlreadyExists, NotAllowed, UnknownPeer, Unreachable, *WRITES),
    local_only=True,
)
async def _add(call: NodeRequest) -> Response:
    """Make a member of the mesh a voter. It learns everything first, then it votes."""
    work = quorum_of(call).add(mesh_of(call), call.path["peer"], timeout_ms=time_of(call))
    return call.answer(await waited(call, work))


@routes.delete(
    f"{_PATH}/members/{{peer}}",
    answers={200: OrderStatus},
    params=(TIMEOUT, _LAST),
    errors=(UnknownPeer, *WRITES),
    local_only=True,
)
async def _remove(call: NodeRequest) -> Response:
    """Take the vote from a node. 409 for the only voter, unless `last`."""
    work = quorum_of(call).remove(
        mesh_of(call), call.path["peer"], timeout_ms=time_of(call), last=call.flag("last")
    )
    return call.answer(await waited(call, work))


@routes.post(
    f"{_PATH}/transfer",
    request=documents.QuorumTransfer,
    answers={200: OrderStatus},
    errors=(UnknownPeer, *WRITES),
    example="""-d '{"to":"bo"}'""",
    local_only=True,
)
async def _transfer(call: NodeRequest) -> Response:
    """Let another voter coordinate: the one that is named, or the best one. Writes wait meanwhile,
    none is refused.
    """
    asked = await json_body(call, documents.QuorumTransfer)
    work = quorum_of(call).transfer(mesh_of(call), asked.to, timeout_ms=asked.timeout_ms)
    return call.answer(await waited(call, work))


@routes.post(f"{_PATH}/step-down", answers={200: OrderStatus}, errors=WRITES, local_only=True)
async def _step_down(call: NodeRequest) -> Response:
    """Let the coordinator stop at once; the voters elect another one."""
    return call.answer(await waited(call, quorum_of(call).step_down(mesh_of(call))))


@routes.post(
    f"{_PATH}/forget-claim",
    request=documents.QuorumForgetClaim,
    answers={200: OrderStatus},
    errors=(OrderContested, UnknownPeer, *ANY_CALL),
    example="""-d '{"peer":"dora"}'""",
    local_only=True,
)
async def _forget_claim(call: NodeRequest) -> Response:
    """Let go of another order of the mesh that a peer has shown, when it is gone for good. Refused
    where such claims have stopped this group: there `recover` decides.
    """
    asked = await json_body(call, documents.QuorumForgetClaim)
    work = quorum_of(call).forget_claim(mesh_of(call), asked.peer, dry_run=asked.dry_run)
    return call.answer(await waited(call, work))


@routes.post(
    f"{_PATH}/pause", answers={200: documents.ReplayPause}, errors=ANY_CALL, local_only=True
)
async def _pause(call: NodeRequest) -> Response:
    """Leave writes that wait where they are, until `resume`."""
    await quorum_of(call).pause(mesh_of(call))
    return call.answer(documents.ReplayPause(mesh_of(call), True))


@routes.post(
    f"{_PATH}/resume", answers={200: documents.ReplayPause}, errors=ANY_CALL, local_only=True
)
async def _resume(call: NodeRequest) -> Response:
    """Replay writes that wait again."""
    await quorum_of(call).resume(mesh_of(call))
    return call.answer(documents.ReplayPause(mesh_of(call), False))


@routes.post(
    f"{_PATH}/recover",
    request=documents.QuorumRecover,
    answers={200: OrderStatus},
    errors=(BadInput, MustRejoin, NotAllowed, *WRITES),
    example="""-d '{"accept_loss":true}'""",
    local_only=True,
)
async def _recover(call: NodeRequest) -> Response:
    """After a majority is gone for good: this node alone goes on with what it has, as a new
    incarnation. What only the others had is lost, and they must never come back.
    """
    asked = await json_body(call, documents.QuorumRecover)
    work = quorum_of(call).recover(mesh_of(call), accept_loss=asked.accept_loss)
    return call.answer(await waited(call, work))
