"""The one way in which Holdfast puts a file on the disk.

A file appears under its name only when it is whole and safe: it is written under a temporary name
in the same file system, flushed to the disk, renamed, and then the folder is flushed too, because a
rename is a change of the folder. A reader of the name, at any moment and after any crash, sees the
old content or the new.

A failed flush is final. The kernel may have dropped the pages, so a second flush would report a
success that never happened; the temporary file goes away and the caller gets the error.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from holdfast.rules.errors import DiskFull, NotOurs, StoreFailed
from holdfast.rules.limits import BLOB_CHUNK_BYTES

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
SHARED_FILE_MODE: Final = 0o666
SHARED_FOLDER_MODE: Final = 0o777
"""What others may do with a lake is for the umask to say: executors may run as another user."""
TEMPORARY_PREFIX: Final = ".tmp-"
"""No name of ours begins so. What a crash leaves behind is known by it."""

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""What the system says where nothing more fits."""
_HINTS: Final = {
    errno.EROFS: "the file system is mounted read-only; make it writable, then reopen the home",
    errno.EACCES: "check who owns the home and its modes; run: holdfast doctor",
    errno.EPERM: "check who owns the home and its modes; run: holdfast doctor",
    errno.EMFILE: "this process has too many open files; close some or raise the limit",
    errno.ENFILE: "the machine has too many open files; end what holds them and retry",
}


@contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Turns what the operating system says into an error that a caller can act on."""
    try:
        yield
    except OSError as error:
        message = f"could not {doing}: {error.strerror or error}"
        if error.errno in FULL:
            raise DiskFull(message) from error
        raise StoreFailed(message, hint=_HINTS.get(error.errno or 0)) from error


class Draft:
    """A file on its way: written under a temporary name, then published or discarded."""

    __slots__ = ("_fd", "path", "size")

    def __init__(self, folder: Path, *, private: bool = True) -> None:
        with disk_errors(f"create a file in {folder}"):
            self._fd, self.path = create_temporary(folder, private=private)
        self.size = 0

    def fileno(self) -> int:
        return self._fd

    def write(self, data: bytes) -> int:
        """All of it or an error; a short write of the kernel is carried on."""
        rest = memoryview(data)
        with disk_errors(f"write {self.path}"):
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        self.size += len(data)
        return len(data)

    def publish(self, target: Path) -> None:
        """Give it its name. On return it is there after any crash; on an error see `fsync_dir`."""
        with disk_errors(f"make {target} durable"):
            _flush(self._fd)
            fd, self._fd = self._fd, -1
            os.close(fd)
            os.replace(self.path, target)
        self.path = target
        fsync_dir(target.parent)

    def discard(self) -> None:
        """Remove it, unless it was published: safe to call at any time, any number of times."""
        with disk_errors(f"remove {self.path}"):
            if self._fd >= 0:
                fd, self._fd = self._fd, -1
                os.close(fd)
            if self.path.name.startswith(TEMPORARY_PREFIX):
                self.path.unlink(missing_ok=True)


@contextmanager
def drafting(folder: Path, *, private: bool = True) -> Iterator[Draft]:
    """A draft in this folder that is discarded at the end unless it was published."""
    draft = Draft(folder, private=private)
    try:
        yield draft
    except BaseException as error:
        try:
            draft.discard()
        except (DiskFull, StoreFailed) as left:
            # The first error says what went wrong; a leftover is found by its name later.
            error.add_note(left.message)
        raise
    draft.discard()


@contextmanager
def durable_writer(path: Path, *, private: bool = True) -> Iterator[Draft]:
    """Write a stream; it replaces the file at the end of the block, or not at all on an error."""
    with drafting(path.parent, private=private) as draft:
        yield draft
        draft.publish(path)


def durable_replace(path: Path, data: bytes, *, private: bool = True) -> None:
    """The file holds exactly these bytes and survives a power cut. Its mode is 0600, or if it is
    not private what the umask leaves.
    """
    with durable_writer(path, private=private) as draft:
        draft.write(data)


def rename_folder(source: Path, target: Path) -> None:
    """A folder takes its name, with all that is in it, and keeps it after a power cut.

    Its content must be flushed before. A target that exists must be an empty folder.
    """
    fsync_dir(source)
    with disk_errors(f"rename {source} to {target}"):
        os.rename(source, target)
    fsync_dir(target.parent)


def rename_file(source: Path, target: Path) -> None:
    """A file takes its name, in place of one that may have it, and keeps it after a power cut.

    Its content must be flushed before.
    """
    with disk_errors(f"make {target} durable"):
        os.replace(source, target)
    fsync_dir(target.parent)


def fsync_dir(folder: Path) -> None:
    """What was renamed into this folder is safe now.

    When this fails after a rename, the new file is whole and visible, but a power cut may bring
    the old one back.
    """
    with disk_errors(f"make {folder} durable"):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _flush(fd)
        finally:
            os.close(fd)


def flush(fd: int, what: Path) -> None:
    """What was written through any descriptor of this file is safe now."""
    with disk_errors(f"make {what} durable"):
        _flush(fd)


def make_folder(path: Path, *, private: bool = True) -> None:
    """A folder for our eyes only, whatever the umask; if it is not private, with the mode that the
    umask leaves. It may be there already.

    Durable on return in either case: one that we find may have been made a moment ago, by a
    process that has not come to the flush yet or whose flush failed.
    """
    with disk_errors(f"create the folder {path}"):
        try:
            os.mkdir(path, FOLDER_MODE if private else SHARED_FOLDER_MODE)
            if private:
                os.chmod(path, FOLDER_MODE)
        except FileExistsError:
            pass
    fsync_dir(path.parent)


def refuse_links(*folders: Path) -> None:
    """Nothing in a home is followed to elsewhere: not to write, to read or to remove."""
    for folder in folders:
        if os.path.islink(folder):
            raise NotOurs(
                f"{folder} is a symbolic link where a folder belongs",
                hint="put the folder itself there",
            )


def create_temporary(folder: Path, *, private: bool = True) -> tuple[int, Path]:
    """A new empty file under a temporary name: its descriptor and path."""
    path = folder / f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}"
    mode = FILE_MODE if private else SHARED_FILE_MODE
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        if private:
            # The umask may have taken more away than we asked for.
            os.fchmod(fd, FILE_MODE)
    except BaseException:
        os.close(fd)
        os.unlink(path)
        raise
    return fd, path


def appear_locked(path: Path, content: bytes, held: dict[str, int]) -> None:
    """A small file that nobody ever sees without its lock, until its descriptor is closed, which
    stands in `held` under the file's name before it is locked.

    Not flushed, so the one thing here that a power cut may take: its lock is gone then anyway.
    """
    fd, temporary = create_temporary(path.parent)
    held[path.name] = fd
    try:
        os.write(fd, content)
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        os.close(held.pop(path.name))
        raise


def write_again(fd: int, path: Path) -> None:
    """Writes every byte of a file over itself, because another process wrote some of it. If a flush
    of that one failed, the system may hold bytes that it takes for flushed and that are not on the
    disk: only writing them once more makes the next flush bring them there.
    """
    start = 0
    with disk_errors(f"write {path}"):
        while piece := os.pread(fd, BLOB_CHUNK_BYTES, start):
            os.lseek(fd, start, os.SEEK_SET)
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(fd, rest) :]
            start += len(piece)


def _flush(fd: int) -> None:
    if sys.platform == "darwin":
        # There, fsync stops at the drive's cache; only this request goes through it.
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """One at a time among the processes that change what lies in a folder."""
    with disk_errors(f"lock {folder}"):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with disk_errors(f"lock {folder}"):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        close_unlocked(fd)


def close_unlocked(fd: int) -> None:
    """Gives up a lock and closes. A forked child has a copy of the descriptor, so that closing
    alone would not end the lock.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)
