"""The brokers of this node with their state, and pausing the meshes that are shared through
them.
"""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from holdfast.node.http.context import NodeRequest
from holdfast.node.sync.pause import Resumed, pause, resume
from holdfast.node.sync.status import BrokerStatus
from holdfast.rules.errors import NotShared, UnknownMesh
from holdfast.service.http.route import Routes


class BrokerList(msgspec.Struct, frozen=True):
    """Every broker that a mesh is shared through."""

    brokers: list[BrokerStatus]


class Paused(msgspec.Struct, frozen=True):
    mesh: str
    paused: bool


routes = Routes()


@routes.get("/v1/brokers", answers={200: BrokerList})
async def _list(call: NodeRequest) -> Response:
    """The state of this node's connections to its brokers."""
    call.require_trusted()
    sync_manager = call.api.sync_manager
    brokers = [] if sync_manager is None else await call.api.run(sync_manager.status)
    return call.answer(BrokerList(brokers))


@routes.post(
    "/v1/meshes/{mesh}/sync/pause",
    answers={200: Paused},
    errors=(UnknownMesh, NotShared),
    local_only=True,
)
async def _pause(call: NodeRequest) -> Response:
    """Send nothing of a mesh for now; what others send still comes."""
    row = await call.api.run(pause, call.api.engine, call.path["mesh"])
    await _refresh(call)
    return call.answer(Paused(row.slug, row.sync_paused))


@routes.post(
    "/v1/meshes/{mesh}/sync/resume",
    answers={200: Resumed},
    errors=(UnknownMesh, NotShared),
    local_only=True,
)
async def _resume(call: NodeRequest) -> Response:
    """Send again what a mesh has to send, and try again what was refused."""
    resumed = await call.api.run(resume, call.api.engine, call.path["mesh"])
    await _refresh(call)
    return call.answer(resumed)


async def _refresh(call: NodeRequest) -> None:
    if call.api.sync_manager is not None:
        await call.api.sync_manager.refresh(try_now=True)
