"""What the operator of a broker sees and mends in any mesh, without being a member of it: members,
queues and their dead letters, readers, objects.

Only who may open the broker's Unix socket is its operator. Nothing here shows what a message or a
change says.
"""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.responses import Response

from holdfast.broker.access import require_mesh
from holdfast.broker.http.context import BrokerRequest, key_of
from holdfast.broker.http.logs import consumer_document
from holdfast.broker.http.meshes import member_document, remove_member
from holdfast.broker.http.queues import dead_document, dead_limit, queue_of
from holdfast.protocol.broker_http import Dropped, Members, Removed
from holdfast.protocol.broker_log_http import (
    ConsumersResponse,
    DeadLetters,
    QueueInfo,
    QueueList,
    Revived,
)
from holdfast.rules.errors import NotGranted, UnknownDestination, UnknownMesh
from holdfast.rules.limits import OBJECT_PAGE_ROWS, TAKE_MAX
from holdfast.service.http.request import parse_int
from holdfast.service.http.route import Param, Routes

_ONE: Final = "/v1/operator/meshes/{mesh}"
_QUEUE: Final = f"{_ONE}/queues/{{queue:path}}"


class HeldObject(msgspec.Struct, frozen=True):
    sha256: str
    size: int | None
    """None for one that was removed meanwhile."""


class HeldObjects(msgspec.Struct, frozen=True):
    """Whole objects, by their hash."""

    objects: list[HeldObject]
    next: str | None
    """Give it as `after` to go on; null at the end."""


routes = Routes()


@routes.get(f"{_ONE}/members", answers={200: Members}, errors=(UnknownMesh,), local_only=True)
async def _members(call: BrokerRequest) -> Response:
    """Who is a member of a mesh, and how far each has what it was sent."""
    await require_mesh(call.api.store, call.mesh)
    rows = await call.api.store.member_list(call.mesh)
    return call.answer(Members([member_document(row) for row in rows]))


@routes.delete(
    f"{_ONE}/members/{{key}}",
    answers={200: Removed},
    errors=(UnknownMesh, NotGranted),
    local_only=True,
)
async def _member_remove(call: BrokerRequest) -> Response:
    """Remove a member. It acts at once, on open connections too."""
    return call.answer(Removed(await remove_member(call, key_of(call.path["key"]))))


@routes.get(f"{_ONE}/queues", answers={200: QueueList}, errors=(UnknownMesh,), local_only=True)
async def _queues(call: BrokerRequest) -> Response:
    """What the queues of a mesh hold: ready, taken and dead."""
    await require_mesh(call.api.store, call.mesh)
    rows = await call.api.store.queue_counts(call.mesh)
    return call.answer(
        QueueList([QueueInfo(row.queue, row.ready, row.taken, row.dead) for row in rows])
    )


@routes.get(
    f"{_QUEUE}/dead",
    answers={200: DeadLetters},
    params=(Param("limit", f"So many at most; up to {TAKE_MAX}.", int),),
    errors=(UnknownMesh, UnknownDestination),
    local_only=True,
)
async def _dead(call: BrokerRequest) -> Response:
    """The dead letters of a queue, and why each died."""
    await require_mesh(call.api.store, call.mesh)
    rows = await call.api.store.dead_letters(call.mesh, await queue_of(call), dead_limit(call))
    return call.answer(DeadLetters([dead_document(row) for row in rows]))


@routes.post(
    f"{_QUEUE}/dead/{{seq}}/revive",
    answers={200: Revived},
    errors=(UnknownMesh, UnknownDestination),
    local_only=True,
)
async def _revive(call: BrokerRequest) -> Response:
    """Put a dead letter back into its queue, with no deliveries counted."""
    await require_mesh(call.api.store, call.mesh)
    seq = parse_int("seq", call.path["seq"])
    return call.answer(Revived(await call.api.store.revive(call.mesh, await queue_of(call), seq)))


@routes.get(
    f"{_ONE}/readers", answers={200: ConsumersResponse}, errors=(UnknownMesh,), local_only=True
)
async def _readers(call: BrokerRequest) -> Response:
    """Who reads the whole log of a mesh, whose each reader is, and how far it is."""
    mesh = await require_mesh(call.api.store, call.mesh)
    rows = await call.api.store.consumer_list(call.mesh)
    return call.answer(ConsumersResponse([consumer_document(row, mesh.seq) for row in rows]))


@routes.delete(
    f"{_ONE}/readers/{{key}}/{{name:path}}",
    answers={200: Dropped},
    errors=(UnknownMesh,),
    local_only=True,
)
async def _reader_drop(call: BrokerRequest) -> Response:
    """Forget a reader of a member: the broker no longer keeps entries for it."""
    await require_mesh(call.api.store, call.mesh)
    key, name = key_of(call.path["key"]), call.path["name"]
    return call.answer(Dropped(await call.api.store.consumer_drop(call.mesh, key, name)))


@routes.get(
    f"{_ONE}/objects",
    answers={200: HeldObjects},
    params=(
        Param("after", "Only hashes after this one."),
        Param("limit", f"At most this many; {OBJECT_PAGE_ROWS} if it is not given.", int),
    ),
    errors=(UnknownMesh,),
    local_only=True,
)
async def _objects(call: BrokerRequest) -> Response:
    """The objects of a mesh that are whole, by their hash, with their sizes."""
    await require_mesh(call.api.store, call.mesh)
    limit, store = call.limit(OBJECT_PAGE_ROWS), call.api.store
    names = await store.objects_after(call.mesh, call.one("after", "") or "", limit)
    found = [HeldObject(name, await store.object_size(call.mesh, name)) for name in names]
    return call.answer(HeldObjects(found, names[-1] if len(names) == limit else None))
