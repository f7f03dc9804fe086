"""The parts of a snapshot: envelopes as they were written, packed.

A part is gzip of frames: four bytes with the length, big-endian, then the canonical bytes of an
envelope, or a commit: the record with its envelope (`protocol/commit_page.py`). Envelopes are not
decoded on the way, so every stamp, fingerprint and signature stays.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from holdfast.node.snapshots.manifest import OTHER, SnapshotManifest, SnapshotPart
from holdfast.rules.digests import row_digest
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import StoreCorrupt
from holdfast.rules.filters import Filter
from holdfast.rules.limits import (
    BLOB_CHUNK_BYTES,
    COMMIT_RECORD_BYTES_MAX,
    ENVELOPE_BYTES_MAX,
    RANGE_BATCH_BYTES,
    RANGE_BATCH_ROWS,
)
from holdfast.storage.files.copying import check_files
from holdfast.storage.ports import Reader
from holdfast.storage.sqlite.snapshot_copy import Progress

LENGTH_BYTES: Final = 4
_FRAME_BYTES_MAX: Final = ENVELOPE_BYTES_MAX + COMMIT_RECORD_BYTES_MAX + 16
"""An envelope, or one with the record of its commit."""
_SUM_BYTES: Final = 32
_MODULUS: Final = 1 << 8 * _SUM_BYTES
_EFFORT: Final = 3
_GZIP: Final = 31


# --- what a set of envelopes adds up to ----------------------------------------------------------


def entry_digest(mesh: str, id: bytes, raw: bytes) -> int:
    """The digest of an entry of a log, as it is computed wherever logs are compared."""
    return int.from_bytes(row_digest("log", (mesh, id.hex(), raw)), "big")


def content_sum(raws: Iterable[bytes], before: int = 0) -> int:
    """The sum of the digests of some envelopes, added to that of others before."""
    total = before
    for raw in raws:
        try:
            envelope = decode_trusted(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreCorrupt(f"an envelope cannot be read: {error}", hint=OTHER) from None
        total += entry_digest(envelope.mesh, envelope.id, raw)
    return total % _MODULUS


def log_sum(reader: Reader, meshes: Iterable[str]) -> int:
    """The same sum over the entries of a node's log."""
    first, head = reader.log_bounds()
    filter = Filter(meshes=tuple(meshes))
    total, at = 0, first
    while at <= head:
        page = reader.log_columns(at, head + 1, RANGE_BATCH_ROWS, RANGE_BATCH_BYTES, filter)
        for mesh, id, raw in zip(page.mesh, page.id, page.raw, strict=True):
            total += entry_digest(mesh, id, raw)
        at = page.upto + 1
    return total % _MODULUS


def sum_text(total: int) -> str:
    return (total % _MODULUS).to_bytes(_SUM_BYTES, "big").hex()


# --- writing -------------------------------------------------------------------------------------


class PartWriter:
    """Packs envelopes one after the other, and passes the bytes of the part to `write`."""

    def __init__(self, write: Callable[[bytes], Any]) -> None:
        self._write = write
        # _GZIP asks for that format. Ids and hashes do not shrink, so more effort is wasted.
        self._packer = zlib.compressobj(_EFFORT, zlib.DEFLATED, _GZIP)
        self._hash = sha256()
        self.rows = self.size = self.raw_bytes = 0

    def add(self, raw: bytes) -> None:
        self._put(self._packer.compress(len(raw).to_bytes(LENGTH_BYTES, "big") + raw))
        self.rows += 1
        self.raw_bytes += LENGTH_BYTES + len(raw)

    def finish(self, path: str) -> SnapshotPart:
        """The part, under the path that it has in its snapshot."""
        self._put(self._packer.flush())
        return SnapshotPart(
            path=path,
            rows=self.rows,
            size=self.size,
            sha256=self._hash.hexdigest(),
            raw_bytes=self.raw_bytes,
        )

    def _put(self, data: bytes) -> None:
        if data:
            self._hash.update(data)
            self.size += len(data)
            self._write(data)


# --- reading -------------------------------------------------------------------------------------


def verify_parts(
    folder: Path, manifest: SnapshotManifest, progress: Progress | None = None
) -> None:
    """Reads every part: what passes is what was made."""
    check_files(f"the snapshot {folder}", folder, manifest.parts, OTHER, progress)


def envelopes(folder: Path, part: SnapshotPart) -> Iterator[bytes]:
    """Yields the envelopes of a part in order. Raises `StoreCorrupt` at the first damage; only
    after the last envelope the whole part is known to be right.
    """
    path = folder / part.path
    rows = 0
    try:
        with open(path, "rb") as file:
            hashing = _Hashing(file)
            with gzip.GzipFile(fileobj=hashing) as frames:
                while (raw := _next(frames, part)) is not None:
                    rows += 1
                    if rows > part.rows:
                        break
                    yield raw
            hashing.read_to_end()
    except (OSError, EOFError, zlib.error) as error:
        raise StoreCorrupt(f"{path} cannot be read: {error}", hint=OTHER) from error
    if rows != part.rows or hashing.digest() != part.sha256:
        raise StoreCorrupt(f"{path} is not what the manifest says", hint=OTHER)


def _next(frames: gzip.GzipFile, part: SnapshotPart) -> bytes | None:
    head = frames.read(LENGTH_BYTES)
    if not head:
        return None
    length = int.from_bytes(head, "big")
    if len(head) < LENGTH_BYTES or not 0 < length <= _FRAME_BYTES_MAX:
        raise StoreCorrupt(f"{part.path} holds something that is no envelope", hint=OTHER)
    raw = frames.read(length)
    if len(raw) < length:
        raise StoreCorrupt(f"{part.path} ends in the middle of an envelope", hint=OTHER)
    return raw


class _Hashing:
    """A file that is hashed as it is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash = file, sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        return data

    def read_to_end(self) -> None:
        while self.read(BLOB_CHUNK_BYTES):
            pass

    def digest(self) -> str:
        return self._hash.hexdigest()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
