"""A log on the disk: of a home, also while its daemon runs and writes, or of a backup.

Each batch is a read transaction of its own, as when a node serves a range: a long one would keep
the WAL from being reset. So the log may be truncated between two batches, and each batch checks
the bounds again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import monotonic, time_ns
from typing import Final

import pyarrow as pa

from holdfast.node.core.engine import NodeEngine
from holdfast.node.home.opening import open_home
from holdfast.node.log import serve
from holdfast.node.recovery import backup_manifest
from holdfast.pipeline.logs.arrow import from_columns, from_joined
from holdfast.pipeline.logs.log import LogBounds, OpenedLog, ReadCommit, check_range, reading
from holdfast.protocol.log_wire import Confirmation, Registration
from holdfast.rules.errors import NewerSchema, StoreCorrupt
from holdfast.rules.filters import EVERYTHING, Filter
from holdfast.rules.limits import (
    COMMIT_PAGE_ROWS,
    SECOND_MS,
    SOURCE_BATCH_BYTES,
    SOURCE_BATCH_ROWS,
)
from holdfast.rules.rows import Columns
from holdfast.service.caller import LOCAL
from holdfast.storage.files.home import HomePaths, require_home, status_of
from holdfast.storage.files.watch import FolderWatch
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.log_columns import Joined, log_joined, log_joined_lightly
from holdfast.storage.sqlite.snapshot_copy import ReadOnlyDatabase, open_immutable, open_read_only

_TICK_NS: Final = 20_000_000
"""Longer than the clock of any file system takes for one tick."""
_WITH_COMMITS: Final = 15
"""The schema of a node's database that has commit records, and every later one."""
_Opening = Callable[[], AbstractContextManager[ReadOnlyDatabase]]


class DiskLog(OpenedLog):
    """What a home and a backup share: a database that is read."""

    dense = True

    def __init__(self, location: str, options: dict[str, str], opening: _Opening) -> None:
        super().__init__(location, options)
        self._opening = opening

    def place(self) -> LogBounds:
        with self.looked_at() as reader:
            return self._place(reader)

    def batches(
        self, epoch: int, start: int, stop: int, filter: Filter = EVERYTHING
    ) -> Iterator[pa.RecordBatch]:
        name = self.place().log if start < stop else ""
        light = True
        while start < stop:
            with reading(name, self.location, epoch, start, stop), self.looked_at() as reader:
                place = self._place(reader)
                check_range(place, epoch, start, stop)
                holes = _holes(reader, start, stop - 1)
                if holes:
                    batch, upto = _filtered(reader, place, start, stop, filter)
                    if filter == EVERYTHING:
                        _check_gaps(start, upto, batch, holes)
                elif filter == EVERYTHING:
                    batch, light = _whole(reader, place, start, stop, light=light)
                    upto = start + batch.num_rows - 1
                else:
                    batch, upto = _filtered(reader, place, start, stop, filter)
            if batch is not None:
                yield batch
            start = upto + 1

    def commits(self, known: Mapping[str, int]) -> Iterator[list[ReadCommit]]:
        with self.looked_at() as reader:
            if reader.schema() < _WITH_COMMITS:
                return
            meshes = [(row.mesh, row.number) for row in reader.quorum_list()]
        for mesh, last in meshes:
            at = known.get(mesh, 0) + 1
            while at <= last:
                with self.looked_at() as reader:
                    rows = reader.commit_range(mesh, at, min(COMMIT_PAGE_ROWS, last + 1 - at))
                    found = [ReadCommit(row.record, _bytes_at(reader, row.offset)) for row in rows]
                if not rows:
                    break
                yield found
                at = rows[-1].number + 1

    def _place(self, reader: ReadOnlyDatabase) -> LogBounds:
        name = self._options.get("name") or reader.peer_name()
        if not name:
            raise StoreCorrupt(f"the database in {self.location} does not say whose it is")
        place = LogBounds(name, reader.epoch(), *reader.log_bounds())
        self.dense = not _holes(reader, place.first, place.head)
        return place

    @contextmanager
    def looked_at(self) -> Iterator[ReadOnlyDatabase]:
        """The database in one consistent state, for the length of the block."""
        with self._opening() as reader:
            if reader.schema() > migrations.LATEST:
                raise NewerSchema(
                    f"{self.location} has schema version {reader.schema()}; "
                    f"this Holdfast knows {migrations.LATEST}"
                )
            yield reader


