"""Audit streams over HTTP: append, list, and whether the chains hold."""

from __future__ import annotations

from itertools import islice
from typing import Any

import msgspec
from starlette.responses import Response

from holdfast.node.core import operations
from holdfast.node.http.append import Appended, appended
from holdfast.node.http.context import NodeRequest
from holdfast.node.library.families import AuditTrail
from holdfast.node.log.audit_trail import AuditEntry, AuditVerdict, place_of
from holdfast.rules.audit_chain import AuditChainRow
from holdfast.rules.errors import BadInput, DiskFull, IdReused, OverLimit, UnknownMesh
from holdfast.rules.idempotency import id_of_key
from holdfast.rules.ids import id_text
from holdfast.rules.limits import AUDIT_PAGE_ROWS, BODY_BYTES_MAX
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Param, Routes

_PATH = "/v1/meshes/{mesh}/audit"


class NewEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event to append to an audit stream."""

    payload: Any
    id: str | None = None
    """A UUID of version 7. The same id with the same content is appended once."""


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events of a stream, those of each origin in its order."""

    events: list[AuditEntry]
    next: str | None
    """Give it as `after` to go on; null at the end."""


class AuditChains(msgspec.Struct, frozen=True, kw_only=True):
    """How much of each chain is here; fewer `events` than `last`: there is a gap."""

    chains: list[AuditChainRow]


class AuditVerdicts(msgspec.Struct, frozen=True, kw_only=True):
    """Of each chain: what is missing, what does not fit, and which forks were refused."""

    whole: bool
    """Nothing of that."""
    chains: list[AuditVerdict]


routes = Routes()


@routes.get(_PATH, answers={200: AuditChains}, errors=(UnknownMesh,), local_only=True)
async def _streams(call: NodeRequest) -> Response:
    """The audit streams of a mesh, and how much of each origin's chain is here."""
    return call.answer(AuditChains(chains=await call.api.run(_audit(call).streams)))


@routes.get(
    f"{_PATH}-verdicts",
    answers={200: AuditVerdicts},
    params=(Param("stream", "Only this stream."),),
    errors=(UnknownMesh,),
    local_only=True,
)
async def _verify(call: NodeRequest) -> Response:
    """Reads every event again, and says of each chain whether it is whole."""
    found = await call.api.run(_audit(call).verify, call.one("stream"))
    whole = all(one.sound and one.gapless for one in found)
    return call.answer(AuditVerdicts(whole=whole, chains=found))


@routes.post(
    f"{_PATH}/{{stream:path}}",
    request=NewEvent,
    answers={201: Appended, 200: Appended},
    params=(Param("idempotency-key", "Names the event: any text, or a UUID.", where="header"),),
    errors=(BadInput, DiskFull, IdReused, OverLimit, UnknownMesh),
    example="""-d '{"payload":{"did":"deploy"}}'""",
    local_only=True,
)
async def _append(call: NodeRequest) -> Response:
    """Append an event to a stream: on the disk, and bound to the last one, when this answers. One
    that was there already is answered with 200.
    """
    asked = await json_body(call, NewEvent, BODY_BYTES_MAX)
    ctx, mesh, key = call.api.engine.ctx, call.path["mesh"], call.idempotency_key()
    id = asked.id if key is None else id_text(id_of_key(key, mesh, ctx.peer))
    change = operations.audit_append(ctx, mesh, call.path["stream"], asked.payload, id)
    receipt = await call.api.writer.write("audit.append", change)
    return call.answer(appended(call.api, receipt), 200 if receipt.duplicate else 201)


@routes.get(
    f"{_PATH}/{{stream:path}}",
    answers={200: AuditPage},
    params=(
        Param("origin", "Only events of this origin."),
        Param("after", "Go on behind the page that ended with this."),
        Param("limit", f"At most this many; {AUDIT_PAGE_ROWS} if it is not given.", int),
    ),
    errors=(BadInput, UnknownMesh),
    local_only=True,
)
async def _list(call: NodeRequest) -> Response:
    """The events of a stream, those of each origin in its order."""
    limit = call.limit(AUDIT_PAGE_ROWS)
    rows = _audit(call).list(
        call.path["stream"], origin=call.one("origin"), after=call.one("after", "") or ""
    )
    found = await call.api.run(lambda: list(islice(rows, limit)))
    more = place_of(found[-1]) if len(found) == limit else None
    return call.answer(AuditPage(events=found, next=more))


def _audit(call: NodeRequest) -> AuditTrail:
    call.api.engine.require_mesh(call.path["mesh"])
    return AuditTrail(call.api.engine, call.path["mesh"])
