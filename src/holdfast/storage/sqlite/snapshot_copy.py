"""Copies of a database: made while others write, and read without leaving a trace.

A copy is what one read transaction sees. SQLite's backup starts over whenever another connection
has written meanwhile, unless the copying connection holds a read transaction: then it goes on with
that state, however busy the writers are, and they do not wait for it. The price is that the WAL
cannot be reset before the copy is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw

from holdfast.rules.errors import HoldfastError, StoreCorrupt
from holdfast.rules.limits import BACKUP_STEP_PAGES
from holdfast.storage.files.home import size_of
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.connection import connect, typed
from holdfast.storage.sqlite.integrity import check
from holdfast.storage.sqlite.log_leaves import LEAF_SINCE
from holdfast.storage.sqlite.store import SqliteReader

HOLES_SINCE: Final = 19
"""The schema version from which on a log may have holes, where meshes were deleted."""
Progress = Callable[[int, int], None]
"""Called with how many bytes are done, of how many."""


def copy_database(source: Path, target: Path, progress: Progress | None = None) -> None:
    """One consistent state of a database that may be in use, as a new file. Not flushed yet."""
    with open_read_only(source) as reader, closing(_new(target)) as copy:
        # The first read fixes the state; before it, the transaction has none.
        reader.schema()
        page_bytes = reader.connection.pragma("page_size")
        assert isinstance(page_bytes, int)
        with copy.backup("main", reader.connection, "main") as work:
            while not work.done:
                work.step(BACKUP_STEP_PAGES)
                if progress is not None:
                    done = work.page_count - work.remaining
                    progress(done * page_bytes, work.page_count * page_bytes)


class ReadOnlyDatabase(SqliteReader):
    """A reader that knows its connection."""

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection)
        self.connection = connection
        if self.schema() < LEAF_SINCE:
            self.leaf_column = "NULL"
        self.may_have_holes = self.schema() >= HOLES_SINCE

    def schema(self) -> int:
        return migrations.version(self.connection)

    def problems(self, *, ours: bool = True) -> list[str]:
        """What the integrity check says; empty if all is well."""
        try:
            return check(self.connection, ours=ours)
        except (apsw.Error, UnicodeDecodeError) as error:
            return [str(typed(error))]


@contextmanager
def open_read_only(path: Path) -> Iterator[ReadOnlyDatabase]:
    """One state of a database as it is now. Nothing is written, not even a last checkpoint."""
    # Other readers that close at this moment remove an empty WAL.
    has_wal = size_of(path.with_name(f"{path.name}-wal")) > 0
    connection = connect(path, read_only=True)
    if has_wal:
        # Otherwise closing writes nothing either, and removes the empty files that opening made.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    with closing(connection), read_errors():
        connection.execute("BEGIN")
        yield ReadOnlyDatabase(connection)


@contextmanager
def open_immutable(path: Path) -> Iterator[ReadOnlyDatabase]:
    """A database file that nobody changes, such as a backup: also from a disk that is read-only."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    with read_errors():
        try:
            connection = apsw.Connection(f"file:{quote(str(path))}?immutable=1", flags=flags)
        except apsw.CantOpenError as error:
            raise StoreCorrupt(
                f"{path} cannot be opened: {error}", hint="use another backup"
            ) from error
        with closing(connection):
            yield ReadOnlyDatabase(connection)


def _new(path: Path) -> apsw.Connection:
    connection = apsw.Connection(
        str(path), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    )
    # The file is worth nothing before it is whole: it needs neither a journal nor syncs till then.
    connection.pragma("journal_mode", "off")
    connection.pragma("synchronous", 0)
    return connection


@contextmanager
def read_errors() -> Iterator[None]:
    """Turns the errors of SQLite during a read into ours."""
    try:
        yield
    except (apsw.Error, UnicodeDecodeError) as error:
        known = typed(error)
        if isinstance(known, HoldfastError):
            raise known from error
        # We only read here, and what we know to be there: a table that is not is damage too.
        raise StoreCorrupt(f"the database cannot be read: {error}") from error
