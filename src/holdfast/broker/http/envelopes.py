"""Handing in one envelope, and reading what one may see, over HTTP.

What a member hands in here takes the same way as on a WebSocket: it shares a transaction with all
that waits. `hand_in` stands outside the frame of the other calls, because it is made far more often
than they are; what it answers and refuses is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.responses import Response

from holdfast.broker.broker import Broker
from holdfast.broker.http.context import BrokerRequest
from holdfast.broker.pushes.decode_push import decode_push
from holdfast.broker.verdicts import error_of, for_members
from holdfast.protocol.broker_log_http import (
    EnvelopeCreated,
    EnvelopeDuplicate,
    EnvelopeIdReused,
    FeedResponse,
    FeedRowResponse,
)
from holdfast.protocol.log_wire import JSON
from holdfast.rules import limits
from holdfast.rules.broker_rows import AcceptResult, AcceptVerdict, PushedEnvelope
from holdfast.rules.errors import (
    BadEnvelope,
    BadInput,
    BodyTooLarge,
    EpochMismatch,
    HoldfastError,
    IdempotencyKeyReused,
    NotAMember,
    NotGranted,
    OverLimit,
    StoreClosed,
    Truncated,
    UnknownDestination,
    UnknownMesh,
)
from holdfast.rules.fingerprint import PREFIX_BYTES
from holdfast.rules.ids import ID_BYTES, id_text
from holdfast.rules.push_columns import Created, PushColumns
from holdfast.service.http.errors import failure
from holdfast.service.http.route import Param, Route

BINARY: Final = "application/octet-stream"
EPOCH_HEADER: Final = "holdfast-epoch"

_encode: Final = msgspec.json.Encoder().encode


def routes() -> list[Route]:
    return [
        Route(
            "POST",
            "/v1/meshes/{mesh}/envelopes",
            _hand_in,
            "Hand in one envelope: its canonical bytes.",
            request=BINARY,
            answers={201: EnvelopeCreated, 200: EnvelopeDuplicate, 409: EnvelopeIdReused},
            params=(Param(EPOCH_HEADER, "The epoch that you believe in.", int, where="header"),),
            errors=(
                *(BadEnvelope, BodyTooLarge, NotAMember, NotGranted, UnknownMesh),
                *(UnknownDestination, EpochMismatch, IdempotencyKeyReused, StoreClosed),
            ),
            example="--data-binary @ENVELOPE",
        ),
        Route(
            "GET",
            "/v1/meshes/{mesh}/feed",
            _feed,
            "What you may see behind a seq.",
            answers={200: FeedResponse},
            params=(
                Param("after", "Behind this seq.", int),
                Param("limit", "So many rows at most.", int),
                Param("own", "`true`: also changes that you handed in."),
            ),
            errors=(NotAMember, Truncated),
        ),
    ]


async def _hand_in(call: BrokerRequest) -> Response:
    strangers = call.api.broker.strangers
    if not strangers.was_member(call.mesh, call.key):
        await call.member()
    raw = await call.body(limits.ENVELOPE_BYTES_MAX)
    epoch = epoch_of(call.headers.get(EPOCH_HEADER))
    status, body, now = await hand_in(call.api.broker, raw, call.mesh, call.key, epoch)
    return Response(body, status, headers={EPOCH_HEADER: str(now)}, media_type=JSON)


async def hand_in(
    broker: Broker, raw: bytes, mesh: str, key: bytes, epoch: int
) -> tuple[int, bytes, int]:
    """Status and body of the answer, and the epoch that the mesh counts in."""
    try:
        one = decode_push(raw, mesh, key, epoch, broker.source.new_id)
    except HoldfastError as error:
        broker.counts.refused[error.code] += 1
        raise
    outcome = (await broker.accepting.hand_in([one]))[0]
    if isinstance(outcome, HoldfastError):
        raise outcome
    return answer(broker, one, outcome)


def answer(broker: Broker, one: PushedEnvelope, outcome: AcceptResult) -> tuple[int, bytes, int]:
    id, history = id_text(one.id), f"{outcome.message_epoch}.{outcome.seq}"
    if outcome.verdict is AcceptVerdict.CREATED:
        return 201, _encode(EnvelopeCreated(id_text(outcome.broker_id), id, history)), outcome.epoch
    if outcome.verdict is AcceptVerdict.DUPLICATE:
        seen = (outcome.history_available, outcome.first_seen_at)
        body = _encode(EnvelopeDuplicate(id_text(outcome.broker_id), id, history, *seen))
        return 200, body, outcome.epoch
    error = error_of(outcome)
    assert error is not None, "everything else is a refusal"
    if isinstance(error, NotAMember):
        broker.strangers.no_member(one.mesh, one.sender)
    if outcome.verdict is AcceptVerdict.REUSED:
        prefix = outcome.fingerprint[:PREFIX_BYTES].hex()
        return 409, _encode(EnvelopeIdReused(failure(error).error, id, prefix)), outcome.epoch
    raise error


def created_bodies(those: Sequence[PushedEnvelope], created: Created) -> list[bytes]:
    """The body of `answer` for each of these, which were created one after another."""
    assert isinstance(those, PushColumns), "only columns are created as a whole"
    tickets = created.tickets
    found = []
    for at, id in enumerate(those.ids):
        ticket = id_text(tickets[ID_BYTES * at : ID_BYTES * (at + 1)])
        found.append(
            f'{{"broker_message_id":"{ticket}","client_message_id":"{id_text(id)}",'
            f'"history_id":"{created.epoch}.{created.seq + at}","duplicate":false}}'.encode()
        )
    return found


def refused(error: HoldfastError) -> bytes:
    return _encode(failure(for_members(error)))


def epoch_of(text: str | None) -> int:
    if text is None:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise BadInput(f"the header {EPOCH_HEADER} is no epoch", hint="give a whole number")
    return int(text)


async def _feed(call: BrokerRequest) -> Response:
    after = call.number("after", 0) or 0
    limit = call.number("limit", limits.FETCH_ROWS_DEFAULT) or 0
    if not 1 <= limit <= limits.FETCH_ROWS_MAX:
        raise OverLimit(f"1 to {limits.FETCH_ROWS_MAX} rows are read at a time")
    own = call.one("own", "false")
    if own not in ("true", "false"):
        raise BadInput(f"own is {own!r}", hint="give true or false")
    await call.member("read")
    page = await call.api.store.feed(
        call.mesh, call.key, after, limit, limits.FETCH_BYTES_MAX, own=own == "true"
    )
    rows = [
        FeedRowResponse(row.seq, row.kind, id_text(row.broker_id), row.raw) for row in page.rows
    ]
    return call.answer(FeedResponse(page.epoch, page.after, page.to, page.last, rows))
