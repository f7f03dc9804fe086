"""One table of the lake: Spark writes the Parquet, a Delta commit makes it true.

Spark writes into a fresh folder under the table, where nobody looks. Then one commit names the new
files, the ones that they replace, and how far the work has got (an application id with a version).
So whatever happens in between, a killed driver, a lost executor, a full disk, leaves the table as
it was, and files that no commit names are for `vacuum` to remove.

A commit is made at exactly the version that follows the one the work was based on. If somebody else
was first, it is refused (`LakeMoved`) and the work is done anew on what is there now.

On a local disk everything that a commit names is flushed before it, and the commit itself after:
what was read from a node may be confirmed to it only when it survives a power cut here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.pipeline.lake.schema import without
from holdfast.rules.errors import DiskFull, JobFailed, LakeMoved, StoreCorrupt
from holdfast.storage.files.copying import flush_file
from holdfast.storage.files.durable import fsync_dir

STAGED: Final = "data-"
_STAT_BYTES_MAX: Final = 64
"""Longer texts have no bounds in the statistics: they would be as long as the table."""
_PROPERTIES: Final = {
    "delta.logRetentionDuration": "interval 3650 days",
    "delta.deletedFileRetentionDuration": "interval 30 days",
}
_NOTHING: Final[Mapping[str, Any]] = {}


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file of a table, with what is known without opening it."""

    path: str
    """Within the table."""
    size: int
    rows: int
    partition: Mapping[str, str | None] = {}
    low: Mapping[str, Any] = {}
    high: Mapping[str, Any] = {}
    nulls: Mapping[str, int] = {}
    stats: str = ""
    """The same as the commit holds them."""

    def may_hold(self, column: str, low: Any, high: Any) -> bool:
        """Whether a value between two bounds (inclusive) may be in it."""
        least, most = self.low.get(column), self.high.get(column)
        return least is None or most is None or (least <= high and most >= low)

    def only(self, column: str) -> Any:
        """The one value that all rows have; None if there may be others."""
        least, most = self.low.get(column), self.high.get(column)
        return least if least == most and self.nulls.get(column) == 0 else None


