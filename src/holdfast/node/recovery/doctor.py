"""The doctor: what is wrong with a home, and what to do about it.

`diagnose` checks everything that it can read, also when the home cannot be opened. It changes
nothing but wrong file modes, which it reports. Each check says ok, warn or fail, in a sentence,
with a line that says what to do. It reads through a connection of its own and does not register as
a process of the home.

Repairing is done by `repair`.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.node.core.metrics import summarise
from holdfast.node.home import whereabouts
from holdfast.node.log.history import repaired_to
from holdfast.node.recovery import backup
from holdfast.node.recovery.check_audit import check_audit
from holdfast.node.recovery.check_blobs import check_blobs
from holdfast.node.recovery.check_bus import check_bus
from holdfast.node.recovery.check_clock import check_stamps, check_wall_clock
from holdfast.node.recovery.check_commits import check_commits
from holdfast.node.recovery.check_fold import compare_all, compare_some
from holdfast.node.recovery.check_links import (
    check_ballast,
    check_fill,
    check_links,
    check_readers,
    check_trust,
)
from holdfast.node.recovery.check_log import REPAIR, check_entries, check_wal
from holdfast.node.recovery.check_quorum import check_quorum
from holdfast.node.recovery.check_streams import REPAIR_STREAMS, check_streams
from holdfast.node.recovery.check_sync import check_sync
from holdfast.node.recovery.checks import Check, fail, joined_names, ok, warn
from holdfast.rules import limits
from holdfast.rules.errors import HoldfastError
from holdfast.rules.frontier import Frontier
from holdfast.rules.home_copy import HomePlace
from holdfast.rules.outbox import PARK, Policies
from holdfast.service.clock import SystemClock
from holdfast.storage.files import home as homes
from holdfast.storage.files import presence as presences
from holdfast.storage.files.blobs import FileBlobs
from holdfast.storage.files.durable import TEMPORARY_PREFIX
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.recovery.row_guard import guard_rows
from holdfast.storage.sqlite.snapshot_copy import ReadOnlyDatabase, open_read_only, read_errors
from holdfast.storage.sqlite.versions import sqlite_version, vector_version

Checks = Iterator[Check]

log = logging.getLogger("holdfast")

UNFORESEEN = "unforeseen"
"""The name of a check that ended in an error of ours."""
_BACKUP = "holdfast backup FOLDER"
_PYTHON_MIN = (3, 11)
_LISTED_MAX = 10_000


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All checks of a home, and the metrics that its processes saved."""

    home: Path
    checks: tuple[Check, ...]
    metrics: dict[str, Any]

    @property
    def worst(self) -> Literal["ok", "warn", "fail"]:
        found = {check.status for check in self.checks}
        return "fail" if "fail" in found else "warn" if "warn" in found else "ok"


def diagnose(
    home: Path,
    *,
    full: bool = False,
    policies: Policies = PARK,
    on_check: Callable[[str, int, int], None] = lambda name, number, count: None,
) -> Report:
    """Checks a home. `full` also reads every blob and folds the whole log again. `policies` are
    those of the outbox, as the settings say. `on_check` is told of each check before it begins: its
    name, its number, and how many there are.
    """
    paths = HomePaths(home)
    looks: dict[str, Callable[[], Checks]] = {
        "python": _python,
        "sqlite": _sqlite,
        "vectors": _vectors,
    }
    if home.is_dir():
        looks |= {
            "home": partial(_folder, paths, full),
            "identity": partial(_identity, paths),
            "place": partial(_place, paths),
            "disk": partial(_disk, paths),
            "processes": partial(_processes, paths),
            "kept": partial(_kept, paths),
            "database": partial(_database, paths, full, policies),
            "quorum": partial(check_quorum, paths),
        }
    checks: list[Check] = []
    for number, (name, look) in enumerate(looks.items(), 1):
        on_check(name, number, len(looks))
        checks += _guarded(name, look)
    if not home.is_dir():
        checks.append(fail("home", f"there is no folder {home}", "holdfast init --peer NAME"))
    metrics = summarise(paths.metrics) if home.is_dir() else {}
    return Report(home=home, checks=tuple(checks), metrics=metrics)


def needs_repair(home: Path) -> bool:
    """Whether something is wrong with the database that only a new one mends."""
    found = diagnose(home, full=True).checks
    return any(check.status == "fail" and check.fix == REPAIR for check in found)


def needs_streams_only(home: Path) -> bool:
    """Whether nothing is wrong with the database but what is kept of streams."""
    found = diagnose(home, full=True).checks
    fixes = {check.fix for check in found if check.status == "fail"}
    return REPAIR_STREAMS in fixes and REPAIR not in fixes


