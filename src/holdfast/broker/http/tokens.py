"""The tokens by which a broker's figures are scraped, for its operator: what `holdfast token` does
with `--store`, over the Unix socket. A secret is answered once, by the call that makes it.
"""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.responses import Response

from holdfast.broker.http.context import BrokerRequest
from holdfast.broker.http.metrics_tokens import KIND, MetricsToken
from holdfast.protocol.broker_http import Removed
from holdfast.rules.errors import AlreadyExists, OverLimit, UnknownToken
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Routes

_AT: Final = "/v1/operator/tokens"


class MakeBrokerToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: str
    """Its name, which says who uses it."""
    days: int | None = None
    """How long it is good; null: until it is revoked."""


class BrokerTokenInfo(msgspec.Struct, frozen=True):
    token: str
    scope: str
    created_at: int
    expires_at: int | None
    expired: bool


class MadeBrokerToken(BrokerTokenInfo, frozen=True, kw_only=True):
    secret: str
    """What its user sends as `Authorization: Bearer`. Nobody can read it again later."""


class BrokerTokens(msgspec.Struct, frozen=True):
    tokens: list[BrokerTokenInfo]


routes = Routes()


@routes.get(_AT, answers={200: BrokerTokens}, local_only=True)
async def _list(call: BrokerRequest) -> Response:
    """The tokens by which the metrics are read, without their secrets."""
    now_ms = call.api.now_ms()
    return call.answer(BrokerTokens([_info(row, now_ms) for row in call.api.tokens.all()]))


@routes.post(
    _AT,
    request=MakeBrokerToken,
    answers={201: MadeBrokerToken},
    errors=(AlreadyExists, OverLimit),
    local_only=True,
)
async def _make(call: BrokerRequest) -> Response:
    """Make a token that reads the metrics over TCP, and show its secret, this once."""
    asked = await json_body(call, MakeBrokerToken)
    now_ms = call.api.now_ms()
    secret = call.api.tokens.add(asked.token, now_ms, days=asked.days)
    row = next(row for row in call.api.tokens.all() if row.name == asked.token)
    fields = msgspec.structs.asdict(_info(row, now_ms))
    return call.answer(MadeBrokerToken(**fields, secret=secret), 201)


@routes.delete(f"{_AT}/{{token}}", answers={200: Removed}, errors=(UnknownToken,), local_only=True)
async def _revoke(call: BrokerRequest) -> Response:
    """Take a token back: from now on it is no longer good."""
    call.api.tokens.revoke(call.path["token"])
    return call.answer(Removed(True))


def _info(row: MetricsToken, now_ms: int) -> BrokerTokenInfo:
    expired = row.expires_at is not None and now_ms >= row.expires_at
    return BrokerTokenInfo(row.name, KIND, row.created_at, row.expires_at, expired)
