"""Files and objects over a connection: their content is streamed, and checked by its hash here."""

from __future__ import annotations

import io
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any, BinaryIO, Final, cast

import msgspec

from holdfast.node.calls.shapes import RECEIPT, WriteReceipt
from holdfast.node.core.change import Receipt
from holdfast.node.core.files import Content as Given
from holdfast.node.core.views import LastKnown
from holdfast.node.library.families import Files
from holdfast.node.remote.faces import asks, decoded, new_id, query, quoted
from holdfast.node.remote.families import WatchedFace
from holdfast.node.remote.line import Line
from holdfast.rules.errors import BadValue, BlobCorrupt
from holdfast.rules.limits import BODY_BYTES_MAX, KIB
from holdfast.rules.paths import check_path
from holdfast.storage.files.durable import disk_errors
from holdfast.transport.http_client import Content

_RECEIPT: Final = msgspec.json.Decoder(WriteReceipt)
_PIECE_BYTES: Final = 256 * KIB
_TRIES: Final = 2
"""A file that is replaced while it is read is read once more."""


@asks
class RemoteFiles(WatchedFace, Files):
    """`Files`, asked of a daemon."""

    def share(self, path: str, content: Given, *, id: str | None = None) -> Receipt:
        check_path(path)
        id = new_id(id)
        where = f"{self._where('files', path)}{query({'id': id, 'warnings': 'keep'})}"
        with sized(content) as body:
            answer = self._line.write("PUT", where, id=id, content=body)
        receipt: Receipt = RECEIPT.read(decoded(answer, _RECEIPT))
        return receipt

    def read(self, path: str, *, peer: str | None = None) -> bytes:
        with self.open(path, peer=peer) as content:
            return content.read()

    def open(self, path: str, *, peer: str | None = None) -> BinaryIO:
        where = f"{self._where('files', path)}{query({'peer': peer})}"
        for left in reversed(range(_TRIES)):
            info = self.info(path, peer=peer)
            try:
                return fetched(self._line, where, info.sha256)
            except BlobCorrupt:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def last_known(self, path: str, *, peer: str | None = None) -> LastKnown:
        where = f"{self._where('file-last-known', path)}{query({'peer': peer})}"
        answer = self._line.call("GET", where)
        told = answer.headers
        return LastKnown(
            told["holdfast-status"],
            answer.body,
            told["etag"].strip('"'),
            int(told["holdfast-lamport"]),
            int(told["holdfast-updated-at"]),
        )

    def _where(self, noun: str, path: str) -> str:
        return f"/v1/meshes/{self._slug}/{noun}/{quoted(path)}"


def fetched(line: Line, path: str, digest: str) -> BinaryIO:
    """The content at a path, checked by its hash."""
    content = _spool()
    hashing = sha256()
    try:
        for piece in line.stream(path):
            hashing.update(piece)
            with disk_errors("keep what is read for a moment"):
                content.write(piece)
        if hashing.hexdigest() != digest:
            raise BlobCorrupt(f"{path} is other content than its hash says: {hashing.hexdigest()}")
    except BaseException:
        content.close()
        raise
    content.seek(0)
    return cast(BinaryIO, content)


@contextmanager
def sized(content: Given) -> Generator[Content, None, None]:
    """Content that can be sent: its size is known, and it can be read again."""
    if isinstance(content, bytes | bytearray | memoryview):
        raw = bytes(content)
        yield Content(io.BytesIO(raw), len(raw))
    elif isinstance(content, Path):
        with disk_errors(f"read {content}"), content.open("rb") as file:
            yield Content(file, file.seek(0, io.SEEK_END))
    elif hasattr(content, "read"):
        with _spool() as copy:
            size = 0
            while piece := _piece(content):
                with disk_errors("keep what is sent for a moment"):
                    size += copy.write(piece)
            yield Content(cast(BinaryIO, copy), size)
    else:
        raise BadValue(
            f"the content of a file is {type(content).__name__}",
            hint="give bytes, a pathlib.Path, or a stream that is open for reading bytes",
        )


def _piece(stream: Any) -> bytes:
    piece = stream.read(_PIECE_BYTES)
    if not isinstance(piece, bytes):
        raise BadValue("the stream gives no bytes", hint="open it in binary mode")
    return piece


def _spool() -> IO[bytes]:
    """A file in memory that goes to the disk when it gets large."""
    return SpooledTemporaryFile(max_size=BODY_BYTES_MAX)
