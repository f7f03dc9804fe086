"""The files of a snapshot, written by Spark's executors.

Every task writes files under names of its own, and reports them only when it has succeeded. So no
manifest names the files of a task that was killed or ran twice.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

import msgspec
import pyarrow as pa

from holdfast.node.snapshots.manifest import NAME, PARTS, SnapshotPart
from holdfast.node.snapshots.parts import PartWriter, entry_digest, sum_text
from holdfast.pipeline.lake.folder import FILE, Folder
from holdfast.protocol.commit_page import CommitLine, encode_line
from holdfast.rules.errors import AlreadyExists, BadPath
from holdfast.rules.ids import parse_id
from holdfast.storage.files.copying import new_file
from holdfast.storage.files.durable import (
    TEMPORARY_PREFIX,
    disk_errors,
    durable_replace,
    flush,
    fsync_dir,
    make_folder,
)

WRITTEN: Final = "written binary"
"""What a task gives for each part: a `SnapshotPartWritten` as msgpack."""
TAKEN: Final = ("lamport", "origin", "id", "mesh", "family", "raw")
"""The columns that a task gets, sorted by the first three. Of a commit the stamp is its number, and
its record comes last.
"""


class SnapshotPartWritten(msgspec.Struct, frozen=True, kw_only=True):
    """One part that a task has written."""

    part: SnapshotPart
    order: tuple[int, bytes, str]
    """Stamp, origin and id of its first entry."""
    content: str
    """The sum of the digests of its entries."""
    counts: dict[str, int]
    """Entries by family."""


class SnapshotTarget(Folder):
    """The folder that a snapshot is made in: on a disk that all executors see, or in an object
    store.
    """

    def prepare(self) -> None:
        """Makes the folder, or accepts one that a build which was cut short has left."""
        self._check_unused()
        folder = self.local
        if folder is None:
            return
        with disk_errors(f"create {folder}"):
            folder.parent.mkdir(parents=True, exist_ok=True)
        make_folder(folder, private=False)
        make_folder(folder / PARTS, private=False)

    def _check_unused(self) -> None:
        if self.kind() == FILE:
            raise BadPath(f"{self.root} is a file", hint="name a folder for the snapshot")
        names = {entry.base_name for entry in self.entries()}
        if NAME in names:
            raise AlreadyExists(
                f"{self.root} holds a snapshot already", hint="choose a new folder for each"
            )
        if any(name != PARTS and not _is_draft(name) for name in names):
            raise AlreadyExists(f"{self.root} is not empty", hint="choose a new folder")

    @contextmanager
    def writing(self, path: str) -> Iterator[Callable[[bytes], Any]]:
        """A function that writes to a new file, which is flushed at the end of the block."""
        folder = self.local
        if folder is None:
            with super().writing(path) as write:
                yield write
            return
        target = folder / path
        with new_file(target, private=False) as fd, open(fd, "wb", closefd=False) as out:
            with disk_errors(f"write {target}"):
                yield out.write
                out.flush()
            flush(fd, target)

    def publish(self, manifest: bytes, build: str) -> None:
        """Writes the manifest, which makes the folder a snapshot. Only one build can do this."""
        folder = self.local
        if folder is None:
            self._check_unused()
            self.write(NAME, manifest)
            return
        fsync_dir(folder / PARTS)
        draft = folder / f"{NAME}-{build}"
        durable_replace(draft, manifest, private=False)
        try:
            # A link, because a rename would replace the manifest of another build.
            with disk_errors(f"write {folder / NAME}"):
                try:
                    os.link(draft, folder / NAME)
                except (FileExistsError, FileNotFoundError):
                    # The draft is missing if that other build has removed it as a stray.
                    raise AlreadyExists(
                        f"another build has made a snapshot in {folder} meanwhile",
                        hint="use that one, or choose a new folder",
                    ) from None
        finally:
            draft.unlink(missing_ok=True)
        fsync_dir(folder)

    def remove_strays(self, named: set[str]) -> int:
        """Removes files that repeated tasks and killed builds have left; returns how many."""
        strays = [
            entry.path for entry in self.entries(PARTS) if f"{PARTS}/{entry.base_name}" not in named
        ]
        strays += [entry.path for entry in self.entries() if _is_draft(entry.base_name)]
        for path in strays:
            self.system.delete_file(path)
        return len(strays)


def _is_draft(name: str) -> bool:
    """Whether it is a manifest that a killed build did not publish."""
    return name.startswith((f"{NAME}-", TEMPORARY_PREFIX))


def write_parts(
    target: SnapshotTarget, build: str, part_bytes: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs on an executor: writes the rows of a task into parts; gives a row for each part."""
    rows = (row for batch in batches for row in zip(*map(_values, batch.columns), strict=True))
    written: list[bytes] = []
    for first in rows:
        path = f"{PARTS}/{build}-{uuid4().hex}.gz"
        with target.writing(path) as write:
            part = _fill(PartWriter(write), path, first, rows, part_bytes)
        written.append(msgspec.msgpack.encode(part))
    yield pa.RecordBatch.from_arrays([pa.array(written, pa.binary())], ["written"])


def _fill(
    writer: PartWriter, path: str, first: tuple[Any, ...], rows: Iterator[Any], part_bytes: int
) -> SnapshotPartWritten:
    """Writes the first row and those after it into one part, until it is full."""
    total = 0
    counts: Counter[str] = Counter()
    row: tuple[Any, ...] | None = first
    while row is not None:
        _, _, id, mesh, family, raw, *record = row
        writer.add(encode_line(CommitLine(record[0], raw)) if record else raw)
        total += entry_digest(mesh, parse_id(id), raw)
        counts[family] += 1
        row = next(rows, None) if writer.raw_bytes < part_bytes else None
    lamport, origin, id = first[:3]
    return SnapshotPartWritten(
        part=writer.finish(path),
        order=(lamport, origin.encode(), id),
        content=sum_text(total),
        counts=dict(counts),
    )


def _values(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values
