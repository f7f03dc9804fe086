"""Messages for agents: send, and the inbox."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from holdfast.apps.mcp.tools.call import AgentCall, check_size, page
from holdfast.apps.mcp.tools.declare import (
    DEFAULT_ROWS,
    AgentTools,
    Id,
    Limit,
    ToolAnswer,
    ToolArguments,
)
from holdfast.node.messages.inbox import Inbox, Message, Received
from holdfast.node.messages.send import Sent
from holdfast.rules.errors import BadInput

MESSAGES = AgentTools()


class SendAsked(ToolArguments, frozen=True):
    content: Annotated[str, msgspec.Meta(description="The text of the message.")]
    dm: Annotated[str | None, msgspec.Meta(description="To one member, by name or key.")] = None
    topic: Annotated[str | None, msgspec.Meta(description="To all who follow this topic.")] = None
    queue: Annotated[
        str | None, msgspec.Meta(description="To a queue: one of those who take from it gets it.")
    ] = None
    priority: Annotated[
        Literal["now", "next", "low"], msgspec.Meta(description="How soon it has to go.")
    ] = "next"
    reply_to: Annotated[
        str | None, msgspec.Meta(description="The id of the message that it answers.")
    ] = None
    id: Id = None


class MessageSent(ToolAnswer, frozen=True):
    mesh: str
    id: str
    """The same call with this id is sent once."""
    to: str
    state: str
    """`pending`: it is on our disk and will go; `done`: the broker has it."""
    duplicate: bool
    """An earlier call with this id had sent it."""


@MESSAGES.writes("send", "Send a message", SendAsked, MessageSent)
def send(call: AgentCall, asked: SendAsked) -> MessageSent:
    """Sends a message to a member (`dm`), a topic or a queue of a shared mesh: one of the three. It
    is on the disk when this answers, and goes when the broker can be reached.
    """
    mesh = call.mesh(asked.mesh)
    return _sent(
        mesh.send(
            asked.content,
            topic=asked.topic,
            dm=asked.dm,
            queue=asked.queue,
            priority=asked.priority,
            reply_to=asked.reply_to,
            id=call.id(asked.id, mesh),
        )
    )


def _sent(done: Sent) -> MessageSent:
    return MessageSent(
        mesh=done.mesh,
        id=done.id,
        to=f"{done.kind}:{done.ref}",
        state=done.state,
        duplicate=done.duplicate,
    )


class InboxAsked(ToolArguments, frozen=True):
    action: Annotated[
        Literal["list", "read", "reply"],
        msgspec.Meta(
            description="`list` what has come; `read` one, which then counts as read; `reply` to "
            "it."
        ),
    ] = "list"
    message: Annotated[str | None, msgspec.Meta(description="The id of the message.")] = None
    content: Annotated[str | None, msgspec.Meta(description="To reply: the text.")] = None
    unread: Annotated[bool, msgspec.Meta(description="To list: only what was not read.")] = True
    limit: Limit = DEFAULT_ROWS
    after: Annotated[
        int, msgspec.Meta(description="Goes on after this: the `next` of the last answer.", ge=0)
    ] = 0
    id: Id = None


class MessageShown(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    mesh: str
    sender: str
    to: str
    received_at: int
    """Milliseconds since 1970."""
    read: bool
    reply_to: str
    text: str
    """In a list its first words; all of it where one message is read."""


class InboxAnswered(ToolAnswer, frozen=True):
    messages: tuple[MessageShown, ...] = ()
    next: int | None = None
    """Where the rest begins; null if this is all."""
    sent: MessageSent | None = None
    """The reply."""


@MESSAGES.writes("inbox", "Inbox", InboxAsked, InboxAnswered)
def inbox(call: AgentCall, asked: InboxAsked) -> InboxAnswered:
    """Messages that came for this node, of all meshes or of one. `list` shows what is unread,
    `read` brings one whole and marks it, `reply` answers its sender and nobody else.
    """
    box: Inbox = call.node.inbox if asked.mesh is None else call.mesh(asked.mesh).inbox
    if asked.action == "list":
        rows = box.list(unread=asked.unread, after=asked.after)
        items, more = page(rows, asked.limit, message_listed, lambda row: str(row.number))
        return InboxAnswered(messages=items, next=None if more is None else int(more))
    if asked.message is None:
        raise BadInput(f"{asked.action} is about one message", hint="say which one as `message`")
    if asked.action == "read":
        return InboxAnswered(messages=(_whole(box.read(asked.message)),))
    if asked.content is None:
        raise BadInput("a reply has a text", hint="give it as `content`")
    mesh = call.mesh(box.get(asked.message).mesh)
    done = box.reply(asked.message, asked.content, new_id=call.id(asked.id, mesh))
    return InboxAnswered(sent=_sent(done))


def message_listed(row: Received) -> MessageShown:
    return _shown(row, row.preview)


def _whole(message: Message) -> MessageShown:
    check_size(len(message.content), message.id)
    return _shown(message, message.text)


def _shown(row: Received | Message, text: str) -> MessageShown:
    return MessageShown(
        id=row.id,
        mesh=row.mesh,
        sender=row.sender,
        to=f"{row.kind}:{row.ref}",
        received_at=row.received_at,
        read=row.read_at is not None,
        reply_to=row.reply_to,
        text=text,
    )
