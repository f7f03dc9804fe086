"""Messages that came for this node: listed without their content, read one by one."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response

from holdfast.node.http.context import NodeRequest
from holdfast.node.messages.inbox import Inbox, Message, Received
from holdfast.node.messages.send import Sent
from holdfast.rules.errors import BadInput, DiskFull, IdReused, UnknownDestination, UnknownMessage
from holdfast.rules.limits import BODY_BYTES_MAX, INBOX_PAGE_ROWS
from holdfast.service.http.route import Param, Route
from holdfast.service.http.strict_json import json_body


class InboxPage(msgspec.Struct, frozen=True, kw_only=True):
    """Messages in the order in which they came."""

    messages: Sequence[Received]
    next: int | None
    """Ask for what comes `after` this; None when there is no more."""
    total: int
    unread: int
    """How many there are in all meshes."""


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
    """What to answer."""

    body: str | None = None
    body_base64: bytes | None = None
    content_type: str | None = None
    meta: dict[str, Any] | None = None
    priority: str = "next"
    id: str | None = None


def routes() -> list[Route]:
    one = "/v1/inbox/{id}"
    return [
        Route(
            "GET",
            "/v1/inbox",
            _list,
            "Messages that came, without their content.",
            answers={200: InboxPage},
            params=(
                Param("mesh", "Only of this mesh."),
                Param("unread", "Only those that nobody has read: `true`."),
                Param("after", "Only those after this number.", int),
                Param("limit", f"At most so many; {INBOX_PAGE_ROWS} unless told.", int),
            ),
            local_only=True,
        ),
        Route(
            "GET",
            one,
            _get,
            "One message; it stays as unread as it was.",
            answers={200: OpenMessage},
            errors=(UnknownMessage,),
            local_only=True,
        ),
        Route(
            "POST",
            f"{one}/read",
            _read,
            "One message, which is read from now on.",
            answers={200: OpenMessage},
            errors=(UnknownMessage,),
            local_only=True,
        ),
        Route(
            "POST",
            f"{one}/reply",
            _reply,
            "Answer whoever sent a message.",
            request=Reply,
            answers={201: Sent, 200: Sent},
            params=(Param("idempotency-key", "The id of the answer.", where="header"),),
            errors=(UnknownMessage, UnknownDestination, IdReused, DiskFull),
            example="""-d '{"body":"thank you"}'""",
            local_only=True,
        ),
    ]


async def _list(call: NodeRequest) -> Response:
    inbox = Inbox(call.api.engine, call.one("mesh"))
    limit = call.number("limit", INBOX_PAGE_ROWS) or 0
    if not 1 <= limit <= INBOX_PAGE_ROWS:
        raise BadInput(f"limit is {limit}", hint=f"ask for 1 to {INBOX_PAGE_ROWS} at a time")
    page = await call.api.run(
        partial(
            inbox.page,
            unread=flag(call, "unread"),
            after=call.number("after", 0) or 0,
            limit=limit,
        )
    )
    total, unread = await call.api.run(inbox.counts)
    more = page[-1].number if len(page) == limit else None
    return call.answer(InboxPage(messages=page, next=more, total=total, unread=unread))


async def _get(call: NodeRequest) -> Response:
    return call.answer(opened(await call.api.run(_inbox(call).get, call.path["id"])))


async def _read(call: NodeRequest) -> Response:
    return call.answer(opened(await call.api.run(_inbox(call).read, call.path["id"])))


async def _reply(call: NodeRequest) -> Response:
    reply = await json_body(call, Reply, BODY_BYTES_MAX)
    content = reply.body if reply.body_base64 is None else reply.body_base64
    if content is None or (reply.body is not None and reply.body_base64 is not None):
        raise BadInput("an answer has one content", hint="give it as body, or as body_base64")
    key = call.headers.get("idempotency-key")
    sent = await call.api.run(
        partial(
            _inbox(call).reply,
            call.path["id"],
            content,
            content_type=reply.content_type,
            meta=reply.meta,
            priority=reply.priority,
            new_id=reply.id if key is None else key.strip('" '),
        )
    )
    return call.answer(sent, 200 if sent.duplicate else 201)


def _inbox(call: NodeRequest) -> Inbox:
    return Inbox(call.api.engine)


def flag(call: NodeRequest, name: str) -> bool:
    """A parameter that is on or off."""
    text = call.one(name, "false")
    if text not in ("true", "false"):
        raise BadInput(f"{name} is {text!r}", hint="give true or false")
    return text == "true"


def opened(message: Message) -> OpenMessage:
    """A message as it is shown outside, where bytes cannot stand for themselves."""
    try:
        text, packed = message.content.decode(), None
    except UnicodeDecodeError:
        text, packed = None, b64encode(message.content).decode()
    return OpenMessage(
        number=message.number,
        id=message.id,
        mesh=message.mesh,
        kind=message.kind,
        ref=message.ref,
        sender=message.sender,
        priority=message.priority,
        body=text,
        body_base64=packed,
        content_type=message.content_type,
        meta=message.meta,
        reply_to=message.reply_to,
        created_at=message.created_at,
        received_at=message.received_at,
        read_at=message.read_at,
        broker_id=message.broker_id,
    )
