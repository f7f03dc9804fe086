"""`holdfast export` and `import`: a home as JSON lines, and JSON lines as new changes."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, BinaryIO

import click
import msgspec

from holdfast.apps.cli import contents, inputs
from holdfast.apps.cli.declare import FILTER, command_of
from holdfast.apps.cli.progress import Progress
from holdfast.apps.cli.session import CommandSession
from holdfast.node.exchange import export, import_rows
from holdfast.rules.errors import BadInput

_GOES_ON = "what was taken in stays; the same command goes on from there"


@command_of("export", mesh=FILTER)
@click.argument("file", required=False)
@click.option("--no-log", is_flag=True, help="Leave the log out: it cannot be merged then.")
@click.option("--no-blobs", is_flag=True, help="Leave the content of large files out.")
def export_(session: CommandSession, file: str | None, no_log: bool, no_blobs: bool) -> None:
    """Write everything as JSON lines to FILE or stdout."""
    meshes = None if session.named_mesh is None else [session.named_mesh]
    with (
        session.node() as node,
        _target(file) as out,
        Progress(session, "exported lines:", leaves=_left_of(file)) as progress,
    ):
        counts = export.export(
            node, out, meshes=meshes, log=not no_log, blobs=not no_blobs, progress=progress.to
        )
    session.talk(f"exported {_counted(counts)}")
    if file is not None and file != inputs.STDIN:
        session.show({"file": file, "counts": counts}, f"{file}\n")


@command_of("import")
@click.argument("file")
@click.option(
    "--log",
    "as_log",
    is_flag=True,
    help="Merge the exported log as it is, with its own stamps, instead of writing rows anew.",
)
@click.option("--map", "renamed", multiple=True, metavar="OLD=NEW", help="Rename a mesh.")
@click.option("--skip-bad", is_flag=True, help="Report lines that cannot be taken, and go on.")
def import_(
    session: CommandSession, file: str, as_log: bool, renamed: tuple[str, ...], skip_bad: bool
) -> None:
    """Write the rows of an exported FILE here, as new changes. A FILE of - is stdin.

    An import that was interrupted goes on where it stopped when it is run again.
    """
    names = dict(_pair(text) for text in renamed)
    if as_log and (names or skip_bad):
        raise BadInput("--log takes envelopes as they are: --map and --skip-bad do not go with it")
    with (
        session.node() as node,
        _source(file) as source,
        Progress(session, "imported lines:", leaves=_GOES_ON) as progress,
    ):
        if as_log:
            merged = import_rows.import_log(node, source, progress=progress.to)
            counts, bad, resumed = merged.counts, merged.refused, 0
        else:
            report = import_rows.import_(
                node, source, mesh_map=names, skip_bad=skip_bad, progress=progress.to
            )
            counts, bad, resumed = report.counts, report.bad, report.resumed_after
    if resumed:
        session.talk(f"went on after line {resumed}, where an earlier import had stopped")
    for line in bad:
        session.talk(f"line {line.line} was left out: {line.message}")
    session.show(
        {
            "file": file,
            "counts": counts,
            "bad": [msgspec.structs.asdict(line) for line in bad],
            "resumed_after": resumed,
        },
        f"imported {_counted(counts)}\n",
    )


def _left_of(file: str | None) -> str:
    if file is None or file == inputs.STDIN:
        return "what was written is a part of the export; begin again"
    return f"{file} appears when it is whole: nothing new is there"


def _target(file: str | None) -> AbstractContextManager[Any]:
    """Where an export goes: a file that appears when it is whole, or stdout."""
    if file is None or file == inputs.STDIN:
        return nullcontext(sys.stdout.buffer)
    return contents.new_file(file)


def _source(file: str) -> AbstractContextManager[BinaryIO]:
    """What an import reads. It reads twice, so a pipe is put on disk first."""
    return contents.stdin_copy() if file == inputs.STDIN else contents.existing(file).open("rb")


def _pair(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise BadInput(f"{text!r} does not rename a mesh", hint="write it as --map old=new")
    return old, new


def _counted(counts: dict[str, int]) -> str:
    words = (f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)
    return ", ".join(words) or "nothing"
