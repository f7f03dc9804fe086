"""Queues over HTTP: take, settle, and look after the dead letters."""

from __future__ import annotations

from os import urandom

from starlette.responses import Response

from holdfast.broker.http.context import BrokerRequest
from holdfast.broker.queue_delivery import LEASE_BYTES, require_queue, settle_messages
from holdfast.protocol.broker_log_http import (
    DeadLetters,
    DeadMessage,
    QueueInfo,
    QueueList,
    Revived,
    SettleRequest,
    SettleResponse,
    TakenAll,
    TakenResponse,
    TakeRequest,
)
from holdfast.rules import limits
from holdfast.rules.broker_rows import DeadLetter
from holdfast.rules.destinations import check_destination
from holdfast.rules.errors import LeaseEnded, NotAMember, OverLimit, UnknownDestination
from holdfast.rules.ids import id_text
from holdfast.rules.keys import bytes_of, text_of
from holdfast.service.http.json_body import json_body
from holdfast.service.http.request import parse_int
from holdfast.service.http.route import Param, Route

_AT = "/v1/meshes/{mesh}/queues"
_ONE = _AT + "/{queue:path}"


def routes() -> list[Route]:
    known = (NotAMember, UnknownDestination)
    return [
        Route("GET", _AT, _counts, "What the queues hold.", answers={200: QueueList},
              errors=(NotAMember,)),
        Route("POST", _ONE + "/take", _take, "Take messages that nobody has.", request=TakeRequest,
              answers={200: TakenAll}, errors=known),
        Route("POST", _ONE + "/settle", _settle, "Finish with a message, or give it back.",
              request=SettleRequest, answers={200: SettleResponse},
              errors=(NotAMember, LeaseEnded)),
        Route("GET", _ONE + "/dead", _dead, "Dead letters.", answers={200: DeadLetters},
              errors=known, params=(Param("limit", "So many at most.", int),)),
        Route("POST", _ONE + "/dead/{seq}/revive", _revive, "Take up a dead letter again.",
              answers={200: Revived}, errors=known),
    ]  # fmt: skip


async def _counts(call: BrokerRequest) -> Response:
    await call.member("read")
    rows = await call.api.store.queue_counts(call.mesh)
    return call.answer(
        QueueList([QueueInfo(row.queue, row.ready, row.taken, row.dead) for row in rows])
    )


async def _take(call: BrokerRequest) -> Response:
    given = await json_body(call, TakeRequest)
    await call.member("read")
    if not 1 <= given.most <= limits.TAKE_MAX:
        raise OverLimit(f"1 to {limits.TAKE_MAX} messages are taken at a time")
    queue = await queue_of(call)
    leases = [urandom(LEASE_BYTES) for _ in range(given.most)]
    taken = await call.api.store.take(
        call.mesh, queue, call.key, given.most, leases, call.api.now_ms()
    )
    return call.answer(
        TakenAll(
            [
                TakenResponse(
                    seq=one.seq,
                    lease=text_of(one.lease),
                    deliveries=one.deliveries,
                    until=one.until,
                    broker_message_id=id_text(one.broker_id),
                    envelope=one.raw,
                )
                for one in taken
            ]
        )
    )


async def _settle(call: BrokerRequest) -> Response:
    given = await json_body(call, SettleRequest)
    await call.member("read")
    lease = bytes_of(given.lease, LEASE_BYTES, "the lease")
    queue = await queue_of(call)
    done = await settle_messages(
        *(call.api.store, call.mesh, queue, given.seq, lease, given.how, given.reason),
        call.api.now_ms(),
    )
    return call.answer(SettleResponse(done))


async def _dead(call: BrokerRequest) -> Response:
    await call.member("read")
    rows = await call.api.store.dead_letters(call.mesh, await queue_of(call), dead_limit(call))
    return call.answer(DeadLetters([dead_document(row) for row in rows]))


async def _revive(call: BrokerRequest) -> Response:
    await call.member("invite")
    queue = await queue_of(call)
    revived = await call.api.store.revive(call.mesh, queue, parse_int("seq", call.path["seq"]))
    return call.answer(Revived(revived))


async def queue_of(call: BrokerRequest) -> str:
    _, queue = check_destination("queue", call.path["queue"])
    await require_queue(call.api.store, call.mesh, queue)
    return queue


def dead_limit(call: BrokerRequest) -> int:
    """How many dead letters are asked for."""
    limit = call.number("limit", 100) or 0
    if not 1 <= limit <= limits.TAKE_MAX:
        raise OverLimit(f"1 to {limits.TAKE_MAX} are shown at a time")
    return limit


def dead_document(row: DeadLetter) -> DeadMessage:
    return DeadMessage(row.seq, id_text(row.id), row.deliveries, row.reason, row.died_at)
