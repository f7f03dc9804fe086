"""`POST /v1/send`: the message is on the disk when this answers, and goes to the broker when it
can.

The id is that of the header `Idempotency-Key`, else that of the body, else the node makes one. Both
may be any text: `rules.idempotency` says which id it becomes. A
client that missed the answer sends the same again under the same id: the answer says how far the
message is. The same id for another request is refused.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from holdfast.node.http.context import NodeApi, NodeRequest
from holdfast.node.messages.send import SendMessage, Sent, one_destination, prepare
from holdfast.rules.errors import (
    BadInput,
    BodyTooLarge,
    DiskFull,
    IdempotencyKeyReused,
    NotShared,
    UnknownDestination,
    UnknownMesh,
)
from holdfast.rules.strict_json import strict_json
from holdfast.service.http.json_body import INLINE_BYTES
from holdfast.service.http.request import decode_as
from holdfast.service.http.route import Param, Routes


class SendDestination(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a message goes: exactly one of these."""

    topic: str | None = None
    dm: str | None = None
    """A member: its key as 64 hex digits, or its name."""
    queue: str | None = None


class NewMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to send."""

    to: SendDestination
    body: str | None = None
    """The content as text; or as base64 in `body_base64`."""
    body_base64: bytes | None = None
    mesh: str = ""
    """May be left out on a node with one shared mesh."""
    content_type: str | None = None
    meta: msgspec.Raw = msgspec.Raw(b"")
    """An object. No key twice, no number that a double cannot hold."""
    priority: str = "next"
    """`now`, `next` or `low`."""
    reply_to: str | None = None
    """The id of the message that this one answers."""
    id: str | None = None
    """An idempotency key: a UUID of version 7 or 8, or any other text, from which an id is made."""


class ToSend(NewMessage, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`NewMessage` for the documentation, in which `meta` is an object."""

    meta: dict[str, Any] = {}  # type: ignore[assignment]


KEY = "Names the message, so that it may be sent again: any text, or a UUID, which is then its id."

routes = Routes()


@routes.post(
    "/v1/send",
    request=ToSend,
    answers={201: Sent, 200: Sent},
    params=(Param("idempotency-key", KEY, where="header"),),
    errors=(
        *(IdempotencyKeyReused, NotShared, UnknownMesh, UnknownDestination, BodyTooLarge, DiskFull),
    ),
    example="""-d '{"to":{"topic":"news"},"body":"it is done"}'""",
    local_only=True,
)
async def _send(call: NodeRequest) -> Response:
    """Send a message: on the disk when this answers (201), and on its way to the broker. The
    same id again is answered with 200 and where it stands.
    """
    raw = await call.body()
    key = call.idempotency_key()
    if len(raw) > INLINE_BYTES:
        send = await call.api.run(_prepared, call.api, raw, key)
    else:
        send = _prepared(call.api, raw, key)
    sent = await call.api.writer.write("message.send", send)
    return call.answer(sent, 200 if sent.duplicate else 201)


def _prepared(api: NodeApi, raw: bytes, key: str | None) -> SendMessage:
    strict_json(raw)  # refuses what two parsers would read differently
    message = decode_as(raw, NewMessage)
    meta = bytes(message.meta)
    return prepare(
        api.engine,
        message.mesh or only_shared(api),
        *one_destination(message.to.topic, message.to.dm, message.to.queue),
        one_content(message.body, message.body_base64),
        content_type=message.content_type,
        meta=None if meta == b"null" else meta,
        priority=message.priority,
        reply_to=message.reply_to,
        id=message.id if key is None else key,
    )


def one_content(body: str | None, body_base64: bytes | None) -> str | bytes:
    """The content of a message, which is given either as text or as bytes."""
    content = body if body_base64 is None else body_base64
    if content is None or (body is not None and body_base64 is not None):
        raise BadInput(
            "a message has one content", hint="give it as body, or as body_base64, and not as both"
        )
    return content


def only_shared(api: NodeApi) -> str:
    rows = api.engine.read("mesh.list", lambda tx: tx.mesh_list())
    shared = [row.slug for row in rows if row.shared]
    if not shared:
        raise NotShared("this node shares no mesh with anybody")
    if len(shared) > 1:
        raise BadInput(f"this node shares several meshes: {', '.join(shared)}", hint="name one")
    return shared[0]
