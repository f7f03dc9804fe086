"""Backups of a home: made while it is in use, checked before they are trusted, restored whole.

    <backup>/data.db            one consistent state of the database
            /blobs/ab/<sha256>  the content that this state names
            /identity.key       0600: its owner can speak for this node
            /identity.former    how its earlier keys signed the ones after them, if it had others
            /manifest.json      the list of its files, with their hashes

The Raft logs (`quorum.db`) are left out: a voter that came back with an old one could vote twice.

A backup is written under a temporary name and renamed at the end, so a folder with the final name
is whole.

**Restoring may take the log back in time.** Readers of the log hold cursors into offsets that the
restored log gives out a second time, and peers hold stamps that its clocks would repeat. So a
restored home counts on in an epoch above every one that is known of it, and its clocks skip ahead
(`RESTORE_LAMPORT_SKIP`), both in the restored database before it takes its place.

A restore deletes nothing. The old database, Raft logs and blobs stay in the home under names that
end in `before-restore-<time>`. A crash at any moment leaves the old home or the new one: the
content of blobs only adds to what is there, and the database takes its place in one rename.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Final

import msgspec

from holdfast.node.home.exclusive import exclusive
from holdfast.node.home.opening import LogMark, read_mark
from holdfast.node.library.node import Node
from holdfast.node.recovery.backup_manifest import (
    DATABASE,
    FORMER,
    IDENTITY,
    NAME,
    BackedFile,
    BackupManifest,
    blob_path,
    read_manifest,
    verify,
)
from holdfast.rules import limits
from holdfast.rules.errors import (
    AlreadyExists,
    BadPath,
    BlobCorrupt,
    BlobMissing,
    HoldfastError,
    StoreCorrupt,
)
from holdfast.rules.lamport import after_loss
from holdfast.rules.paths import check_place
from holdfast.rules.rows import JobRow
from holdfast.rules.structs import copy_to
from holdfast.service.clock import SystemClock
from holdfast.storage.files import backup_lock
from holdfast.storage.files import home as homes
from holdfast.storage.files.blobs import BlobFile, FileBlobs
from holdfast.storage.files.copying import copy_hashed, flush_file, hash_file, new_file
from holdfast.storage.files.durable import (
    TEMPORARY_PREFIX,
    Draft,
    drafting,
    durable_replace,
    fsync_dir,
    make_folder,
    rename_folder,
)
from holdfast.storage.files.home import HomePaths
from holdfast.storage.ports import Transaction
from holdfast.storage.scans import blob_rows
from holdfast.storage.sqlite.recovery import swap
from holdfast.storage.sqlite.snapshot_copy import (
    Progress,
    ReadOnlyDatabase,
    copy_database,
    open_immutable,
    open_read_only,
)
from holdfast.storage.sqlite.store import SqliteStore

log = logging.getLogger("holdfast")

JOB: Final = "backup"
"""The row of the job table that says when the last backup was made; the doctor reads it."""


class BackupReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup holds."""

    target: Path
    peer: str
    epoch: int
    head: int
    blobs: int
    bytes: int
    missing: tuple[str, ...]
    """Hashes of content that the database names and the backup lacks: it was missing or damaged."""


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a restored home holds, and where the files from before are now."""

    home: Path
    peer: str
    epoch: int
    head: int
    blobs: int
    missing: tuple[str, ...]
    aside: tuple[Path, ...]


# --- making one --------------------------------------------------------------------------------


def backup(node: Node, target: Path, progress: Progress | None = None) -> BackupReport:
    """Copies an open home into a new folder, while others go on writing."""
    paths = HomePaths(node.home)
    target = Path(check_place(str(target), "the folder of the backup")).absolute()
    _check_target(target, paths)
    staging = target.parent / f"{TEMPORARY_PREFIX}{target.name}-{os.urandom(4).hex()}"
    now_ms = node._engine.ctx.now_ms()
    try:
        make_folder(staging)
        with backup_lock.holding(paths):
            manifest = _fill(staging, paths, now_ms, progress)
        durable_replace(staging / NAME, manifest.encode())
        rename_folder(staging, target)
    except BaseException:
        # Only ours, and not a backup yet: it has a temporary name.
        shutil.rmtree(staging, ignore_errors=True)
        raise
    report = copy_to(
        BackupReport,
        manifest,
        target=target,
        blobs=len(manifest.blobs),
        bytes=manifest.total_bytes,
    )
    _note(node, report, now_ms)
    return report


def _check_target(target: Path, paths: HomePaths) -> None:
    if target.resolve().is_relative_to(paths.root.resolve()):
        raise BadPath(
            f"{target} lies inside the home that it is to save", hint="choose another folder"
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise AlreadyExists(f"{target} exists already", hint="choose a new folder for each backup")
    if not target.parent.is_dir():
        raise BadPath(f"there is no folder {target.parent}", hint="create it first")


def _fill(
    staging: Path, paths: HomePaths, now_ms: int, progress: Progress | None
) -> BackupManifest:
    database = staging / DATABASE
    with new_file(database):
        pass  # so that the file has its mode from the first byte on
    copy_database(paths.database, database, progress)
    flush_file(database)
    hashed = hash_file(database)
    assert hashed is not None, "it was copied a moment ago"
    with open_immutable(database) as reader:
        problems = reader.problems()
        if problems:
            raise StoreCorrupt(f"{paths.database} does not pass its check: {problems[0]}")
        blobs, missing = _copy_blobs(reader, paths, staging, progress)
        files = [BackedFile(DATABASE, hashed.size, hashed.sha256)]
        files += _copy_keys(paths, staging)
        return BackupManifest(
            peer=reader.peer_name() or "",
            epoch=reader.epoch(),
            head=reader.log_bounds()[1],
            schema=reader.schema(),
            created_at=now_ms,
            files=(*files, *blobs),
            missing=tuple(missing),
        ).signed()


def _copy_keys(paths: HomePaths, staging: Path) -> list[BackedFile]:
    found = [(IDENTITY, paths.identity)]
    if paths.identity_former.exists():
        found.append((FORMER, paths.identity_former))
    files = []
    for name, path in found:
        with open(path, "rb") as source:
            copied = copy_hashed(source, staging / name)
        files.append(BackedFile(name, copied.size, copied.sha256))
    return files


def _copy_blobs(
    reader: ReadOnlyDatabase, paths: HomePaths, staging: Path, progress: Progress | None
) -> tuple[list[BackedFile], list[str]]:
    """Copies the blobs that the database names; returns them, and the hashes of missing or damaged
    ones.
    """
    source = FileBlobs(paths.blobs)
    copied: list[BackedFile] = []
    missing: list[str] = []
    folders = {staging / "blobs"}
    make_folder(staging / "blobs")
    done, total = 0, sum(blob.size for blob in blob_rows(reader))
    for blob in blob_rows(reader):
        path = blob_path(blob.sha256)
        target = staging / path
        if target.parent not in folders:
            make_folder(target.parent)
            folders.add(target.parent)
        try:
            with source.open(blob.sha256) as content:
                copy = copy_hashed(content, target)
        except (BlobMissing, BlobCorrupt):
            missing.append(blob.sha256)
            continue
        copied.append(BackedFile(path, copy.size, copy.sha256))
        done += blob.size
        if progress is not None:
            progress(done, total)
    for folder in folders:
        fsync_dir(folder)
    return copied, missing


def _note(node: Node, report: BackupReport, now_ms: int) -> None:
    row = _made(report.target, report.bytes, report.head, now_ms)
    try:
        node._engine.write("backup", lambda tx: tx.job_put(row))
    except HoldfastError as error:
        # The backup is made; only the note about it is not.
        log.warning("the backup in %s could not be noted: %s", report.target, error.message)


def _made(place: Path, size: int, head: int, at_ms: int) -> JobRow:
    cursor = {"path": str(place), "bytes": size, "head": head}
    return JobRow(name=JOB, cursor=cursor, updated_at=at_ms)


# --- restoring one -----------------------------------------------------------------------------


def restore(
    source: Path, home: Path, *, force: bool = False, progress: Progress | None = None
) -> RestoreReport:
    """Makes a home from a backup. `force` also replaces a home that is there, and keeps its
    files.
    """
    manifest = read_manifest(source)
    paths = HomePaths(home)
    _check_place(paths, force)
    verify(source, manifest, progress)
    _check_identity(paths, source)
    _make_folders(paths)
    with exclusive(paths, "restore") as still_alone:
        swap.undo_half_swap(paths)
        _put_blobs(source, manifest, paths)
        epoch, clocks = _known_past(paths)
        with drafting(paths.root) as draft:
            _copy_in(source / DATABASE, manifest, draft)
            made = _made(
                source.absolute(), manifest.total_bytes, manifest.head, manifest.created_at
            )
            mark = count_on(draft.path, max(epoch, manifest.epoch) + 1, clocks, made)
            still_alone()
            aside = _take_place(paths, source, draft)
        durable_replace(paths.mark, msgspec.json.encode(mark))
        homes.check_modes(paths)
    return RestoreReport(
        home=home,
        peer=manifest.peer,
        epoch=mark.epoch,
        head=mark.offset,
        blobs=len(manifest.blobs),
        missing=manifest.missing,
        aside=tuple(aside),
    )


def _check_place(paths: HomePaths, force: bool) -> None:
    """Raises unless the folder is empty, holds the remains of a home, or a home with `force`."""
    root = paths.root
    if not root.exists():
        return
    if not root.is_dir():
        raise AlreadyExists(f"{root} is not a folder", hint="choose another folder")
    ours = {path.name for path in (*paths.folders, *paths.files)}
    names = {name for name in os.listdir(root) if not name.startswith(TEMPORARY_PREFIX)}
    if names and not names & ours:
        raise AlreadyExists(
            f"{root} is not empty and not a Holdfast home", hint="choose another folder"
        )
    if paths.database.exists() and not force:
        raise AlreadyExists(
            f"{root} is a Holdfast home already",
            hint="choose another folder, or --force: the files of the old home are kept",
        )


def _check_identity(paths: HomePaths, source: Path) -> None:
    """Raises if the home there has another key: key and database cannot be replaced in one step."""
    if _has_key(paths) and paths.identity.read_bytes() != (source / IDENTITY).read_bytes():
        raise AlreadyExists(
            f"the home in {paths.root} has another identity than the backup",
            hint="restore into another folder",
        )


def _has_key(paths: HomePaths) -> bool:
    return paths.identity.exists() and paths.identity.stat().st_size == homes.IDENTITY_BYTES


def _make_folders(paths: HomePaths) -> None:
    missing = [folder for folder in (paths.root, *paths.root.parents) if not folder.exists()]
    for folder in (*reversed(missing), *paths.folders):
        make_folder(folder)
    homes.check_modes(paths)


def _put_blobs(source: Path, manifest: BackupManifest, paths: HomePaths) -> None:
    """Adds the blobs of the backup to those that are there: the old home is not affected."""
    blobs = FileBlobs(paths.blobs)
    for file in manifest.blobs:
        put = blobs.put(source / file.path)
        if put.sha256 != file.sha256:
            raise StoreCorrupt(f"{file.path} in {source} changed while it was restored")


def _known_past(paths: HomePaths) -> tuple[int, dict[str, int]]:
    """The highest epoch and clocks that the home there, or what remains of it, shows."""
    mark = read_mark(paths)
    epoch, clocks = (0 if mark is None else mark.epoch), {}
    if paths.database.exists():
        try:
            with open_read_only(paths.database) as reader:
                epoch = max(epoch, reader.epoch())
                clocks = {mesh.slug: mesh.lamport for mesh in reader.mesh_list()}
        except HoldfastError as error:
            # Its damage may be the reason for the restore.
            log.warning("the epoch of %s cannot be read: %s", paths.database, error.message)
    return epoch, clocks


def _copy_in(database: Path, manifest: BackupManifest, draft: Draft) -> None:
    with open(database, "rb") as content:
        while chunk := content.read(limits.BLOB_CHUNK_BYTES):
            draft.write(chunk)
    expected = next(file for file in manifest.files if file.path == DATABASE)
    found = hash_file(draft.path)
    if found is None or found.sha256 != expected.sha256:
        raise StoreCorrupt(f"{database} changed while it was restored")


def count_on(
    database: Path, epoch: int, clocks: dict[str, int], made: JobRow | None = None
) -> LogMark:
    """Sets the epoch of a restored log, and its clocks beyond every stamp that they gave. `made`
    says which backup it comes from: the copy is older than the note about itself.
    """

    def work(tx: Transaction) -> LogMark:
        tx.set_epoch(epoch)
        if made is not None:
            tx.job_put(made)
        for mesh in tx.mesh_list():
            latest = max(mesh.lamport, clocks.get(mesh.slug, 0))
            skip = limits.RESTORE_LAMPORT_SKIP
            tx.clock_raise(mesh.slug, after_loss(latest, skip, SystemClock().now_ms()))
        return LogMark(epoch, tx.log_bounds()[1])

    try:
        store = SqliteStore(database)
        try:
            mark = store.write(work)
        finally:
            store.stop()
        swap.refuse_leftover_wal(database)
    finally:
        swap.remove_companions(database)
    return mark


def _take_place(paths: HomePaths, source: Path, draft: Draft) -> list[Path]:
    """Puts the draft in the place of the database; returns the files that were kept."""
    label = swap.fresh_label(paths.root, "before-restore", SystemClock().now_ms())
    # Before the database: if it ends here, the old home has to rejoin its groups, which is safe.
    aside = swap.move_raft_logs(paths, label)
    if paths.database.exists():
        swap.absorb_wal(paths)
        aside += _keep_blobs(paths, label)
    if not _has_key(paths):
        aside += [kept] if (kept := swap.keep_aside(paths.identity, label)) else []
        durable_replace(paths.identity, (source / IDENTITY).read_bytes())
    if (source / FORMER).exists() and not paths.identity_former.exists():
        durable_replace(paths.identity_former, (source / FORMER).read_bytes())
    return [*swap.swap_database(paths, draft, label), *aside]


def _keep_blobs(paths: HomePaths, label: str) -> list[Path]:
    """Gives the old blobs second names: the sweep will remove those that the new database does not
    name.
    """
    aside = paths.blobs.with_name(f"{paths.blobs.name}.{label}")
    for found in FileBlobs(paths.blobs).scan():
        if isinstance(found, BlobFile):
            path = Path(blob_path(found.sha)).relative_to("blobs")
            make_folder(aside)
            make_folder(aside / path.parent)
            swap.second_name(paths.blobs / path, aside / path)
    return [aside] if aside.exists() else []