def _guarded(name: str, look: Callable[[], Checks]) -> Checks:
    """The results of a check; one that fails becomes a result itself, so that the others go on."""
    try:
        with read_errors():
            yield from look()
    except HoldfastError as error:
        yield fail(name, error.message, error.hint)
    except OSError as error:
        yield fail(name, str(error), "check who owns the home, its modes and its disk")
    except Exception as error:
        # No check foresaw this, and it must not keep the others from speaking. Tests see to it that
        # damage never gets here.
        log.exception("the doctor could not check %s", name)
        yield fail(UNFORESEEN, f"{name} could not be checked: {error!r}", REPAIR)


# --- the machine and the folder ------------------------------------------------------------------


def _python() -> Checks:
    version = platform.python_version()
    if sys.version_info < _PYTHON_MIN:
        yield fail("python", f"Python {version} is too old", "use Python 3.11 or newer")
    else:
        yield ok("python", f"Python {version}")


def _sqlite() -> Checks:
    yield ok("sqlite", f"SQLite {sqlite_version()}")


def _vectors() -> Checks:
    yield ok("vectors", f"sqlite-vec {vector_version()} loads")


def _folder(paths: HomePaths, full: bool) -> Checks:
    for mended in homes.check_modes(paths, full=full):
        yield warn("home", mended, "find out who changes modes there; nothing more is to be done")
    yield ok("home", f"{paths.root} is ours, for our eyes only")


def _identity(paths: HomePaths) -> Checks:
    fix = "restore it from a backup: it is in every one"
    try:
        size = paths.identity.stat().st_size
    except FileNotFoundError:
        yield fail("identity", f"{paths.identity} is missing", fix)
        return
    if size != homes.IDENTITY_BYTES:
        yield fail("identity", f"{paths.identity} is not a key of Holdfast", fix)
    else:
        yield ok("identity", "the key of this node is there")


def _place(paths: HomePaths) -> Checks:
    """Whether the home is where a daemon served it last."""
    found = whereabouts.place(paths)
    if found.suspicious:
        where = "on another machine" if found is HomePlace.OTHER_HOST else "as other files"
        yield warn(
            "place",
            f"the home was last served {where}: it was copied or moved",
            "if the original is gone: holdfast up --moved; else make a home of its own here",
        )
    else:
        yield ok("place", "the home is where it was served last")


def _disk(paths: HomePaths) -> Checks:
    free = shutil.disk_usage(paths.root).free
    message = f"{free // limits.MIB} MiB are free"
    if free < limits.DISK_FREE_MIN_BYTES:
        yield fail("disk", f"{message}: writes may be refused", "free some space")
    elif free < limits.DISK_FREE_WARN_BYTES:
        yield warn("disk", message, "free some space before it is needed")
    else:
        yield ok("disk", message)


def _processes(paths: HomePaths) -> Checks:
    there = [f"{other.pid} ({other.command})" for other in presences.others(paths)]
    yield ok("processes", f"open in {joined_names(there)}" if there else "open in no other process")
    for ended in presences.unclean(paths):
        yield warn(
            "unclean",
            f"process {ended.pid} ({ended.command}) ended without closing the home",
            "nothing: the next opening checks the database first",
        )


def _kept(paths: HomePaths) -> Checks:
    """Files that a restore, repair or rollback has kept, and those that an interrupted one left."""
    names = sorted(os.listdir(paths.root))
    labels = (".corrupt-", ".before-restore-", ".before-rollback-")
    kept = [name for name in names if any(label in name for label in labels)]
    if kept:
        yield ok("kept", f"{joined_names(kept)} from before: remove when no longer needed")
    left = [name for name in names if name.startswith(TEMPORARY_PREFIX)]
    if left and not presences.others(paths):
        yield warn("kept", f"{joined_names(left)} was left by work that was cut short", "remove it")


# --- the database --------------------------------------------------------------------------------


