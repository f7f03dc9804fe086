"""One table of the lake: tasks write the Parquet files, then a Delta commit makes them visible.

Tasks write into a fresh folder under the table, which no reader looks into (`writer.py`). Then one
commit names the new files, the files that they replace, and how far the work has got (an
application id with a version). So a killed driver, a lost executor or a full disk leaves the table
as it was, and `vacuum` removes the files that no commit names. A commit is refused if the driver
does not see what the tasks say they wrote.

A commit is made at exactly the version that follows the one the work was based on. If another job
committed first, this commit is refused (`LakeMoved`) and the work is done again on the new version.

On a local disk everything that a commit names is flushed before the commit, and the commit itself
after it: what was read from a node may be confirmed to that node only when it survives a power cut.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from holdfast.pipeline.lake.files import File, Staged, file_committed
from holdfast.pipeline.lake.folder import FILE, Folder
from holdfast.pipeline.lake.object_store import store_failure
from holdfast.pipeline.lake.reader import FileReader
from holdfast.pipeline.lake.scan import scan_by_tasks
from holdfast.pipeline.lake.schema import COMMENT, arrow_schema, commented, comments, without
from holdfast.pipeline.lake.storage_options import hadoop_settings
from holdfast.pipeline.lake.writer import FileWriter
from holdfast.pipeline.spark.hadoop import reads_scheme, set_hadoop
from holdfast.pipeline.spark.spark_workers import Proof, named
from holdfast.rules.errors import DiskFull, JobFailed, LakeMoved, LakeNotSeen, StoreCorrupt
from holdfast.rules.limits import LAKE_GROUP_ROWS
from holdfast.storage.files.copying import flush_file
from holdfast.storage.files.durable import fsync_dir

STAGED: Final = "data-"
_LARGEST: Final = (1 << 63) - 1
_PROPERTIES: Final = {
    "delta.logRetentionDuration": "interval 3650 days",
    "delta.deletedFileRetentionDuration": "interval 30 days",
}
_FILES: Final = "files"
"""The application id with which every commit notes which files the table has after it. An older
version that is restored brings its files back, and not what was noted with them.
"""
_CHANGED: Final = -1
_VERSION: Final = "version"
"""The application id with which every commit notes its own version."""
_NOTHING: Final[Mapping[str, Any]] = {}


def no_proof() -> None:
    """A `Proof` for a table that lies in no lake."""


class Table:
    """One Delta table at the version that was the latest when it was first read. `fresh()` gives
    the table at the version that is the latest now.
    """

    def __init__(
        self,
        root: str,
        schema: StructType,
        *,
        about: str = "",
        partitions: Mapping[str, str] = _NOTHING,
        options: Mapping[str, str] | None = None,
        version: int | None = None,
        proof: Proof = no_proof,
    ) -> None:
        """`about`: what the table holds, for its readers. `partitions`: the columns that name the
        folders, each with the expression that computes it from the other columns, since the files
        themselves do not hold it. `proof` is called by every task that writes.
        """
        self.folder = Folder(root, options)
        self.root = self.folder.root
        self.schema = schema
        self.about = about
        self._partitions = dict(partitions)
        self._asked_version = version
        self._proof = proof

    # --- reading -------------------------------------------------------------------------------

    def fresh(self) -> Table:
        return self.at(None)

    def at(self, version: int | None) -> Table:
        """The table at an older version; None for the latest."""
        return Table(
            self.root,
            self.schema,
            about=self.about,
            partitions=self._partitions,
            options=self.folder.options,
            version=version,
            proof=self._proof,
        )

    @cached_property
    def delta(self) -> DeltaTable | None:
        """None if the table was never committed to."""
        try:
            return DeltaTable(
                self.root, version=self._asked_version, storage_options=self.folder.options
            )
        except TableNotFoundError:
            return None
        except OSError as error:
            raise store_failure(error, self.root, self.folder.options) from None

    @property
    def exists(self) -> bool:
        return self.delta is not None

    @property
    def version(self) -> int:
        """The number of the last commit; -1 if there is none."""
        return -1 if self.delta is None else self.delta.version()

    def txn(self, app: str) -> int | None:
        """The version that the last commit with this application id noted."""
        return None if self.delta is None else self.delta.transaction_version(app)

    @cached_property
    def info(self) -> Mapping[str, Any]:
        """The `commitInfo` of the last commit; nothing if the log was cleaned of it."""
        # Not by `history`, which also shows commits that are newer than this version.
        raw = self.folder.read(f"_delta_log/{self.version:020}.json") or b""
        actions = (json.loads(line) for line in raw.splitlines() if line.strip())
        return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})

    @property
    def is_as_left(self) -> bool | None:
        """Whether the table has the files of the last commit that was made here. False after a
        RESTORE or after another tool has changed it, until all of its files are replaced; None if
        no commit has noted its files: in a clone, or in a table of earlier code.
        """
        noted = self.txn(_FILES)
        return None if noted is None else noted == fingerprint(file.path for file in self.all_files)

    @property
    def is_ours(self) -> bool:
        """Whether nobody else has committed since the last commit that was made here. A vacuum is a
        commit too, also one of ours.
        """
        return self.txn(_VERSION) == self.version

    def gone(self) -> list[File]:
        """Files that the table names and that are not there. After a vacuum an older version may be
        restored that names files which the vacuum has removed.
        """
        paths = [self.folder.path(file.path) for file in self.all_files]
        found = self.folder.system.get_file_info(paths)
        return [file for file, at in zip(self.all_files, found, strict=True) if at.type != FILE]

    @cached_property
    def all_files(self) -> tuple[File, ...]:
        if self.delta is None:
            return ()
        actions = pa.table(self.delta.get_add_actions(flatten=True))
        return tuple(self._committed(row) for row in actions.to_pylist())

    def _committed(self, row: dict[str, Any]) -> File:
        if row["num_records"] is None:  # another tool has written the file, without statistics
            with self.folder.system.open_input_file(self.folder.path(row["path"])) as source:
                row["num_records"] = pq.read_metadata(source).num_rows
        return file_committed(row)

    def files(self, prune: Callable[[File], bool] | None = None) -> list[File]:
        """The files that `prune` lets pass; all of them without it."""
        return [file for file in self.all_files if prune is None or prune(file)]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.all_files)

    def uri(self, file: File) -> str:
        return f"{self.root}/{file.path}"

    def read(self, spark: SparkSession, prune: Callable[[File], bool] | None = None) -> DataFrame:
        """The rows of the files that `prune` lets pass; of all files without it."""
        return self.read_files(spark, self.files(prune))

    def read_files(self, spark: SparkSession, files: Iterable[File]) -> DataFrame:
        """The rows of exactly these files, scanned by Spark itself where its Java can read the
        place, and by Python tasks where it cannot.
        """
        chosen = list(files)
        stored = without(self.schema, *self._partitions)
        location = self.folder.location
        if not chosen:
            frame = spark.createDataFrame([], stored)
        elif reads_scheme(spark, location.scheme):
            set_hadoop(spark, hadoop_settings(location, self.folder.options))
            # A missing or damaged file is an error, whatever the settings of the session are.
            strict = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
            paths = [f"{location.spark}/{file.path}" for file in chosen]
            frame = spark.read.schema(stored).options(**strict).parquet(*paths)
        else:
            frame = scan_by_tasks(spark, self.reader(), chosen, stored)
        for column, expression in self._partitions.items():
            frame = frame.withColumn(column, F.expr(expression))
        return frame.select(*self.schema.names)

    def load(self, files: Iterable[File], columns: Sequence[str]) -> tuple[pa.Table, list[File]]:
        """Columns of these files, read here by Arrow, and the files that are gone."""
        reader = self.reader()
        found, gone = [reader.empty(columns)], []
        for file in files:
            try:
                with reader.open(file) as opened:
                    found += opened.batches(columns, rows=LAKE_GROUP_ROWS)
            except StoreCorrupt as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                gone.append(file)
        return pa.concat_tables(found), gone

    # --- writing -------------------------------------------------------------------------------

    def stage(self, frame: DataFrame, *, sort_by: Sequence[str] = ()) -> Staged:
        """Writes a frame, one file for each of its partitions. Readers do not see it yet."""
        frame = frame.select(*self.schema.names)
        if order := [*self._partitions, *sort_by]:
            frame = frame.sortWithinPartitions(*order)
        writer, proof = self.writer(), self._proof

        def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            proof()
            report = pickle.dumps(writer.write(batches))
            yield pa.RecordBatch.from_pydict({"files": pa.array([report], pa.binary())})

        with named(frame.sparkSession, f"write {self.root}"):
            found = frame.mapInArrow(write, "files binary").toArrow()
        files = [file for raw in found.column(0).to_pylist() for file in pickle.loads(raw)]
        return Staged(writer.folder, tuple(files))

    def writer(self) -> FileWriter:
        """Writes files that a later commit names, into a new folder."""
        return FileWriter(
            root=self.root,
            options=self.folder.options,
            folder=f"{STAGED}{uuid4().hex}",
            schema=arrow_schema(self.schema),
            partitions=tuple(self._partitions),
        )

    def reader(self) -> FileReader:
        """Reads the columns that the files hold: all except those that name the folders."""
        stored = arrow_schema(without(self.schema, *self._partitions))
        return FileReader(root=self.root, options=self.folder.options, schema=stored)

    def stage_rows(self, rows: pa.Table) -> Staged:
        """Writes rows that the caller has, sorted as the files should be."""
        writer = self.writer()
        return Staged(writer.folder, tuple(writer.write([rows])))

    def discard(self, staged: Staged) -> None:
        """Removes files that will not be committed."""
        self.folder.delete_folder(staged.folder)

    def discard_files(self, files: Iterable[File]) -> None:
        """Removes staged files that will not be committed, and none that a commit names."""
        committed = {file.path for file in self.all_files}
        for path in {file.path for file in files} - committed:
            if self.folder.kind(path) == FILE:
                self.folder.system.delete_file(self.folder.path(path))

    def holds(self, staged: Staged) -> bool:
        """Whether a commit names any of these files. A commit that was reported as failed may have
        succeeded: an object store that gets a request twice answers the second with a conflict.
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
        """Commits as the version that follows this one, or raises LakeMoved; returns the version.
        `data_change` is False for a commit that only moves rows between files.
        """
        now = time.time_ns() // 1_000_000
        added, removed = list(add), list(remove)
        self._check_seen(added)
        self._flush(added)
        dropped = {file.path for file in removed}
        kept = [file.path for file in self.all_files if file.path not in dropped]
        files = fingerprint((*kept, *(file.path for file in added)))
        # What somebody else has changed stays known as changed as long as any file of it is left.
        left = _CHANGED if kept and self.is_as_left is False else files
        noted = {**txns, _FILES: left, _VERSION: self.version + 1}
        adding = [AddAction(f.path, f.size, f.partition, now, data_change, f.stats) for f in added]
        removing = [
            RemoveAction(f.path, data_change, now, f.size, dict(f.partition)) for f in removed
        ]
        properties = CommitProperties(
            custom_metadata={key: json.dumps(value) for key, value in info.items()},
            max_commit_retries=0,
            app_transactions=[Transaction(app, version) for app, version in noted.items()],
        )
        try:
            self._commit(adding, removing, properties)
        except CommitFailedError as error:
            raise LakeMoved(f"another job changed {self.root} first: {error}") from error
        except (DeltaError, OSError) as error:
            raise _commit_error(error, self.folder) from None
        self._flush_log(self.version + 1)
        return self.version + 1

    def _commit(
        self,
        adding: list[AddAction],
        removing: list[RemoveAction],
        properties: CommitProperties,
    ) -> None:
        assert self._asked_version is None, "an old version cannot be changed"
        partition_by = list(self._partitions)
        if self.delta is None:
            assert not removing, "a table without a commit has no files to remove"
            try:
                create_table_with_add_actions(
                    self.root,
                    Schema.from_arrow(commented(self.schema)),
                    adding,
                    mode="error",
                    partition_by=partition_by,
                    description=self.about,
                    configuration=_PROPERTIES,
                    storage_options=self.folder.options,
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
            Schema.from_arrow(arrow_schema(self.schema)),
            partition_by=partition_by,
            commit_properties=properties,
        )

    def widened(self) -> Table:
        """The table with all columns of its schema. One that an older version of Holdfast made gets
        those that are new; they are null in its rows.
        """
        if self.delta is None:
            return self
        wanted = Schema.from_arrow(commented(self.schema)).fields
        there = {field.name for field in self.delta.schema().fields}
        new = [field for field in wanted if field.name not in there]
        if not new:
            return self
        self.delta.alter.add_columns(new)
        widened = self.fresh()
        widened.settle()
        return widened

    def describe(self) -> int:
        """Gives a table that was made by an older version the comments that new ones have; returns
        how many there were to give. Delta takes one commit for each.
        """
        table = self.fresh()
        if table.delta is None:
            return 0
        known = {field.name: field.metadata.get(COMMENT) for field in table.delta.schema().fields}
        texts = {
            column: text
            for column, text in comments(self.schema).items()
            if text and column in known and known[column] != text
        }
        for column, text in texts.items():
            table.delta.alter.set_column_metadata(column, {COMMENT: text})
            table._flush_log(table.version)
        if not self.about or table.delta.metadata().description == self.about:
            return len(texts)
        table.delta.alter.set_table_description(self.about)
        table._flush_log(table.version)
        return len(texts) + 1

    def settle(self) -> None:
        """Flushes the last commit. The job that made it may have been killed before its flush, and
        what a commit names must not be confirmed to any log before that.
        """
        if self.exists and self.folder.kind(_commit_name(self.version)) == FILE:
            # Clean-up leaves only the checkpoint of a commit that was settled long ago.
            self._flush_log(self.version)

    @property
    def changed_at(self) -> int | None:
        """When the last commit was made, in milliseconds since 1970, by the clock of its maker."""
        try:
            last = [] if self.delta is None else self.delta.history(1)
        except (DeltaError, OSError):
            return None  # the commit was cleaned away
        found = last[0].get("timestamp") if last else None
        return found if isinstance(found, int) else None

    def vacuum(self, hours: int, *, dry_run: bool) -> list[str]:
        """Removes files that no version of the last `hours` names; returns their paths."""
        if self.delta is None:
            return []
        found: list[str] = self.delta.vacuum(
            hours, dry_run=dry_run, enforce_retention_duration=False, full=True
        )
        return found

    # --- staged files and their flush ----------------------------------------------------------

    def _check_seen(self, files: Sequence[File]) -> None:
        """Raises LakeNotSeen unless the driver sees every file as the task that wrote it has left
        it: a commit that names others would lose their rows.
        """
        sizes = self.folder.sizes([file.path for file in files])
        for file in files:
            if (seen := sizes.get(file.path)) != file.size:
                there = "it is not there" if seen is None else f"it has {seen} bytes"
                raise LakeNotSeen(
                    f"a task has written {self.uri(file)} with {file.size} bytes, but where the "
                    f"driver looks {there}; nothing was committed"
                )

    def _flush(self, files: Sequence[File]) -> None:
        local = self.folder.local
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
        local = self.folder.local
        if local is not None:
            log = local / "_delta_log"
            flush_file(local / _commit_name(version))
            fsync_dir(log)
            fsync_dir(local)


def _commit_name(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def fingerprint(paths: Iterable[str]) -> int:
    """A number for a set of files, whatever their order."""
    digests = (blake2b(path.encode(), digest_size=8).digest() for path in paths)
    return sum(int.from_bytes(digest) for digest in digests) & _LARGEST


def _commit_error(error: Exception, folder: Folder) -> Exception:
    text = str(error)
    if folder.local is None:
        return store_failure(error, folder.root, folder.options)
    if "No space left" in text or "os error 28" in text:
        return DiskFull(f"no room for a commit to {folder.root}: {text}")
    return JobFailed(f"the commit to {folder.root} failed: {text}")
