"""Whether this node lives, and whether it is ready for work.

Alive: the loop turns and the store can be read. A service manager restarts what is not. Ready: it
has started, is not stopping, and takes writes. A balancer sends nothing to what is not. A full disk
is no reason to be taken out: reading and confirming are the way back.
"""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from holdfast.node.http.context import NodeApi, NodeRequest
from holdfast.protocol.error_body import ErrorDetail
from holdfast.rules.errors import HoldfastError
from holdfast.service.http.request import is_own
from holdfast.service.http.route import Route


class NodeHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    """How this node is."""

    status: str
    """`ok`, or what keeps it from being so."""
    disk: str = ""
    error: ErrorDetail | None = None


def routes() -> list[Route]:
    return [
        Route(
            "GET",
            "/healthz",
            _alive,
            "Is this node alive?",
            answers={200: NodeHealth, 503: NodeHealth},
            public=True,
            kind="probe",
        ),
        Route(
            "GET",
            "/readyz",
            _ready,
            "Is it ready for work? Not while it starts or stops, nor after its disk failed.",
            answers={200: NodeHealth, 503: NodeHealth},
            public=True,
            kind="probe",
        ),
    ]


async def _alive(call: NodeRequest) -> Response:
    return _answer(call, _store_trouble(call.api))


async def _ready(call: NodeRequest) -> Response:
    api = call.api
    if api.phase != "ready":
        return _answer(call, ErrorDetail("not_ready", f"this node is {api.phase}"))
    failed = api.node._opened.store.writer.failed
    if failed is not None:
        return _answer(call, ErrorDetail(failed.code, failed.message, failed.hint))
    return _answer(call, _store_trouble(api))


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
    # Words may name what lies where on this machine, and from elsewhere anybody may ask.
    told = trouble if is_own(call.scope) else None
    return call.answer(NodeHealth(trouble.code, disk, told), 503)
