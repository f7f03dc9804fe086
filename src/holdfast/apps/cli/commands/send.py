"""`holdfast send`: a message to a topic, a member or a queue."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from holdfast.apps.cli import contents, inputs, short_ids
from holdfast.apps.cli.declare import KEY, command_of
from holdfast.apps.cli.session import CommandSession
from holdfast.node.messages.send import Sent
from holdfast.rules.destinations import PRIORITIES
from holdfast.rules.errors import BadInput
from holdfast.rules.fingerprint import parse_meta
from holdfast.rules.limits import MESSAGE_BYTES_MAX

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--from", "source", metavar="FILE", help="Take the content from a file."),
    click.option(
        "--content-type", metavar="TYPE", help="What the content is; text/plain for text."
    ),
    click.option("--meta", metavar="JSON", help="An object that goes with the message."),
    click.option("--priority", type=click.Choice(PRIORITIES), default="next", show_default=True),
)


def message_options(function: F) -> F:
    """Adds BODY and the options of a message; `message_of` reads them."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return click.argument("body", required=False)(function)


def message_of(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the library's `send` or `reply`, from the options of the command."""
    body, source, meta = (options.pop(name) for name in ("body", "source", "meta"))
    content = _content(body, source)
    return {**options, "content": content, "meta": None if meta is None else parse_meta(meta)}


@command_of("send", mesh=True, writes=KEY)
@click.option("--topic", metavar="NAME", help="To every subscriber of this topic.")
@click.option("--dm", metavar="MEMBER", help="To one member, by name or key.")
@click.option("--queue", metavar="NAME", help="To one of those who take from this queue.")
@click.option(
    "--reply-to",
    metavar="ID",
    help="The message that this one answers: its id, number or first digits.",
)
@message_options
def send_(session: CommandSession, **options: Any) -> None:
    """Send a message. A BODY of - reads stdin.

    It is on the disk when this returns, and goes to the mesh's broker as soon as a daemon reaches
    it. `holdfast outbox show ID` tells how far it has got.
    """
    message = message_of(options)
    with session.mesh() as mesh:
        if message["reply_to"]:
            message["reply_to"] = short_ids.message(session.opened, message["reply_to"])
        show_sent(session, mesh.send(**message, id=session.key))


def show_sent(session: CommandSession, sent: Sent) -> None:
    document: dict[str, Any] = msgspec.structs.asdict(sent)
    session.wrote(document, f"{sent.state} for {sent.kind} {sent.ref} in {sent.mesh}")


def _content(body: str | None, source: str | None) -> bytes | str:
    """The content of a message: an argument, stdin (`-`) or a file. What is UTF-8 is sent as text.

    Reads no more than it takes to see that it is too much.
    """
    if (body is None) == (source is None):
        raise BadInput("give the message as an argument or with --from FILE, one of the two")
    if source is not None:
        with contents.existing(source).open("rb") as file:
            raw = file.read(MESSAGE_BYTES_MAX + 1)
    elif body == inputs.STDIN:
        raw = sys.stdin.buffer.read(MESSAGE_BYTES_MAX + 1)
    else:
        assert body is not None
        return body
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
