"""For this node's own user: who else may call it, and by which settings it works.

The text of a token is in the answer that makes it, and nowhere else afterwards.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from holdfast.node.http.context import NodeRequest
from holdfast.rules.errors import AlreadyExists, BadInput, OverLimit, UnknownToken
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Routes


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without its text."""

    name: str
    scope: str
    """`all`: everything, on this machine only; `read`: reading, from anywhere."""
    reads: tuple[str, ...]
    """Meshes, for the scope `read`; `*` for all."""
    created_at: int
    expires_at: int | None


class TokenList(msgspec.Struct, frozen=True):
    """Every token, by name."""

    tokens: list[TokenInfo]


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a token is to be good for."""

    name: str
    reads: list[str] | None = None
    """Meshes that it may read, and nothing else, from anywhere; without: everything, on this
    machine only."""
    days: int | None = None
    """How long it is good; without: until it is revoked."""


class TokenMade(msgspec.Struct, frozen=True):
    """A new token. Its text is shown this once."""

    name: str
    token: str


class SettingsInForce(msgspec.Struct, frozen=True):
    """By which settings a daemon works."""

    card: str
    """The card of this node, by which others trust it."""
    settings: dict[str, Any]
    """As the settings file names them, with what is not set."""


routes = Routes()


@routes.get("/v1/tokens", answers={200: TokenList}, local_only=True)
async def _list(call: NodeRequest) -> Response:
    """The tokens by which others may call this node."""
    rows = await call.api.run(call.api.trust.tokens)
    return call.answer(
        TokenList(
            [
                TokenInfo(
                    name=row.name,
                    scope=row.scope,
                    reads=row.reads,
                    created_at=row.created_at,
                    expires_at=row.expires_at,
                )
                for row in rows
            ]
        )
    )


@routes.post(
    "/v1/tokens",
    request=NewToken,
    answers={201: TokenMade},
    errors=(BadInput, OverLimit, AlreadyExists),
    example="""-d '{"name":"eyes","reads":["*"]}'""",
    local_only=True,
)
async def _add(call: NodeRequest) -> Response:
    """Make a token."""
    given = await json_body(call, NewToken)

    def work() -> str:
        return call.api.trust.add_token(given.name, reads=given.reads, days=given.days)

    return call.answer(TokenMade(given.name, await call.api.run(work)), 201)


@routes.delete("/v1/tokens/{name}", answers={204: None}, errors=(UnknownToken,), local_only=True)
async def _revoke(call: NodeRequest) -> Response:
    """Revoke a token: whoever uses it is out at once."""
    await call.api.run(call.api.trust.revoke_token, call.path["name"])
    return Response(status_code=204)


@routes.get("/v1/settings", answers={200: SettingsInForce}, local_only=True)
async def _settings(call: NodeRequest) -> Response:
    """By which settings this daemon works."""
    shown = msgspec.to_builtins(call.api.settings)
    return call.answer(SettingsInForce(call.api.trust.card(), shown))
