"""Content that is too large for a row: files that are named by the SHA-256 of what they hold.

    blobs/ab/abcd…         0600 in 0700 folders, never changed after they appear
    blobs/.tmp-…           on the way in; older than an hour means that a crash left it
    blobs/.tmp-part-abcd…  half-pulled from another node; kept as long as it grows

A blob is durable before the transaction that names it begins, so a row never names content that a
power cut took. The other way round, a crash leaves a file that no row names, and the sweep finds it
with `scan`.

Which blobs are wanted is the store's decision, taken under the write lock of the database:

    share   put(content) … take the lock … check(sha) … write the row … commit
    sweep   take the lock … no row names it, it is old … unlink(sha) … commit

A sweep of another process may unlink between `put` and the lock. `check` sees that, and `put` is
simply called again. `put` also makes an old file young, so that a sweep by age leaves it alone.

Reading verifies. `open` reads the content once to check it before it hands out the first byte: a
reader that learns of damage at the end has acted on it already. The descriptor stays on the
verified file even when the name is unlinked or replaced meanwhile. Only a caller that checks the
hash itself uses `open_unchecked`: each range of large content would cost a read of all of it.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import time
from collections.abc import Callable, Iterator
from functools import partial as bind
from pathlib import Path
from typing import BinaryIO, Final, Protocol, TypeAlias

import msgspec

from holdfast.rules.errors import BadValue, BlobCorrupt, BlobMissing
from holdfast.rules.limits import BLOB_CHUNK_BYTES, FILE_BYTES_MAX
from holdfast.storage.files.blob_upload import BlobUpload, alone_with, chunks, hasher, refuse_over
from holdfast.storage.files.durable import (
    TEMPORARY_PREFIX,
    Draft,
    disk_errors,
    drafting,
    flush,
    fsync_dir,
    make_folder,
    refuse_links,
    rename_file,
    write_again,
)

_HEX: Final = frozenset("0123456789abcdef")
_SHA_CHARS: Final = 64
_PARTIAL_PREFIX: Final = f"{TEMPORARY_PREFIX}part-"
_FOLDER_CHARS: Final = 2
# A link, a pipe or a device under a blob's name must neither be followed nor block us.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


class Blob(msgspec.Struct, frozen=True):
    """Content that is safely stored."""

    sha256: str
    size: int


class BlobFile(msgspec.Struct, frozen=True):
    """A file under a blob's name, as the folder shows it; its content was not looked at."""

    sha: str
    size: int
    mtime_ms: int


class DraftFile(msgspec.Struct, frozen=True):
    """Content on its way in, or what a crash left of it. Its age is that of the last write."""

    name: str
    size: int
    mtime_ms: int


class StrangeFile(msgspec.Struct, frozen=True):
    """Something that is not ours. It is shown to people and never touched."""

    name: str


Found: TypeAlias = BlobFile | DraftFile | StrangeFile
Source: TypeAlias = bytes | Path | BinaryIO


class BlobStore(Protocol):
    """What the store needs of content-addressed files."""

    def put(self, source: Source) -> Blob:
        """Store the content and be durable on return. The same content twice is one blob."""

    def exists(self, sha: str) -> bool:
        """Is there a file of this name? Says nothing of its content."""

    def size(self, sha: str) -> int:
        """Its size as the folder shows it, or BlobMissing."""

    def check(self, sha: str, size: int | None = None) -> int:
        """The cheap test: BlobMissing if it is not there, BlobCorrupt if its size is another."""

    def verify(self, sha: str) -> int:
        """The full test: reads and hashes all of it; BlobMissing, BlobCorrupt, or its size."""

    def read(self, sha: str) -> bytes:
        """The verified content."""

    def open(self, sha: str) -> BinaryIO:
        """The verified content as a stream; the caller closes it."""

    def open_unchecked(self, sha: str) -> BinaryIO:
        """The content as it lies there, as a stream that can be sought in."""

    def receive(self) -> BlobUpload:
        """Takes content piece by piece, from a caller that may go away in between."""

    def partial(self, sha: str) -> int:
        """How many bytes of a blob that is being pulled are here; 0 if none are."""

    def put_piece(self, sha: str, start: int, data: bytes) -> int:
        """The next bytes of it, durable on return, or some that are here already; returns how many
        there are now. BadValue if that would leave a hole.
        """

    def finish(self, sha: str, size: int) -> Blob:
        """It is all here: verified, visible and durable on return. BlobCorrupt, and every piece is
        gone, if it is something else; BlobMissing if there is none.
        """

    def unlink(self, sha: str) -> bool:
        """Remove the file. False if it was not there."""

    def scan(self) -> Iterator[Found]:
        """Everything that is there, in no order, without loading it all."""

    def remove_draft(self, draft: DraftFile) -> bool:
        """Remove what a crash left. False if it was not there any more."""


