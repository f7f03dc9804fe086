"""`holdfast backup` and `restore`: a home as a folder, and a home from a backup or a snapshot."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.apps.cli import documents
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.progress import Progress
from holdfast.apps.cli.session import CommandSession
from holdfast.apps.cli.times import size
from holdfast.node.recovery import backup
from holdfast.rules.errors import BadInput


@command_of("backup")
@click.argument("folder")
def backup_(session: CommandSession, folder: str) -> None:
    """Copy the home into a new FOLDER, while others go on writing."""
    back_up(session, Path(folder))


def _copying(session: CommandSession, folder: Path) -> Progress:
    leaves = f"{folder} appears when it is whole: it is not there, and the home is as it was"
    return Progress(session, "copied", leaves=leaves, in_bytes=True)


def back_up(session: CommandSession, folder: Path) -> None:
    """Makes a backup, and prints what it holds."""
    with session.node() as node, _copying(session, folder) as progress:
        report = backup.backup(node, folder, progress.to)
    session.talk(
        f"backed up {report.peer} up to offset {report.head}: "
        f"{size(report.bytes)}, {report.blobs} blobs"
    )
    _warn_of_missing(session, report.missing)
    session.show(documents.plain(report), f"{documents.path(report.target)}\n")


@command_of("restore")
@click.argument("folder", required=False)
@click.option(
    "--force", is_flag=True, help="Replace a home that is there; it is kept beside the new one."
)
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
    help="With --snapshot: take the name of a peer whose own home is gone for good.",
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

    The restored log counts on in a new epoch, so that readers do not take it for the one they knew.

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
    leaves = "the home is as it was before, or wholly restored: see holdfast status"
    bar = Progress(session, "checked", leaves=leaves, in_bytes=True)
    with session.relaying(), bar as progress:
        report = backup.restore(Path(folder), home, force=force, progress=progress.to)
    session.talk(
        f"restored {report.peer} up to offset {report.head}, epoch {report.epoch}, "
        f"{report.blobs} blobs"
    )
    for aside in report.aside:
        session.talk(f"kept aside: {documents.path(aside)}")
    _warn_of_missing(session, report.missing)
    session.show(documents.plain(report), f"{documents.path(report.home)}\n")


def _begin_from(
    session: CommandSession, folder: Path, peer: str | None, signed_by: str | None, take_over: bool
) -> None:
    # Imported only here: it imports the code of signatures.
    from holdfast.node.recovery.restore_snapshot import restore_snapshot

    home = session.check_home()
    leaves = "what was taken in is kept aside; the same command goes on from there"
    bar = Progress(session, "restored envelopes:", leaves=leaves)
    with session.relaying(), bar as progress:
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


def _warn_of_missing(session: CommandSession, missing: tuple[str, ...]) -> None:
    if missing:
        session.warn(
            "blobs_missing",
            f"the content of {len(missing)} blobs is not in the backup, the first is {missing[0]}",
        )
