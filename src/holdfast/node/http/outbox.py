"""The outbox over HTTP: list, retry, requeue and drop what this node has to send."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from starlette.responses import Response

from holdfast.node.http.context import NodeRequest
from holdfast.node.messages.outbox import FAILED, LaneInfo, Outbox, OutboxItem
from holdfast.node.messages.send import Sent
from holdfast.rules.errors import BadInput, Conflict, DiskFull, IdempotencyKeyReused, UnknownMessage
from holdfast.rules.limits import OUTBOX_PAGE_ROWS
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Param, Routes


class OutboxPage(msgspec.Struct, frozen=True, kw_only=True):
    """Items in the order in which they were written, and the state of all lanes."""

    items: Sequence[OutboxItem]
    next: int | None
    """The `after` of the next page; None when there is none."""
    lanes: Sequence[LaneInfo]


class Requeue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a failed message is sent again."""

    new_id: str | None = None
    """The new id, or any idempotency key; the node makes an id if none is given. Give one to be
    able to repeat the call.
    """


routes = Routes()


@routes.get(
    "/v1/outbox",
    answers={200: OutboxPage},
    params=(
        Param("failed", "Only items that the broker will never accept: `true`."),
        Param("state", "Only of this state; may be given several times."),
        Param("lane", "Only of this lane, or of this mesh."),
        Param("after", "Only those after this number.", int),
        Param("limit", f"At most this many; {OUTBOX_PAGE_ROWS} if it is not given.", int),
    ),
    local_only=True,
)
async def _list(call: NodeRequest) -> Response:
    """What this node has to send, the state of each item, and what waits for what."""
    limit, after = call.limit(OUTBOX_PAGE_ROWS), call.number("after", 0) or 0
    states = call.all("state")
    if call.flag("failed"):
        if states:
            raise BadInput("failed is a state of its own", hint="give failed or state")
        states = FAILED
    outbox = _outbox(call)
    lane = call.one("lane")
    read = partial(outbox.page, states=states, lane=lane, after=after, limit=limit)
    page = await call.api.run(read)
    lanes = await call.api.run(outbox.lanes)
    more = page[-1].number if len(page) == limit else None
    return call.answer(OutboxPage(items=page, next=more, lanes=lanes))


@routes.get("/v1/outbox/{id}", answers={200: OutboxItem}, errors=(UnknownMessage,), local_only=True)
async def _get(call: NodeRequest) -> Response:
    """One item of the outbox."""
    return call.answer(await call.api.run(_outbox(call).get, call.path["id"]))


@routes.post(
    "/v1/outbox/{id}/retry",
    answers={200: OutboxItem},
    errors=(UnknownMessage, Conflict),
    local_only=True,
)
async def _retry(call: NodeRequest) -> Response:
    """Try a failed item again at once."""
    item = await call.api.run(_outbox(call).retry, call.path["id"])
    if call.api.bus is not None:
        call.api.bus.retried(item.lane)
    return _changed(call, item)


@routes.post(
    "/v1/outbox/{id}/drop",
    answers={200: OutboxItem},
    errors=(UnknownMessage, Conflict),
    local_only=True,
)
async def _drop(call: NodeRequest) -> Response:
    """Give an item up."""
    return _changed(call, await call.api.run(_outbox(call).drop, call.path["id"]))


@routes.post(
    "/v1/outbox/{id}/requeue",
    request=Requeue,
    answers={201: Sent, 200: Sent},
    errors=(UnknownMessage, Conflict, IdempotencyKeyReused, DiskFull),
    example="-d '{}'",
    local_only=True,
)
async def _requeue(call: NodeRequest) -> Response:
    """Send a message that failed again as a new one, to the same destination."""
    given = await json_body(call, Requeue)
    work = partial(_outbox(call).requeue, call.path["id"], new_id=given.new_id)
    sent = await call.api.run(work)
    return call.answer(sent, 200 if sent.duplicate else 201)


def _changed(call: NodeRequest, item: OutboxItem) -> Response:
    call.api.log_watch.post("outbox", {"lane": item.lane, "id": item.id, "state": item.state})
    return call.answer(item)


def _outbox(call: NodeRequest) -> Outbox:
    return Outbox(call.api.engine, call.api.settings.outbox.policies)
