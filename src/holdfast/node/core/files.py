"""Shared files: the part of sharing and reading them that is not a transaction.

Small content stays in the row of its file. Larger content is a blob, a file named by its hash. The
blob is written before the row that names it: a crash between the two leaves a blob that the sweep
removes, never a row without content.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final

from holdfast.node.core import operations
from holdfast.node.core.change import Receipt
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.views import FileInfo, ObjectInfo
from holdfast.rules.errors import BadValue, BlobCorrupt, BlobElsewhere, BlobMissing, UnknownFile
from holdfast.rules.limits import CHUNK_ROWS, INLINE_BYTES_MAX
from holdfast.rules.names import meant_peer
from holdfast.rules.paths import named_path
from holdfast.rules.rows import BlobRow, FileRow
from holdfast.storage.files.blobs import BlobFile
from holdfast.storage.ports import Reader

Content = bytes | Path | BinaryIO

_SHARE_TRIES: Final = 3


class FileToShare:
    """Content that is to be shared under a path. It is put on the disk by `change`, which may be
    called again if a sweep removes the blob before a row names it.
    """

    def __init__(
        self, engine: NodeEngine, mesh: str, path: str, content: Content, id: str | None
    ) -> None:
        path = named_path(path)
        engine.check_room()
        self._engine, self._mesh, self.path, self._id = engine, mesh, path, id
        self._content = _readable(content)
        self._begin = _position(self._content)
        self._tries = 0

    def change(self) -> operations.FileSharing:
        """Puts the content where it belongs, and returns the change that names it."""
        content, engine = self._content, self._engine
        if self._tries == _SHARE_TRIES:
            raise BlobMissing(
                f"the blob of {self.path!r} vanished {_SHARE_TRIES} times while it was shared"
            )
        if self._tries:
            _rewind(content, self._begin, self.path)
        self._tries += 1
        small = content if isinstance(content, bytes) and len(content) < INLINE_BYTES_MAX else None
        if small is not None:
            digest, size = sha256(small).hexdigest(), len(small)
        else:
            blob = engine.blobs.put(content)
            digest, size = blob.sha256, blob.size
            if size < INLINE_BYTES_MAX:
                small = engine.blobs.read(digest)
        return operations.file_share(
            engine.ctx, self._mesh, self.path, digest, size, small, self._id
        )


def share_file(
    engine: NodeEngine, mesh: str, path: str, content: Content, id: str | None
) -> Receipt:
    """Shares content under a path. If a sweep removes the blob before the row names it, the blob is
    written again.
    """
    sharing = FileToShare(engine, mesh, path, content, id)
    while True:
        change = sharing.change()
        try:
            return engine.write("file.share", change)
        except operations.BlobGone:
            continue


def find_file(engine: NodeEngine, mesh: str, path: str, owner: str | None) -> FileRow:
    """The row of a file that is shared; `owner` None means this node."""
    path = named_path(path)
    whose = meant_peer(owner) if owner else engine.ctx.peer
    row = engine.read("file.get", lambda tx: tx.file_get(mesh, whose, path))
    if row is None or row.tombstone:
        raise UnknownFile(f"{whose} shares no file {path!r} in {mesh!r}")
    return row


def read_file(engine: NodeEngine, mesh: str, path: str, owner: str | None) -> bytes:
    row = find_file(engine, mesh, path, owner)
    if row.content is not None:
        return verified(row)
    require_blob(engine, row)
    return engine.blobs.read(row.sha256)


def open_file(engine: NodeEngine, mesh: str, path: str, owner: str | None) -> BinaryIO:
    row = find_file(engine, mesh, path, owner)
    if row.content is not None:
        return io.BytesIO(verified(row))
    require_blob(engine, row)
    return engine.blobs.open(row.sha256)


def file_info(engine: NodeEngine, row: FileRow) -> FileInfo:
    return FileInfo.of(row, here=row.content is not None or engine.blobs.exists(row.sha256))


def require_blob(engine: NodeEngine, row: FileRow) -> None:
    if engine.blobs.exists(row.sha256):
        return
    if row.owner == engine.ctx.peer:
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


def _position(content: Content) -> int | None:
    """Where a stream stands; None if it cannot be brought back there."""
    if isinstance(content, bytes | Path) or not content.seekable():
        return None
    return content.tell()


def _rewind(content: Content, begin: int | None, path: str) -> None:
    if isinstance(content, bytes | Path):
        return
    if begin is None:
        # Reading on would give nothing more: an empty file instead of an error.
        raise BlobMissing(
            f"the blob of {path!r} vanished while it was shared, and its stream is used up",
            hint="share it again",
        )
    content.seek(begin)


def verified(row: FileRow) -> bytes:
    assert row.content is not None
    if sha256(row.content).hexdigest() != row.sha256:
        raise BlobCorrupt(f"the stored content of {row.path!r} does not hash to its name")
    return row.content


# --- objects -------------------------------------------------------------------------------------


def objects(engine: NodeEngine) -> Iterator[ObjectInfo]:
    """Every object that rows name, by its hash, and then content that nothing names yet."""
    after = ""

    def page(tx: Reader) -> Sequence[BlobRow]:
        nonlocal after
        rows = tx.blob_scan(after, CHUNK_ROWS)
        after = rows[-1].sha256 if rows else after
        return rows

    known = set()
    for row in engine.pages(page):
        known.add(row.sha256)
        here = engine.blobs.exists(row.sha256)
        yield ObjectInfo(row.sha256, row.size, here, row.released_at is None, row.created_at)
    for found in engine.blobs.scan():
        if isinstance(found, BlobFile) and found.sha not in known:
            yield ObjectInfo(found.sha, found.size, True, False, found.mtime_ms)
