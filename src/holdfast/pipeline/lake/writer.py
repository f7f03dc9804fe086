"""Files of a table, written by the task that has the rows.

A task writes Parquet by Arrow into a fresh folder under the table, which no reader looks into, and
flushes it. Its report names the files with their counts and bounds, and the driver commits exactly
those: it lists no folder and reads no footer. What an attempt leaves that was killed, or that ran
beside another, has names of its own and is removed by `vacuum`.

Spark's own writer is not used. It follows the settings of the session, which may be a user's, and
can only reach what its Hadoop libraries can reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.pipeline.lake.files import File, file_written
from holdfast.pipeline.lake.folder import Folder
from holdfast.pipeline.lake.reader import fitted
from holdfast.rules.limits import LAKE_FILE_BYTES, LAKE_GROUP_BYTES, LAKE_GROUP_ROWS
from holdfast.storage.files.copying import flush_file
from holdfast.storage.files.durable import disk_errors, fsync_dir

_FEW: Final = frozenset(
    {
        *("log", "epoch", "mesh", "owner", "op", "origin", "peer", "family", "batch", "bucket"),
        *("model", "write_class", "state", "base_peer", "origin_epoch", "kind", "event", "status"),
        *("reason", "tombstone", "live", "sender", "priority", "content_type", "predicate"),
    }
)
"""Columns with few different values: only for these a dictionary in the file saves anything."""


class FileWriter(msgspec.Struct, frozen=True, kw_only=True):
    """Writes files of one table into one folder; Spark sends it to the tasks."""

    root: str
    """The table."""
    options: Mapping[str, str] | None = None
    folder: str
    """The new folder, relative to the table."""
    schema: pa.Schema
    """All columns of the table."""
    partitions: tuple[str, ...] = ()
    """The columns that name the folders and are not in the files."""

    def write(self, rows: Iterable[pa.Table | pa.RecordBatch]) -> list[File]:
        """Writes rows that are sorted as the files should be, first by the partition columns."""
        done: list[File] = []
        target = Folder(self.root, self.options)
        with disk_errors(f"write below {self.root}"), ExitStack() as opened:
            now: _OpenFile | None = None
            for values, part in self._parted(rows):
                if now is not None and (now.values != values or now.is_full):
                    done.append(now.close())
                    now = None
                if now is None:
                    now = opened.enter_context(_OpenFile(self, target, values))
                now.add(part)
            if now is not None:
                done.append(now.close())
        return done

    def _parted(
        self, rows: Iterable[pa.Table | pa.RecordBatch]
    ) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
        """Neighbouring rows of one partition, with the values of the partition columns."""
        for some in rows:
            table = pa.Table.from_batches([some]) if isinstance(some, pa.RecordBatch) else some
            table = fitted(table, self.schema)
            if not table.num_rows:
                continue
            if not self.partitions:
                yield (), table
                continue
            begin = 0
            for end in _ends(table.select(self.partitions)):
                part = table.slice(begin, end - begin)
                yield tuple(_text(part[name][0]) for name in self.partitions), part
                begin = end


class _OpenFile:
    """A file that is being written."""

    def __init__(self, writer: FileWriter, target: Folder, values: tuple[str | None, ...]) -> None:
        self.values = values
        self._partition = dict(zip(writer.partitions, values, strict=True))
        folders = [
            writer.folder,
            *(f"{name}={_quoted(value)}" for name, value in self._partition.items()),
        ]
        inside = "/".join(folders)
        self._path = f"{inside}/part-{uuid4().hex}.zstd.parquet"
        self._folders = folders
        self._target = target
        self._schema = pa.schema([f for f in writer.schema if f.name not in writer.partitions])
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = self._waiting_rows = 0
        self._footers: list[pq.FileMetaData] = []
        target.system.create_dir(target.path(inside), recursive=True)
        self._out = target.system.open_output_stream(target.path(self._path))
        names = self._schema.names
        self._file = pq.ParquetWriter(
            self._out,
            self._schema,
            compression="zstd",
            use_dictionary=[name for name in names if name in _FEW],
            write_statistics=[f.name for f in self._schema if _has_bounds(f.type)],
            store_schema=False,
            metadata_collector=self._footers,
        )

    def __enter__(self) -> _OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._out.closed:
            self._file.close()
            self._out.close()

    @property
    def is_full(self) -> bool:
        return bool(self._out.tell() >= LAKE_FILE_BYTES)

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows.select(self._schema.names))
        self._waiting_bytes += rows.nbytes
        self._waiting_rows += rows.num_rows
        if self._waiting_bytes >= LAKE_GROUP_BYTES or self._waiting_rows >= LAKE_GROUP_ROWS:
            self._write_group()

    def _write_group(self) -> None:
        rows = pa.concat_tables(self._waiting)
        self._file.write_table(rows, row_group_size=max(1, rows.num_rows))
        self._waiting, self._waiting_bytes, self._waiting_rows = [], 0, 0

    def close(self) -> File:
        """Ends the file and flushes it; returns what a commit says about it."""
        if self._waiting:
            self._write_group()
        self._file.close()
        size = self._out.tell()
        self._out.close()
        self._flush()
        return file_written(self._path, size, self._footers[0], self._partition)

    def _flush(self) -> None:
        local = self._target.local
        if local is None:
            return
        flush_file(local / self._path)
        inside = Path(*self._folders)
        for folder in (inside, *inside.parents):
            fsync_dir(local / folder)


def _ends(values: pa.Table) -> list[int]:
    """Where each run of equal rows ends."""
    changes = None
    for column in values.columns:
        flat = column.combine_chunks()
        differs = pc.fill_null(pc.not_equal(flat[1:], flat[:-1]), True)
        changes = differs if changes is None else pc.or_(changes, differs)
    return [at + 1 for at in pc.indices_nonzero(changes).to_pylist()] + [values.num_rows]


def _text(value: Any) -> str | None:
    plain = value.as_py()
    return None if plain is None else str(plain)


def _quoted(value: str | None) -> str:
    return "__HIVE_DEFAULT_PARTITION__" if value is None else quote(value, safe="")


def _has_bounds(kind: pa.DataType) -> bool:
    """Whether the least and the greatest value of a column help to find rows."""
    return not (pa.types.is_binary(kind) or pa.types.is_nested(kind))
