"""A node without a face: the store, the context, and what both faces of the library share."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from pathlib import Path
from time import perf_counter_ns
from typing import BinaryIO, Final, TypeVar

from holdfast.node.core import operations
from holdfast.node.core.change import Receipt
from holdfast.node.core.context import NodeContext
from holdfast.node.core.metrics import Metrics
from holdfast.node.core.views import FileInfo
from holdfast.rules.errors import (
    BadValue,
    BlobCorrupt,
    BlobElsewhere,
    BlobMissing,
    DiskFull,
    HoldfastError,
    UnknownFile,
    UnknownMesh,
)
from holdfast.rules.limits import CHUNK_ROWS, INLINE_BYTES_MAX
from holdfast.rules.names import check_mesh
from holdfast.rules.paths import check_path
from holdfast.rules.rows import FileRow, MeshRow
from holdfast.storage.files.blobs import BlobStore
from holdfast.storage.ports import Reader, Store, Work

T = TypeVar("T")
Content = bytes | Path | BinaryIO

_SHARE_TRIES = 3

_ADDING: Final = frozenset(
    (
        *("state.set", "memory.set", "vector.store", "vector.reembed", "file.share"),
        *("task.create", "task.claim", "task.release", "task.complete", "task.cancel"),
        *("fact.append", "mesh.create", "conflict.restore", "intake", "import", "link.take"),
        *("message.send", "sync.take", "sync.express"),
    )
)
"""Writes that need room. Others make some, or keep track of readers: they are let through. A
deletion, too, which needs something to delete and so cannot go on for ever."""


class NodeEngine:
    """Runs verbs against one store."""

    def __init__(
        self,
        store: Store,
        ctx: NodeContext,
        metrics: Metrics,
        blobs_free: Callable[[], AbstractContextManager[bool]] = lambda: nullcontext(True),
    ) -> None:
        """`blobs_free` says whether blobs may be removed now, and holds off whoever copies them."""
        self.store = store
        self.ctx = ctx
        self.metrics = metrics
        self.blobs_free = blobs_free
        self.admit: Callable[[], None] | None = None
        """Raises `DiskFull` while nothing new is taken in; set by whoever watches the disk."""
        self.relieve: Callable[[], None] | None = None
        """Told of a write that met a full disk: it makes what room it can."""
        self.sync_word: Callable[[str, str, bool], str] | None = None
        """How a shared mesh stands with its broker, by whoever talks to it in this process: of a
        mesh, its kind and whether it is paused.
        """

    @property
    def blobs(self) -> BlobStore:
        return self.ctx.blobs

    def write(self, name: str, work: Work[T]) -> T:
        # Spelled out, because a context manager here costs a tenth of a durable write.
        if self.admit is not None and name in _ADDING:
            self.check_room()
        begun = perf_counter_ns()
        try:
            return self.store.write(work)
        except HoldfastError as error:
            self.metrics.failed(error)
            if isinstance(error, DiskFull) and self.relieve is not None:
                self.relieve()
                if name not in _ADDING:
                    return self.store.write(work)  # the first try was rolled back whole
            raise
        finally:
            self.metrics.add(name, perf_counter_ns() - begun)

    def check_room(self) -> None:
        """Before data comes in by another way than `write`: a blob, a write of the event loop."""
        if self.admit is None:
            return
        try:
            self.admit()
        except HoldfastError as error:
            self.metrics.failed(error)
            raise

    def read(self, name: str, read: Callable[[Reader], T]) -> T:
        begun = perf_counter_ns()
        try:
            with self.store.read() as reader:
                return read(reader)
        except HoldfastError as error:
            self.metrics.failed(error)
            raise
        finally:
            self.metrics.add(name, perf_counter_ns() - begun)

    def pages(self, page: Callable[[Reader], Sequence[T]]) -> Iterator[T]:
        """Everything that paged reads give, a page in memory at a time; `page` moves its own
        cursor.
        """
        while True:
            with self.store.read() as reader:
                rows = page(reader)
            yield from rows
            if len(rows) < CHUNK_ROWS:
                return

    def require_mesh(self, slug: str) -> MeshRow:
        check_mesh(slug)
        row = self.read("mesh.get", lambda tx: tx.mesh_get(slug))
        if row is None:
            raise UnknownMesh(f"there is no mesh {slug!r}")
        return row

    # --- files: the part that is not a transaction -------------------------------------------

    def share(
        self, mesh: str, path: str, content: Content, id: str | None, owner: str | None = None
    ) -> Receipt:
        """Blob first, then the row: a crash between them leaves a file that the sweep removes,
        never a hole.
        """
        check_path(path)
        self.check_room()
        content = _readable(content)
        begin = _position(content)
        small = _small(content)
        for again in range(_SHARE_TRIES):
            if small is not None:
                digest, size = sha256(small).hexdigest(), len(small)
            else:
                if again:
                    _rewind(content, begin, path)
                blob = self.blobs.put(content)
                digest, size = blob.sha256, blob.size
                if size < INLINE_BYTES_MAX:
                    small = self.blobs.read(digest)
            change = operations.file_share(self.ctx, mesh, path, digest, size, small, id, owner)
            try:
                return self.write("file.share", change)
            except operations.BlobGone:
                continue
        raise BlobMissing(f"the blob of {path!r} vanished {_SHARE_TRIES} times while it was shared")

    def find_file(self, mesh: str, path: str, owner: str | None) -> FileRow:
        check_path(path)
        whose = owner or self.ctx.peer
        row = self.read("file.get", lambda tx: tx.file_get(mesh, whose, path))
        if row is None or row.tombstone:
            raise UnknownFile(f"{whose} shares no file {path!r} in {mesh!r}")
        return row

    def read_file(self, mesh: str, path: str, owner: str | None) -> bytes:
        row = self.find_file(mesh, path, owner)
        if row.content is not None:
            return _verified(row)
        self._require_blob(row)
        return self.blobs.read(row.sha256)

    def open_file(self, mesh: str, path: str, owner: str | None) -> BinaryIO:
        row = self.find_file(mesh, path, owner)
        if row.content is not None:
            return io.BytesIO(_verified(row))
        self._require_blob(row)
        return self.blobs.open(row.sha256)

    def file_info(self, row: FileRow) -> FileInfo:
        return FileInfo.of(row, here=row.content is not None or self.blobs.exists(row.sha256))

    def _require_blob(self, row: FileRow) -> None:
        if self.blobs.exists(row.sha256):
            return
        if row.owner == self.ctx.peer:
            raise BlobMissing(f"the content of {row.path!r} ({row.sha256}) is not on the disk")
        raise BlobElsewhere(f"the content of {row.path!r} of {row.owner} has not arrived here yet")


def _readable(content: Content) -> Content:
    if isinstance(content, bytearray | memoryview):
        return bytes(content)
    if isinstance(content, bytes | Path) or hasattr(content, "read"):
        return content
    raise BadValue(
        f"the content of a file is {type(content).__name__}",
        hint="give bytes, a pathlib.Path, or a stream that is open for reading bytes",
    )


def _small(content: Content) -> bytes | None:
    """The content itself if it is small enough to stay in its row."""
    if isinstance(content, bytes) and len(content) < INLINE_BYTES_MAX:
        return content
    return None


def _position(content: Content) -> int | None:
    """Where a stream stands, if it can be brought back there."""
    if isinstance(content, bytes | Path) or not content.seekable():
        return None
    return content.tell()


def _rewind(content: Content, begin: int | None, path: str) -> None:
    if isinstance(content, bytes | Path):
        return
    if begin is None:
        # Read on, it would give the rest, which is nothing: an empty file instead of an error.
        raise BlobMissing(
            f"the blob of {path!r} vanished while it was shared, and its stream is used up",
            hint="share it again",
        )
    content.seek(begin)


def _verified(row: FileRow) -> bytes:
    assert row.content is not None
    if sha256(row.content).hexdigest() != row.sha256:
        raise BlobCorrupt(f"the stored content of {row.path!r} does not hash to its name")
    return row.content
