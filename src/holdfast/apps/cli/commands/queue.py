"""`holdfast queue`: take messages from a queue, work on them, settle them."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.apps.cli import output, short_ids
from holdfast.apps.cli.commands.mesh_shared import shared
from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.errors import UnknownMessage
from holdfast.rules.id_prefix import as_number

if TYPE_CHECKING:
    from holdfast.node.broker_client.queues import TakenMessage
    from holdfast.node.sharing.sharing import Sharing

queue_ = noun(
    "queue", "Work that one of several takers does: take a message, then say how it ended."
)

_REASON_CHARS = 200


@verb(queue_, "list", lists="")
def list_(session: CommandSession) -> None:
    """List the queues of a mesh: what can be taken, what is taken, what has died."""
    with shared(session) as (mesh, sharing):
        session.rows(
            map(msgspec.structs.asdict, sharing.queues(mesh.slug)),
            "queue ready taken dead",
            empty=f"{mesh.slug} has no queue; declare one with: holdfast mesh queue NAME",
        )


@verb(queue_, "take")
@click.argument("queue")
@click.option("--most", type=click.IntRange(1, 1000), default=1, show_default=True)
def take(session: CommandSession, queue: str, most: int) -> None:
    """Take messages from QUEUE that no other taker has. Settle each by its handle."""
    with shared(session) as (mesh, sharing):
        session.rows(
            map(_document, sharing.take(mesh.slug, queue, most)),
            "handle sender deliveries text",
            empty=f"nothing to take from {queue}",
        )


@verb(queue_, "settle")
@click.argument("queue")
@click.argument("handle")
@click.option(
    "--again", "how", flag_value="again", help="Give it back: others may take it at once."
)
@click.option("--dead", "how", flag_value="dead", help="Move it to the dead letters.")
@click.option(
    "--extend",
    "how",
    flag_value="extend",
    help="Hide it from others for more time: the work takes longer.",
)
@click.option("--reason", default="", help="Why; kept with a dead letter.")
def settle(session: CommandSession, queue: str, handle: str, how: str | None, reason: str) -> None:
    """Say that the message with this HANDLE is done, or what else shall happen to it."""
    with shared(session) as (mesh, sharing):
        end = how or "done"
        sharing.settle(mesh.slug, queue, handle, end, reason)
        session.talk(f"{handle.partition(':')[0]} of {queue}: {end}")
        session.show({"mesh": mesh.slug, "queue": queue, "handle": handle, "how": end}, "")


@verb(queue_, "run")
@click.argument("queue")
@click.argument("command", nargs=-1, required=True)
def run(session: CommandSession, queue: str, command: tuple[str, ...]) -> int:
    """Run COMMAND for every message of QUEUE, with the content on its stdin, until none is left.

    A message is done if the command ends well; otherwise it is given back, and the run ends.
    """
    with shared(session) as (mesh, sharing):
        count = 0
        while taken := sharing.take(mesh.slug, queue, 1):
            message = taken[0]
            done = subprocess.run(command, input=message.content, capture_output=True, check=False)
            output.out(done.stdout.decode(errors="replace"))
            if done.returncode:
                error = done.stderr.decode(errors="replace").strip()[-_REASON_CHARS:]
                reason = f"exit code {done.returncode}" + (f": {error}" if error else "")
                sharing.settle(mesh.slug, queue, message.handle, "again", reason)
                session.talk(f"{message.id} was given back: {reason}")
                return 1
            sharing.settle(mesh.slug, queue, message.handle)
            count += 1
        session.talk(f"{count} message{'s' * (count != 1)} of {queue} done")
        return 0


@verb(queue_, "letters", lists="died_at")
@click.argument("queue")
@click.option(
    "--revive",
    metavar="SEQ|ID",
    help="Make this one ready to be taken again; the first digits of its id are enough.",
)
def letters(session: CommandSession, queue: str, revive: str | None) -> None:
    """List the dead letters of QUEUE, or revive one of them."""
    with shared(session) as (mesh, sharing):
        if revive is not None:
            seq = _letter_meant(sharing, mesh.slug, queue, revive)
            revived = sharing.revive(mesh.slug, queue, seq)
            session.talk(f"{seq} can be taken again" if revived else f"{seq} is not dead")
            session.show({"mesh": mesh.slug, "queue": queue, "revived": revived}, "")
            return
        session.rows(
            map(msgspec.structs.asdict, sharing.dead_letters(mesh.slug, queue)),
            "seq client_message_id deliveries reason died_at",
            empty=f"{queue} has no dead letters",
        )


def _letter_meant(sharing: Sharing, mesh: str, queue: str, given: str) -> int:
    number = as_number(given)
    if number is not None:
        return number
    dead = {one.client_message_id: one for one in sharing.dead_letters(mesh, queue)}
    words = ((id, f"seq {one.seq}  {one.reason}") for id, one in dead.items())
    missing = UnknownMessage(
        f"no dead letter of {queue} begins with {given!r}",
        hint=f"see: holdfast queue letters {queue} --mesh {mesh}",
    )
    return dead[short_ids.one_of(given, words, missing)].seq


def _document(message: TakenMessage) -> dict[str, Any]:
    fields = msgspec.structs.asdict(message)
    content = fields.pop("content")
    try:
        return {**fields, "text": content.decode()}
    except UnicodeDecodeError:
        return {**fields, "base64": content}
