"""`holdfast demo`: plays a story with real processes, and prints it as it happens."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from holdfast.apps.cli import output, tables
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.session import CommandSession
from holdfast.apps.demo.chapters import NAMES, chosen
from holdfast.rules.errors import BadInput


@command_of("demo")
@click.argument("chapters", metavar="[CHAPTER]...", nargs=-1, type=click.Choice(NAMES))
@click.option("--folder", metavar="FOLDER", help="Where it plays; else a new temporary one.")
@click.option("--fast", is_flag=True, help="Without a moment to read each line.")
@click.option("--console", is_flag=True, help="Leave all of it running, with the console open.")
@click.option("--record", metavar="FILE", help="Also write a terminal recording, and pictures.")
def demo_(
    session: CommandSession,
    chapters: tuple[str, ...],
    folder: str | None,
    fast: bool,
    console: bool,
    record: str | None,
) -> None:
    """Watch it work: processes are killed, lines break, a disk goes bad, and nothing is lost.

    Each CHAPTER tells what happens and checks what it claims; if a claim does not hold, the exit
    code is 1. All are played by default: killed, lan, wrecked, broker, zone, quorum, lake. Without
    the extra `spark` the lake is left out.

    With --console all of it stays up until Ctrl-C, the console is open, and each Enter goes on with
    a story to follow there.

    A temporary folder stays after the end, to look around in; Ctrl-C removes it. --record writes
    an asciicast to FILE, and SVG pictures beside it.
    """
    from holdfast.apps.demo import demo

    if folder is not None and Path(folder).exists() and any(Path(folder).iterdir()):
        raise BadInput(f"{folder} is not empty", hint="name a folder that is new")
    done = demo.run(
        (lambda text: None) if session.as_json else _say,
        None if folder is None else Path(folder).absolute(),
        chosen(chapters),
        in_colour=tables.fancy(),
        slowly=tables.fancy() and not fast,
        record=None if record is None else Path(record),
        console=console,
    )
    session.show(msgspec.to_builtins(done), "")


def _say(text: str) -> None:
    output.out(text)
    output.flush()
