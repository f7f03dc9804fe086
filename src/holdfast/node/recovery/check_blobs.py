"""Checks of the blobs: is the content that rows name there and undamaged, and does a row name
each?
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from holdfast.node.recovery.checks import Check, fail, joined_names, ok, warn
from holdfast.rules import limits
from holdfast.rules.errors import BlobCorrupt, BlobMissing
from holdfast.storage.files.blobs import BlobFile, DraftFile, FileBlobs, StrangeFile
from holdfast.storage.ports import Reader
from holdfast.storage.scans import file_rows

_AGAIN = "share the file again, or restore it from a backup"


def check_blobs(
    reader: Reader, blobs: FileBlobs, peer: str, now_ms: int, *, full: bool
) -> Iterator[Check]:
    """`full` reads and hashes all content; otherwise only names and sizes are checked."""
    yield from _named(reader, blobs, peer, full)
    yield from _found(reader, blobs, now_ms)


def _named(reader: Reader, blobs: FileBlobs, peer: str, full: bool) -> Iterator[Check]:
    missing: list[str] = []
    elsewhere: list[str] = []
    damaged: list[str] = []
    count = 0
    files = chain.from_iterable(file_rows(reader, mesh.slug) for mesh in reader.mesh_list())
    for row in files:
        if not row.in_blob:
            continue
        count += 1
        try:
            blobs.verify(row.sha256) if full else blobs.check(row.sha256, row.size)
        except BlobMissing:
            (missing if row.owner == peer else elsewhere).append(row.path)
        except BlobCorrupt:
            damaged.append(row.path)
    if missing:
        yield fail("blobs", f"the content of {joined_names(missing)} is not on the disk", _AGAIN)
    if damaged:
        yield fail("blobs", f"the content of {joined_names(damaged)} is damaged", _AGAIN)
    if elsewhere:
        what = f"the content of {joined_names(elsewhere)} of other peers has not arrived yet"
        yield warn("blobs", what, "sync with the peer that shared it")
    if not missing and not damaged:
        read = "read and verified" if full else "there, with the right size"
        yield ok("blobs", f"{count - len(elsewhere)} files in blobs: all {read}")


def _found(reader: Reader, blobs: FileBlobs, now_ms: int) -> Iterator[Check]:
    orphans = drafts = 0
    strange: list[str] = []
    oldest = now_ms - limits.BLOB_ORPHAN_AGE_MS
    for found in blobs.scan():
        if isinstance(found, StrangeFile):
            strange.append(found.name)
        elif found.mtime_ms >= oldest:
            continue  # its transaction may follow
        elif isinstance(found, DraftFile):
            drafts += 1
        elif isinstance(found, BlobFile) and reader.blob_get(found.sha) is None:
            orphans += 1
    if orphans or drafts:
        what = f"{orphans} blobs that no row names and {drafts} that a crash left half-written"
        yield warn("orphans", what, "holdfast sweep")
    if strange:
        what = f"{joined_names(strange)} in the folder of blobs is not ours and is left alone"
        yield warn("strange", what, "move it elsewhere")
