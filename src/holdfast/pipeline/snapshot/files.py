"""The files of a snapshot, as Spark's executors write them.

Every task writes files of its own under names that nobody else uses, and tells of them only when it
has succeeded. What a task left behind that was killed or run twice is named by nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.fs

from holdfast.node.snapshots.manifest import NAME, PARTS, SnapshotPart
from holdfast.node.snapshots.parts import PartWriter, entry_digest, sum_text
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

WRITTEN: Final = (
    "path string, rows long, size long, sha256 string, raw_bytes long, "
    "lamport long, origin string, id string, content string, counts string"
)
"""What a task tells of each part: the part, the first entry in it, its sum, its families."""
TAKEN: Final = ("lamport", "origin", "id", "mesh", "family", "raw")
"""The columns that a task is given, in the order of the first three."""


class SnapshotPartWritten(msgspec.Struct, frozen=True, kw_only=True):
    """One part, as a task tells of it."""

    path: str
    rows: int
    size: int
    sha256: str
    raw_bytes: int
    lamport: int
    origin: str
    id: str
    content: str
    counts: str

    @property
    def order(self) -> tuple[int, bytes, str]:
        return (self.lamport, self.origin.encode(), self.id)

    @property
    def part(self) -> SnapshotPart:
        return SnapshotPart(
            path=self.path,
            rows=self.rows,
            size=self.size,
            sha256=self.sha256,
            raw_bytes=self.raw_bytes,
        )

    @property
    def by_family(self) -> dict[str, int]:
        return msgspec.json.decode(self.counts, type=dict[str, int])


class SnapshotTarget:
    """The folder that a snapshot is made in: on a disk that all see, or in an object store."""

    def __init__(self, where: str) -> None:
        if "://" in where:
            self._system, self._base = pyarrow.fs.FileSystem.from_uri(where)
        else:
            self._system, self._base = pyarrow.fs.LocalFileSystem(), os.path.abspath(where)

    @property
    def _local(self) -> Path | None:
        is_local = isinstance(self._system, pyarrow.fs.LocalFileSystem)
        return Path(self._base) if is_local else None

    def prepare(self) -> None:
        """Makes it, or finds what a build that was cut short has left."""
        self._check_unused()
        folder = self._local
        if folder is None:
            return
        with disk_errors(f"create {folder}"):
            folder.parent.mkdir(parents=True, exist_ok=True)
        make_folder(folder)
        make_folder(folder / PARTS)

    def _check_unused(self) -> None:
        found = self._system.get_file_info(self._base)
        if found.type == pyarrow.fs.FileType.NotFound:
            return
        if found.type == pyarrow.fs.FileType.File:
            raise BadPath(f"{self._base} is a file", hint="name a folder for the snapshot")
        names = {file.base_name for file in self._list("")}
        if NAME in names:
            raise AlreadyExists(
                f"{self._base} holds a snapshot already", hint="choose a new folder for each"
            )
        if any(name != PARTS and not _is_draft(name) for name in names):
            raise AlreadyExists(f"{self._base} is not empty", hint="choose a new folder")

    @contextmanager
    def writing(self, path: str) -> Iterator[Callable[[bytes], Any]]:
        """A new file, safe when the block has ended well."""
        folder = self._local
        if folder is None:
            with self._system.open_output_stream(f"{self._base}/{path}") as out:
                yield out.write
            return
        target = folder / path
        with new_file(target) as fd, open(fd, "wb", closefd=False) as out:
            with disk_errors(f"write {target}"):
                yield out.write
                out.flush()
            flush(fd, target)

    def publish(self, manifest: bytes, build: str) -> None:
        """From here on it is a snapshot. Only one build can do this in a folder."""
        folder = self._local
        if folder is None:
            self._check_unused()
            with self._system.open_output_stream(f"{self._base}/{NAME}") as out:
                out.write(manifest)
            return
        fsync_dir(folder / PARTS)
        draft = folder / f"{NAME}-{build}"
        durable_replace(draft, manifest)
        try:
            # A link, because a rename would take the place of another's manifest.
            with disk_errors(f"write {folder / NAME}"):
                try:
                    os.link(draft, folder / NAME)
                except (FileExistsError, FileNotFoundError):
                    # The draft is gone if that other build has tidied up already.
                    raise AlreadyExists(
                        f"another build has made a snapshot in {folder} meanwhile",
                        hint="use that one, or choose a new folder",
                    ) from None
        finally:
            draft.unlink(missing_ok=True)
        fsync_dir(folder)

    def remove_strays(self, named: set[str]) -> int:
        """What tasks and builds left behind that do not count; how many files that were."""
        strays = [
            file.path for file in self._list(PARTS) if f"{PARTS}/{file.base_name}" not in named
        ]
        strays += [file.path for file in self._list("") if _is_draft(file.base_name)]
        for path in strays:
            self._system.delete_file(path)
        return len(strays)

    def _list(self, folder: str) -> list[Any]:
        where = f"{self._base}/{folder}".rstrip("/")
        selector = pyarrow.fs.FileSelector(where, allow_not_found=True)
        return list(self._system.get_file_info(selector))


def _is_draft(name: str) -> bool:
    """A manifest that did not get its name: its build was killed."""
    return name.startswith((f"{NAME}-", TEMPORARY_PREFIX))


def write_parts(
    where: str, build: str, part_bytes: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs on an executor: writes what a task is given, and tells of it."""
    target = SnapshotTarget(where)
    rows = (row for batch in batches for row in zip(*map(_values, batch.columns), strict=True))
    written: list[dict[str, Any]] = []
    for first in rows:
        path = f"{PARTS}/{build}-{uuid4().hex}.gz"
        with target.writing(path) as write:
            written.append(_fill(PartWriter(write), path, first, rows, part_bytes))
    schema = pa.schema([(name, _ARROW[kind]) for name, kind in _columns()])
    yield pa.RecordBatch.from_pylist(written, schema=schema)


def _fill(
    writer: PartWriter, path: str, first: tuple[Any, ...], rows: Iterator[Any], part_bytes: int
) -> dict[str, Any]:
    total = 0
    counts: dict[str, int] = {}
    row: tuple[Any, ...] | None = first
    while row is not None:
        _, _, id, mesh, family, raw = row
        writer.add(raw)
        total += entry_digest(mesh, parse_id(id), raw)
        counts[family] = counts.get(family, 0) + 1
        row = next(rows, None) if writer.raw_bytes < part_bytes else None
    told = SnapshotPartWritten(
        **msgspec.structs.asdict(writer.finish(path)),
        lamport=first[0],
        origin=first[1],
        id=first[2],
        content=sum_text(total),
        counts=msgspec.json.encode(counts).decode(),
    )
    return msgspec.structs.asdict(told)


_ARROW: Final = {"string": pa.string(), "long": pa.int64()}


def _columns() -> list[tuple[str, str]]:
    return [(name, kind) for name, kind in (column.split() for column in WRITTEN.split(", "))]


def _values(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values
