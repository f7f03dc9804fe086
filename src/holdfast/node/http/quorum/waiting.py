"""What waits for a quorum or for a decision, over HTTP: strong writes, and conflicts.

A policy, an agent or a person settles a conflict by the same call; `by` says who did.
"""

from __future__ import annotations

from starlette.responses import Response

from holdfast.node.core.write_queue import queue_counts
from holdfast.node.http.context import NodeRequest, waited
from holdfast.node.http.quorum.held import WRITES, mesh_of, quorum_of
from holdfast.node.quorum import documents
from holdfast.node.quorum.settling import (
    conflict_of,
    conflict_page,
    settle_conflict,
    settle_write,
    write_of,
    write_page,
)
from holdfast.rules.errors import (
    AlreadyResolved,
    BadInput,
    RevisionMoved,
    UnknownConflict,
    UnknownMesh,
    UnknownMessage,
)
from holdfast.rules.ids import parse_id
from holdfast.rules.limits import BODY_BYTES_MAX, QUORUM_PAGE_ROWS
from holdfast.rules.quorum.write_queue import WriteStatus
from holdfast.service.http.json_body import json_body
from holdfast.service.http.request import parse_int
from holdfast.service.http.route import Param, Routes
from holdfast.storage.ports import Reader

_PATH = "/v1/meshes/{mesh}/quorum"
_PAGE = (
    Param("after", "Only those after this number.", int),
    Param("limit", f"At most this many; {QUORUM_PAGE_ROWS} if it is not given.", int),
)

routes = Routes()


@routes.get(
    f"{_PATH}/writes",
    answers={200: documents.WritePage},
    params=(
        Param(
            "status", "`pending`, `replaying`, `applied` or `failed`; may be given several times."
        ),
        *_PAGE,
    ),
    errors=(UnknownMesh,),
    local_only=True,
)
async def _writes(call: NodeRequest) -> Response:
    """Strong writes of this node that found no quorum, in the order of their replay, with what
    became of each. None is ever removed.
    """
    mesh, limit, after = mesh_of(call), call.limit(QUORUM_PAGE_ROWS), call.number("after", 0) or 0
    statuses = call.all("status")
    known = [status.value for status in WriteStatus]
    if not set(statuses) <= set(known):
        raise BadInput(f"status is {', '.join(statuses)}", hint=f"use one of: {', '.join(known)}")
    call.api.engine.require_mesh(mesh)

    def look(tx: Reader) -> documents.WritePage:
        found, more = write_page(tx, mesh, after, limit, statuses)
        return documents.WritePage(writes=found, next=more, counts=queue_counts(tx, mesh))

    return call.answer(await call.api.run(call.api.engine.read, "writes", look))


@routes.get(
    f"{_PATH}/writes/{{id}}",
    answers={200: documents.WriteDocument},
    errors=(UnknownMessage,),
    local_only=True,
)
async def _write(call: NodeRequest) -> Response:
    """One write, with every fence under which it was tried."""
    mesh, id = mesh_of(call), parse_id(call.path["id"])
    read = call.api.engine.read
    return call.answer(await call.api.run(read, "writes", lambda tx: write_of(tx, mesh, id)))


@routes.post(
    f"{_PATH}/writes/{{id}}/resolve",
    request=documents.SettleAsked,
    answers={200: documents.SettledConflict},
    errors=(AlreadyResolved, BadInput, RevisionMoved, UnknownMessage, *WRITES),
    example="""-d '{"take":"committed","by":"ana"}'""",
    local_only=True,
)
async def _resolve(call: NodeRequest) -> Response:
    """End a write that failed: what is committed stands, or what the write wanted is written again
    on it, or something else is.
    """
    asked = (await json_body(call, documents.SettleAsked, BODY_BYTES_MAX)).check()
    id = parse_id(call.path["id"])
    work = settle_write(call.api.engine, quorum_of(call), mesh_of(call), id, asked)
    return call.answer(await waited(call, work))


@routes.get(
    f"{_PATH}/conflicts",
    answers={200: documents.QuorumConflictPage},
    params=(Param("all", "Also those that were settled: `true`."), *_PAGE),
    errors=(UnknownMesh,),
    local_only=True,
)
async def _conflicts(call: NodeRequest) -> Response:
    """Intents that need a decision, each with both sides: what it wanted, and what stands."""
    mesh, limit, after = mesh_of(call), call.limit(QUORUM_PAGE_ROWS), call.number("after", 0) or 0
    open_only = not call.flag("all")
    call.api.engine.require_mesh(mesh)

    def look(tx: Reader) -> list[documents.QuorumConflictDocument]:
        return conflict_page(tx, mesh, after, limit, open_only=open_only)

    found = await call.api.run(call.api.engine.read, "conflicts", look)
    more = found[-1].number if len(found) == limit else None
    return call.answer(documents.QuorumConflictPage(conflicts=found, next=more))


@routes.get(
    f"{_PATH}/conflicts/{{number}}",
    answers={200: documents.QuorumConflictDocument},
    errors=(UnknownConflict,),
    local_only=True,
)
async def _conflict(call: NodeRequest) -> Response:
    """One conflict with both sides."""
    mesh, number = mesh_of(call), parse_int("number", call.path["number"])
    read = call.api.engine.read
    look = await call.api.run(read, "conflicts", lambda tx: conflict_of(tx, mesh, number))
    return call.answer(look)


@routes.post(
    f"{_PATH}/conflicts/{{number}}/resolve",
    request=documents.SettleAsked,
    answers={200: documents.SettledConflict},
    errors=(AlreadyResolved, BadInput, RevisionMoved, UnknownConflict, *WRITES),
    example="""-d '{"take":"intent","by":"agent:merger"}'""",
    local_only=True,
)
async def _settle(call: NodeRequest) -> Response:
    """Settle a conflict. If what stands has moved since, that is refused and nothing is lost."""
    asked = (await json_body(call, documents.SettleAsked, BODY_BYTES_MAX)).check()
    number = parse_int("number", call.path["number"])
    work = settle_conflict(call.api.engine, quorum_of(call), mesh_of(call), number, asked)
    return call.answer(await waited(call, work))
