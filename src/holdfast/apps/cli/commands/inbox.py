"""`holdfast inbox`: messages that came for this node."""

from __future__ import annotations

import sys
from itertools import islice
from typing import Any

import click
import msgspec

from holdfast.apps.cli import contents, tables
from holdfast.apps.cli.commands.send import message_of, message_options, show_sent
from holdfast.apps.cli.declare import FILTER, KEY, noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.node.messages.inbox import Message

inbox_ = noun("inbox", "Messages that came for this node.")


@verb(inbox_, "list", mesh=FILTER)
@click.option("--unread", is_flag=True, help="Only messages that are unread.")
@click.option(
    "--after", type=int, default=0, metavar="NUMBER", help="Only messages after this one."
)
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
def list_(session: CommandSession, unread: bool, after: int, limit: int | None) -> None:
    """List messages in the order in which they came."""
    with session.warning_node() as node:
        inbox = node.inbox if session.named_mesh is None else node.mesh(session.named_mesh).inbox
        session.rows(
            map(msgspec.structs.asdict, islice(inbox.list(unread=unread, after=after), limit)),
            "number id mesh sender kind ref priority preview received_at read_at",
            empty="nothing unread" if unread else "no message has come",
        )


@verb(inbox_, "read", mesh=False)
@click.argument("id_", metavar="ID")
@click.option("--keep-unread", is_flag=True, help="Only look: an unread message stays unread.")
def read(session: CommandSession, id_: str, keep_unread: bool) -> None:
    """Write the content of a message to stdout; it is read from then on."""
    with session.warning_node() as node:
        message = node.inbox.get(id_) if keep_unread else node.inbox.read(id_)
        if session.as_json:
            session.show(_document(message))
            return
        where = f"{message.kind} {message.ref} in {message.mesh}"
        session.talk(tables.visible(f"from {message.sender} to {where}"))
        if message.reply_to:
            session.talk(f"answers {message.reply_to}")
        _write(message)


@verb(inbox_, "reply", mesh=False, writes=KEY)
@click.argument("id_", metavar="ID")
@message_options
def reply(session: CommandSession, id_: str, **options: Any) -> None:
    """Answer the sender of message ID. A BODY of - reads stdin."""
    message = message_of(options)
    with session.warning_node() as node:
        show_sent(session, node.inbox.reply(id_, **message, new_id=session.key))


def _document(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.structs.asdict(message)
    return fields | contents.as_text(fields.pop("content"))


def _write(message: Message) -> None:
    content = message.content
    if sys.stdout.isatty():
        # The sender must not be able to give this terminal commands.
        shown = "\n".join(map(tables.visible, content.decode(errors="replace").split("\n")))
        content = shown.encode()
    sys.stdout.buffer.write(content)
    if sys.stdout.isatty() and not content.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")
