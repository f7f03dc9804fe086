"""`holdfast backup`, `restore`, `export`, `import`: what leaves a home whole, and comes back."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from holdfast.apps.cli import documents, inputs
from holdfast.apps.cli.declare import FILTER, command_of
from holdfast.apps.cli.progress import Progress
from holdfast.apps.cli.session import CommandSession
from holdfast.apps.cli.times import size
from holdfast.node.exchange import export, import_rows
from holdfast.node.exchange.import_rows import BadLine
from holdfast.node.recovery import backup
from holdfast.rules.errors import BadInput
from holdfast.rules.limits import BLOB_CHUNK_BYTES
from holdfast.storage.files.durable import durable_writer


@command_of("backup")
@click.argument("folder")
def backup_(session: CommandSession, folder: str) -> None:
    """Copy the home into a new FOLDER, while others go on writing."""
    back_up(session, Path(folder))


def back_up(session: CommandSession, folder: Path) -> None:
    """Makes a backup and tells of it."""
    with session.node() as node, Progress(session, "copied bytes:") as progress:
        report = backup.backup(node, folder, progress.to)
    session.talk(
        f"backed up {report.peer} up to offset {report.head}: "
        f"{size(report.bytes)}, {report.blobs} blobs"
    )
    _tell_missing(session, report.missing)
    session.show(documents.plain(report), f"{documents.path(report.target)}\n")


@command_of("restore")
@click.argument("folder", required=False)
@click.option("--force", is_flag=True, help="Replace a home that is there; it is kept aside.")
@click.option(
    "--snapshot", metavar="FOLDER", help="Begin from a snapshot of a lake instead of a backup."
)
@click.option("--peer", metavar="NAME", help="With --snapshot: the name of the new node.")
@click.option(
    "--signed-by",
    metavar="CARD",
    help="With --snapshot: take it only if the owner of this card, or key, has signed it.",
)
@click.option(
    "--take-over",
    is_flag=True,
    help="With --snapshot: bear the name of a peer whose own home is gone for good.",
)
def restore_(
    session: CommandSession,
    folder: str | None,
    force: bool,
    snapshot: str | None,
    peer: str | None,
    signed_by: str | None,
    take_over: bool,
) -> None:
    """Make the home from the backup in FOLDER. All of it is checked first.

    The restored log counts on in a new epoch, so that nobody mistakes it for the one that went on.

    With --snapshot a new node begins with what a lake knows of a mesh; links that are added later
    go on from there. Interrupted, it goes on where it stopped when it is run again.
    """
    if snapshot is not None:
        if folder is not None or force:
            raise BadInput("--snapshot stands alone: it takes neither a backup nor --force")
        _begin_from(session, Path(snapshot), peer, signed_by, take_over)
        return
    if folder is None or peer is not None or signed_by is not None or take_over:
        raise BadInput(
            "name the folder of a backup, and nothing else",
            hint="or begin from a snapshot: holdfast restore --snapshot FOLDER --peer NAME",
        )
    home = session.check_home()
    with session.relaying(), Progress(session, "checked bytes:") as progress:
        report = backup.restore(Path(folder), home, force=force, progress=progress.to)
    session.talk(
        f"restored {report.peer} up to offset {report.head}, epoch {report.epoch}, "
        f"{report.blobs} blobs"
    )
    for aside in report.aside:
        session.talk(f"kept aside: {documents.path(aside)}")
    _tell_missing(session, report.missing)
    session.show(documents.plain(report), f"{documents.path(report.home)}\n")


def _begin_from(
    session: CommandSession, folder: Path, peer: str | None, signed_by: str | None, take_over: bool
) -> None:
    # Imported only here: it brings the code of signatures with it.
    from holdfast.node.recovery.restore_snapshot import restore_snapshot

    home = session.check_home()
    with session.relaying(), Progress(session, "restored envelopes:") as progress:
        report = restore_snapshot(
            home, folder, peer, signed_by=signed_by, take_over=take_over, progress=progress.to
        )
    if report.resumed_after:
        session.talk(f"went on after {report.resumed_after} envelopes of an earlier run")
    session.talk(f"{report.peer} has {report.rows} envelopes of {', '.join(report.meshes)}")
    if report.checked:
        session.talk(f"signed by {report.signed_by}")
    else:
        who = f"signed by {report.signed_by}, which" if report.signed_by else "not signed, and"
        session.warn("unchecked", f"it is {who} nobody has checked; see --signed-by")
    for refused in report.refused:
        session.warn(refused.code, f"{refused.id} was not taken in: {refused.message}")
    if report.missing:
        session.warn(
            "blobs_missing",
            f"the content of {report.missing} objects is not in a snapshot, the first is "
            f"{report.missing_objects[0]}; once a link stands: holdfast link objects NAME",
        )
    for left in report.left:
        session.talk(f"left from a restore that was never finished: {documents.path(left)}")
    session.show(documents.plain(report), f"{documents.path(report.home)}\n")


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
        Progress(session, "exported lines:") as progress,
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
        Progress(session, "imported lines:") as progress,
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
    _tell_bad(session, bad)
    session.show(
        {
            "file": file,
            "counts": counts,
            "bad": [msgspec.structs.asdict(line) for line in bad],
            "resumed_after": resumed,
        },
        f"imported {_counted(counts)}\n",
    )


@contextmanager
def _target(file: str | None) -> Iterator[Any]:
    """Where an export goes. A file appears under its name when it is whole."""
    if file is None or file == inputs.STDIN:
        yield sys.stdout.buffer
        return
    target = Path(file).absolute()
    if target.is_dir() or not target.parent.is_dir():
        raise BadInput(f"{file} cannot be written", hint="name a file in a folder that exists")
    with durable_writer(target) as draft:
        yield draft


@contextmanager
def _source(file: str) -> Iterator[BinaryIO]:
    """An import is read twice, so a pipe is put on disk first."""
    if file != inputs.STDIN:
        with inputs.existing(file).open("rb") as content:
            yield content
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy, BLOB_CHUNK_BYTES)
        copy.seek(0)
        yield copy


def _pair(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise BadInput(f"{text!r} does not rename a mesh", hint="write it as --map old=new")
    return old, new


def _counted(counts: dict[str, int]) -> str:
    said = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)
    return said or "nothing"


def _tell_missing(session: CommandSession, missing: tuple[str, ...]) -> None:
    if missing:
        session.warn(
            "blobs_missing",
            f"the content of {len(missing)} blobs is not in the backup, the first is {missing[0]}",
        )


def _tell_bad(session: CommandSession, bad: tuple[BadLine, ...]) -> None:
    for line in bad:
        session.talk(f"line {line.line} was left out: {line.message}")
