"""`holdfast inbox`: messages that came for this node."""

from __future__ import annotations

import sys
from itertools import islice
from typing import Any

import click
import msgspec

from holdfast.apps.cli import contents, short_ids, tables
from holdfast.apps.cli.commands.send import message_of, message_options, show_sent
from holdfast.apps.cli.declare import FILTER, KEY, noun, verb
from holdfast.apps.cli.lists.watching import LIMIT, number_of, show
from holdfast.apps.cli.session import CommandSession
from holdfast.apps.cli.times import iso, parse_moment
from holdfast.node.messages.inbox import Message, Received

_NOTHING = {True: "nothing unread", False: "no message has come"}

inbox_ = noun(
    "inbox",
    "Messages that came for this node. An ID is a message's number, or the first digits of its id.",
)


@verb(inbox_, "watch", mesh=FILTER)
@click.option("--from", "sender", metavar="PEER", help="Only messages of this peer.")
@click.option("--topic", help="Only messages to this topic.")
@click.option(
    "--since",
    metavar="PLACE",
    help="Begin after this message's number, at a time (2h: that long ago) or the start; else with "
    "new ones.",
)
@LIMIT
def watch(
    session: CommandSession, since: str | None, limit: int | None, **match: str | None
) -> None:
    """Show messages as they arrive. They stay unread.

    Ctrl-C ends it, and says where to go on.
    """
    with session.node() as node:
        inbox = node.inbox if session.named_mesh is None else node.mesh(session.named_mesh).inbox
        found = inbox.watch(since=number_of(inbox, since), **match)
        show(session, found, limit, msgspec.structs.asdict, _arrived)


def _arrived(message: Received) -> str:
    told = (str(message.number), iso(message.received_at), message.id, message.mesh)
    to = f"{message.kind}:{message.ref}"
    return "  ".join(map(tables.visible, (*told, message.sender, to, message.preview))).rstrip()


@verb(inbox_, "list", mesh=FILTER, lists="received_at")
@click.option("--unread", is_flag=True, help="Only messages that are unread.")
@click.option(
    "--after", type=int, default=0, metavar="NUMBER", help="Only messages after this one."
)
@click.option("--from", "sender", metavar="PEER", help="Only messages of this peer.")
@click.option("--topic", help="Only messages to this topic.")
@click.option("--since", metavar="TIME", help="Only messages that came then or later.")
@click.option("--until", metavar="TIME", help="Only messages that came before then.")
@click.option("--search", metavar="TEXT", help="Only messages with these words in them.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
def list_(
    session: CommandSession,
    unread: bool,
    after: int,
    since: str | None,
    until: str | None,
    search: str | None,
    limit: int | None,
    **match: str | None,
) -> None:
    """List messages in the order in which they came.

    A TIME is 2026-11-15T10:00:00Z or 2026-11-15, or how long ago: 2h, 7d.
    """
    narrowed = any((since, until, search, *match.values()))
    with session.warning_node() as node:
        inbox = node.inbox if session.named_mesh is None else node.mesh(session.named_mesh).inbox
        found = inbox.list(
            unread=unread,
            after=after,
            since_ms=None if since is None else parse_moment(since),
            until_ms=None if until is None else parse_moment(until),
            text=search,
            **match,
        )
        session.rows(
            map(msgspec.structs.asdict, islice(found, limit)),
            "number id mesh sender preview kind ref priority received_at read_at",
            empty="no such message" if narrowed else _NOTHING[unread],
        )


@verb(inbox_, "read", mesh=False)
@click.argument("id_", metavar="ID")
@click.option("--keep-unread", is_flag=True, help="Only look: an unread message stays unread.")
def read(session: CommandSession, id_: str, keep_unread: bool) -> None:
    """Write the content of a message to stdout; it is read from then on."""
    with session.warning_node() as node:
        id = short_ids.message(node, id_)
        message = node.inbox.get(id) if keep_unread else node.inbox.read(id)
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
        id = short_ids.message(node, id_)
        show_sent(session, node.inbox.reply(id, **message, new_id=session.key))


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
