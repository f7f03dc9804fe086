"""Telemetry over HTTP, for programs of this node's user: no other node is answered."""

from __future__ import annotations

from itertools import islice
from typing import Any

import msgspec
from starlette.responses import Response

from holdfast.node.core.telemetry import (
    TelemetryDelete,
    TelemetryEntry,
    TelemetrySet,
    unknown_telemetry,
)
from holdfast.node.http.context import NodeRequest
from holdfast.node.library.telemetry import Telemetry
from holdfast.rules.errors import BadInput, DiskFull, OverLimit, UnknownKey, UnknownMesh
from holdfast.rules.limits import BODY_BYTES_MAX, TELEMETRY_PAGE_ROWS, TELEMETRY_TTL_MS
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Param, Routes

_PATH = "/v1/meshes/{mesh}/telemetry"
_ONE = f"{_PATH}/{{kind}}/{{key:path}}"


class NewTelemetry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value that is true on this node only."""

    value: Any
    ttl_ms: int = TELEMETRY_TTL_MS
    """How long it is kept, from now."""


class TelemetryPage(msgspec.Struct, frozen=True, kw_only=True):
    """Values by kind and key."""

    entries: list[TelemetryEntry]
    more: bool
    """Go on with the kind and the key of the last one as `after_kind` and `after_key`."""


routes = Routes()


@routes.put(
    _ONE,
    request=NewTelemetry,
    answers={200: TelemetryEntry},
    errors=(BadInput, DiskFull, OverLimit, UnknownMesh),
    example="""-d '{"value":{"pid":7}}'""",
    local_only=True,
)
async def _set(call: NodeRequest) -> Response:
    """Keep a value on this node, in place of an older one."""
    asked = await json_body(call, NewTelemetry, BODY_BYTES_MAX)
    path = call.path
    work = TelemetrySet(
        call.api.engine.ctx, path["mesh"], path["kind"], path["key"], asked.value, asked.ttl_ms
    )
    return call.answer(await call.api.writer.write("telemetry.set", work))


@routes.get(
    _ONE,
    answers={200: TelemetryEntry},
    errors=(BadInput, UnknownKey, UnknownMesh),
    local_only=True,
)
async def _get(call: NodeRequest) -> Response:
    """What stands under a kind and a key here."""
    kind, key = call.path["kind"], call.path["key"]
    entry = await call.api.run(_telemetry(call).entry, kind, key)
    if entry is None:
        raise unknown_telemetry(call.path["mesh"], kind, key)
    return call.answer(entry)


@routes.delete(
    _ONE, answers={204: None}, errors=(BadInput, UnknownKey, UnknownMesh), local_only=True
)
async def _delete(call: NodeRequest) -> Response:
    """Remove what stands under a kind and a key."""
    call.api.engine.require_mesh(call.path["mesh"])
    work = TelemetryDelete(call.path["mesh"], call.path["kind"], call.path["key"])
    await call.api.writer.write("telemetry.delete", work)
    return Response(status_code=204)


@routes.get(
    _PATH,
    answers={200: TelemetryPage},
    params=(
        Param("kind", "Only values of this kind."),
        Param("after_kind", "Go on behind this kind…"),
        Param("after_key", "…and this key."),
        Param("limit", f"At most this many; {TELEMETRY_PAGE_ROWS} if it is not given.", int),
    ),
    errors=(BadInput, UnknownMesh),
    local_only=True,
)
async def _list(call: NodeRequest) -> Response:
    """Values of all kinds, or of one."""
    limit = call.limit(TELEMETRY_PAGE_ROWS)
    after = (call.one("after_kind", "") or "", call.one("after_key", "") or "")
    rows = _telemetry(call).list(call.one("kind"), after=after)
    found = await call.api.run(lambda: list(islice(rows, limit + 1)))
    return call.answer(TelemetryPage(entries=found[:limit], more=len(found) > limit))


def _telemetry(call: NodeRequest) -> Telemetry:
    call.api.engine.require_mesh(call.path["mesh"])
    return Telemetry(call.api.engine, call.path["mesh"])
