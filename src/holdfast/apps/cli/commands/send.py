"""`holdfast send`: a message to a topic, a member or a queue."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.apps.cli import inputs
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.session import CommandSession
from holdfast.node.messages.send import Sent
from holdfast.rules.destinations import PRIORITIES
from holdfast.rules.errors import BadInput
from holdfast.rules.fingerprint import parse_meta
from holdfast.rules.limits import MESSAGE_BYTES_MAX

PRIORITY = click.option(
    "--priority", type=click.Choice(PRIORITIES), default="next", show_default=True
)
META = click.option("--meta", metavar="JSON", help="An object that goes with the message.")
CONTENT_TYPE = click.option(
    "--content-type", metavar="TYPE", help="What the content is; text/plain for text."
)
FROM = click.option("--from", "source", metavar="FILE", help="Take the content from a file.")


@command_of("send", mesh=True, writes=True)
@click.argument("body", required=False)
@click.option("--topic", metavar="NAME", help="To every subscriber of this topic.")
@click.option("--dm", metavar="MEMBER", help="To one member, by name or key.")
@click.option("--queue", metavar="NAME", help="To one of those who take from this queue.")
@click.option("--reply-to", metavar="UUID", help="The message that this one answers.")
@FROM
@CONTENT_TYPE
@META
@PRIORITY
def send_(
    session: CommandSession,
    body: str | None,
    topic: str | None,
    dm: str | None,
    queue: str | None,
    reply_to: str | None,
    source: str | None,
    content_type: str | None,
    meta: str | None,
    priority: str,
) -> None:
    """Send a message. A BODY of - reads stdin.

    It is on the disk when this returns, and goes to the mesh's broker as soon as a daemon reaches
    it. `holdfast outbox show ID` tells how far it has got.
    """
    content = content_of(body, source)
    with session.mesh() as mesh:
        sent = mesh.send(
            content,
            topic=topic,
            dm=dm,
            queue=queue,
            content_type=content_type,
            meta=meta_of(meta),
            priority=priority,
            reply_to=reply_to,
            id=session.id,
        )
        told(session, sent)


def told(session: CommandSession, sent: Sent) -> None:
    document: dict[str, Any] = msgspec.structs.asdict(sent)
    session.wrote(document, f"{sent.state} for {sent.kind} {sent.ref} in {sent.mesh}")


def content_of(body: str | None, source: str | None) -> bytes | str:
    """The content of a message: as an argument, from stdin (`-`) or from a file. What is UTF-8 is
    taken for text.
    """
    if (body is None) == (source is None):
        raise BadInput("give the message as an argument or with --from FILE, one of the two")
    if source is not None:
        raw = _some(inputs.existing(source))
    elif body == inputs.STDIN:
        raw = sys.stdin.buffer.read(MESSAGE_BYTES_MAX + 1)
    else:
        assert body is not None
        return body
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _some(path: Path) -> bytes:
    """No more than it takes to see that it is too much."""
    with path.open("rb") as file:
        return file.read(MESSAGE_BYTES_MAX + 1)


def meta_of(text: str | None) -> dict[str, Any] | None:
    return None if text is None else parse_meta(text)
