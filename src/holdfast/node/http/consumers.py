"""Consumers over HTTP: listing, registering and retiring readers of the log, and what one needs
that asks for entries which the log has forgotten.

A zone or a token sees and retires only consumers that have its name. This node's own user sees all.
"""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.responses import Response

from holdfast.node.core.views import Consumer
from holdfast.node.http.context import NodeRequest, check_still
from holdfast.node.log import serve
from holdfast.node.snapshots.link_export import give_part
from holdfast.protocol.link_snapshot import SnapshotPartAsked, encode_part
from holdfast.protocol.log_wire import MSGPACK, Registration
from holdfast.rules.errors import (
    EpochChanged,
    NotGranted,
    OverLimit,
    PastEnd,
    Truncated,
    UnknownConsumer,
    UnknownMesh,
)
from holdfast.rules.filters import Filter
from holdfast.rules.rows import ConsumerRow
from holdfast.service.caller import Caller
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Routes
from holdfast.service.http.streaming import compressed
from holdfast.storage.ports import Reader


class _Narrowing(Filter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A filter from outside. An unknown field is refused: every field narrows, so ignoring one
    would send more than the caller asked for.
    """


class _Asked(Registration, frozen=True, kw_only=True):
    filter: _Narrowing = _Narrowing()


class ConsumerList(msgspec.Struct, frozen=True):
    """The readers of the log that the caller may see, by name."""

    consumers: list[Consumer]


routes = Routes()


@routes.get("/v1/consumers", answers={200: ConsumerList})
async def _list(call: NodeRequest) -> Response:
    """Who reads the log, and how far they are."""

    def read(tx: Reader) -> list[Consumer]:
        head = tx.log_bounds()[1]
        return [Consumer.of(row, head) for row in tx.consumer_list() if _is_own(call.caller, row)]

    engine = call.api.engine
    return call.answer(ConsumerList(await call.api.run(engine.read, "consumer.list", read)))


@routes.post(
    "/v1/consumers",
    request=Registration,
    answers={200: Consumer},
    errors=(NotGranted, OverLimit, PastEnd, Truncated, UnknownMesh),
    example="""-d '{"consumer":"reader","from":"start"}'""",
)
async def _register(call: NodeRequest) -> Response:
    """Register a reader, or find it as it is. Nothing that it has not confirmed is removed."""
    given = msgspec.structs.asdict(await json_body(call, _Asked))
    given["filter"] = Filter(**msgspec.structs.asdict(given["filter"]))
    registration = Registration(**given)
    api = call.api
    return call.answer(await api.run(serve.register, api.engine, call.caller, registration))


@routes.delete(
    "/v1/consumers/{name:path}", answers={204: None}, errors=(NotGranted, UnknownConsumer)
)
async def _retire(call: NodeRequest) -> Response:
    """Forget a reader: the log no longer waits for it."""
    api = call.api
    await api.run(serve.retire, api.engine, call.caller, call.path["name"])
    return Response(status_code=204)


def _is_own(caller: Caller, row: ConsumerRow) -> bool:
    if caller.kind == "zone":
        return row.zone == caller.name
    try:
        caller.check_consumer(row.name)
    except NotGranted:
        return False
    return True


@routes.post(
    "/v1/log/snapshot",
    request=SnapshotPartAsked,
    answers={200: MSGPACK},
    errors=(UnknownConsumer, NotGranted, UnknownMesh, Truncated, EpochChanged),
    example="""-d '{"consumer":"reader","mesh":"team","epoch":1,"cursor":0}' -o part.msgpack""",
)
async def _snapshot(call: NodeRequest) -> Response:
    """Changes of a mesh that tables still show and the log no longer holds: a part of them, and
    where the next one begins. 410 where something is gone that no table shows.
    """
    asked = await json_body(call, SnapshotPartAsked)
    part = await call.api.run(partial(give_part, call.api.engine, call.caller, asked))
    check_still(call)
    return await compressed(call, encode_part(part), MSGPACK)
