"""The brokers of this node, how they stand, and pausing the meshes that are shared through them."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from holdfast.node.http.context import NodeRequest
from holdfast.node.sync.pause import Resumed, pause, resume
from holdfast.node.sync.status import BrokerStatus
from holdfast.rules.errors import NotShared, UnknownMesh
from holdfast.service.http.route import Route


class BrokerList(msgspec.Struct, frozen=True):
    """Every broker that a mesh is shared through."""

    brokers: list[BrokerStatus]


class Paused(msgspec.Struct, frozen=True):
    mesh: str
    paused: bool


def routes() -> list[Route]:
    mesh = "/v1/meshes/{mesh}/sync"
    return [
        Route(
            "GET",
            "/v1/brokers",
            _list,
            "How this node stands with its brokers.",
            answers={200: BrokerList},
        ),
        Route(
            "POST",
            f"{mesh}/pause",
            _pause,
            "Send nothing of a mesh for now; what others send still comes.",
            answers={200: Paused},
            errors=(UnknownMesh, NotShared),
            local_only=True,
        ),
        Route(
            "POST",
            f"{mesh}/resume",
            _resume,
            "Let a mesh go on, and try again what was refused.",
            answers={200: Resumed},
            errors=(UnknownMesh, NotShared),
            local_only=True,
        ),
    ]


async def _list(call: NodeRequest) -> Response:
    call.require_trusted()
    sync_manager = call.api.sync_manager
    found = [] if sync_manager is None else await call.api.run(sync_manager.status)
    return call.answer(BrokerList(found))


async def _pause(call: NodeRequest) -> Response:
    row = await call.api.run(pause, call.api.engine, call.path["mesh"])
    await _refresh(call)
    return call.answer(Paused(row.slug, row.sync_paused))


async def _resume(call: NodeRequest) -> Response:
    resumed = await call.api.run(resume, call.api.engine, call.path["mesh"])
    await _refresh(call)
    return call.answer(resumed)


async def _refresh(call: NodeRequest) -> None:
    if call.api.sync_manager is not None:
        await call.api.sync_manager.refresh(try_now=True)
