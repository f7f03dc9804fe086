"""Whether this node is alive, and whether it is ready for work.

Alive: the loop runs and the store can be read. A service manager restarts a node that is not.
Ready: it has started, is not stopping, and accepts writes. A load balancer sends nothing to a node
that is not. A node with a full disk stays ready: reading and confirming make room again.
"""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from holdfast.node.http.context import NodeApi, NodeRequest
from holdfast.protocol.error_body import ErrorDetail
from holdfast.rules.errors import HoldfastError
from holdfast.service.http.request import is_own
from holdfast.service.http.route import Routes


class NodeHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    """The health of a node."""

    status: str
    """`ok`, or the code of what is wrong."""
    disk: str = ""
    error: ErrorDetail | None = None


routes = Routes()


@routes.get("/healthz", answers={200: NodeHealth, 503: NodeHealth}, public=True, kind="probe")
async def _alive(call: NodeRequest) -> Response:
    """Is this node alive?"""
    return _answer(call, _store_trouble(call.api))


@routes.get("/readyz", answers={200: NodeHealth, 503: NodeHealth}, public=True, kind="probe")
async def _ready(call: NodeRequest) -> Response:
    """Is it ready for work? Not while it starts or stops, nor after its disk failed, nor while it
    cannot work with a broker of its meshes.
    """
    api = call.api
    if api.phase != "ready":
        return _answer(call, ErrorDetail("not_ready", f"this node is {api.phase}"))
    failed = api.node._opened.store.writer.failed
    if failed is not None:
        return _answer(call, ErrorDetail(failed.code, failed.message, failed.hint))
    return _answer(call, _store_trouble(api) or _stopped(api))


def _stopped(api: NodeApi) -> ErrorDetail | None:
    """A broker that this node cannot work with: nothing is exchanged until a person acts."""
    problem = None if api.sync_manager is None else api.sync_manager.stopped()
    return None if problem is None else ErrorDetail(problem.code, problem.message, problem.hint)


def _store_trouble(api: NodeApi) -> ErrorDetail | None:
    # Read here, not in a thread: all threads may be busy, and that is no reason to be restarted.
    try:
        api.engine.read("health", lambda tx: tx.epoch())
    except HoldfastError as error:
        return ErrorDetail(error.code, error.message, error.hint)
    return None


def _answer(call: NodeRequest, trouble: ErrorDetail | None) -> Response:
    disk = "" if call.api.disk is None else call.api.disk.last.level
    if trouble is None:
        return call.answer(NodeHealth("ok", disk))
    # A message may name paths of this machine, and anybody may make this call.
    shown = trouble if is_own(call.scope) else None
    return call.answer(NodeHealth(trouble.code, disk, shown), 503)
