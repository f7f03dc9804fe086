"""Messages that came for this node: listed without their content, read one by one."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response

from holdfast.node.http.context import NodeRequest
from holdfast.node.http.send import KEY, one_content
from holdfast.node.messages.inbox import Inbox, Message, Received
from holdfast.node.messages.send import Sent
from holdfast.rules.errors import (
    DiskFull,
    IdempotencyKeyReused,
    UnknownDestination,
    UnknownMessage,
)
from holdfast.rules.inbox_match import InboxMatch
from holdfast.rules.limits import BODY_BYTES_MAX, INBOX_PAGE_ROWS
from holdfast.rules.structs import copy_to
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Param, Routes


class InboxPage(msgspec.Struct, frozen=True, kw_only=True):
    """Messages in the order of their arrival."""

    messages: Sequence[Received]
    next: int | None
    """The `after` of the next page; None when there is none."""
    total: int
    """Messages of all meshes."""
    unread: int
    """Unread messages of all meshes."""


class OpenMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message with its content: as text, or else as base64."""

    number: int
    id: str
    mesh: str
    kind: str
    ref: str
    sender: str
    priority: str
    body: str | None = None
    body_base64: str | None = None
    content_type: str = ""
    meta: dict[str, Any] = {}
    reply_to: str = ""
    created_at: int
    received_at: int
    read_at: int | None = None
    broker_id: str | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer to a message."""

    body: str | None = None
    body_base64: bytes | None = None
    content_type: str | None = None
    meta: dict[str, Any] | None = None
    priority: str = "next"
    id: str | None = None
    """An idempotency key, as that of a send."""


routes = Routes()


@routes.get(
    "/v1/inbox",
    answers={200: InboxPage},
    params=(
        Param("mesh", "Only of this mesh."),
        Param("unread", "Only those that nobody has read: `true`."),
        Param("sender", "Only those of this peer."),
        Param("topic", "Only those to this topic."),
        Param("since", "Only those that came at this time or later; milliseconds.", int),
        Param("until", "Only those that came before this time; milliseconds.", int),
        Param("text", "Only those with these words in their text, sender or destination."),
        Param("after", "Only those after this number.", int),
        Param("limit", f"At most this many; {INBOX_PAGE_ROWS} if it is not given.", int),
    ),
    local_only=True,
)
async def _list(call: NodeRequest) -> Response:
    """Messages that came, without their content. A page may be empty and still have a `next`: a
    search looks at a part of the inbox at a time.
    """
    inbox = Inbox(call.api.engine, call.one("mesh"))
    limit, after = call.limit(INBOX_PAGE_ROWS), call.number("after", 0) or 0
    match = InboxMatch(
        sender=call.one("sender"),
        topic=call.one("topic"),
        since_ms=call.number("since"),
        until_ms=call.number("until"),
        text=call.one("text"),
    ).check()
    read = partial(inbox.page, unread=call.flag("unread"), after=after, limit=limit, match=match)
    messages, more = await call.api.run(read)
    total, unread = await call.api.run(inbox.counts)
    return call.answer(InboxPage(messages=messages, next=more, total=total, unread=unread))


@routes.get("/v1/inbox/{id}", answers={200: OpenMessage}, errors=(UnknownMessage,), local_only=True)
async def _get(call: NodeRequest) -> Response:
    """One message with its content; it does not become read."""
    return call.answer(opened(await call.api.run(_inbox(call).get, call.path["id"])))


@routes.post(
    "/v1/inbox/{id}/read", answers={200: OpenMessage}, errors=(UnknownMessage,), local_only=True
)
async def _read(call: NodeRequest) -> Response:
    """One message with its content; it counts as read from now on."""
    return call.answer(opened(await call.api.run(_inbox(call).read, call.path["id"])))


@routes.post(
    "/v1/inbox/{id}/reply",
    request=Reply,
    answers={201: Sent, 200: Sent},
    params=(Param("idempotency-key", KEY, where="header"),),
    errors=(UnknownMessage, UnknownDestination, IdempotencyKeyReused, DiskFull),
    example="""-d '{"body":"thank you"}'""",
    local_only=True,
)
async def _reply(call: NodeRequest) -> Response:
    """Send an answer to the sender of a message."""
    reply = await json_body(call, Reply, BODY_BYTES_MAX)
    key = call.idempotency_key()
    sent = await call.api.run(
        partial(
            _inbox(call).reply,
            call.path["id"],
            one_content(reply.body, reply.body_base64),
            content_type=reply.content_type,
            meta=reply.meta,
            priority=reply.priority,
            new_id=reply.id if key is None else key,
        )
    )
    return call.answer(sent, 200 if sent.duplicate else 201)


def _inbox(call: NodeRequest) -> Inbox:
    return Inbox(call.api.engine)


def opened(message: Message) -> OpenMessage:
    """A message as a JSON document: its content as text, or as base64 if it is not text."""
    try:
        return copy_to(OpenMessage, message, body=message.content.decode())
    except UnicodeDecodeError:
        packed = b64encode(message.content).decode()
        return copy_to(OpenMessage, message, body_base64=packed)