class Staged(msgspec.Struct, frozen=True):
    """Files that Spark has written and no commit names yet."""

    folder: str
    files: tuple[File, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


class Table:
    """One Delta table, as of its latest version when it was first looked at; `fresh()` looks
    again.
    """

    def __init__(
        self,
        root: str,
        schema: StructType,
        *,
        partitions: Mapping[str, str] = _NOTHING,
        storage_options: Mapping[str, str] | None = None,
        version: int | None = None,
    ) -> None:
        """`partitions`: the columns that folders are named by, each with the expression that gives
        it from the other columns: the files themselves do not hold it.
        """
        self.root = root.rstrip("/")
        self.schema = schema
        self._partitions = dict(partitions)
        self._storage_options = None if storage_options is None else dict(storage_options)
        self._asked_version = version

    # --- looking -------------------------------------------------------------------------------

    def fresh(self) -> Table:
        return self._at(None)

    def at(self, version: int) -> Table:
        """The table as it was."""
        return self._at(version)

    def _at(self, version: int | None) -> Table:
        return Table(
            self.root,
            self.schema,
            partitions=self._partitions,
            storage_options=self._storage_options,
            version=version,
        )

    @cached_property
    def delta(self) -> DeltaTable | None:
        """None while there is no such table."""
        try:
            return DeltaTable(
                self.root, version=self._asked_version, storage_options=self._storage_options
            )
        except TableNotFoundError:
            return None

    @property
    def exists(self) -> bool:
        return self.delta is not None

    @property
    def version(self) -> int:
        """-1 while there is no table."""
        return -1 if self.delta is None else self.delta.version()

    def txn(self, app: str) -> int | None:
        """The version that the last commit for an application id has noted."""
        return None if self.delta is None else self.delta.transaction_version(app)

    @cached_property
    def info(self) -> Mapping[str, Any]:
        """What the last commit says of itself."""
        return {} if self.delta is None else self._commit_info(self.version)

    def said(self, key: str) -> Any:
        """What the last commit says that speaks of a key; None if none ever did. A vacuum is a
        commit too, and others may work on the table with tools of their own.
        """
        for version in range(self.version, -1, -1):
            if key in (info := self._commit_info(version)):
                return json.loads(info[key])
        return None

    def _commit_info(self, version: int) -> Mapping[str, Any]:
        # Not by `history`, which tells of commits that came after this version was looked at.
        system, base = self._system
        path = f"{base}/_delta_log/{version:020}.json"
        try:
            with system.open_input_file(path) as file:
                lines = bytes(file.read()).splitlines()
        except FileNotFoundError:
            raise StoreCorrupt(
                f"{self.root} has lost the commit of its version {version}",
                hint="somebody cleaned its log; put _delta_log back from a copy",
            ) from None
        found = (json.loads(line).get("commitInfo") for line in lines if line.strip())
        return next((info for info in found if info is not None), {})

    @cached_property
    def all_files(self) -> tuple[File, ...]:
        if self.delta is None:
            return ()
        actions = pa.table(self.delta.get_add_actions(flatten=True))
        return tuple(_file(row) for row in actions.to_pylist())

    def files(self, prune: Callable[[File], bool] | None = None) -> list[File]:
        """Those that `prune` says may matter; all without it."""
        return [file for file in self.all_files if prune is None or prune(file)]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.all_files)

    def uri(self, file: File) -> str:
        return f"{self.root}/{file.path}"

    def read(self, spark: SparkSession, prune: Callable[[File], bool] | None = None) -> DataFrame:
        """Spark's own scan of exactly these files."""
        return self.read_files(spark, self.files(prune))

    def read_files(self, spark: SparkSession, files: Iterable[File]) -> DataFrame:
        paths = [self.uri(file) for file in files]
        stored = without(self.schema, *self._partitions)
        if paths:
            # A file that is not there or damaged is an error, whatever the session was told.
            strict = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
            frame = spark.read.schema(stored).options(**strict).parquet(*paths)
        else:
            frame = spark.createDataFrame([], stored)
        for column, expression in self._partitions.items():
            frame = frame.withColumn(column, F.expr(expression))
        return frame.select(*self.schema.names)

    # --- changing ------------------------------------------------------------------------------

    def stage(self, frame: DataFrame, *, sort_by: Sequence[str] = ()) -> Staged:
        """Writes a frame as it is partitioned. Nothing of it can be seen yet."""
        folder = f"{STAGED}{uuid4().hex}"
        frame = frame.select(*self.schema.names)
        if sort_by:
            frame = frame.sortWithinPartitions(*sort_by)
        writer = frame.write.mode("error")
        if self._partitions:
            writer = writer.partitionBy(*self._partitions)
        writer.parquet(f"{self.root}/{folder}")
        return Staged(folder, tuple(self._written(folder)))

    def stage_by(self, write: Callable[[str], object]) -> Staged:
        """The same, of files that somebody writes without Spark, into the folder that is given."""
        folder = f"{STAGED}{uuid4().hex}"
        write(f"{self.root}/{folder}")
        return Staged(folder, tuple(self._written(folder)))

    def discard(self, staged: Staged) -> None:
        """Removes what will not be committed."""
        system, base = self._system
        system.delete_dir(f"{base}/{staged.folder}")

    def holds(self, staged: Staged) -> bool:
        """Does a commit name any of it? Whoever was told that a commit failed may have been told
        wrong: an object store that is asked twice says that somebody else was first.
        """
        names = {file.path for file in staged.files}
        return any(file.path in names for file in self.all_files)

    def commit(
        self,
        add: Iterable[File],
        remove: Iterable[File] = (),
        *,
        txns: Mapping[str, int] = _NOTHING,
        info: Mapping[str, Any] = _NOTHING,
        data_change: bool = True,
    ) -> int:
        """Makes it true, as the version that follows this one, or raises LakeMoved. `data_change`
        is False for what only moves rows around.
        """
        now = time.time_ns() // 1_000_000
        added, removed = list(add), list(remove)
        self._flush(added)
        adding = [AddAction(f.path, f.size, f.partition, now, data_change, f.stats) for f in added]
        removing = [
            RemoveAction(f.path, data_change, now, f.size, dict(f.partition)) for f in removed
        ]
        properties = CommitProperties(
            custom_metadata={key: json.dumps(value) for key, value in info.items()},
            max_commit_retries=0,
            app_transactions=[Transaction(app, version) for app, version in txns.items()],
        )
        try:
            self._commit(adding, removing, properties)
        except CommitFailedError as error:
            raise LakeMoved(f"another job changed {self.root} first: {error}") from error
        except (DeltaError, OSError) as error:
            raise _typed(error, self.root) from error
        self._flush_log(self.version + 1)
        return self.version + 1

    def _commit(
        self,
        adding: list[AddAction],
        removing: list[RemoveAction],
        properties: CommitProperties,
    ) -> None:
        assert self._asked_version is None, "the past does not change"
        arrow = Schema.from_arrow(arrow_schema(self.schema))
        partition_by = list(self._partitions)
        if self.delta is None:
            assert not removing, "a table that is not there has nothing to remove"
            try:
                create_table_with_add_actions(
                    self.root,
                    arrow,
                    adding,
                    mode="error",
                    partition_by=partition_by,
                    configuration=_PROPERTIES,
                    storage_options=self._storage_options,
                    commit_properties=properties,
                )
            except DeltaError as error:
                if self.fresh().exists:
                    raise CommitFailedError(str(error)) from error
                raise
            return
        self.delta.create_write_transaction(
            [*adding, *removing],
            "append",
            arrow,
            partition_by=partition_by,
            commit_properties=properties,
        )

    def settle(self) -> None:
        """The last commit is safe now. Whoever made it may have been killed before it came to the
        flush, and what it names must not be confirmed to anybody until then.
        """
        if self.exists:
            self._flush_log(self.version)

    def vacuum(self, hours: int, *, dry_run: bool) -> list[str]:
        """Removes files that no version of the last `hours` names; returns which."""
        if self.delta is None:
            return []
        found: list[str] = self.delta.vacuum(
            hours, dry_run=dry_run, enforce_retention_duration=False, full=True
        )
        return found

    # --- files on their way --------------------------------------------------------------------

    @cached_property
    def _system(self) -> tuple[pyarrow.fs.FileSystem, str]:
        if "://" in self.root:
            system, base = pyarrow.fs.FileSystem.from_uri(self.root)
            return system, base
        return pyarrow.fs.LocalFileSystem(), self.root

    @property
    def _local(self) -> Path | None:
        system, base = self._system
        return Path(base) if isinstance(system, pyarrow.fs.LocalFileSystem) else None

    def _written(self, folder: str) -> Iterable[File]:
        system, base = self._system
        found = system.get_file_info(pyarrow.fs.FileSelector(f"{base}/{folder}", recursive=True))
        for entry in found:
            if entry.type == pyarrow.fs.FileType.File and _counts(entry.path[len(base) + 1 :]):
                with system.open_input_file(entry.path) as source:
                    metadata = pq.read_metadata(source)
                if metadata.num_rows:
                    yield _described(entry.path[len(base) + 1 :], entry.size, metadata)

    def _flush(self, files: Sequence[File]) -> None:
        local = self._local
        if local is None or not files:
            return
        folders = {local}
        for file in files:
            path = local / file.path
            flush_file(path)
            inside = path.parent
            while inside != local:
                folders.add(inside)
                inside = inside.parent
        for folder in sorted(folders, reverse=True):
            fsync_dir(folder)

    def _flush_log(self, version: int) -> None:
        local = self._local
        if local is not None:
            log = local / "_delta_log"
            flush_file(log / f"{version:020}.json")
            fsync_dir(log)
            fsync_dir(local)


