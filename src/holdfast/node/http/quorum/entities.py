"""Entities and leases over HTTP: strong writes, and reads that say how fresh they are."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.node.http.context import NodeRequest, waited
from holdfast.node.http.quorum.held import (
    READ,
    READS,
    WRITES,
    check_time,
    mesh_of,
    quorum_of,
    read_committed,
)
from holdfast.node.http.quorum.strong import receipt_answer
from holdfast.node.log.entity_history import entity_history
from holdfast.node.quorum import documents
from holdfast.node.quorum.entity_writes import change_entities
from holdfast.rules.errors import (
    BadEntity,
    BadInput,
    BaseRequired,
    DependencyCycle,
    FenceTooOld,
    HasChildren,
    IdReused,
    Orphaned,
    OverLimit,
    RevisionMoved,
    SecretRefused,
    UnknownEntity,
    UnknownEntityType,
    UnknownKey,
)
from holdfast.rules.limits import BODY_BYTES_MAX, QUORUM_PAGE_ROWS
from holdfast.rules.quorum.entities import check_type
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Param, Routes

_PATH = "/v1/meshes/{mesh}/quorum"
_REFUSED = (
    *(BadEntity, BadInput, BaseRequired, DependencyCycle, FenceTooOld, HasChildren, IdReused),
    *(Orphaned, OverLimit, RevisionMoved, SecretRefused, UnknownEntity, UnknownEntityType),
)
_PAGE = (
    Param("limit", f"At most this many; {QUORUM_PAGE_ROWS} if it is not given.", int),
    *READ,
)

routes = Routes()


@routes.post(
    f"{_PATH}/entities",
    request=documents.EntitiesChange,
    answers={200: documents.ReceiptDocument, 202: documents.ReceiptDocument},
    errors=(*_REFUSED, *WRITES),
    example="""-d '{"operations":[{"type":"mission","id":"m1","fields":{"title":"Sail"}}]}'""",
    local_only=True,
)
async def _change(call: NodeRequest) -> Response:
    """Put, patch and delete entities: all of them or none. `base` is the revision that you saw (0:
    it must not exist); whatever else stands then, the change is refused. 202: it waits for a
    quorum.
    """
    asked = await json_body(call, documents.EntitiesChange, BODY_BYTES_MAX)
    work = change_entities(
        quorum_of(call),
        mesh_of(call),
        [one.operation for one in asked.operations],
        id=asked.id,
        timeout_ms=check_time(asked.timeout_ms),
    )
    return receipt_answer(call, await waited(call, work))


@routes.get(
    f"{_PATH}/entities/{{type}}",
    answers={200: documents.EntityPage},
    params=(Param("after", "Only ids after this one."), *_PAGE),
    errors=(UnknownEntityType, *READS),
    local_only=True,
)
async def _list(call: NodeRequest) -> Response:
    """Live entities of one type, by id, and how fresh the answer is."""
    mesh, type, limit = mesh_of(call), call.path["type"], call.limit(QUORUM_PAGE_ROWS)
    check_type(type)
    after = call.one("after", "") or ""
    rows, fresh = await read_committed(
        call, mesh, lambda tx: tx.entity_list(mesh, type, after, limit), "entity.list"
    )
    more = rows[-1].id if len(rows) == limit else None
    shown = [documents.EntityDocument.of(mesh, row) for row in rows]
    return call.answer(documents.EntityPage(entities=shown, next=more, read=fresh))


@routes.get(
    f"{_PATH}/entities/{{type}}/{{id:path}}",
    answers={200: documents.EntityReadDocument},
    params=READ,
    errors=(UnknownEntity, UnknownEntityType, *READS),
    local_only=True,
)
async def _get(call: NodeRequest) -> Response:
    """One entity, and how fresh the answer is."""
    mesh, type, id = mesh_of(call), call.path["type"], call.path["id"]
    check_type(type)
    row, fresh = await read_committed(
        call, mesh, lambda tx: tx.entity_get(mesh, type, id), "entity.get"
    )
    if row is None or row.deleted:
        raise UnknownEntity(f"there is no {type} {id!r} in {mesh!r}")
    return call.answer(
        documents.EntityReadDocument(entity=documents.EntityDocument.of(mesh, row), read=fresh)
    )


@routes.get(
    f"{_PATH}/history/{{type}}/{{id:path}}",
    answers={200: documents.EntityHistoryPage},
    params=(Param("after", "Only revisions above this one.", int), *_PAGE),
    errors=(UnknownEntity, UnknownEntityType, *READS),
    local_only=True,
)
async def _history(call: NodeRequest) -> Response:
    """Every revision of an entity and the commit that made it, the lowest first."""
    mesh, type, id = mesh_of(call), call.path["type"], call.path["id"]
    check_type(type)
    after, limit = call.number("after", 0) or 0, call.limit(QUORUM_PAGE_ROWS)
    past, fresh = await read_committed(
        call, mesh, lambda tx: entity_history(tx, mesh, type, id, after, limit), "entity.history"
    )
    return call.answer(
        documents.EntityHistoryPage(
            mesh=mesh,
            type=type,
            id=id,
            revisions=[documents.StoredRevision.whole_of(one) for one in past],
            next=past[-1].revision if len(past) == limit else None,
            read=fresh,
        )
    )


# --- leases ----------------------------------------------------------------------------------


@routes.get(
    f"{_PATH}/leases",
    answers={200: documents.LeasePage},
    params=(Param("after", "Only names after this one."), *_PAGE),
    errors=READS,
    local_only=True,
)
async def _leases(call: NodeRequest) -> Response:
    """Leases that somebody holds, by name."""
    mesh, limit, after = mesh_of(call), call.limit(QUORUM_PAGE_ROWS), call.one("after", "") or ""
    rows, fresh = await read_committed(
        call, mesh, lambda tx: tx.lease_list(mesh, after, limit), "lease.list"
    )
    more = rows[-1].name if len(rows) == limit else None
    shown = [documents.LeaseDocument.of(mesh, row) for row in rows]
    return call.answer(documents.LeasePage(leases=shown, next=more, read=fresh))


@routes.get(
    f"{_PATH}/leases/{{name:path}}",
    answers={200: documents.LeaseDocument},
    params=READ,
    errors=(UnknownKey, *READS),
    local_only=True,
)
async def _lease(call: NodeRequest) -> Response:
    """Who holds a lease, under which fence, and who waits for it."""
    mesh, name = mesh_of(call), call.path["name"]
    row, _ = await read_committed(call, mesh, lambda tx: tx.lease_get(mesh, name), "lease.get")
    if row is None:
        raise UnknownKey(f"nobody holds the lease {name!r} of {mesh!r}")
    return call.answer(documents.LeaseDocument.of(mesh, row))