class HomeLog(DiskLog):
    """The log of a home, which other processes may have open too. It knows its readers."""

    def __init__(self, location: str, path: Path, options: dict[str, str]) -> None:
        self._root = path
        database = require_home(path).database
        super().__init__(location, options, lambda: open_read_only(database))
        self._files = (database, HomePaths(path).wal)
        self._watch: FolderWatch | None = None
        self._written: list[tuple[int, int]] = []
        self._looked_ns = 0

    def place(self) -> LogBounds:
        # Before the look: what is committed after it is then seen as a change by `wait`.
        self._written, self._looked_ns = self._now_written(), time_ns()
        return super().place()

    def wait(self, consumer: str, place: LogBounds, patience_ms: int) -> None:
        """Other processes write to the database, and the system tells of it."""
        if self._watch is None:
            self._watch = FolderWatch(self._root)
        until = monotonic() + patience_ms / SECOND_MS
        if self._looked_ns - max(written[1] for written in self._written) < _TICK_NS:
            # Another commit in the same tick of the file system's clock would not show.
            self._closed.wait(_TICK_NS / 1e9)
            return
        while self._now_written() == self._written and not self._closed.is_set():
            left_ms = int((until - monotonic()) * SECOND_MS)
            if left_ms <= 0:
                return
            self._watch.wait(left_ms)

    def close(self) -> None:
        super().close()
        if self._watch is not None:
            self._watch.close()

    def _now_written(self) -> list[tuple[int, int]]:
        """Size and time of the files that a commit writes to. They are not opened: closing one of
        them would drop the locks that SQLite has on it in this process.
        """
        found = (status_of(path) for path in self._files)
        return [(0, 0) if file is None else (file.st_size, file.st_mtime_ns) for file in found]

    def register(self, consumer: str, start: int) -> None:
        with self._engine() as engine:
            serve.register(engine, LOCAL, Registration(consumer=consumer, start=start))

    def confirm(self, consumer: str, epoch: int, offset: int) -> None:
        with self._engine() as engine:
            serve.confirm(
                engine, LOCAL, Confirmation(consumer=consumer, offset=offset, epoch=epoch)
            )

    @contextmanager
    def _engine(self) -> Iterator[NodeEngine]:
        # Opened only for one call: a job that is killed must not leave the home open.
        opened = open_home(self._root, nudges=False)
        try:
            yield opened.engine
        finally:
            opened.close()


class BackupLog(DiskLog):
    """The log in a backup."""

    def __init__(self, location: str, path: Path, options: dict[str, str]) -> None:
        manifest = backup_manifest.read_manifest(path)
        database = path / backup_manifest.DATABASE
        sizes = {file.path: file.size for file in manifest.files}
        if not database.is_file() or database.stat().st_size != sizes[backup_manifest.DATABASE]:
            # Checking the hash would mean to read all of it; damage inside is found when read.
            raise StoreCorrupt(
                f"the database in {location} is not the one that was backed up",
                hint="use another backup",
            )
        super().__init__(location, options, lambda: open_immutable(database))


def _whole(
    reader: ReadOnlyDatabase, place: LogBounds, start: int, stop: int, *, light: bool
) -> tuple[pa.RecordBatch, bool]:
    """The next entries, and whether the light query should be tried again for those after them."""
    try:
        joined, light = _joined(reader, start, stop, light=light)
        batch = None if joined is None else from_joined(place.log, place.epoch, joined)
    except UnicodeDecodeError:
        batch = None
    return (_with_odd_rows(reader, place, start, stop) if batch is None else batch), light


def _joined(
    reader: ReadOnlyDatabase, start: int, stop: int, *, light: bool
) -> tuple[Joined | None, bool]:
    query = (
        reader.connection,
        reader.leaf_column,
        start,
        stop,
        SOURCE_BATCH_ROWS,
        SOURCE_BATCH_BYTES,
    )
    rows = log_joined_lightly(*query) if light else None
    return (log_joined(*query), False) if rows is None else (rows, True)


def _with_odd_rows(
    reader: ReadOnlyDatabase, place: LogBounds, start: int, stop: int
) -> pa.RecordBatch:
    """The same entries row by row: one of them is odd, and must cost no other. StoreCorrupt, with
    the offset, if one is missing.
    """
    columns = _columns(reader, start, stop, EVERYTHING)
    for expected, offset in enumerate([*columns.offset, columns.upto + 1], start):
        if offset != expected:
            raise StoreCorrupt(
                f"the log has a gap: there is no entry at offset {expected}",
                hint="holdfast doctor looks what else is missing",
            )
    return from_columns(place.log, place.epoch, columns)


def _holes(reader: ReadOnlyDatabase, first: int, last: int) -> list[tuple[int, int]]:
    """Which of these offsets went with meshes that were deleted."""
    return reader.log_holes(first, last) if reader.may_have_holes else []


def _check_gaps(
    start: int, upto: int, batch: pa.RecordBatch | None, holes: list[tuple[int, int]]
) -> None:
    """StoreCorrupt if entries are missing that did not go with a mesh."""
    gone = sum(max(0, min(last, upto) - first + 1) for first, last in holes)
    rows = 0 if batch is None else batch.num_rows
    if rows + gone != upto - start + 1:
        raise StoreCorrupt(
            f"the log has a gap: between offsets {start} and {upto} entries are missing",
            hint="holdfast doctor looks what else is missing",
        )


def _filtered(
    reader: ReadOnlyDatabase, place: LogBounds, start: int, stop: int, filter: Filter
) -> tuple[pa.RecordBatch | None, int]:
    """The next batch, None if no entry passes the filter, and the last offset that was examined."""
    columns = _columns(reader, start, stop, filter)
    batch = from_columns(place.log, place.epoch, columns) if columns.offset else None
    return batch, columns.upto


def _columns(reader: ReadOnlyDatabase, start: int, stop: int, filter: Filter) -> Columns:
    return reader.log_columns(start, stop, SOURCE_BATCH_ROWS, SOURCE_BATCH_BYTES, filter, odd=True)


def _bytes_at(reader: ReadOnlyDatabase, offset: int) -> bytes | None:
    """The envelope of a commit; None if the log was truncated since."""
    entry = reader.log_get(offset)
    return None if entry is None else entry.raw