def arrow_schema(schema: StructType) -> pa.Schema:
    """A schema of Spark's as Arrow's, with times as Delta keeps them."""
    plain: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return plain


def _counts(path: str) -> bool:
    """Is it a file of a task that was committed? A task that runs twice may leave another copy of
    its rows in a folder for passing things, which Spark itself does not look into.
    """
    hidden = any(part.startswith(("_", ".")) for part in path.split("/"))
    return path.endswith(".parquet") and not hidden


def _typed(error: Exception, root: str) -> Exception:
    text = str(error)
    if "No space left" in text or "os error 28" in text:
        return DiskFull(f"no room for a commit to {root}: {text}")
    return JobFailed(f"the commit to {root} failed: {text}")


def _described(path: str, size: int, metadata: pq.FileMetaData) -> File:
    """A file by the statistics in its footer."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for column in range(metadata.num_columns):
        bounds = _bounds(metadata, column)
        if bounds is not None:
            name, low[name], high[name], nulls[name] = bounds
    known = {name for name in low if low[name] is not None}
    stats = {
        "numRecords": metadata.num_rows,
        "minValues": {name: _said(low[name]) for name in known},
        "maxValues": {name: _said(_next_ms(high[name])) for name in known},
        "nullCount": nulls,
    }
    partition = dict(part.split("=", 1) for part in path.split("/")[:-1] if "=" in part)
    return File(
        path=path,
        size=size,
        rows=metadata.num_rows,
        partition={name: unquote(value) for name, value in partition.items()},
        low={name: low[name] for name in known},
        high={name: high[name] for name in known},
        nulls=nulls,
        stats=json.dumps(stats, sort_keys=True),
    )


def _bounds(metadata: pq.FileMetaData, column: int) -> tuple[str, Any, Any, int] | None:
    """Name, least, greatest and count of nulls; None where they are not known or of no use."""
    name = metadata.schema.column(column).path
    low: Any = None
    high: Any = None
    nulls = 0
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(column)
        found = chunk.statistics
        if "." in name or found is None or not found.has_null_count:
            return None
        nulls += found.null_count
        if found.null_count == chunk.num_values and not found.has_min_max:
            continue
        if not found.has_min_max or not _is_short(found.min) or not _is_short(found.max):
            return None
        low = found.min if low is None else min(low, found.min)
        high = found.max if high is None else max(high, found.max)
    return name, low, high, nulls


def _is_short(value: Any) -> bool:
    if isinstance(value, str):
        return len(value.encode()) <= _STAT_BYTES_MAX
    return isinstance(value, int | date | datetime)


def _next_ms(value: Any) -> Any:
    """A time that no time in the file is beyond, when it is told in milliseconds."""
    if isinstance(value, datetime) and value.microsecond % 1000:
        return value + timedelta(milliseconds=1)
    return value


def _said(value: Any) -> Any:
    """As Delta writes it."""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03}Z"
    return value.isoformat() if isinstance(value, date) else value


def _file(row: Mapping[str, Any]) -> File:
    """A file as the table's log tells of it."""

    def of(prefix: str) -> dict[str, Any]:
        return {
            name.removeprefix(prefix): value
            for name, value in row.items()
            if name.startswith(prefix) and value is not None
        }

    low, high, nulls = of("min."), of("max."), of("null_count.")
    stats = {
        "numRecords": row["num_records"],
        "minValues": {name: _said(value) for name, value in low.items()},
        "maxValues": {name: _said(value) for name, value in high.items()},
        "nullCount": nulls,
    }
    partition = {
        name: value.isoformat() if isinstance(value, date) else str(value)
        for name, value in of("partition.").items()
    }
    return File(
        path=row["path"],
        size=row["size_bytes"],
        rows=row["num_records"],
        partition=partition,
        low=low,
        high=high,
        nulls=nulls,
        stats=json.dumps(stats, sort_keys=True),
    )
