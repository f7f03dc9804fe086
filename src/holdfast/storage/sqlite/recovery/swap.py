"""Another database in the place of the one that is there, which is kept under another name.

    data.db  data.db-wal        ->   data.db.corrupt-20261115T101500Z  …-wal
    data.db (the new one)

The old files get a second name first (a hard link, or a copy where there are none), so at every
moment and after any crash the old content is there under one of its names. The new database takes
the name in one rename.

A WAL belongs to its database: an old one beside a new database would be played into it. So it must
be gone before the rename. A healthy database swallows its WAL beforehand (`absorb_wal`), and then a
crash leaves either the old one or the new one, whole. Only a database too damaged for that is
without its WAL for a moment; if the crash comes just there, `undo_half_swap` puts it back.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import apsw

from holdfast.rules.errors import HoldfastError, StoreBusy, StoreFailed
from holdfast.storage.files.durable import Draft, disk_errors, drafting, fsync_dir, rename_file
from holdfast.storage.files.home import HomePaths, size_of, status_of
from holdfast.storage.sqlite.connection import connect, typed

_COPY_BYTES: Final = 1024 * 1024
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV, errno.ENOSYS)
"""What file systems say that have no hard links, or none for this file."""


def fresh_label(folder: Path, kind: str, now_ms: int) -> str:
    """`corrupt-20261115T101500Z`: an ending that no file here has yet."""
    time = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    label, count = f"{kind}-{time}", 1
    while any(f".{label}" in name for name in os.listdir(folder)):
        count += 1
        label = f"{kind}-{time}.{count}"
    return label


def absorb_wal(paths: HomePaths) -> bool:
    """All of the WAL goes into the database, and no WAL remains. False if it is too damaged."""
    try:
        with closing(connect(paths.database)) as connection:
            left, done = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except (apsw.Error, HoldfastError) as error:
        known = typed(error)
        if isinstance(known, StoreBusy):
            raise known from error
        return False
    if left != done or size_of(paths.wal):
        raise StoreBusy(f"{paths.database} is in use: its WAL could not be emptied")
    return True


def keep_aside(path: Path, label: str) -> Path | None:
    """A second name for a file, so that the first may go. None if there is no such file."""
    aside = path.with_name(f"{path.name}.{label}")
    return aside if second_name(path, aside) else None


def swap_database(paths: HomePaths, draft: Draft, label: str) -> list[Path]:
    """The draft becomes the database; the names under which the old files remain are returned."""
    database = paths.database.with_name(f"{paths.database.name}.{label}")
    # In this order: a WAL beside the old name without a database there would mean nothing.
    pairs = [(paths.database, database), *_companions(paths, database)]
    kept = [aside for path, aside in pairs if second_name(path, aside)]
    fsync_dir(paths.root)
    try:
        for path in (paths.wal, paths.shm):
            with disk_errors(f"remove {path}"):
                path.unlink(missing_ok=True)
        draft.publish(paths.database)
    except BaseException:
        undo_half_swap(paths)
        raise
    return kept


def move_raft_logs(paths: HomePaths, label: str) -> list[Path]:
    """The Raft logs get other names, and the home has none. The database first: without its WAL it
    would look whole, and be older.
    """
    kept = paths.quorum.with_name(f"{paths.quorum.name}.{label}")
    moved = []
    for path, aside in (
        (paths.quorum, kept),
        (paths.quorum_wal, kept.with_name(f"{kept.name}-wal")),
    ):
        if status_of(path) is not None:
            rename_file(path, aside)
            moved.append(aside)
    with disk_errors(f"remove {paths.quorum_shm}"):
        paths.quorum_shm.unlink(missing_ok=True)
    return moved


def undo_half_swap(paths: HomePaths) -> bool:
    """Gives a database its WAL back, where a swap ended between taking it away and the rename."""
    if not paths.database.exists() or paths.wal.exists():
        return False
    for aside in sorted(paths.root.glob(f"{paths.database.name}.*")):
        wal = aside.with_name(f"{aside.name}-wal")
        if wal.exists() and aside.samefile(paths.database):
            second_name(wal, paths.wal)
            fsync_dir(paths.root)
            return True
    return False


def remove_companions(database: Path) -> None:
    """The WAL and index of a draft that was given up. Nothing else ever loses them this way."""
    for ending in ("-wal", "-shm"):
        path = database.with_name(f"{database.name}{ending}")
        with disk_errors(f"remove {path}"):
            path.unlink(missing_ok=True)


def refuse_leftover_wal(database: Path) -> None:
    """A database that is about to be renamed must be whole in its one file."""
    wal = database.with_name(f"{database.name}-wal")
    if size_of(wal):
        raise StoreFailed(f"{database} did not take in its WAL when it was closed")


def _companions(paths: HomePaths, database: Path) -> Iterator[tuple[Path, Path]]:
    for path, ending in ((paths.wal, "-wal"), (paths.shm, "-shm")):
        yield path, database.with_name(f"{database.name}{ending}")


def second_name(path: Path, aside: Path) -> bool:
    """A hard link, or a copy where there are none. False if there is no such file."""
    with disk_errors(f"keep {path} as {aside.name}"):
        try:
            os.link(path, aside)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return _copy(path, aside)
    return True


def _copy(path: Path, target: Path) -> bool:
    try:
        source = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        return False
    with source, drafting(target.parent) as draft:
        while chunk := source.read(_COPY_BYTES):
            draft.write(chunk)
        draft.publish(target)
    return True
