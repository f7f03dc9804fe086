"""Whole files copied with their hash, and whole folders that appear at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Protocol

from holdfast.rules.errors import StoreCorrupt
from holdfast.rules.limits import BLOB_CHUNK_BYTES
from holdfast.storage.files.durable import FILE_MODE, SHARED_FILE_MODE, disk_errors, flush

# A link or a pipe where a file belongs must neither be followed nor block us.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


class Hashed(NamedTuple):
    """What a file holds, in short."""

    sha256: str
    size: int


def hash_file(path: Path) -> Hashed | None:
    """None if it is not there. Never for a database that this process has open."""
    with disk_errors(f"read {path}"):
        try:
            fd = os.open(path, _READ)
        except FileNotFoundError:
            return None
        with open(fd, "rb", buffering=0) as source:
            hashing, size = sha256(), 0
            while chunk := source.read(BLOB_CHUNK_BYTES):
                hashing.update(chunk)
                size += len(chunk)
        return Hashed(hashing.hexdigest(), size)


def copy_hashed(source: BinaryIO, target: Path) -> Hashed:
    """A new file, flushed; its folder is the caller's to flush. The hash is of what was written."""
    with new_file(target) as fd, disk_errors(f"write {target}"):
        hashing, size = sha256(), 0
        while chunk := source.read(BLOB_CHUNK_BYTES):
            hashing.update(chunk)
            size += len(chunk)
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(fd, rest) :]
        flush(fd, target)
        return Hashed(hashing.hexdigest(), size)


@contextmanager
def new_file(path: Path, *, private: bool = True) -> Iterator[int]:
    """A file that was not there: for our eyes only, whatever the umask, or if it is not private
    with the mode that the umask leaves.
    """
    mode = FILE_MODE if private else SHARED_FILE_MODE
    with disk_errors(f"create {path}"):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        if private:
            with disk_errors(f"set the mode of {path}"):
                os.fchmod(fd, FILE_MODE)
        yield fd
    finally:
        os.close(fd)


def flush_file(path: Path) -> None:
    """What others wrote into this file is safe now. Never for a database that is open here."""
    with disk_errors(f"open {path}"):
        fd = os.open(path, _READ)
    try:
        flush(fd, path)
    finally:
        os.close(fd)


class ListedFile(Protocol):
    """A file as a manifest lists it."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def sha256(self) -> str: ...


def check_files(
    what: str,
    folder: Path,
    files: Sequence[ListedFile],
    hint: str,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Reads every file that a manifest lists; raises StoreCorrupt if one is missing or changed.

    `what` names the folder in errors; `progress` is called with bytes done, and with all bytes.
    """
    done, total = 0, sum(file.size for file in files)
    for file in files:
        found = hash_file(folder / file.path)
        if found is None:
            raise StoreCorrupt(f"{file.path} is missing in {what}", hint=hint)
        if found != Hashed(file.sha256, file.size):
            raise StoreCorrupt(f"{file.path} in {what} is not what the manifest says", hint=hint)
        done += file.size
        if progress is not None:
            progress(done, total)
