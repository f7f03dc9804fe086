"""`holdfast bus`: messages between peers without a broker.

If a daemon serves the home, its bus does the work. If none does, the command binds the bus of the
home for as long as it runs: then `--listen` says where others reach it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from holdfast.apps.cli import contents, inputs, output, own_daemon, tables
from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.apps.cli.times import parse_span
from holdfast.rules.destinations import PRIORITIES
from holdfast.rules.errors import BadInput, CommandFailed
from holdfast.rules.ids import id_text
from holdfast.rules.limits import BUS_PAYLOAD_BYTES_MAX, BUS_REQUEST_MS, BUS_RESOLVE_MS

if TYPE_CHECKING:
    from holdfast.bus.received import ReceivedMessage
    from holdfast.node.library.bus import NodeBus

F = TypeVar("F", bound=Callable[..., Any])

bus_ = noun("bus", "Messages between peers without a broker: send, listen, publish, ask, answer.")

_LISTEN = click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Without a daemon: let peers reach this command here; commas between.",
)
_PRIORITY = click.option(
    "--priority", type=click.Choice(PRIORITIES), default="next", show_default=True
)
_TYPE = click.option("--content-type", default="", metavar="TYPE", help="What the content is.")


def _body(function: F) -> F:
    option = click.option("--from", "source", metavar="FILE", help="Take the content from a file.")
    return click.argument("body", required=False)(option(function))


@contextmanager
def open_bus(session: CommandSession, listen: str | None = None) -> Iterator[NodeBus]:
    """The bus of the home: the daemon's, or one of this command's own."""
    with session.node() as node:
        if listen is not None:
            node.bus.bind(listen=listen)
        yield node.bus


# --- sending ---------------------------------------------------------------------------------


@verb(bus_, "send", mesh=False, writes=True)
@click.argument("to")
@_body
@click.option("--topic", default="", metavar="NAME", help="What it is about.")
@_TYPE
@_PRIORITY
@click.option("--ttl", metavar="SPAN", help="Give it up after this time, as 90s or 7d.")
@click.option("--wait", metavar="SPAN", help="How long to look for a peer that is not there.")
def send(
    session: CommandSession,
    to: str,
    body: str | None,
    source: str | None,
    ttl: str | None,
    wait: str | None,
    **options: Any,
) -> None:
    """Send a message to the peer TO. A BODY of - reads stdin.

    `delivered`: it is on the other side's disk. `spooled`: the peer is away; the message waits here
    and goes when the peer appears. Either way it arrives once.
    """
    content = content_of(body, source)
    with open_bus(session) as bus:
        sent = bus.send(
            to,
            content,
            id=session.id,
            ttl_ms=None if ttl is None else parse_span(ttl),
            wait_ms=BUS_RESOLVE_MS if wait is None else parse_span(wait),
            **options,
        )
        waits = "; it waits here: holdfast outbox list" if sent.state == "spooled" else ""
        document = {"id": session.id, "to": to, "state": sent.state}
        session.wrote(document, f"{sent.state} for {to}{waits}")


@verb(bus_, "publish", mesh=False, writes=True)
@click.argument("topic")
@_body
@_TYPE
@_PRIORITY
def publish(
    session: CommandSession, topic: str, body: str | None, source: str | None, **options: str
) -> None:
    """Publish a message to all peers that listen to TOPIC now. A BODY of - reads stdin.

    It is kept for peers that are away only where they have a durable subscription.
    """
    content = content_of(body, source)
    with open_bus(session) as bus:
        done = bus.publish(topic, content, id=session.id, **options)
        counts = {"peers": done.peers, "kept": done.kept, "missed": done.missed}
        said = f"went to {_peers(done.peers)}, kept for {done.kept}"
        said += f"; {_peers(done.missed)} took nothing in time" if done.missed else ""
        session.wrote({"id": session.id, "topic": topic, **counts}, said)


@verb(bus_, "request", mesh=False, writes=True)
@click.argument("to")
@click.argument("service")
@_body
@_TYPE
@click.option("--timeout", metavar="SPAN", help="How long to wait for the reply; 30s if not given.")
def request(
    session: CommandSession,
    to: str,
    service: str,
    body: str | None,
    source: str | None,
    timeout: str | None,
    content_type: str,
) -> None:
    """Ask the peer TO for SERVICE and write its reply to stdout. A BODY of - reads stdin.

    TO may be `any`: whoever serves it. Ctrl-C cancels the work on the other side too.
    """
    content = b"" if body is None and source is None else content_of(body, source)
    timeout_ms = BUS_REQUEST_MS if timeout is None else parse_span(timeout)
    with open_bus(session) as bus:
        whom = None if to == "any" else to
        reply = bus.request(
            whom,
            service,
            content,
            id=session.id,
            content_type=content_type,
            timeout_ms=timeout_ms,
        )
        if session.as_json:
            fields = contents.as_text(reply.body)
            session.show({"id": session.id, "from": reply.peer, "service": service, **fields})
            return
        session.talk(f"{reply.peer} answered")
        _write(reply.body)


# --- receiving -------------------------------------------------------------------------------


@verb(bus_, "listen", mesh=False)
@click.option("--topic", "pattern", default=">", metavar="PATTERN", help="Only these: builds.*")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after N messages.")
@click.option("--durable", is_flag=True, help="Publishers keep for this node what it misses.")
@_LISTEN
@click.argument("command", nargs=-1)
def listen(
    session: CommandSession,
    pattern: str,
    count: int | None,
    durable: bool,
    listen: str | None,
    command: tuple[str, ...],
) -> int:
    """Show messages as they come, until Ctrl-C; JSON lines with --json.

    With a COMMAND it is run for every message, with the content on its stdin and what is known of
    it in HOLDFAST_SENDER, HOLDFAST_TOPIC and HOLDFAST_ID. If it fails, this command ends, and the
    message comes again to the next one that listens.
    """
    with open_bus(session, listen) as bus:
        _say_listening(session, bus)
        try:
            with bus.subscribe(pattern, durable=durable) as messages:
                for message in islice(messages, count):
                    _show(session, message) if not command else _run(command, message)
        except CommandFailed as error:
            # Left with an error, the message is not done with.
            session.talk(f"{error.message}; the message comes again")
            return 1
    return 0


@verb(bus_, "serve", mesh=False)
@click.argument("service")
@click.argument("command", nargs=-1, required=True)
@click.option("--most", type=click.IntRange(1, 64), default=4, show_default=True, help="At once.")
@_LISTEN
def serve(
    session: CommandSession,
    service: str,
    command: tuple[str, ...],
    most: int,
    listen: str | None,
) -> None:
    """Answer requests for SERVICE by COMMAND, until Ctrl-C.

    The command gets the request on its stdin; what it writes to stdout is the reply. If it fails,
    the asker gets the code `failed` and the end of its stderr. A request that is cancelled, or
    whose time is over, ends the command.
    """
    from holdfast.apps.cli.serve_command import serving_command

    with open_bus(session, listen) as bus:
        _say_listening(session, bus)
        session.talk(f"serving {service}; end it with Ctrl-C")
        with bus.serve(service, serving_command(command), most=most) as served:
            served.wait()


@verb(bus_, "status", mesh=False)
def status(session: CommandSession) -> None:
    """Show how the bus of this node stands: where it listens, who is linked, what waits."""
    with open_bus(session) as bus:
        found = bus.status()
        document = msgspec.to_builtins(found)
        if session.as_json:
            session.show(document)
            return
        tables.card(document, ["name", "card", "pid", "listening", "discovery", "waiting"])
        figures = ["rtt_ms", "waiting", "sent", "received", "refused", "error"]
        if not tables.table(document["peers"], ["peer", "link", "address", *figures]):
            session.talk("no peer is trusted; trust one with: holdfast peer trust CARD")
        for warning in found.warnings:
            session.talk(f"warning: {tables.visible(warning)}")


@verb(bus_, "seal", mesh=False, writes=True)
@click.argument("place")
@click.option("--from", "old", metavar="PLACE", help="Where the key of now is, if there is one.")
@click.option("--new-key", is_flag=True, help="Also seal every body anew, by a new data key.")
def seal(session: CommandSession, place: str, old: str | None, new_key: bool) -> None:
    """Seal the bodies of messages at rest by the key at PLACE.

    PLACE is key-file:PATH, passphrase-file:PATH or keyring. The daemon must be down. Then name the
    same place in the settings, under [bus]: seal = "PLACE".
    """
    # Imported only here: no other verb of the bus needs it.
    import asyncio

    from holdfast.node.bus.seal_secret import change_seal
    from holdfast.rules.bus.sealing import SealSource

    new, known = SealSource.parse(place), None if old is None else SealSource.parse(old)
    with session.node() as node:
        asyncio.run(change_seal(node._opened, known, new, new_data_key=new_key))
    session.talk(f'now write into the settings, under [bus]: seal = "{place}"')
    session.show({"sealed": True, "place": place}, "sealed\n")


@verb(bus_, "unseal", mesh=False, writes=True)
@click.argument("place")
def unseal(session: CommandSession, place: str) -> None:
    """Store the bodies of messages in the clear again; PLACE is where the key is.

    The daemon must be down. Take seal out of the settings first, under [bus]: else the next start
    seals them again.
    """
    import asyncio

    from holdfast.node.bus.seal_secret import end_seal
    from holdfast.rules.bus.sealing import SealSource

    with session.node() as node:
        asyncio.run(end_seal(node._opened, SealSource.parse(place)))
    session.talk("see that the settings name no seal under [bus]")
    session.show({"sealed": False}, "in the clear\n")


# --- what they share -------------------------------------------------------------------------


def content_of(body: str | None, source: str | None) -> bytes | str:
    """The content of a message: an argument, stdin (`-`) or a file. Reads no more than it takes to
    see that it is too much.
    """
    if (body is None) == (source is None):
        raise BadInput("give the message as an argument or with --from FILE, one of the two")
    if source is not None:
        with contents.existing(source).open("rb") as file:
            return file.read(BUS_PAYLOAD_BYTES_MAX + 1)
    assert body is not None
    return sys.stdin.buffer.read(BUS_PAYLOAD_BYTES_MAX + 1) if body == inputs.STDIN else body


def _say_listening(session: CommandSession, bus: NodeBus) -> None:
    found = bus.status()
    for place in found.listening:
        host, _, port = place.rpartition(":")
        where = f"port {port} of all its addresses" if host in own_daemon.EVERYWHERE else place
        session.talk(f"peers reach this node at {where}")


def _show(session: CommandSession, message: ReceivedMessage) -> None:
    about = {"id": id_text(message.id), "from": message.sender, "topic": message.topic}
    if session.as_json:
        fields = {"content_type": message.content_type, "received_at": message.received_at}
        tables.json_lines([{**about, **fields, **contents.as_text(message.body)}])
    else:
        topic = f" on {message.topic}" if message.topic else ""
        session.talk(tables.visible(f"from {message.sender}{topic}"))
        _write(message.body)
    output.flush()


def _write(content: bytes) -> None:
    if sys.stdout.isatty():
        # The sender must not be able to give this terminal commands.
        shown = "\n".join(map(tables.visible, content.decode(errors="replace").split("\n")))
        content = shown.encode()
    sys.stdout.buffer.write(content)
    if not content.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")


def _run(command: tuple[str, ...], message: ReceivedMessage) -> None:
    about = {
        "HOLDFAST_SENDER": message.sender,
        "HOLDFAST_TOPIC": message.topic,
        "HOLDFAST_ID": id_text(message.id),
    }
    done = subprocess.run(command, input=message.body, env={**os.environ, **about}, check=False)
    if done.returncode:
        raise CommandFailed(f"{command[0]} ended with {done.returncode}")


def _peers(count: int) -> str:
    return "1 peer" if count == 1 else f"{count} peers"