def _database(paths: HomePaths, full: bool, policies: Policies) -> Checks:
    if not paths.database.exists():
        yield fail("database", f"{paths.database} is missing", "restore a backup: holdfast restore")
        return
    wal = homes.size_of(paths.wal)
    if wal > 2 * limits.WAL_BYTES_MAX:
        what = f"the WAL has grown to {wal // limits.MIB} MiB: something has been reading for long"
        yield warn("wal", what, "end long reads, exports and backups; it shrinks after the next")
    else:
        yield ok("wal", f"the WAL has {wal // limits.KIB} KiB")
    if not presences.others(paths):
        yield from _guarded("wal", partial(check_wal, paths.wal))
    with open_read_only(paths.database) as reader:
        yield from _guarded("database", partial(_schema, reader))
        if reader.schema() != migrations.LATEST:
            return
        guard_rows(reader.connection)
        problems = reader.problems()
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            yield fail("database", f"{problems[0]}{more}", REPAIR)
        else:
            yield ok("database", "the integrity check finds nothing, and our own rules hold")
        # Also after a failed check: what can be read shows how much is affected.
        peer = reader.peer_name() or ""
        if full:
            yield from _guarded("entries", partial(check_entries, reader))
        yield from _guarded("log", partial(_log, reader, peer, full))
        yield from _guarded("consumers", partial(_consumers, reader))
        yield from _guarded("conflicts", partial(_conflicts, reader))
        blobs, now_ms = FileBlobs(paths.blobs), SystemClock().now_ms()
        yield from _guarded("clock", partial(check_stamps, reader, now_ms))
        yield from _guarded("clock", partial(check_wall_clock, reader, now_ms))
        yield from _guarded("trust", partial(check_trust, reader, now_ms))
        yield from _guarded("links", partial(check_links, reader, paths, now_ms))
        yield from _guarded("sync", partial(check_sync, reader, now_ms, policies))
        yield from _guarded("bus", partial(check_bus, reader, now_ms))
        yield from _guarded("streams", partial(check_streams, reader, peer, full=full))
        yield from _guarded("commits", partial(check_commits, reader, peer, full=full))
        yield from _guarded("audit", partial(check_audit, reader, full=full))
        look = partial(check_blobs, reader, blobs, peer, now_ms, full=full)
        yield from _guarded("blobs", look)
        yield from _guarded("backup", partial(_backup, reader, now_ms))
    yield from _guarded("fill", partial(check_fill, paths))
    yield from _guarded("ballast", partial(check_ballast, paths))


def _schema(reader: ReadOnlyDatabase) -> Checks:
    found = reader.schema()
    if found > migrations.LATEST:
        yield fail(
            "schema",
            f"the database has schema version {found}; this Holdfast knows {migrations.LATEST}",
            "upgrade Holdfast on this machine",
        )
    elif found < migrations.LATEST:
        yield warn(
            "schema",
            f"the database has schema version {found} of {migrations.LATEST}",
            "open the home: it goes on from there",
        )
    else:
        yield ok("schema", f"schema version {found}")


def _log(reader: ReadOnlyDatabase, peer: str, full: bool) -> Checks:
    first, head = reader.log_bounds()
    mark = f"epoch {reader.epoch()}, offsets {first} to {head}"
    # What a repair could not save is missing in the log for good; only later entries are complete.
    repaired = repaired_to(reader)
    since = first if repaired is None else max(first, repaired + 1)
    whole = first == 1 and repaired is None
    compared = compare_all(reader, peer) if full and whole else compare_some(reader, since)
    if compared.differences:
        count = len(compared.differences)
        what = f"{compared.differences[0]} ({count} differences between tables and log)"
        yield fail("log", what, REPAIR)
    elif full and not whole:
        what = f"{mark}; {compared.number} samples agree with it"
        yield ok("log", f"{what}; it is whole from {since} on, so not all can be compared")
    else:
        yield ok("log", f"{mark}; {compared.number} {'rows' if full else 'samples'} agree with it")


def _consumers(reader: ReadOnlyDatabase) -> Checks:
    head = reader.log_bounds()[1]
    rows = reader.consumer_list()
    for row in rows:
        frontier = Frontier.decode(row.frontier)
        retire = f"holdfast consumer retire {row.name}"
        if frontier.last > head:
            what = f"{row.name} has confirmed offset {frontier.last}, but the log ends at {head}"
            yield fail("consumers", what, f"{retire}, then register it again")
        elif head - frontier.prefix > limits.CONSUMER_LAG_WARN:
            what = (
                f"{row.name} is {head - frontier.prefix} entries behind, and the log waits for it"
            )
            yield warn("consumers", what, f"start it, or forget it: {retire}")
    yield from check_readers(rows, head)
    yield ok("consumers", f"{len(rows)} readers of the log are registered")


def _conflicts(reader: ReadOnlyDatabase) -> Checks:
    rows = reader.conflict_list(None, open_only=True, after=0, limit=_LISTED_MAX)
    count = f"{len(rows)}{' or more' if len(rows) == _LISTED_MAX else ''}"
    if rows:
        yield warn("conflicts", f"{count} conflicts are open", "holdfast conflict list")
    else:
        yield ok("conflicts", "no conflict is open")


def _backup(reader: ReadOnlyDatabase, now_ms: int) -> Checks:
    job = reader.job_get(backup.JOB)
    if job is None:
        if reader.log_bounds()[1]:
            yield warn("backup", "no backup was ever made", _BACKUP)
        return
    days = (now_ms - job.updated_at) // limits.DAY_MS
    what = f"the last backup is {days} days old: {job.cursor.get('path', '')}"
    if now_ms - job.updated_at > limits.BACKUP_AGE_WARN_MS:
        yield warn("backup", what, _BACKUP)
    else:
        yield ok("backup", what)
