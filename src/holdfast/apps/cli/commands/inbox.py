"""`holdfast inbox`: messages that came for this node."""

from __future__ import annotations

import base64
import sys
from itertools import islice
from typing import Any

import click
import msgspec

from holdfast.apps.cli import tables
from holdfast.apps.cli.commands.send import CONTENT_TYPE, FROM, META, PRIORITY, content_of, meta_of
from holdfast.apps.cli.commands.send import told as told_of
from holdfast.apps.cli.declare import FILTER, noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.node.messages.inbox import Message

inbox_ = noun("inbox", "Messages that came for this node.")


@verb(inbox_, "list", mesh=FILTER)
@click.option("--unread", is_flag=True, help="Only those that nobody has read.")
@click.option("--after", type=int, default=0, metavar="NUMBER", help="Only those after this one.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
def list_(session: CommandSession, unread: bool, after: int, limit: int | None) -> None:
    """List messages in the order in which they came."""
    with session.node() as node, session.export(node):
        inbox = node.inbox if session.named_mesh is None else node.mesh(session.named_mesh).inbox
        found = islice(inbox.list(unread=unread, after=after), limit)
        session.rows(
            (msgspec.structs.asdict(row) for row in found),
            "number id mesh sender kind ref priority preview received_at read_at",
            empty="nothing unread" if unread else "no message has come",
        )


@verb(inbox_, "read", mesh=False)
@click.argument("id_", metavar="ID")
@click.option("--keep-unread", is_flag=True, help="Only look: it stays as unread as it was.")
def read(session: CommandSession, id_: str, keep_unread: bool) -> None:
    """Write the content of a message to stdout; it is read from then on."""
    with session.node() as node, session.export(node):
        message = node.inbox.get(id_) if keep_unread else node.inbox.read(id_)
        if session.as_json:
            session.show(form(message))
            return
        where = f"{message.kind} {message.ref} in {message.mesh}"
        session.talk(tables.visible(f"from {message.sender} to {where}"))
        if message.reply_to:
            session.talk(f"answers {message.reply_to}")
        _write(message)


@verb(inbox_, "reply", mesh=False, writes=True)
@click.argument("id_", metavar="ID")
@click.argument("body", required=False)
@FROM
@CONTENT_TYPE
@META
@PRIORITY
def reply(
    session: CommandSession,
    id_: str,
    body: str | None,
    source: str | None,
    content_type: str | None,
    meta: str | None,
    priority: str,
) -> None:
    """Answer whoever sent message ID. A BODY of - reads stdin."""
    content = content_of(body, source)
    with session.node() as node, session.export(node):
        sent = node.inbox.reply(
            id_,
            content,
            content_type=content_type,
            meta=meta_of(meta),
            priority=priority,
            new_id=session.id,
        )
        told_of(session, sent)


def form(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.structs.asdict(message)
    content: bytes = fields.pop("content")
    try:
        return {**fields, "encoding": "utf-8", "content": content.decode()}
    except UnicodeDecodeError:
        packed = base64.b64encode(content).decode()
        return {**fields, "encoding": "base64", "content": packed}


def _write(message: Message) -> None:
    content = message.content
    if sys.stdout.isatty():
        # Whoever sent it must not be able to tell this terminal what to do.
        shown = "\n".join(map(tables.visible, content.decode(errors="replace").split("\n")))
        content = shown.encode()
    sys.stdout.buffer.write(content)
    if sys.stdout.isatty() and not content.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")
