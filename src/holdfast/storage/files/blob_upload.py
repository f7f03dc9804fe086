"""Content on its way into the blob store, however it comes.

From a path or a stream it is read in chunks. From a caller that is slow, or may go away, it comes
in pieces that are handed to an `BlobUpload`; what is not finished is gone. A blob that is pulled
from another node comes in pieces too, but those are kept over a restart: they stand in one file
under a temporary name, which `alone_with` gives to one process and thread at a time.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from holdfast.rules.errors import BadPath, BadValue, OverLimit
from holdfast.rules.limits import BLOB_CHUNK_BYTES
from holdfast.storage.files.durable import FILE_MODE, close_unlocked, disk_errors

if TYPE_CHECKING:
    from hashlib import _Hash

    from holdfast.storage.files.blobs import Blob


class Drafted(Protocol):
    """What has arrived so far, as a store keeps it."""

    @property
    def size(self) -> int: ...
    def write(self, data: bytes, /) -> int: ...
    def discard(self) -> None: ...


class BlobUpload:
    """Content that a caller hands over piece by piece: finish it or discard it."""

    def __init__(self, draft: Drafted, bytes_max: int, keep: Callable[[str, int], Blob]) -> None:
        """`keep` gives the draft its name; it is durable on return."""
        self._draft, self._bytes_max, self._keep = draft, bytes_max, keep
        self._hashing = hasher()

    @property
    def size(self) -> int:
        return self._draft.size

    def write(self, piece: bytes) -> None:
        refuse_over(self._draft.size + len(piece), self._bytes_max)
        self._hashing.update(piece)
        self._draft.write(piece)

    def finish(self, expected: str | None = None) -> Blob:
        """Durable on return. BadValue, and nothing stays, if it does not hash to what is
        expected.
        """
        found = self._hashing.hexdigest()
        if expected is not None and found != expected:
            self.discard()
            raise BadValue(
                f"the content hashes to {found}, not to {expected}",
                hint="it was changed on the way or the name is wrong: send it again",
            )
        return self._keep(found, self._draft.size)

    def discard(self) -> None:
        """Safe to call at any time, also after `finish`."""
        self._draft.discard()


@contextmanager
def alone_with(path: Path, *, create: bool) -> Iterator[int | None]:
    """The descriptor of a file that several may write to, while nobody else does; None if it is
    not there. After waiting, another file or none may have the name: then it looks again.
    """
    while True:
        fd = _open(path, create=create)
        if fd is None:
            yield None
            return
        try:
            with disk_errors(f"lock {path}"):
                fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_named(fd, path):
                yield fd
                return
        finally:
            close_unlocked(fd)


def _open(path: Path, *, create: bool) -> int | None:
    flags = os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    with disk_errors(f"open {path}"):
        try:
            fd = os.open(path, flags, FILE_MODE)
        except FileNotFoundError:
            return None
        if create:
            os.fchmod(fd, FILE_MODE)  # the umask may have taken more away than we asked for
        return fd


def _is_named(fd: int, path: Path) -> bool:
    with disk_errors(f"look at {path}"):
        try:
            return os.path.samestat(os.lstat(path), os.fstat(fd))
        except FileNotFoundError:
            return False


def chunks(source: Path | BinaryIO, bytes_max: int) -> Iterable[bytes]:
    if isinstance(source, Path):
        return _chunks_of_path(source, bytes_max)
    return _chunks_of_stream(source)


def _chunks_of_path(path: Path, bytes_max: int) -> Iterator[bytes]:
    try:
        with open(path, "rb", buffering=0) as file:
            # A regular file tells its size, so 4 GiB are not copied only to be refused.
            refuse_over(os.fstat(file.fileno()).st_size, bytes_max)
            while chunk := file.read(BLOB_CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise BadPath(
            f"could not read {path}: {error.strerror or error}",
            hint="check that it is a file and that you may read it",
        ) from error


def _chunks_of_stream(stream: BinaryIO) -> Iterator[bytes]:
    while True:
        chunk = stream.read(BLOB_CHUNK_BYTES)
        # len(), not truth: None (a non-blocking stream without data) must not pass for the end.
        if len(chunk) == 0:
            return
        yield chunk


def hasher() -> _Hash:
    # Imported at first use: it loads the crypto library, and most commands read no blob.
    import hashlib

    return hashlib.sha256()


def refuse_over(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise OverLimit(
            f"the content is larger than {bytes_max} bytes", hint="share it in smaller parts"
        )
