"""`holdfast doctor`: what is wrong with a home, what to do about it, and doing it."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import click

from holdfast.apps.cli import documents, own_daemon, tables
from holdfast.apps.cli.commands.backup import back_up
from holdfast.apps.cli.commands.pipeline_job import options_file, store_options
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.progress import Progress
from holdfast.apps.cli.session import CommandSession
from holdfast.node.recovery import doctor
from holdfast.node.recovery.checks import joined_names
from holdfast.node.recovery.doctor import Report
from holdfast.node.recovery.recount_streams import recount_streams
from holdfast.node.recovery.refetch import Finder, refetch_entries
from holdfast.node.recovery.repair import (
    RepairReport,
    RollbackReport,
    repair_home,
    rollback_migration,
)
from holdfast.node.settings import load
from holdfast.rules.errors import BadInput, HoldfastError
from holdfast.rules.outbox import PARK, Policies

_SIGNS = {"ok": "[OK]", "warn": "[WARN]", "fail": "[FAIL]"}


@command_of("doctor")
@click.option("--full", is_flag=True, help="Also read every blob and fold the whole log again.")
@click.option(
    "--repair", is_flag=True, help="Make a new database of what can be read; keep the old one."
)
@click.option(
    "--peer", metavar="NAME", help="The peer whose home it is, if --repair cannot read it."
)
@click.option(
    "--lake",
    metavar="FOLDER",
    help="With --repair: a lake that may have entries of the log that are damaged here.",
)
@options_file
@click.option(
    "--rollback-migration",
    "version",
    type=click.IntRange(1),
    metavar="N",
    help="Undo schema version N and those after it; a copy of the database is kept.",
)
@click.option(
    "--resume-sync",
    is_flag=True,
    help="Resume shared meshes that are paused, and try again what was refused.",
)
@click.option("--backup", metavar="FOLDER", help="Make a backup, as `holdfast backup` does.")
def doctor_(
    session: CommandSession,
    full: bool,
    repair: bool,
    peer: str | None,
    lake: str | None,
    options_file: str | None,
    version: int | None,
    resume_sync: bool,
    backup: str | None,
) -> int:
    """Look for what is wrong with a home. Exit 1 if something is."""
    if sum((repair, version is not None, backup is not None, resume_sync)) > 1:
        raise BadInput("--repair, --rollback-migration, --resume-sync, --backup: one at a time")
    if lake is not None and not repair:
        raise BadInput("--lake goes with --repair")
    if resume_sync:
        _resume_sync(session)
        return 0
    if backup is not None:
        back_up(session, Path(backup))
        return 0
    home = session.check_home()
    with session.relaying():
        if repair:
            _repair(session, home, peer, lake, options_file)
        elif version is not None:
            _show_rollback(session, rollback_migration(home, version))
        else:
            leaves = "doctor only looked: nothing was changed"
            with Progress(session, "looking at:", leaves=leaves) as progress:
                report = doctor.diagnose(
                    home, full=full, policies=_policies(session), on_check=progress.step
                )
            return _show(session, report)
    return 0


def _policies(session: CommandSession) -> Policies:
    """What waits behind refused items, as the settings say."""
    try:
        return load(os.environ, {}).outbox.policies
    except HoldfastError as error:
        session.warn("settings", f"the settings cannot be read: {error.message}")
        return PARK


def _repair(
    session: CommandSession,
    home: Path,
    peer: str | None,
    lake: str | None,
    options_file: str | None,
) -> None:
    """Fetches damaged entries again, and counts streams again; what is damaged besides needs a new
    database.
    """
    finders = {} if lake is None else {f"the lake {lake}": _finder(lake, options_file)}
    again = refetch_entries(home, finders)
    for trouble in again.troubles:
        session.talk(f"not asked for damaged entries: {trouble}")
    if again.mended:
        offsets = joined_names([str(offset) for offset in again.mended])
        session.talk(f"damaged entries that are whole again: {len(again.mended)}, at {offsets}")
        if not again.left and not doctor.needs_repair(home):
            session.show(documents.plain(again), f"{documents.path(home)}\n")
            return
    if not again.left and doctor.needs_streams_only(home):
        meshes = recount_streams(home)
        session.talk(f"counted again what peers get over the bus: {', '.join(meshes)}")
        session.show({"home": documents.path(home), "meshes": meshes}, f"{documents.path(home)}\n")
        return
    _show_repair(session, repair_home(home, peer=peer))


def _finder(lake: str, options_file: str | None) -> Finder:
    # Imported here: few repairs have a lake at hand, and it brings Arrow along.
    from holdfast.pipeline.lake.find_entries import find_entries
    from holdfast.pipeline.lake.lake import Lake

    return partial(find_entries, Lake.open(lake, options=store_options((), options_file)))


def _resume_sync(session: CommandSession) -> None:
    from holdfast.node.sync.pause import resume_all

    with session.node() as node:
        resumed = resume_all(node._engine)
        runs = own_daemon.refresh(node.home)
        for found in resumed:
            session.talk(f"{found.mesh} goes on; {found.retried} that were refused wait again")
        if not resumed:
            session.talk("no shared mesh is paused")
        elif not runs:
            session.talk("no daemon runs here: it begins with: holdfast up")
        meshes = [documents.plain(found) for found in resumed]
        session.show(
            {"resumed": meshes, "daemon": runs}, "".join(f"{found.mesh}\n" for found in resumed)
        )


def _show(session: CommandSession, report: Report) -> int:
    document: dict[str, Any] = {
        "home": documents.path(report.home),
        "status": report.worst,
        "checks": [documents.plain(check) for check in report.checks],
        "metrics": report.metrics,
    }
    session.show(document, _text(report))
    return 1 if report.worst == "fail" else 0


def _text(report: Report) -> str:
    lines = []
    for check in report.checks:
        lines.append(f"{_SIGNS[check.status]:<6} {check.name}: {tables.visible(check.message)}")
        if check.fix and check.status != "ok":
            lines.append(f"       fix: {check.fix}")
    launches = report.metrics.get("launches")
    if launches:
        opened = f"opened {launches} times, {report.metrics['open_ms_median']} ms in the median"
        lines.append(f"[OK]   metrics: {opened}; --json has all counts")
    return "".join(f"{line}\n" for line in lines)


def _show_repair(session: CommandSession, report: RepairReport) -> None:
    lost = {name: saved.lost for name, saved in report.tables.items() if saved.lost}
    if lost:
        counts = ", ".join(f"{count} of {name}" for name, count in lost.items())
        session.warn("rows_lost", f"what could not be read is lost: {counts}")
    session.talk(f"repaired the home of {report.peer}; its log counts on in epoch {report.epoch}")
    for path in report.kept:
        session.talk(f"kept: {documents.path(path)}")
    session.show(documents.plain(report), f"{documents.path(report.home)}\n")


def _show_rollback(session: CommandSession, report: RollbackReport) -> None:
    session.talk(f"the schema is at version {report.schema}; opening the home moves it on again")
    session.talk(f"kept: {documents.path(report.kept)}")
    session.show(documents.plain(report), f"{report.schema}\n")
