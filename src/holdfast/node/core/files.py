"""Shared files: the part of sharing and reading them that is not a transaction.

Small content stays in the row of its file. Larger content is a blob, a file named by its hash. The
blob is written before the row that names it: a crash between the two leaves a blob that the sweep
removes, never a row without content.
"""

from __future__ import annotations

import io
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final

from holdfast.node.core import operations
from holdfast.node.core.change import Receipt
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.views import FileInfo
from holdfast.rules.errors import BadValue, BlobCorrupt, BlobElsewhere, BlobMissing, UnknownFile
from holdfast.rules.limits import INLINE_BYTES_MAX
from holdfast.rules.paths import check_path
from holdfast.rules.rows import FileRow

Content = bytes | Path | BinaryIO

_SHARE_TRIES: Final = 3


def share_file(
    engine: NodeEngine, mesh: str, path: str, content: Content, id: str | None
) -> Receipt:
    """Shares content under a path. If a sweep removes the blob before the row names it, the blob is
    written again.
    """
    check_path(path)
    engine.check_room()
    content = _readable(content)
    begin = _position(content)
    small = content if isinstance(content, bytes) and len(content) < INLINE_BYTES_MAX else None
    for again in range(_SHARE_TRIES):
        if small is not None:
            digest, size = sha256(small).hexdigest(), len(small)
        else:
            if again:
                _rewind(content, begin, path)
            blob = engine.blobs.put(content)
            digest, size = blob.sha256, blob.size
            if size < INLINE_BYTES_MAX:
                small = engine.blobs.read(digest)
        change = operations.file_share(engine.ctx, mesh, path, digest, size, small, id)
        try:
            return engine.write("file.share", change)
        except operations.BlobGone:
            continue
    raise BlobMissing(f"the blob of {path!r} vanished {_SHARE_TRIES} times while it was shared")


def find_file(engine: NodeEngine, mesh: str, path: str, owner: str | None) -> FileRow:
    """The row of a file that is shared; `owner` None means this node."""
    check_path(path)
    whose = owner or engine.ctx.peer
    row = engine.read("file.get", lambda tx: tx.file_get(mesh, whose, path))
    if row is None or row.tombstone:
        raise UnknownFile(f"{whose} shares no file {path!r} in {mesh!r}")
    return row


def read_file(engine: NodeEngine, mesh: str, path: str, owner: str | None) -> bytes:
    row = find_file(engine, mesh, path, owner)
    if row.content is not None:
        return _verified(row)
    _require_blob(engine, row)
    return engine.blobs.read(row.sha256)


def open_file(engine: NodeEngine, mesh: str, path: str, owner: str | None) -> BinaryIO:
    row = find_file(engine, mesh, path, owner)
    if row.content is not None:
        return io.BytesIO(_verified(row))
    _require_blob(engine, row)
    return engine.blobs.open(row.sha256)


def file_info(engine: NodeEngine, row: FileRow) -> FileInfo:
    return FileInfo.of(row, here=row.content is not None or engine.blobs.exists(row.sha256))


def _require_blob(engine: NodeEngine, row: FileRow) -> None:
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


def _verified(row: FileRow) -> bytes:
    assert row.content is not None
    if sha256(row.content).hexdigest() != row.sha256:
        raise BlobCorrupt(f"the stored content of {row.path!r} does not hash to its name")
    return row.content
