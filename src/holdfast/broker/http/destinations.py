"""Topics and queues: what there is, and who has subscribed."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.broker.http.context import BrokerRequest
from holdfast.protocol.broker_http import (
    Declare,
    Destination,
    Destinations,
    Dropped,
    Subscription,
    Subscriptions,
)
from holdfast.rules import limits
from holdfast.rules.broker_rows import DestinationRow
from holdfast.rules.destinations import check_destination
from holdfast.rules.errors import BadInput, BadValue, NotAMember, UnknownDestination
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Route

_AT = "/api/my/meshes/{mesh}"
_DELIVERIES_MAX = 1000


def routes() -> list[Route]:
    at, subscriptions = f"{_AT}/destinations", f"{_AT}/subscriptions"
    member = (NotAMember,)
    return [
        Route("GET", at, _list, "Topics and queues that were declared.",
              answers={200: Destinations}, errors=member),
        Route("POST", at, _declare, "Declare a topic or a queue, or change its settings.",
              request=Declare, answers={200: Destination}, errors=member),
        Route("DELETE", at + "/{kind}/{ref:path}", _drop,
              "Drop a topic, or a queue that is empty.", answers={200: Dropped}, errors=member),
        Route("GET", subscriptions, _subscriptions, "The topics that you have subscribed to.",
              answers={200: Subscriptions}, errors=member),
        Route("PUT", subscriptions + "/{topic:path}", _subscribe,
              "Subscribe to a topic, from now on.", answers={200: Subscription},
              errors=(NotAMember, UnknownDestination)),
        Route("DELETE", subscriptions + "/{topic:path}", _unsubscribe, "End a subscription.",
              answers={200: Dropped}, errors=member),
    ]  # fmt: skip


async def _list(call: BrokerRequest) -> Response:
    await call.member()
    rows = await call.api.store.destination_list(call.mesh)
    return call.answer(Destinations([_destination(row) for row in rows]))


async def _declare(call: BrokerRequest) -> Response:
    given = await json_body(call, Declare)
    await call.member("invite")
    if given.kind == "dm":
        raise BadInput("a dm needs no declaration: it goes to the key of a member")
    check_destination(given.kind, given.ref)
    if not limits.SECOND_MS <= given.visibility_ms <= limits.DAY_MS:
        raise BadValue("a message is hidden for one second to one day")
    if not 1 <= given.deliveries_max <= _DELIVERIES_MAX:
        raise BadValue(f"a message is delivered 1 to {_DELIVERIES_MAX} times")
    row = DestinationRow(
        kind=given.kind,
        ref=given.ref,
        made_at=call.api.now_ms(),
        visibility_ms=given.visibility_ms,
        deliveries_max=given.deliveries_max,
    )
    await call.api.store.destination_put(call.mesh, row)
    return call.answer(_destination(row))


async def _drop(call: BrokerRequest) -> Response:
    await call.member("invite")
    kind, ref = check_destination(call.path["kind"], call.path["ref"])
    dropped = await call.api.store.destination_drop(call.mesh, kind, ref)
    if dropped:
        call.api.broker.wakeups.wake_all(call.mesh)
    return call.answer(Dropped(dropped))


async def _subscriptions(call: BrokerRequest) -> Response:
    await call.member("read")
    since = await call.api.store.subscriptions(call.mesh, call.key)
    return call.answer(Subscriptions([Subscription(*each) for each in sorted(since.items())]))


async def _subscribe(call: BrokerRequest) -> Response:
    await call.member("read")
    _, topic = check_destination("topic", call.path["topic"])
    since = await call.api.store.subscribe(call.mesh, call.key, topic)
    call.api.broker.subscribed(call.mesh, call.key, topic, on=True)
    return call.answer(Subscription(topic, since))


async def _unsubscribe(call: BrokerRequest) -> Response:
    await call.member("read")
    _, topic = check_destination("topic", call.path["topic"])
    dropped = await call.api.store.unsubscribe(call.mesh, call.key, topic)
    call.api.broker.subscribed(call.mesh, call.key, topic, on=False)
    return call.answer(Dropped(dropped))


def _destination(row: DestinationRow) -> Destination:
    return Destination(row.kind, row.ref, row.made_at, row.visibility_ms, row.deliveries_max)
