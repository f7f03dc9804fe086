"""The manifest of a backup: its files with their hashes, and the home and epoch that it is of."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from holdfast.rules.errors import BadPath, BadValue, NewerSchema, StoreCorrupt, UnsupportedProtocol
from holdfast.storage.files.blobs import check_sha
from holdfast.storage.files.copying import check_files
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.snapshot_copy import Progress, open_immutable

FORMAT: Final = 1
NAME: Final = "manifest.json"
DATABASE: Final = "data.db"
IDENTITY: Final = "identity.key"
FORMER: Final = "identity.former"
"""Only of a home that has changed its key."""
_OTHER: Final = "use another backup; nothing was changed"


class BackedFile(msgspec.Struct, frozen=True):
    """One file of a backup, by its path within."""

    path: str
    size: int
    sha256: str

    @property
    def is_blob(self) -> bool:
        return self.path.startswith("blobs/")


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a backup that is written last and read first."""

    holdfast: str = "backup"
    version: int = FORMAT
    peer: str
    epoch: int
    head: int
    """The last offset of the log."""
    schema: int
    created_at: int
    files: tuple[BackedFile, ...]
    missing: tuple[str, ...] = ()
    """Hashes of blobs that the database names and that were missing or damaged."""
    digest: str = ""
    """SHA-256 of the manifest with this field empty."""

    @property
    def blobs(self) -> list[BackedFile]:
        return [file for file in self.files if file.is_blob]

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def signed(self) -> BackupManifest:
        return msgspec.structs.replace(self, digest=_digest(self))

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"


def blob_path(sha: str) -> str:
    return f"blobs/{sha[:2]}/{sha}"


def read_manifest(source: Path) -> BackupManifest:
    """The manifest of a backup; raises if it is none, damaged, or of another format."""
    try:
        raw = (source / NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise BadPath(
            f"{source} is not a backup: it has no {NAME}", hint="name the folder of a backup"
        ) from None
    try:
        head = msgspec.json.decode(raw, type=_Head)
        if head.holdfast != "backup" or head.version != FORMAT:
            raise UnsupportedProtocol(
                f"{source} is a backup of format {head.version}; this Holdfast reads {FORMAT}",
                hint="restore it with the version of Holdfast that made it, or a newer one",
            )
        manifest = msgspec.json.decode(raw, type=BackupManifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreCorrupt(
            f"the manifest of {source} cannot be read: {error}", hint=_OTHER
        ) from None
    if manifest.digest != _digest(manifest):
        raise StoreCorrupt(f"the manifest of {source} was changed or is damaged", hint=_OTHER)
    _check_paths(source, manifest)
    return manifest


def verify(source: Path, manifest: BackupManifest, progress: Progress | None = None) -> None:
    """Reads every file of a backup and checks its database; raises if something is damaged."""
    check_files(f"the backup {source}", source, manifest.files, _OTHER, progress)
    with open_immutable(source / DATABASE) as reader:
        if reader.schema() > migrations.LATEST:
            raise NewerSchema(
                f"the backup has schema version {reader.schema()}; "
                f"this Holdfast knows {migrations.LATEST}",
                hint="upgrade Holdfast on this machine, then restore",
            )
        problems = reader.problems(ours=reader.schema() == migrations.LATEST)
        if problems:
            raise StoreCorrupt(
                f"the database in {source} does not pass its check: {problems[0]}", hint=_OTHER
            )


class _Head(msgspec.Struct):
    holdfast: str
    version: int


def _check_paths(source: Path, manifest: BackupManifest) -> None:
    """Raises unless all paths are ones that a backup can have: none leads out of its folder."""
    names = [file.path for file in manifest.files]
    if {DATABASE, IDENTITY} - set(names) or len(set(names)) != len(names):
        raise StoreCorrupt(f"the manifest of {source} is not complete", hint=_OTHER)
    for file in manifest.files:
        if file.path in (DATABASE, IDENTITY, FORMER):
            continue
        try:
            fits = file.path == blob_path(check_sha(file.sha256))
        except BadValue:
            fits = False
        if not fits:
            raise StoreCorrupt(f"{file.path!r} does not belong into a backup", hint=_OTHER)


def _digest(manifest: BackupManifest) -> str:
    bare = msgspec.structs.replace(manifest, digest="")
    return sha256(msgspec.json.encode(bare)).hexdigest()