class FileBlobs:
    """Blobs in a folder. Any number of threads and processes may use the same folder."""

    def __init__(self, root: Path, *, bytes_max: int = FILE_BYTES_MAX) -> None:
        self.root = root
        self.bytes_max = bytes_max
        # Folders whose own entries we know to be durable: at most 257.
        self._settled: set[Path] = set()
        # Of files in pieces: how much this process has written from the beginning, and flushed.
        self._flushed: dict[Path, int] = {}

    def put(self, source: Source) -> Blob:
        if isinstance(source, bytes):
            return self._put_bytes(source)
        self._settle(self.root)
        with drafting(self.root) as draft:
            incoming = self._incoming(draft)
            for chunk in chunks(source, self.bytes_max):
                incoming.write(chunk)
            return incoming.finish()

    def receive(self) -> BlobUpload:
        self._settle(self.root)
        return self._incoming(Draft(self.root))

    def exists(self, sha: str) -> bool:
        status = self._status(sha)
        return status is not None and stat.S_ISREG(status.st_mode)

    def size(self, sha: str) -> int:
        return self.check(sha)

    def check(self, sha: str, size: int | None = None) -> int:
        status = self._status(sha)
        if status is None:
            raise _missing(sha)
        if not stat.S_ISREG(status.st_mode):
            raise _not_a_file(sha)
        _refuse_size(sha, status.st_size, size)
        return status.st_size

    def verify(self, sha: str) -> int:
        with self.open(sha) as stream:
            return os.fstat(stream.fileno()).st_size

    def read(self, sha: str) -> bytes:
        with self._open(sha) as file:
            try:
                content = file.readall()
            except OSError as error:
                raise _unreadable(sha, error) from error
        _refuse_hash(sha, _sha256(content))
        return content

    def open(self, sha: str) -> BinaryIO:
        file = self._open(sha)
        try:
            _refuse_hash(sha, _hash_of(file, sha))
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return io.BufferedReader(file)

    def open_unchecked(self, sha: str) -> BinaryIO:
        return io.BufferedReader(self._open(sha))

    def partial(self, sha: str) -> int:
        path = self._partial_path(sha)
        with disk_errors(f"look at {path}"):
            try:
                return os.lstat(path).st_size
            except FileNotFoundError:
                return 0

    def put_piece(self, sha: str, start: int, data: bytes) -> int:
        refuse_over(start + len(data), self.bytes_max)
        self._settle(self.root)
        path = self._partial_path(sha)
        with alone_with(path, create=start == 0) as fd:
            _refuse_hole(sha, start, 0 if fd is None else os.fstat(fd).st_size)
            assert fd is not None, "the first piece makes the file"
            with disk_errors(f"write {path}"):
                os.lseek(fd, start, os.SEEK_SET)
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(fd, rest) :]
            try:
                flush(fd, path)
            except BaseException:  # nobody knows now what the file holds
                self._flushed.pop(path, None)
                self._remove(path)
                raise
            if start == self._flushed.get(path, 0):
                self._flushed[path] = start + len(data)
            if start == 0:
                fsync_dir(self.root)
            return os.fstat(fd).st_size

    def finish(self, sha: str, size: int) -> Blob:
        path = self._partial_path(sha)
        with alone_with(path, create=False) as fd:
            if fd is None:
                return self._finished_before(sha, size)
            try:
                self._refuse_partial(fd, sha, size)
            except BlobCorrupt:
                self._remove(path)
                raise
            if self._flushed.pop(path, 0) != size:
                write_again(fd, path)
            with disk_errors(f"touch {path}"):
                os.utime(fd)  # the pieces may be old: the sweep goes by the age
            flush(fd, path)
            target = self._path(sha)
            self._settle(target.parent)
            rename_file(path, target)
        return Blob(sha, size)

    def unlink(self, sha: str) -> bool:
        # Not flushed: when a power cut brings the file back, the next sweep finds it again.
        return self._remove(self._path(sha))

    def scan(self) -> Iterator[Found]:
        for entry in _entries(self.root):
            if _is_folder_name(entry.name) and entry.is_dir(follow_symlinks=False):
                for inner in _entries(Path(entry.path)):
                    yield from _found(inner, entry.name)
            else:
                yield from _found(entry, None)

    def remove_draft(self, draft: DraftFile) -> bool:
        path = self.root / draft.name
        if not path.name.startswith(TEMPORARY_PREFIX) or ".." in path.parts:
            raise BadValue(f"{draft.name} is not a temporary file of the blob store")
        return self._remove(path)

    def _put_bytes(self, content: bytes) -> Blob:
        """The hash of bytes is known beforehand, so what is there already is not written again."""
        refuse_over(len(content), self.bytes_max)
        blob = Blob(_sha256(content), len(content))
        self._settle(self.root)
        if not self._keep_existing(blob):
            with drafting(self.root) as draft:
                draft.write(content)
                self._publish(draft, blob.sha256)
        return blob

    def _incoming(self, draft: Draft) -> BlobUpload:
        return BlobUpload(draft, self.bytes_max, bind(self._keep, draft))

    def _keep(self, draft: Draft, sha: str, size: int) -> Blob:
        blob = Blob(sha, size)
        if not self._keep_existing(blob):
            self._publish(draft, sha)
        draft.discard()
        return blob

    def _finished_before(self, sha: str, size: int) -> Blob:
        """There are no pieces: the content is empty, or another process has finished it."""
        if size == 0 and sha == _sha256(b""):
            return self.put(b"")
        if not self._keep_existing(Blob(sha, size)):
            raise _missing(sha)
        return Blob(sha, size)

    def _refuse_partial(self, fd: int, sha: str, size: int) -> None:
        _refuse_size(sha, os.fstat(fd).st_size, size)
        with io.FileIO(fd, "rb", closefd=False) as file:
            file.seek(0)
            _refuse_hash(sha, _hash_of(file, sha))

    def _keep_existing(self, blob: Blob) -> bool:
        """Is the content there already, whole, durable and young? If not, it must be written."""
        try:
            file = self._open(blob.sha256)
        except (BlobMissing, BlobCorrupt):
            return False
        path = self._path(blob.sha256)
        with file:
            fd = file.fileno()
            if os.fstat(fd).st_size != blob.size:
                return False
            # Flushed before it is touched: a clean file costs nothing then.
            flush(fd, path)
            with disk_errors(f"touch {path}"):
                os.utime(fd)
            try:
                found = _hash_of(file, blob.sha256)
            except BlobCorrupt:
                return False
            if found != blob.sha256:
                return False
            # The process that renamed it here may not have flushed the folder yet.
            fsync_dir(path.parent)
            self._settle(path.parent)
            now = self._status(blob.sha256)
            return now is not None and os.path.samestat(now, os.fstat(fd))

    def _publish(self, draft: Draft, sha: str) -> None:
        self._settle(self._path(sha).parent)
        draft.publish(self._path(sha))

    def _settle(self, folder: Path) -> None:
        """Makes sure that the folder is there, also after a power cut."""
        refuse_links(folder)
        if folder not in self._settled or not os.path.isdir(folder):
            make_folder(folder)
            self._settled.add(folder)

    def _path(self, sha: str) -> Path:
        check_sha(sha)
        folder = self.root / sha[:_FOLDER_CHARS]
        refuse_links(self.root, folder)
        return folder / sha

    def _partial_path(self, sha: str) -> Path:
        return self.root / f"{_PARTIAL_PREFIX}{check_sha(sha)}"

    def _status(self, sha: str) -> os.stat_result | None:
        path = self._path(sha)
        with disk_errors(f"look at {path}"):
            try:
                return os.lstat(path)
            except FileNotFoundError:
                return None

    def _open(self, sha: str) -> io.FileIO:
        path = self._path(sha)
        with disk_errors(f"open {path}"):
            try:
                fd = os.open(path, _READ)
            except FileNotFoundError as error:
                raise _missing(sha) from error
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENXIO, errno.EIO):
                    raise _unreadable(sha, error) from error
                raise
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise _not_a_file(sha)
            return io.FileIO(fd, "rb")

    def _remove(self, path: Path) -> bool:
        with disk_errors(f"remove {path}"):
            try:
                path.unlink()
            except FileNotFoundError:
                return False
        return True


class MemoryBlobs:
    """Blobs in memory, for tests and the simulator, which may also damage `contents`."""

    def __init__(
        self,
        *,
        bytes_max: int = FILE_BYTES_MAX,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.contents: dict[str, bytes] = {}
        self.partials: dict[str, bytearray] = {}
        self.mtimes_ms: dict[str, int] = {}
        """Of the contents by their hash, of the partials by their draft's name."""
        self.bytes_max = bytes_max
        self._now_ms = now_ms

    def put(self, source: Source) -> Blob:
        incoming = self.receive()
        for chunk in (source,) if isinstance(source, bytes) else chunks(source, self.bytes_max):
            incoming.write(chunk)
        return incoming.finish()

    def receive(self) -> BlobUpload:
        draft = _MemoryDraft()
        return BlobUpload(
            draft, self.bytes_max, lambda sha, size: self._keep(sha, draft.getvalue())
        )

    def exists(self, sha: str) -> bool:
        return check_sha(sha) in self.contents

    def size(self, sha: str) -> int:
        return self.check(sha)

    def check(self, sha: str, size: int | None = None) -> int:
        content = self.contents.get(check_sha(sha))
        if content is None:
            raise _missing(sha)
        _refuse_size(sha, len(content), size)
        return len(content)

    def verify(self, sha: str) -> int:
        return len(self.read(sha))

    def read(self, sha: str) -> bytes:
        content = self.contents.get(check_sha(sha))
        if content is None:
            raise _missing(sha)
        _refuse_hash(sha, _sha256(content))
        return content

    def open(self, sha: str) -> BinaryIO:
        return io.BytesIO(self.read(sha))

    def open_unchecked(self, sha: str) -> BinaryIO:
        self.check(sha)
        return io.BytesIO(self.contents[sha])

    def partial(self, sha: str) -> int:
        return len(self.partials.get(check_sha(sha), b""))

    def put_piece(self, sha: str, start: int, data: bytes) -> int:
        refuse_over(start + len(data), self.bytes_max)
        _refuse_hole(sha, start, self.partial(sha))
        pieces = self.partials.setdefault(sha, bytearray())
        pieces[start : start + len(data)] = data
        self.mtimes_ms[_PARTIAL_PREFIX + sha] = self._now_ms()
        return len(pieces)

    def finish(self, sha: str, size: int) -> Blob:
        pieces = self.partials.pop(check_sha(sha), None)
        self.mtimes_ms.pop(_PARTIAL_PREFIX + sha, None)
        if pieces is None:
            content = b"" if size == 0 else self.contents.get(sha, b"")
            if (len(content), _sha256(content)) != (size, sha):
                raise _missing(sha)
            return self._keep(sha, content)
        _refuse_size(sha, len(pieces), size)
        _refuse_hash(sha, _sha256(bytes(pieces)))
        return self._keep(sha, bytes(pieces))

    def unlink(self, sha: str) -> bool:
        self.mtimes_ms.pop(check_sha(sha), None)
        return self.contents.pop(sha, None) is not None

    def scan(self) -> Iterator[Found]:
        for sha, content in list(self.contents.items()):
            yield BlobFile(sha, len(content), self.mtimes_ms[sha])
        for sha, pieces in list(self.partials.items()):
            name = _PARTIAL_PREFIX + sha
            yield DraftFile(name, len(pieces), self.mtimes_ms[name])

    def remove_draft(self, draft: DraftFile) -> bool:
        self.mtimes_ms.pop(draft.name, None)
        return self.partials.pop(draft.name.removeprefix(_PARTIAL_PREFIX), None) is not None

    def _keep(self, sha: str, content: bytes) -> Blob:
        self.contents[sha] = content
        self.mtimes_ms[sha] = self._now_ms()
        return Blob(sha, len(content))


class _MemoryDraft(io.BytesIO):
    @property
    def size(self) -> int:
        return self.tell()

    def discard(self) -> None:
        """Nothing to do: the memory goes with its last reference."""


def check_sha(sha: str) -> str:
    """A SHA-256 as it is written here: 64 lower-case hexadecimal digits, so never a path."""
    if len(sha) != _SHA_CHARS or not _HEX.issuperset(sha):
        raise BadValue(
            f"{sha!r} is not a SHA-256", hint="write it as 64 lower-case hexadecimal digits"
        )
    return sha


def _is_folder_name(name: str) -> bool:
    return len(name) == _FOLDER_CHARS and _HEX.issuperset(name)


def _found(entry: os.DirEntry[str], folder: str | None) -> Iterator[Found]:
    """What a name in the root (no folder) or in one of its 256 folders stands for."""
    name = entry.name if folder is None else f"{folder}/{entry.name}"
    with disk_errors(f"look at {entry.path}"):
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return  # another process was faster
    mtime_ms = status.st_mtime_ns // 1_000_000
    is_sha = len(entry.name) == _SHA_CHARS and _HEX.issuperset(entry.name)
    if not stat.S_ISREG(status.st_mode):
        yield StrangeFile(name)
    elif is_sha and folder == entry.name[:_FOLDER_CHARS]:
        yield BlobFile(entry.name, status.st_size, mtime_ms)
    elif entry.name.startswith(TEMPORARY_PREFIX):
        yield DraftFile(name, status.st_size, mtime_ms)
    else:
        yield StrangeFile(name)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with disk_errors(f"list {folder}"):
        try:
            listing = os.scandir(folder)
        except FileNotFoundError:
            return
    with listing:
        while True:
            with disk_errors(f"list {folder}"):
                entry = next(listing, None)
            if entry is None:
                return
            yield entry


def _sha256(content: bytes) -> str:
    hashing = hasher()
    hashing.update(content)
    return hashing.hexdigest()


def _hash_of(file: io.FileIO, sha: str) -> str:
    hashing = hasher()
    try:
        while chunk := file.read(BLOB_CHUNK_BYTES):
            hashing.update(chunk)
    except OSError as error:
        raise _unreadable(sha, error) from error
    return hashing.hexdigest()


def _missing(sha: str) -> BlobMissing:
    return BlobMissing(f"blob {sha} is not on the disk")


def _not_a_file(sha: str) -> BlobCorrupt:
    return BlobCorrupt(f"blob {sha} is not a regular file")


def _unreadable(sha: str, error: OSError) -> BlobCorrupt:
    return BlobCorrupt(f"blob {sha} cannot be read: {error.strerror or error}")


def _refuse_hash(sha: str, found: str) -> None:
    if found != sha:
        raise BlobCorrupt(f"blob {sha} holds other content: it hashes to {found}")


def _refuse_size(sha: str, found: int, expected: int | None) -> None:
    if expected is not None and found != expected:
        raise BlobCorrupt(f"blob {sha} has {found} bytes instead of {expected}")


def _refuse_hole(sha: str, start: int, size: int) -> None:
    if not 0 <= start <= size:
        raise BadValue(f"{size} bytes of blob {sha} are here: a piece cannot begin at {start}")
